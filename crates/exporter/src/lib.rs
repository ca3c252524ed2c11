//! `busypoll exporter`: what busy polling does on this machine, as metrics for Prometheus. Reads only.
//!
//! | module | owns |
//! |---|---|
//! | `metrics` | the table of metrics: name, kind, labels, help |
//! | `page` | one scrape: samples, their limit, the text format |
//! | `sources` | where the figures come from, one file each |
//! | `collector` | all sources, and which of them can be read |
//! | `server` | HTTP, with limits |
//! | `textfile` | a file for node_exporter, replaced as a whole |
//!
//! A page holds no command line and no address: programs by name, user and PID, devices by name, findings by code.

pub mod cli;
mod collector;
pub mod metrics;
mod page;
mod server;
mod sources;
mod textfile;

use std::io;

/// Why the exporter cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the address or the file that was asked for.
    #[error("{0}: {1}")]
    Io(String, io::Error),
    /// A mistake in the options.
    #[error("{0}")]
    Option(String),
}
