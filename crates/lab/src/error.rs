//! Errors of the lab, each in one line with the remedy if there is one.

use std::io;

/// Why a lab could not be made or entered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The system does not let this user make network namespaces.
    #[error("no right to make a network namespace ({cause}): {remedy}")]
    Unprivileged {
        /// The cause, with the capability or the sysctl.
        cause: String,
        /// What the user can do about it.
        remedy: String,
    },
    /// A setting of the builder is out of range.
    #[error("{what} {value}: {remedy}")]
    Setting {
        /// The setting, as the builder names it.
        what: &'static str,
        /// The value it was given.
        value: String,
        /// The allowed values.
        remedy: String,
    },
    /// A CPU or a feature of the interface is not available.
    #[error(transparent)]
    Linux(#[from] busypoll_linux::Error),
    /// The environment names a lab whose process is gone.
    #[error("the lab this shell belongs to has ended ({path} is gone): leave the shell")]
    Ended {
        /// The path in the environment.
        path: String,
    },
    /// A system call failed for another reason.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was being done.
        doing: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl LabError {
    /// For `map_err`: what was being done when the call failed.
    pub(crate) fn system(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::System { doing, source }
    }
}
