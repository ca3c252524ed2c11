//! The outcome of a test, and the interface of a suite.

use std::collections::BTreeMap;
use std::fmt;

use super::environment::Environment;

/// How a suite is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    Plain,
    Kernel,
    Stack,
    /// Plain, with the kernel's loopback in place of the mirror.
    Loopback,
    /// The same on the stack plane: over memory.
    Memory,
}

impl Variant {
    pub const ALL: [Self; 5] =
        [Self::Plain, Self::Kernel, Self::Stack, Self::Loopback, Self::Memory];
    pub const PLANES: [Self; 3] = [Self::Kernel, Self::Stack, Self::Memory];

    /// What the results must equal.
    pub fn baseline(self) -> Self {
        if self.has_mirror() { Self::Plain } else { Self::Loopback }
    }

    pub fn has_mirror(self) -> bool {
        !matches!(self, Self::Loopback | Self::Memory)
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Plain => "plain",
            Self::Kernel => "kernel",
            Self::Stack => "stack",
            Self::Loopback => "loopback",
            Self::Memory => "memory",
        })
    }
}

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Skipped,
    /// With a message in one line.
    Failed(String),
}

impl Outcome {
    pub fn is_same_kind(&self, other: &Self) -> bool {
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

/// Outcomes by name of the test.
pub type Outcomes = BTreeMap<String, Outcome>;

/// A suite of tests of another project.
pub trait Suite: Sync {
    fn name(&self) -> &str;
    fn version(&self) -> String;
    /// What is run at a time, each part in all variants.
    fn parts(&self) -> Vec<String>;
    /// Runs a part, or only these tests of it.
    fn run(
        &self,
        env: &Environment,
        variant: Variant,
        part: &str,
        only: Option<&[String]>,
    ) -> Outcomes;
}
