//! Runs a suite plain and on both planes, and reports where a plane differs from plain.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::time::Instant;
use std::{fmt, thread};

use super::environment::{Counts, Environment};
use super::expected::Table;
use super::outcome::{Outcome, Outcomes, Suite, Variant};

/// How often a test is run again, by itself, on the plane and plain, before it counts as a difference.
const RERUNS: usize = 3;

/// The results of a suite.
pub struct Report {
    pub suite: String,
    pub version: String,
    pub outcomes: BTreeMap<Variant, Outcomes>,
    pub counts: BTreeMap<Variant, Counts>,
    /// Tests whose plain result varies.
    pub flaky: BTreeSet<String>,
    /// Differences that did not occur again, and expected ones that vary.
    pub transient: Vec<String>,
    /// What is not expected: differences, listed differences that did not occur, a variant without check_evidence.
    pub unexpected: Vec<String>,
    /// Expected differences that occurred.
    pub expected_seen: usize,
    seconds: u64,
}

/// Parts that run at the same time: a suite spends much of its time asleep.
const AT_A_TIME: usize = 3;

pub fn run(suite: &dyn Suite, table: &Table) -> Report {
    let (started, version) = (Instant::now(), suite.version());
    let parts = Mutex::new(suite.parts().into_iter().collect::<VecDeque<_>>());
    let whole = Mutex::new(Report::new(suite.name(), version));
    let jobs = parts.lock().unwrap().len().min(AT_A_TIME);
    thread::scope(|scope| {
        for job in 0..jobs {
            let (parts, whole) = (&parts, &whole);
            scope.spawn(move || {
                // Only one process at a time can have an interface: each job has hosts of its own.
                let env = Environment::new(suite.name(), job);
                let next = || parts.lock().unwrap().pop_front();
                while let Some(part) = next() {
                    let report = run_part(suite, &env, table, &part);
                    whole.lock().unwrap().add(report);
                }
            });
        }
    });
    let mut report = whole.into_inner().unwrap();
    report.check_evidence();
    report.seconds = started.elapsed().as_secs();
    report
}

fn run_part(suite: &dyn Suite, env: &Environment, table: &Table, part: &str) -> Report {
    let mut report = Report::new(suite.name(), String::new());
    for variant in Variant::ALL {
        let (before, since) = (env.counts(), Instant::now());
        let outcomes = suite.run(env, variant, part, None);
        let counts = env.counts().since(before);
        let (took, total) = (since.elapsed().as_secs(), tally(&outcomes));
        println!("{} {part} {variant}: {total}, {took} s, {counts}", suite.name());
        report.counts.insert(variant, counts);
        report.outcomes.insert(variant, outcomes);
    }
    for variant in Variant::PLANES {
        report.compare(suite, env, table, part, variant);
    }
    report
}

impl Report {
    fn new(suite: &str, version: String) -> Self {
        Self {
            suite: suite.into(),
            version,
            outcomes: BTreeMap::new(),
            counts: BTreeMap::new(),
            flaky: BTreeSet::new(),
            transient: Vec::new(),
            unexpected: Vec::new(),
            expected_seen: 0,
            seconds: 0,
        }
    }

    fn add(&mut self, part: Self) {
        for (variant, outcomes) in part.outcomes {
            self.outcomes.entry(variant).or_default().extend(outcomes);
        }
        for (variant, counts) in part.counts {
            *self.counts.entry(variant).or_default() += counts;
        }
        self.flaky.extend(part.flaky);
        self.transient.extend(part.transient);
        self.unexpected.extend(part.unexpected);
        self.expected_seen += part.expected_seen;
    }

