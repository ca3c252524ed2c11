//! Why a lab could not be made, each in one line that names the remedy where there is one.

use std::io;

/// Why a lab could not be made or entered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The system does not let this user make network namespaces.
    #[error("no right to make a network namespace ({cause}): {remedy}")]
    Unprivileged {
        /// What stands in the way, naming the capability or the sysctl.
        cause: String,
        /// What the user can do about it.
        remedy: String,
    },
    /// A setting of the builder is out of range.
    #[error("{what} {value}: {remedy}")]
    Setting {
        /// The setting, in the words of the builder.
        what: &'static str,
        /// The value it was given.
        value: String,
        /// What it may be.
        remedy: String,
    },
    /// A CPU or a feature of the interface cannot be had.
    #[error(transparent)]
    Linux(#[from] busypoll_linux::Error),
    /// The environment names a lab whose holder is gone.
    #[error("the lab this shell belongs to has ended ({path} is gone): leave the shell")]
    Ended {
        /// What the environment names.
        path: String,
    },
    /// A system call failed for a reason that is nobody's mistake.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was being done.
        doing: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl LabError {
    /// For `map_err`: what was being done when the kernel said no.
    pub(crate) fn system(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::System { doing, source }
    }
}
