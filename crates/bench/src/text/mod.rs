//! Reports as text that fits the terminal.

pub mod figures;
mod round_trips;
pub mod side_by_side;
mod stages;
mod sweep;
mod table;
mod throughput;

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
        }
    }
}
