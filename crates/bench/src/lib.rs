//! The benchmark behind `busypoll bench`: workloads, arms, statistics, reports.
//!
//! An [arm](arm::Arm) is one way to carry a request and to wait for its response. Arms run in
//! interleaved [rounds](schedule), each once per round in a [slot], on pinned CPUs, between two
//! readings of the machine's own [counters](evidence). The [report](summary) gives medians over rounds and
//! paired ratios with confidence intervals, and calls an arm invalid if it did not do what its name says.
//!
//! A program can do what the command does:
//!
//! ```no_run
//! use busypoll_bench::cli::{BenchArgs, run_bench};
//! use clap::Parser;
//!
//! #[derive(Parser)]
//! struct Command {
//!     #[command(flatten)]
//!     bench: BenchArgs,
//! }
//!
//! let options = ["bench", "--arms", "kernel-udp-*", "--json", "udp.json"];
//! run_bench(&Command::parse_from(options).bench, &mut std::io::stdout())?;
//! # Ok::<(), busypoll_bench::Error>(())
//! ```

pub mod answer;
pub mod arm;
pub mod bare;
mod beside;
pub mod chart;
pub mod cli;
pub mod clock;
pub mod cpus;
pub mod data;
pub mod demand;
mod error;
pub mod evidence;
pub mod fix;
pub mod foreign;
mod interrupt;
pub mod kernel;
pub mod limit;
pub mod local;
pub mod machine;
pub mod model;
mod notes;
pub mod open;
mod page;
pub mod remote;
pub mod report;
pub mod run;
pub mod schedule;
pub mod serve;
pub mod siblings;
mod side_by_side;
pub mod slot;
pub mod stack;
pub mod stages;
pub mod stamps;
pub mod stats;
pub mod summary;
pub mod sweep;
pub mod text;
pub mod throughput;
pub mod units;
pub mod workload;

pub use error::Error;
