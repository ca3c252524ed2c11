//! Reports as data: what `--json` writes and `busypoll report` reads, and what texts, charts and pages are made from.
//! Scripts depend on the field names; docs/json has the schemas.

mod file;
mod header;
mod machine;
mod round_trips;
mod rounded;
#[cfg(test)]
pub(crate) mod sample;
mod stages;
mod sweep;
mod throughput;
mod trace;

pub use file::{check, parse, read, read_as, text, write, write_text};
pub use header::{Header, Kind, Report};
pub use machine::{Host, Machine, SkippedReport};
pub use round_trips::{ArmReport, Comparison, FIX, Limit, RoundTripReport, best_blocking};
pub use stages::{ArmStages, Stage, StagesReport};
pub use sweep::{Open, Point, PointArm, RX_USECS, Sweep, SweepReport, Weight};
pub use throughput::{LineReport, PathReport, RateComparison, ThroughputReport};
pub use trace::{FoundCounts, SlowPacket, TraceCost, TraceFlow, TraceReport, TraceStage};
