//! The expected differences, each with its reason: `expected.txt`.
//!
//! A line is `SUITE TEST PLANE STATE REASON`, separated by blanks. PLANE is `kernel`, `stack`, `memory`, or `both` for
//! the first two; a `*` at the end of TEST stands for anything. STATE is `differs`, or `varies` where either result is
//! accepted. A line whose REASON is `=` has the reason of the line above.

use std::fs;
use std::path::Path;

use super::outcome::Variant;

pub struct Line {
    pub suite: String,
    pub test: String,
    variants: Vec<Variant>,
    pub varies: bool,
    pub reason: String,
}

pub struct Table {
    pub lines: Vec<Line>,
}

impl Table {
    pub fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suites/expected.txt");
        let text = fs::read_to_string(path).unwrap();
        let mut lines: Vec<Line> = Vec::new();
        for text in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = text.split_ascii_whitespace();
            let [suite, test, plane, state] = std::array::from_fn(|_| {
                words.next().unwrap_or_else(|| panic!("too few words: {text}"))
            });
            let reason = words.collect::<Vec<_>>().join(" ");
            let reason = match &*reason {
                "" => panic!("no reason: {text}"),
                "=" => {
                    lines.last().unwrap_or_else(|| panic!("no line above: {text}")).reason.clone()
                }
                _ => reason,
            };
            let variants = match plane {
                "kernel" => vec![Variant::Kernel],
                "stack" => vec![Variant::Stack],
                "memory" => vec![Variant::Memory],
                "both" => vec![Variant::Kernel, Variant::Stack],
                _ => panic!("no plane: {text}"),
            };
            let varies = match state {
                "differs" => false,
                "varies" => true,
                _ => panic!("no state: {text}"),
            };
            lines.push(Line { suite: suite.into(), test: test.into(), variants, varies, reason });
        }
        Self { lines }
    }

    pub fn find(&self, suite: &str, test: &str, variant: Variant) -> Option<&Line> {
        let is_it = |l: &&Line| l.suite == suite && l.covers(test) && l.variants.contains(&variant);
        self.lines.iter().find(is_it)
    }
}

impl Line {
    pub fn covers(&self, test: &str) -> bool {
        match self.test.strip_suffix('*') {
            Some(beginning) => test.starts_with(beginning),
            None => self.test == test,
        }
    }

    pub fn planes(&self) -> String {
        self.variants.iter().map(Variant::to_string).collect::<Vec<_>>().join(", ")
    }
}
