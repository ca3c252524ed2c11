//! Reports as text that fits the terminal.

pub mod beside;
pub mod figures;
mod round_trips;
pub mod side_by_side;
mod stages;
mod sweep;
pub(crate) mod table;
mod throughput;
mod trace;

use busypoll_policy::fit::Width;

use crate::data::Report;

impl Report {
    /// The report as text.
    pub fn render(&self, width: Width) -> String {
        match self {
            Self::RoundTrips(report) => report.render(width),
            Self::Sweep(report) => report.render(width),
            Self::Throughput(report) => report.render(width),
            Self::Stages(report) => report.render(width),
            Self::Trace(report) => report.render(),
        }
    }
}
