//! Workloads, arms, statistics, reports.
pub mod arm;
pub mod clock;
pub mod demand;
pub mod evidence;
pub mod kernel;
pub mod limit;
pub mod schedule;
pub mod slot;
pub mod stats;
pub mod units;
pub mod workload;
