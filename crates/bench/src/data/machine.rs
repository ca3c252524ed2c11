//! The machine, the settings and what could not be measured: in every report.

use serde::{Deserialize, Serialize};

use crate::siblings::OneCore;

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
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
}

impl Machine {
    /// The machine without the settings.
    pub fn host(&self) -> Host {
        Host {
            busypoll: self.busypoll.clone(),
            kernel: self.kernel.clone(),
            cpu_model: self.cpu_model.clone(),
            cpus_online: self.cpus_online,
            virtual_machine: self.virtual_machine,
        }
    }
}

/// The machine and the settings of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// With `--mtu`: the MTU, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<usize>,
}

impl Machine {
    /// `, MTU 9000`; empty for the usual one.
    pub(crate) fn mtu_text(&self) -> String {
        self.mtu.map_or_else(String::new, |mtu| format!(", MTU {mtu}"))
    }
}

/// An arm that was not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedReport {
    /// Its name.
    pub name: String,
    /// The reason, and the remedy.
    pub reason: String,
}
