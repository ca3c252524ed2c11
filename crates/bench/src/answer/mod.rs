//! The sentence of each report, which summarises its figures.

mod round_trips;
mod stages;
mod sweep;
mod throughput;

pub use round_trips::round_trips;
pub use stages::stages;
pub use sweep::sweep;
pub use throughput::throughput;
