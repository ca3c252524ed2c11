//! What a run of round trips reports.

use serde::{Deserialize, Serialize};

use super::{Header, Machine, SkippedReport};
use crate::arm::{Between, Mode, Nic, Placement, Plane, Protocol};
use crate::evidence::Evidence;
use crate::stats::RttUs;

/// The workload of FIX sessions.
pub const FIX: &str = "fix";

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundTripReport {
    /// Schema, time and commit.
    #[serde(flatten)]
    pub header: Header,
    /// [`FIX`] where requests are orders of a FIX session; else none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The machine and the settings.
    pub machine: Machine,
    /// The physical limit of any round trip.
    pub limit: Limit,
    /// Measured arms, sorted by p50.
    pub arms: Vec<ArmReport>,
    /// Arms that could not be measured.
    pub skipped: Vec<SkippedReport>,
    /// Ratios between arms of this run.
    pub comparisons: Vec<Comparison>,
    /// What a reader has to know about these figures, in one line each.
    pub notes: Vec<String>,
    /// The sentence below the table.
    pub answer: String,
}

impl RoundTripReport {
    /// The arms with this kind of ends.
    pub fn between(&self, between: Between) -> impl Iterator<Item = &ArmReport> + Clone {
        self.arms.iter().filter(move |arm| arm.between == between)
    }

    /// The ratio of one arm to another, if it was taken.
    pub fn comparison(&self, arm: &str, baseline: &str) -> Option<&Comparison> {
        self.comparisons.iter().find(|c| c.arm == arm && c.baseline == baseline)
    }
}

/// The physical limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Median round trip of a cache line between the two CPUs; null if there is only one, and between
    /// machines.
    pub shared_memory_rtt_us: Option<f64>,
}

/// One measured arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ArmReport {
    pub name: String,
    /// `processes`: the ends are two processes of this machine; `hosts`: each has a network of its own.
    #[serde(default)]
    pub between: Between,
    pub plane: Plane,
    /// `veth`, `xdp`, `cable` or `tap`; with `--host` the kernel's arms cross a real interface, `device`. Between
    /// processes `loopback`, `unix`, `cable` or `memory`.
    pub nic: Nic,
    /// Of AF_UNIX, `udp` stands for datagrams and `tcp` for a stream.
    pub protocol: Protocol,
    pub mode: Mode,
    pub placement: Placement,
    /// For the sweep's 64 KiB a datagram carries 65507 bytes.
    pub request_bytes: usize,
    pub response_bytes: usize,
    pub transactions: u64,
    pub rtt_us: RttUs,
    /// From the client's send to the server's parser; with `--workload fix` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_way_us: Option<RttUs>,
    /// 95 % confidence interval of `rtt_us.p50`; null with a single round.
    pub p50_ci95: Option<[f64; 2]>,
    pub transactions_per_second: f64,
    /// Microseconds of CPU per transaction, whole machine; null if other programs hide it.
    pub service_demand_us: Option<f64>,
    pub evidence: Evidence,
    /// False if the arm did not do what its name says.
    pub valid: bool,
    /// Why not; null if valid.
    pub reason: Option<String>,
}

impl ArmReport {
    /// The evidence in a few words.
    pub fn evidence_summary(&self) -> String {
        self.evidence.summary(self.mode, self.transactions)
    }
}

/// One arm's median round trip as a multiple of another's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The arm.
    pub arm: String,
    /// What it is compared with; `shared-memory` is the limit.
    pub baseline: String,
    /// Below 1: the arm is faster.
    pub p50_ratio: f64,
    /// 95 % confidence interval; null with a single round.
    pub ci95: Option<[f64; 2]>,
}

/// The baseline of an arm: the best valid blocking one of the kernel's UDP or TCP, of the same protocol between the same
/// kind of ends.
pub fn best_blocking<'a>(arms: &'a [ArmReport], of: &ArmReport) -> Option<&'a ArmReport> {
    arms.iter()
        .filter(|a| a.plane == Plane::Kernel && a.mode == Mode::Blocking && a.nic != Nic::Unix)
        .filter(|a| a.valid && a.protocol == of.protocol && a.between == of.between)
        .min_by(|a, b| a.rtt_us.p50.total_cmp(&b.rtt_us.p50))
}