    fn compare(
        &mut self,
        suite: &dyn Suite,
        env: &Environment,
        table: &Table,
        part: &str,
        variant: Variant,
    ) {
        let names: BTreeSet<String> =
            self.outcomes.values().flat_map(|o| o.keys().cloned()).collect();
        for name in names {
            let of = |variant: Variant| self.outcomes[&variant].get(&name).cloned();
            let (plain, on_plane_first) = (of(variant.baseline()), of(variant));
            let line = table.find(suite.name(), &name, variant);
            if same(&plain, &on_plane_first) {
                if let Some(line) = line.filter(|line| !line.varies && !line.test.ends_with('*')) {
                    let reason = &line.reason;
                    self.unexpected
                        .push(format!("{name}, {variant}: as plain, though expected: {reason}"));
                }
                continue;
            }
            if line.is_some() {
                self.expected_seen += 1;
                continue;
            }
            let only = [name.clone()];
            let again = |variant| suite.run(env, variant, part, Some(&only)).remove(&name);
            let mut on_plane: Vec<_> = (0..RERUNS).map(|_| again(variant)).collect();
            let in_plain: Vec<_> = (0..RERUNS).map(|_| again(variant.baseline())).collect();
            let words = format!(
                "{name}, {variant}: {} (plain {})",
                describe(&on_plane_first),
                describe(&plain)
            );
            if in_plain.iter().any(|outcome| !same(outcome, &plain))
                || !runs_alone(&plain, &in_plain)
            {
                self.flaky.insert(name.clone());
                self.transient.push(format!("{words}; the plain result varies too"));
            } else if on_plane.iter().all(|outcome| same(outcome, &plain)) {
                self.transient.push(format!("{words}; {RERUNS} times as plain when run again"));
                // The last result is counted.
                let last = on_plane.pop().flatten().map(|outcome| (name, outcome));
                self.outcomes.get_mut(&variant).unwrap().extend(last);
            } else {
                self.unexpected.push(words);
            }
        }
    }

    /// Checks that the packets went over the wire, and on the stack plane past the kernel's stack; and that memory
    /// carried what loopback does without it. The kernel plane is not checked: what the mirror sends back often
    /// arrives within the send, before any thread polls.
    fn check_evidence(&mut self) {
        for (variant, counts) in &self.counts {
            let missing = match variant {
                Variant::Plain | Variant::Kernel => {
                    (counts.came < 100).then_some("next to nothing came over the wire")
                }
                Variant::Stack => (counts.kernel * 4 > counts.came * 3)
                    .then_some("the kernel's stack has seen more than three quarters"),
                Variant::Loopback => None,
                // Their tests connect before they wait for a listener.
                Variant::Memory if ["libuv", "tokio"].contains(&&*self.suite) => None,
                // Where a process does not get its CPU in time the kernel has its connections for a second, in which one
                // module may send a third of all.
                Variant::Memory => (counts.loopback * 10
                    > self.counts[&Variant::Loopback].loopback * 9)
                    .then_some("loopback has carried more than nine tenths"),
            };
            if let Some(missing) = missing {
                self.unexpected.push(format!("{variant}: {missing}: {counts}"));
            }
        }
    }

    pub fn passed(&self, variant: Variant) -> usize {
        self.outcomes[&variant].values().filter(|outcome| **outcome == Outcome::Passed).count()
    }
}

fn same(a: &Option<Outcome>, b: &Option<Outcome>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.is_same_kind(b),
        (None, None) => true,
        _ => false,
    }
}

/// Whether the test gave a result each time it was run alone, if it gave one in the suite.
fn runs_alone(plain: &Option<Outcome>, again: &[Option<Outcome>]) -> bool {
    plain.is_none() || again.iter().all(Option::is_some)
}

fn describe(outcome: &Option<Outcome>) -> String {
    outcome.as_ref().map_or("not run".into(), Outcome::to_string)
}

fn tally(outcomes: &Outcomes) -> String {
    let count =
        |kind: &Outcome| outcomes.values().filter(|outcome| outcome.is_same_kind(kind)).count();
    let failed = count(&Outcome::Failed(String::new()));
    format!(
        "{} passed, {failed} failed, {} skipped",
        count(&Outcome::Passed),
        count(&Outcome::Skipped)
    )
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.came += more.came;
        self.kernel += more.kernel;
        self.polled += more.polled;
        self.loopback += more.loopback;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { came, kernel, polled, loopback } = self;
        write!(
            f,
            "{came} packets, {kernel} of them through the kernel's stack, {polled} busy polled by it; \
             {loopback} at loopback"
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}, {} s", self.suite, self.version, self.seconds)?;
        for (variant, outcomes) in &self.outcomes {
            writeln!(f, "  {variant:8} {}; {}", tally(outcomes), self.counts[variant])?;
        }
        writeln!(f, "  {} expected differences expected_seen", self.expected_seen)?;
        for line in &self.transient {
            writeln!(f, "  came and went: {line}")?;
        }
        for line in &self.unexpected {
            writeln!(f, "  NOT EXPECTED: {line}")?;
        }
        Ok(())
    }
}
