//! Errors for which nothing can be traced: one line, exit code 2.

use std::io;

/// Nothing can be traced, or the report cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// An error from the kernel, a right that is missing, a device that does not exist.
    #[error(transparent)]
    Linux(#[from] busypoll_linux::Error),
    /// No such process.
    #[error("process {pid}: {why}")]
    Process {
        /// Its number.
        pid: u32,
        /// What went wrong.
        why: String,
    },
    /// The program cannot be started.
    #[error("cannot start {program}: {why}")]
    Start {
        /// Its name.
        program: String,
        /// What went wrong.
        why: io::Error,
    },
    /// A file cannot be written.
    #[error("{0}")]
    File(String),
    /// The report cannot be printed.
    #[error("writing the report: {0}")]
    Write(#[from] io::Error),
}
