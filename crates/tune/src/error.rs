//! Why tune did not do as told, each in one line with the remedy.

use std::io;

use crate::profile::ProfileError;

/// Why tune did not do as told. Unless it says otherwise, nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel's edge.
    #[error(transparent)]
    Linux(#[from] busypoll_linux::Error),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] busypoll_journal::Error),
    /// The profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A profile for devices, and none was named.
    #[error(
        "profile {profile} sets nothing but devices: name one with --dev; `ip link` lists them"
    )]
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
    /// A feature no kernel knows by that name.
    #[error("{device} has no feature '{name}'{hint}; `ethtool -k {device}` lists them")]
    UnknownFeature {
        /// The device.
        device: String,
        /// The name in the profile.
        name: String,
        /// The nearest name, or nothing.
        hint: String,
    },
    /// gro-flush-timeout without anybody who polls.
    #[error(
        "gro-flush-timeout delays every packet nobody polls for, so it is set only while somebody does: \
         name the polling process with --poller PID; when it ends, all of this is rolled back"
    )]
    NeedsPoller,
    /// What the profile is about cannot be had.
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
    /// The process that rolls back by itself could not be started.
    #[error("cannot start the process that would roll back by itself: {0}; nothing was changed")]
    Guard(io::Error),
    /// A change failed, and the others were taken back.
    #[error("{cause}; what had been changed is as it was before")]
    Undone {
        /// What failed.
        cause: String,
    },
    /// A change failed, and so did taking others back.
    #[error(
        "{cause}; {left} settings could not be put back, which the journal remembers: `busypoll tune rollback`"
    )]
    HalfDone {
        /// What failed.
        cause: String,
        /// How many settings are not as they were.
        left: usize,
    },
    /// Nothing to confirm.
    #[error("nothing waits to be confirmed here{0}; `busypoll tune status` shows what is applied")]
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
