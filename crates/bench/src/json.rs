//! The report as data: what `--json` writes and what the table is made from. Scripts depend on the field
//! names.

use std::fs::{self, OpenOptions};
use std::path::Path;

use serde::Serialize;

use crate::arm::{Mode, Nic, Placement, Plane, Protocol};
use crate::evidence::Evidence;
use crate::siblings::OneCore;
use crate::stats::RttUs;

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
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
}

/// The machine and the settings of the run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// Version of this program.
    pub busypoll: String,
    /// `uname -r`.
    pub kernel: String,
    /// As `/proc/cpuinfo` names it.
    pub cpu_model: String,
    /// CPUs online.
    pub cpus_online: usize,
    /// Whether it is a virtual machine.
    pub virtual_machine: bool,
    /// The client's CPU.
    pub client_cpu: u32,
    /// The server's address with `--host`; null on this machine.
    pub server: Option<String>,
    /// The server's CPU; null if there is only one, and for a server on another machine.
    pub server_cpu: Option<u32>,
    /// Whether the two share a core.
    pub share_core: bool,
    /// If topology does not say so, how often they did. Not measured with `--workload loss` and `--host`.
    pub one_core: OneCore,
    /// What a clock reading costs; every round trip includes one.
    pub clock_overhead_ns: f64,
    /// The idle share of all CPU time while the benchmark did nothing, 0 to 1; null if it was not measured
    /// (`--stages`, `--workload loss`).
    pub idle_cpu_share: Option<f64>,
    /// Rounds.
    pub rounds: usize,
    /// Seconds for all arms.
    pub duration_s: f64,
    /// Microseconds between requests; 0 = flat out.
    pub gap_us: f64,
    /// `SO_BUSY_POLL` of busy-poll arms, microseconds.
    pub busy_poll_us: f64,
}

/// The physical limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limit {
    /// Median round trip of a cache line between the two CPUs; null if there is only one, and between
    /// machines.
    pub shared_memory_rtt_us: Option<f64>,
}

/// One measured arm.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct ArmReport {
    pub name: String,
    pub plane: Plane,
    /// `veth`, `xdp`, `cable` or `tap`; with `--host` the kernel's arms cross a real interface, `device`.
    pub nic: Nic,
    pub protocol: Protocol,
    pub mode: Mode,
    pub placement: Placement,
    /// For the sweep's 64 KiB a datagram carries 65507 bytes.
    pub request_bytes: usize,
    pub response_bytes: usize,
    pub transactions: u64,
    pub rtt_us: RttUs,
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
    /// The evidence in a few words, for the table.
    #[serde(skip)]
    pub evidence_summary: String,
}

/// An arm that was not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedReport {
    /// Its name.
    pub name: String,
    /// The reason, and the remedy.
    pub reason: String,
}

/// One arm's median round trip as a multiple of another's.
#[derive(Debug, Clone, PartialEq, Serialize)]
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

/// Checks whether a report can be written to `path`. Creates no file permanently.
///
/// # Errors
/// One line naming the file.
pub fn check(path: &Path) -> Result<(), String> {
    let is_there = path.metadata();
    // Opening and closing a pipe would make its reader see the end.
    if is_there.as_ref().is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) {
        return Ok(());
    }
    OpenOptions::new().append(true).create(true).open(path).map_err(|e| {
        let path = path.display();
        format!("cannot write {path}: {e}; name a file in a folder where you may write")
    })?;
    if is_there.is_err() {
        // If it cannot be removed, it stays empty until it is written.
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// Any report as text.
///
/// # Errors
/// One line.
pub fn text(report: &impl Serialize) -> Result<String, String> {
    let text =
        serde_json::to_string_pretty(report).map_err(|e| format!("cannot write JSON: {e}"))?;
    Ok(text + "\n")
}

/// Writes any report to a file.
///
/// # Errors
/// One line naming the file.
pub fn write(path: &Path, report: &impl Serialize) -> Result<(), String> {
    fs::write(path, text(report)?).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    /// The schema that scripts rely on. A change here breaks them.
    #[test]
    fn the_schema_is_stable() {
        let json: serde_json::Value =
            serde_json::from_str(&serde_json::to_string(&sample()).expect("serializes"))
                .expect("valid JSON");
        let keys = |v: &serde_json::Value| -> Vec<String> {
            v.as_object().map(|o| o.keys().cloned().collect()).unwrap_or_default()
        };
        let sorted = |names: &str| -> Vec<String> {
            let mut names: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
            names.sort();
            names
        };
        assert_eq!(keys(&json), sorted("machine limit arms skipped comparisons"));
        assert_eq!(keys(&json["limit"]), ["shared_memory_rtt_us"]);
        assert_eq!(
            keys(&json["arms"][0]),
            sorted(
                "name plane nic protocol mode placement request_bytes response_bytes transactions \
                 rtt_us p50_ci95 transactions_per_second service_demand_us evidence valid reason"
            )
        );
        assert_eq!(
            keys(&json["arms"][0]["rtt_us"]),
            sorted("min p50 p90 p99 p99_9 p99_99 max mean")
        );
        assert_eq!(keys(&json["skipped"][0]), sorted("name reason"));
        assert_eq!(keys(&json["comparisons"][0]), sorted("arm baseline p50_ratio ci95"));
        assert_eq!(json["arms"][0]["plane"], "kernel");
        assert_eq!(json["arms"][0]["nic"], "veth");
        assert_eq!(json["arms"][0]["placement"], "separate-cpus");
        assert_eq!(json["arms"][0]["mode"], "busy-poll");
        assert_eq!(json["comparisons"][0]["ci95"], serde_json::json!([0.55, 0.65]));
    }

    #[test]
    fn an_unwritable_file_is_named_in_the_error() {
        let error = write(Path::new("/nowhere/at/all.json"), &sample()).expect_err("no folder");
        assert!(error.contains("/nowhere/at/all.json") && error.lines().count() == 1, "{error}");
    }
}
