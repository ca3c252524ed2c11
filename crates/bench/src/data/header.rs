//! The first fields of each report, and the report of any kind.

use std::time::SystemTime;

use busypoll_policy::{BUILD, utc};
use serde::{Deserialize, Serialize, Serializer};

use super::{
    Host, Machine, RoundTripReport, SkippedReport, StagesReport, SweepReport, ThroughputReport,
    TraceReport,
};

/// The version of all of bench's schemas; fields may be added within one.
pub const SCHEMA_VERSION: u32 = 1;

/// What a report is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Round trips.
    #[serde(rename = "bench-rr")]
    RoundTrips,
    /// `--sweep`.
    #[serde(rename = "bench-sweep")]
    Sweep,
    /// `--workload stream`, `crr`, `loss`.
    #[serde(rename = "bench-throughput")]
    Throughput,
    /// `--stages`.
    #[serde(rename = "bench-stages")]
    Stages,
    /// `busypoll trace`.
    #[serde(rename = "trace")]
    Trace,
}

/// The first fields of each report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The schema: docs/json/NAME.schema.json.
    pub schema: Kind,
    /// Its version.
    pub schema_version: u32,
    /// When the report was made, UTC, as of RFC 3339.
    pub time: String,
    /// The commit that the program was built from, or `development`.
    pub commit: String,
}

impl Header {
    /// Of a report that is made now.
    pub fn now(schema: Kind) -> Self {
        let time = utc(SystemTime::now());
        Self { schema, schema_version: SCHEMA_VERSION, time, commit: BUILD.to_owned() }
    }
}

/// A report of any kind.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Report {
    RoundTrips(RoundTripReport),
    Sweep(SweepReport),
    Throughput(ThroughputReport),
    Stages(StagesReport),
    Trace(TraceReport),
}

impl Report {
    /// The first fields.
    pub fn header(&self) -> &Header {
        match self {
            Self::RoundTrips(report) => &report.header,
            Self::Sweep(report) => &report.header,
            Self::Throughput(report) => &report.header,
            Self::Stages(report) => &report.header,
            Self::Trace(report) => &report.header,
        }
    }

    /// The machine.
    pub fn host(&self) -> Host {
        match self {
            Self::RoundTrips(report) => report.machine.host(),
            Self::Sweep(report) => report.machine.host(),
            Self::Throughput(report) => report.machine.host(),
            Self::Stages(report) => report.machine.host(),
            Self::Trace(report) => report.machine.clone(),
        }
    }

    /// The machine and the settings of a benchmark.
    pub fn machine(&self) -> Option<&Machine> {
        match self {
            Self::RoundTrips(report) => Some(&report.machine),
            Self::Sweep(report) => Some(&report.machine),
            Self::Throughput(report) => Some(&report.machine),
            Self::Stages(report) => Some(&report.machine),
            Self::Trace(_) => None,
        }
    }

    /// The sentence.
    pub fn answer(&self) -> &str {
        match self {
            Self::RoundTrips(report) => &report.answer,
            Self::Sweep(report) => &report.answer,
            Self::Throughput(report) => &report.answer,
            Self::Stages(report) => &report.answer,
            Self::Trace(report) => &report.answer,
        }
    }

    /// What a reader has to know about the figures.
    pub fn notes(&self) -> &[String] {
        match self {
            Self::RoundTrips(report) => &report.notes,
            Self::Sweep(report) => &report.notes,
            Self::Throughput(report) => &report.notes,
            Self::Stages(_) => &[],
            Self::Trace(report) => &report.notes,
        }
    }

    /// What could not be measured.
    pub fn skipped(&self) -> &[SkippedReport] {
        match self {
            Self::RoundTrips(report) => &report.skipped,
            Self::Sweep(report) => &report.skipped,
            Self::Throughput(report) => &report.skipped,
            Self::Stages(report) => &report.skipped,
            Self::Trace(_) => &[],
        }
    }
}

/// Written as what it is a report of.
impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::RoundTrips(report) => report.serialize(serializer),
            Self::Sweep(report) => report.serialize(serializer),
            Self::Throughput(report) => report.serialize(serializer),
            Self::Stages(report) => report.serialize(serializer),
            Self::Trace(report) => report.serialize(serializer),
        }
    }
}
