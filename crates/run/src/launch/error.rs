//! Why a program is not started.

use std::io;
use std::path::PathBuf;

use busypoll_policy::FileError;

/// There is no such program.
pub const NOT_FOUND: u8 = 127;
/// It is there, and cannot be started.
pub const NOT_EXECUTABLE: u8 = 126;
/// What was to start it has failed itself.
pub const OWN_FAILURE: u8 = 125;
/// A mistake of the user's, or what was asked is not to be had.
const REFUSED: u8 = 2;

/// Why a program is not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// No such program.
    #[error("{0}: no such program in PATH; give its path, as in ./{0}")]
    NotInPath(String),
    /// No such file.
    #[error("{}: no such program", .0.display())]
    NotFound(PathBuf),
    /// A folder.
    #[error("{}: a folder, not a program", .0.display())]
    Folder(PathBuf),
    /// It cannot be started.
    #[error("{}: not executable by this user; make it so with chmod +x", .0.display())]
    NotExecutable(PathBuf),
    /// What would run it is not there; a name that ends in `\r` is of a script whose lines do.
    #[error("{}: its interpreter {}: no such program", path.display(), interpreter.display().to_string().escape_debug())]
    NoInterpreter {
        /// The program.
        path: PathBuf,
        /// What its first line names, or its loader.
        interpreter: PathBuf,
    },
    /// The system's answer to an attempt.
    #[error("{}: cannot be started: {source}", path.display())]
    Refused {
        /// The program.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The library is not where it should be.
    #[error(
        "libbusypoll_preload.so is neither beside this command nor in ../lib/busypoll; \
         name it in {}",
        crate::launch::library::OVERRIDE
    )]
    NoLibrary,
    /// The loader would start the program without it.
    #[error("{}: {} is no library that can be read", crate::launch::library::OVERRIDE, .0.display())]
    NotALibrary(PathBuf),
    /// The loader would take its path for two.
    #[error("{}: the loader takes no library whose path has a blank or a colon; move it", .0.display())]
    BadLibraryPath(PathBuf),
    /// The policy file.
    #[error(transparent)]
    Policy(#[from] FileError),
    /// `--strict`, and something would go without.
    #[error("{0}; without --strict it would start all the same")]
    Strict(String),
    /// An option of the stack plane where nothing is on it.
    #[error("{0}: only the stack plane has it; add --plane stack, or leave it out")]
    NoStack(&'static str),
    /// Which interface the stack plane has cannot be told, or it cannot be had.
    #[error("--dev: {0}")]
    Device(String),
    /// Nothing to do with the program or the options.
    #[error("the guard of the stack plane cannot be started: {0}")]
    Guard(io::Error),
}

impl LaunchError {
    /// The exit code of a command that ends with it: as env(1) has them, where it was not `run` that was refused.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotInPath(_) | Self::NotFound(_) | Self::NoInterpreter { .. } => NOT_FOUND,
            Self::Refused { source, .. } if source.kind() == io::ErrorKind::NotFound => NOT_FOUND,
            Self::Folder(_) | Self::NotExecutable(_) | Self::Refused { .. } => NOT_EXECUTABLE,
            Self::NoLibrary | Self::NotALibrary(_) | Self::BadLibraryPath(_) | Self::Guard(_) => {
                OWN_FAILURE
            }
            Self::Policy(_) | Self::Strict(_) | Self::NoStack(_) | Self::Device(_) => REFUSED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_env() {
        let refused = |errno| LaunchError::Refused {
            path: "x".into(),
            source: io::Error::from_raw_os_error(errno),
        };
        for (error, code) in [
            (LaunchError::NotInPath("x".into()), 127),
            (refused(libc::ENOENT), 127),
            (LaunchError::Folder("/".into()), 126),
            (refused(libc::ETXTBSY), 126),
            (refused(libc::EACCES), 126),
            (LaunchError::NoLibrary, 125),
            (LaunchError::Guard(io::Error::from_raw_os_error(libc::EMFILE)), 125),
            (LaunchError::Strict("x".into()), 2),
            (LaunchError::NoStack("--dev"), 2),
        ] {
            assert_eq!(error.exit_code(), code, "{error}");
        }
    }
}
