//! The differences that are expected, each with its reason: `expected.txt`.
//!
//! A line is `SUITE TEST PLANE STATE REASON`, by blanks; `both` stands for either plane, a `*` at the end of TEST for
//! anything. The states: `differs` always; `varies`, where a run may go either way. A line whose TEST is `=` gives the
//! reason of the line above.

use std::fs;
use std::path::Path;

use super::outcome::Way;

pub struct Line {
    pub suite: String,
    pub test: String,
    ways: Vec<Way>,
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
            let [suite, test, plane, state] =
                std::array::from_fn(|_| words.next().unwrap_or_else(|| panic!("short: {text}")));
            let reason = words.collect::<Vec<_>>().join(" ");
            let reason = match &*reason {
                "" => panic!("no reason: {text}"),
                "=" => {
                    lines.last().unwrap_or_else(|| panic!("nothing above: {text}")).reason.clone()
                }
                _ => reason,
            };
            let ways = match plane {
                "kernel" => vec![Way::Kernel],
                "stack" => vec![Way::Stack],
                "both" => Way::PLANES.to_vec(),
                _ => panic!("no plane: {text}"),
            };
            let varies = match state {
                "differs" => false,
                "varies" => true,
                _ => panic!("no state: {text}"),
            };
            lines.push(Line { suite: suite.into(), test: test.into(), ways, varies, reason });
        }
        Self { lines }
    }

    pub fn find(&self, suite: &str, test: &str, way: Way) -> Option<&Line> {
        let is_it = |l: &&Line| l.suite == suite && l.covers(test) && l.ways.contains(&way);
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
        self.ways.iter().map(Way::to_string).collect::<Vec<_>>().join(", ")
    }
}
