//! What a sweep reports.

use serde::{Deserialize, Serialize};

use super::{ArmReport, Header, Machine, SkippedReport};

/// The question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sweep {
    /// At what size does the gain end?
    Size,
    /// What happens at high packet rates, and what does each packet cost in CPU?
    Rate,
    /// What do rx-usecs change, with and without polling? (cable)
    Coalesce,
    /// What does it cost to have many connections or sockets open?
    Open,
}

impl Sweep {
    /// The name on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Rate => "rate",
            Self::Coalesce => "coalesce",
            Self::Open => "open",
        }
    }
}

/// The interrupt delay that is compared with 0.
pub const RX_USECS: u32 = 100;

/// A sweep's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepReport {
    /// Schema, time and commit.
    #[serde(flatten)]
    pub header: Header,
    /// `size`, `rate`, `coalesce`, `open`.
    pub sweep: Sweep,
    /// The sentence that answers the question.
    pub answer: String,
    /// The machine and the settings.
    pub machine: Machine,
    /// Left to right.
    pub points: Vec<Point>,
    /// Arms that could not be measured at some point.
    pub skipped: Vec<SkippedReport>,
    /// What a reader has to know about these figures, in one line each.
    pub notes: Vec<String>,
}

/// One value of the swept setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Its text.
    pub label: String,
    /// Bytes, requests per second, microseconds (null for `adaptive`), or the number open.
    pub value: Option<f64>,
    /// The arms, in table order.
    pub arms: Vec<PointArm>,
}

/// One arm at one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PointArm {
    /// Its figures.
    #[serde(flatten)]
    pub arm: ArmReport,
    /// Microseconds on the server's CPU per request it answered; null if other programs hide it.
    pub server_cpu_us: Option<f64>,
    /// The cost of the open ones, in that sweep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<Open>,
}

/// The cost to an arm of many open connections or sockets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// p50 as a multiple of that with one open; null if either of the two is not valid.
    pub p50_ratio: Option<f64>,
    /// 95 % confidence interval; null with a single round.
    pub ci95: Option<[f64; 2]>,
    /// Bytes per idle connection or socket; the median over rounds. Null with one open.
    pub idle_bytes: Option<Weight>,
}

/// Bytes per idle object: a connection, which has both ends in this process, or a socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Weight {
    /// Growth of this process's resident memory; null if the kernel does not report it.
    pub process: Option<f64>,
    /// Growth of the kernel's objects, including those of other programs meanwhile; null without root, which
    /// reading them needs.
    pub kernel: Option<f64>,
}
