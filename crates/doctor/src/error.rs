//! Errors for which the doctor cannot answer at all: one line, exit code 2.

/// The question cannot be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error from the kernel, or a device that does not exist.
    #[error(transparent)]
    Linux(#[from] busypoll_linux::Error),
    /// No such process, or no permission to look at it.
    #[error("process {pid}: {why}")]
    Process {
        /// The process asked about.
        pid: u32,
        /// What went wrong, and what to do.
        why: String,
    },
    /// The report could not be written.
    #[error("writing the report: {0}")]
    Write(#[from] std::io::Error),
}
