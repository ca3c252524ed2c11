//! A suite whose tests are separate programs: each is run by a command line, and ends with a status.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::environment::Environment;
use super::outcome::{Outcome, Outcomes, Suite, Variant};

/// Seconds that a test may take, unless the suite has a shorter limit of its own.
const LIMIT: &str = "90";
/// The tests are divided into so many parts.
const PARTS: usize = 3;

/// One process runs one test after the other, under one `busypoll run`.
const LOOP: &str = r#"
while IFS='	' read -r name words; do
    timeout -k 2 "$LIMIT" $words >"$SAID" 2>&1 </dev/null
    status=$?
    echo "---- $name: $status"
    cat "$SAID"
    if grep -Eq "$SKIPS" "$SAID"; then status=skipped; fi
    echo "$status $name" >>"$RESULTS"
done <"$LIST"
"#;

pub struct ByName {
    pub name: &'static str,
    pub version: String,
    /// Names of tests, and the command line of each.
    pub tests: Vec<(String, String)>,
    /// What a skipped test prints (a pattern), and the status it ends with (-1: none).
    pub skips: &'static str,
    pub skip_status: i32,
    pub environment: &'static [&'static str],
}

impl Suite for ByName {
    fn name(&self) -> &str {
        self.name
    }

    fn version(&self) -> String {
        self.version.clone()
    }

    fn parts(&self) -> Vec<String> {
        (0..PARTS.min(self.tests.len())).map(|part| part.to_string()).collect()
    }

    fn run(
        &self,
        env: &Environment,
        variant: Variant,
        part: &str,
        only: Option<&[String]>,
    ) -> Outcomes {
        let third: usize = part.parse().unwrap();
        let chosen = self.tests.iter().enumerate().filter(|(at, (name, _))| match only {
            Some(only) => only.contains(name),
            None => at % PARTS == third,
        });
        let text: String = chosen.map(|(_, (name, words))| format!("{name}\t{words}\n")).collect();
        let alone = if only.is_some() { "-alone" } else { "" };
        let file = |what: &str| env.folder.join(format!("{part}-{variant}{alone}.{what}"));
        let [list, results, said, log] = ["list", "results", "said", "log"].map(file);
        fs::write(&list, &text).unwrap();
        let _ = fs::remove_file(&results);
        let mut words =
            vec!["env".to_owned(), format!("LIMIT={LIMIT}"), format!("SKIPS={}", self.skips)];
        words.extend(self.environment.iter().map(|&variable| variable.to_owned()));
        let files = [("LIST", &list), ("RESULTS", &results), ("SAID", &said)];
        words.extend(files.map(|(name, path)| format!("{name}={}", path.display())));
        words.extend(["sh", "-c", LOOP].map(str::to_owned));
        env.run(variant, &words, &env.inside(), &log, Duration::from_secs(3600));
        let results = fs::read_to_string(&results).unwrap_or_default();
        let outcome = |line: &str| {
            let (status, name) = line.split_once(' ').unwrap();
            let outcome = match status.parse::<i32>() {
                Ok(0) => Outcome::Passed,
                Ok(status) if status == self.skip_status => Outcome::Skipped,
                Ok(124) => Outcome::Failed("it hung".into()),
                Ok(status) => Outcome::Failed(format!("status {status}")),
                Err(_) => Outcome::Skipped,
            };
            (name.to_owned(), outcome)
        };
        results.lines().map(outcome).collect()
    }
}

/// The output of a command, which must succeed.
pub fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}
