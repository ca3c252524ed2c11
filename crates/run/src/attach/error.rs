//! Why a process could not be attached to or detached from.

use std::path::PathBuf;

use busypoll_policy::FileError;

/// Why a process could not be attached to or detached from: one line each.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// An error about the process, or of the kernel.
    #[error(transparent)]
    Linux(#[from] busypoll_linux::Error),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] busypoll_journal::Error),
    /// The policy file.
    #[error(transparent)]
    Policy(#[from] FileError),
    /// There is no such process, and no journal of one.
    #[error(
        "no process {pid}, and no changes to one are recorded in {}; \
         another user's are in another directory (BUSYPOLL_STATE)", dir.display()
    )]
    NothingKnown {
        /// The process.
        pid: u32,
        /// The directory that was searched.
        dir: PathBuf,
    },
    /// Some values could not be restored; they stay recorded.
    #[error(
        "process {pid}: {count} of the values could not be put back; try again with the privileges that attach had"
    )]
    NotPutBack {
        /// The process.
        pid: u32,
        /// How many.
        count: usize,
    },
    /// Several processes, of which some failed.
    #[error("{failed} of {all} processes: see above")]
    Some {
        /// How many failed.
        failed: usize,
        /// How many were given.
        all: usize,
    },
    /// Standard output cannot be written.
    #[error("writing the report: {0}")]
    Output(#[from] std::io::Error),
}
