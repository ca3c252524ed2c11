//! Errors of tune, each in one line with the remedy.

use std::io;

use crate::profile::ProfileError;

/// Why tune failed. Unless the error says otherwise, nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused a call.
    #[error(transparent)]
    Linux(#[from] busypoll_linux::Error),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] busypoll_journal::Error),
    /// The profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The profile has only device settings, and no device was named.
    #[error("profile {profile} sets only devices: name one with --dev; `ip link` lists them")]
    NeedsDevice {
        /// The profile.
        profile: String,
    },
    /// A device was named twice, or something else is wrong with an option.
    #[error("{0}")]
    Option(String),
    /// The loopback device.
    #[error(
        "{0} is the loopback device: it has no NAPI instance, so nothing that goes through it can be busy \
         polled; name the device behind your traffic"
    )]
    Loopback(String),
    /// An unknown feature.
    #[error("{device} has no feature '{name}'{hint}; `ethtool -k {device}` lists them")]
    UnknownFeature {
        /// The device.
        device: String,
        /// The name in the profile.
        name: String,
        /// The nearest name, or nothing.
        hint: String,
    },
    /// gro-flush-timeout without a poller.
    #[error(
        "gro-flush-timeout delays every packet that no busy poll finds, so it is set only for a process that polls: \
         name it with --poller PID; when it ends, all of this is rolled back"
    )]
    NeedsPoller,
    /// An essential setting of the profile cannot be made.
    #[error("{profile} cannot be applied: {why}")]
    Impossible {
        /// The profile.
        profile: String,
        /// The setting and the reason.
        why: String,
    },
    /// No such process.
    #[error("--poller {0}: no such process")]
    NoProcess(u32),
    /// The process that rolls back automatically could not be started.
    #[error(
        "cannot start the process that would roll back automatically: {0}; nothing was changed"
    )]
    Guard(io::Error),
    /// A change failed, and the others were rolled back.
    #[error("{cause}; what had been changed is as it was before")]
    Undone {
        /// What failed.
        cause: String,
    },
    /// A change failed, and some others could not be rolled back.
    #[error(
        "{cause}; {left} settings could not be restored and stay in the journal: `busypoll tune rollback`"
    )]
    HalfDone {
        /// What failed.
        cause: String,
        /// How many settings are not as they were.
        left: usize,
    },
    /// Nothing to confirm.
    #[error("there is nothing to confirm here{0}; `busypoll tune status` shows what is applied")]
    NothingToConfirm(String),
    /// Output could not be written.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// The system's answer.
        source: io::Error,
    },
}

/// The result of every call in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Error::Io { doing, source }
    }
}
