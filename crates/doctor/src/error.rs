//! Why the doctor could not look at all: one line, exit code 2.

/// The question cannot be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel's answer, or a device that does not exist.
    #[error(transparent)]
    Linux(#[from] busypoll_linux::Error),
    /// No such process, or one that may not be looked at.
    #[error("process {pid}: {why}")]
    Process {
        /// The process asked about.
        pid: u32,
        /// What is in the way, and what to do.
        why: String,
    },
    /// The report could not be written.
    #[error("writing the report: {0}")]
    Write(#[from] std::io::Error),
}
