//! What becomes of a test, and what a suite is.

use std::collections::BTreeMap;
use std::fmt;

use super::place::Place;

/// How a suite is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    Plain,
    Kernel,
    Stack,
}

impl Way {
    pub const ALL: [Self; 3] = [Self::Plain, Self::Kernel, Self::Stack];
    pub const PLANES: [Self; 2] = [Self::Kernel, Self::Stack];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Plain => "plain",
            Self::Kernel => "kernel",
            Self::Stack => "stack",
        })
    }
}

/// What has become of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Skipped,
    /// And what was said, in a line.
    Failed(String),
}

impl Outcome {
    pub fn is_as(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Skipped => f.write_str("skipped"),
            Self::Failed(why) => write!(f, "failed ({why})"),
        }
    }
}

/// By name of the test.
pub type Outcomes = BTreeMap<String, Outcome>;

/// A suite of tests that somebody else has written.
pub trait Suite: Sync {
    fn name(&self) -> &str;
    fn version(&self) -> String;
    /// What is run at a time, each part all three ways.
    fn parts(&self) -> Vec<String>;
    /// Runs a part, or these tests of it.
    fn run(&self, place: &Place, way: Way, part: &str, only: Option<&[String]>) -> Outcomes;
}
