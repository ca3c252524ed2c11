//! netperf's TCP_STREAM and TCP_CRR: the throughput of a connection, and the rate of connections.
//! One CPU per side; arms in interleaved rounds as for round trips.
//!
//! [`LINES`] is the table of what can be measured; `pump` has the loops, the files named as planes have the ends.

mod bare;
mod kernel;
mod lines;
mod loss;
mod measure;
mod place;
mod pump;
mod relay;
mod smoltcp;
mod stack;
mod summary;

pub use lines::{LINES, Line, Workload, list, select};
pub use measure::measure;
pub use place::Outcome;
pub use relay::Losses;
pub use summary::build;
