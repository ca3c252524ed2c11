//! What `--workload stream`, `crr` and `loss` report.

use serde::{Deserialize, Serialize};

use super::{Header, Machine, SkippedReport};
use crate::arm::{Mode, Nic, Placement, Plane, Protocol};
use crate::stats::RttUs;

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThroughputReport {
    /// Schema, time and commit.
    #[serde(flatten)]
    pub header: Header,
    /// The machine and the settings.
    pub machine: Machine,
    /// `tcp-stream`, `tcp-crr` or `tcp-loss`.
    pub workload: String,
    /// The path of `tcp-loss`; null for the others.
    #[serde(default)]
    pub path: Option<PathReport>,
    /// Sorted by rate, the highest first.
    pub arms: Vec<LineReport>,
    /// What could not be measured.
    pub skipped: Vec<SkippedReport>,
    /// Ratios between arms of this run.
    pub comparisons: Vec<RateComparison>,
    /// What a reader has to know about these figures, in one line each.
    pub notes: Vec<String>,
    /// The sentence below the table.
    pub answer: String,
}

/// A long path that loses packets.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PathReport {
    /// Packets lost in each direction, per cent.
    pub loss_percent: f64,
    /// The round trip, milliseconds.
    pub rtt_ms: f64,
}

/// One measured arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LineReport {
    /// Its name.
    pub name: String,
    /// The stack.
    pub plane: Plane,
    /// The link.
    pub nic: Nic,
    /// Always TCP; the bare arm carries as many bytes per frame as TCP would.
    pub protocol: Protocol,
    /// How both ends wait.
    pub mode: Mode,
    /// The CPUs of the ends.
    pub placement: Placement,
    /// Bits of data, or connections, per second: the median over rounds.
    pub per_second: f64,
    /// 95 % confidence interval of `per_second`; null with a single round.
    pub per_second_ci95: Option<[f64; 2]>,
    /// `bit/s` or `connections/s`.
    pub unit: String,
    /// Microseconds of CPU, whole machine, per MiB or per connection; null if other programs hide it.
    pub service_demand_us: Option<f64>,
    /// The duration of a connection; null for streams.
    pub connection_us: Option<RttUs>,
    /// Packets found by busy polling, both ends, per MiB or per connection.
    pub busy_polled_packets: f64,
    /// Whether it did what its name says. Always true for streams, as a receiver that always has data does not poll.
    pub valid: bool,
    /// The reason, if not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One arm's rate as a multiple of another's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RateComparison {
    /// The arm.
    pub arm: String,
    /// What it is compared with.
    pub baseline: String,
    /// Above 1: the arm is faster.
    pub rate_ratio: f64,
    /// 95 % confidence interval; null with a single round.
    pub ci95: Option<[f64; 2]>,
}
