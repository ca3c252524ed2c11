//! Why a process could not be attached to or detached from.

use std::path::PathBuf;

use busypoll_policy::FileError;

/// Why a process could not be attached to or detached from: one line each.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The process, or the kernel.
    #[error(transparent)]
    Linux(#[from] busypoll_linux::Error),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] busypoll_journal::Error),
    /// The policy file.
    #[error(transparent)]
    Policy(#[from] FileError),
    /// Nothing is known of changes.
    #[error(
        "no process {pid}, and no changes to one are written down in {}; \
         another user's are in another directory (BUSYPOLL_STATE)", dir.display()
    )]
    NothingKnown {
        /// The process.
        pid: u32,
        /// Where was looked.
        dir: PathBuf,
    },
    /// Some values could not be put back; they stay written down.
    #[error(
        "process {pid}: {count} of the values could not be put back; try again with the same rights"
    )]
    NotPutBack {
        /// The process.
        pid: u32,
        /// How many.
        count: usize,
    },
    /// Several processes, and trouble with some.
    #[error("{failed} of {all} processes: see above")]
    Some {
        /// How many had trouble.
        failed: usize,
        /// How many were named.
        all: usize,
    },
    /// Standard output is full.
    #[error("writing the report: {0}")]
    Output(#[from] std::io::Error),
}
