//! Behind `busypoll trace`: where the time of a program's packets goes, stage by stage, while the program runs unchanged.
//!
//! The kernel's programs write a [record](busypoll_linux::bpf::trace) for each packet; here its times become
//! [stages], which are summed up by socket in [flows]. The slowest packets get a [story].

mod calls;
pub mod cli;
mod error;
pub mod flows;
mod report;
mod slowest;
mod stack;
pub mod stages;
pub mod story;
mod target;
mod watch;

pub use error::TraceError;
