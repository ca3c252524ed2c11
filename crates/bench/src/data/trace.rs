//! What `busypoll trace` reports.

use serde::{Deserialize, Serialize};

use super::{Header, Host};

/// Where the time of a program's packets went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceReport {
    /// Schema, time and commit.
    #[serde(flatten)]
    pub header: Header,
    /// The machine.
    pub machine: Host,
    /// The sentence above the tables.
    pub answer: String,
    /// What was traced.
    pub target: String,
    /// For how long.
    pub seconds: f64,
    /// One of so many packets of each socket was traced, at the end.
    pub one_in: u64,
    /// Received packets, by socket or connection, the most first.
    pub receives: Vec<TraceFlow>,
    /// Sent ones.
    pub sends: Vec<TraceFlow>,
    /// The slowest of both.
    pub slowest: Vec<SlowPacket>,
    /// What tracing cost; null where the kernel does not measure it.
    pub cost: Option<TraceCost>,
    /// Records dropped because nothing read them in time.
    pub lost: u64,
    /// What has to be known about the figures, and what this kernel cannot show.
    pub notes: Vec<String>,
}

/// The packets of a socket or a connection, in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceFlow {
    /// `kernel` or `stack`.
    pub plane: String,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// The socket's own address.
    pub local: String,
    /// The peer's; null if it is not connected.
    pub peer: Option<String>,
    /// The program's threads' name.
    pub program: String,
    /// The process; 0 if several.
    pub pid: u32,
    /// Packets traced.
    pub packets: u64,
    /// How received packets were found; null of sent ones.
    pub found: Option<FoundCounts>,
    /// The stages, in their order; their means add up to the total's.
    pub stages_us: Vec<TraceStage>,
    /// All stages together.
    pub total_us: TraceStage,
}

/// How packets were found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundCounts {
    /// By a busy poll of the thread that took them.
    pub own_polls: u64,
    /// By another thread's.
    pub other_polls: u64,
    /// By a softirq.
    pub softirq: u64,
    /// By the kernel thread of their NAPI instance, or on the stack plane by its interrupt thread.
    pub napi_threads: u64,
    /// On the stack plane, by the thread that took them, which the interrupt woke.
    #[serde(default)]
    pub woken: u64,
    /// By no queue: a thread handed them up itself.
    pub direct: u64,
}

/// The times of a stage. A packet that did not pass it counts as 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceStage {
    /// Its name.
    pub stage: String,
    /// Mean, microseconds.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// Null with fewer than 100 packets.
    pub p99: Option<f64>,
    /// Null with fewer than 1,000.
    pub p99_9: Option<f64>,
    /// The longest.
    pub max: f64,
    /// Packets by time: the end of each power of two, in microseconds, and how many were below it and not below the last.
    pub histogram: Vec<(f64, u64)>,
}

/// One of the slowest packets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlowPacket {
    /// `received` or `sent`.
    pub direction: String,
    /// From the first stage to the last, microseconds.
    pub total_us: f64,
    /// The longest stage.
    pub stage: String,
    /// How long it took.
    pub stage_us: f64,
    /// The CPU where it passed.
    pub cpu: u32,
    /// The socket.
    pub socket: String,
    /// What happened, in one line.
    pub story: String,
}

/// What tracing cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TraceCost {
    /// CPU time of the tracer's programs in the kernel, as a share of one CPU.
    pub kernel_cpu_share: f64,
    /// The same for each packet that was seen.
    pub per_packet_ns: Option<f64>,
    /// CPU time of the command itself, as a share of one CPU.
    pub command_cpu_share: f64,
}
