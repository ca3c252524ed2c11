//! Errors of journals, each in one line with the remedy.

use std::io;
use std::path::{Path, PathBuf};

/// Why a journal could not be used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no directory for journals.
    #[error(
        "no directory for the journal of changes: /run/busypoll needs root and a /run that can be written, and \
         XDG_RUNTIME_DIR is not set; name a directory of yours in BUSYPOLL_STATE"
    )]
    NoDirectory,
    /// A relative path: a command started in another directory would look for the journal elsewhere.
    #[error(
        "BUSYPOLL_STATE={}: it must begin with /, or commands in other directories do not find the journal", .0.display()
    )]
    Relative(PathBuf),
    /// Another process holds the journal.
    #[error("{path} is in use by {holder}; wait until it has finished, or end it")]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The holder: its PID and command line, as far as they are known.
        holder: String,
        /// The holder's PID.
        pid: Option<u32>,
    },
    /// A newer busypoll wrote the journal.
    #[error(
        "{path} was written by a newer busypoll ({by}, journal version {found}; this one reads up to \
         {known}): undo its changes with that version"
    )]
    Newer {
        /// The journal.
        path: PathBuf,
        /// The version of the program that wrote it, as far as it can be read.
        by: String,
        /// The journal's version.
        found: u32,
        /// The newest version this program knows.
        known: u32,
    },
    /// A line before the last is invalid: not a torn write but damage, or not a journal.
    #[error(
        "{path}, line {line}: {why}; the changes it lists cannot be undone from here: look at the file, and \
         delete it when you have"
    )]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The disk is full.
    #[error(
        "{path}: no space left for the journal, so nothing was changed; free some, or name another directory in BUSYPOLL_STATE"
    )]
    Full {
        /// The journal.
        path: PathBuf,
    },
    /// Any other file system error.
    #[error(
        "cannot {doing} {path}: {source}; BUSYPOLL_STATE names another directory for the journal"
    )]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The result of every call in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// For `map_err`: what was being done to which file.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| {
            use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
            match source.kind() {
                StorageFull | QuotaExceeded | FileTooLarge => Error::Full { path },
                _ => Error::Io { doing, path, source },
            }
        }
    }
}
