//! What `--stages` reports.

use serde::{Deserialize, Serialize};

use super::{Header, Machine, SkippedReport};
use crate::arm::Mode;

/// The stages of receives, by arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StagesReport {
    /// Schema, time and commit.
    #[serde(flatten)]
    pub header: Header,
    /// The machine and the settings.
    pub machine: Machine,
    /// The sentence above the table.
    pub answer: String,
    /// The cost of one time stamp; each stage except the first includes about one.
    pub clock_overhead_ns: f64,
    /// By arm.
    pub arms: Vec<ArmStages>,
    /// Arms that could not be measured.
    pub skipped: Vec<SkippedReport>,
}

/// One arm's stages; medians in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArmStages {
    /// The arm.
    pub arm: String,
    /// How it waits.
    pub mode: Mode,
    /// From the ring to the return of recv.
    pub stages_us: Vec<Stage>,
    /// From the doorbell to recv's return.
    pub total_us: f64,
}

/// One stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Its name.
    pub stage: String,
    /// Median, microseconds.
    pub p50: f64,
    /// Microseconds.
    pub p99: f64,
}
