//! Why a program is not started.

use std::io;
use std::path::PathBuf;

use busypoll_policy::FileError;

/// There is no such program.
pub const NOT_FOUND: u8 = 127;
/// It is there, and cannot be started.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command that starts it has failed itself.
pub const OWN_FAILURE: u8 = 125;
/// A mistake of the user's, or a request that cannot be met.
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
    /// Its interpreter does not exist. A name that ends in `\r` comes from a script with CRLF lines.
    #[error("{}: its interpreter {}: no such program", path.display(), interpreter.display().to_string().escape_debug())]
    NoInterpreter {
        /// The program.
        path: PathBuf,
        /// The interpreter of its first line, or its loader.
        interpreter: PathBuf,
    },
    /// execve(2) has failed.
    #[error("{}: cannot be started: {source}", path.display())]
    Refused {
        /// The program.
        path: PathBuf,
        /// The error of execve(2).
        source: io::Error,
    },
    /// The library was not found.
    #[error(
        "libbusypoll_preload.so is neither beside this command nor in ../lib/busypoll: \
         cargo install leaves it out, packaging/install of the project installs both; \
         where it is elsewhere, name it in {}",
        crate::launch::library::OVERRIDE
    )]
    NoLibrary,
    /// The loader would start the program without it.
    #[error("{}: {} is no library that can be read", crate::launch::library::OVERRIDE, .0.display())]
    NotALibrary(PathBuf),
    /// The loader would split its path in two.
    #[error("{}: the loader cannot preload a library whose path has a blank or a colon; move it", .0.display())]
    BadLibraryPath(PathBuf),
    /// The policy file.
    #[error(transparent)]
    Policy(#[from] FileError),
    /// `--strict`, and something would not be accelerated.
    #[error("{0}; without --strict it would start all the same")]
    Strict(String),
    /// An option of the stack plane, and no socket is on that plane.
    #[error("{0}: only for the stack plane; add --plane stack, or leave it out")]
    NoStack(&'static str),
    /// The file for the capture cannot be written.
    #[error("--pcap: {0}")]
    Capture(String),
    /// The directory for other network namespaces cannot be used.
    #[error("containers: {0}")]
    Containers(String),
    /// The interface of the stack plane cannot be chosen, or is not available.
    #[error("--dev: {0}")]
    Device(String),
    /// The error is not about the program or the options.
    #[error("the guard of the stack plane cannot be started: {0}")]
    Guard(io::Error),
}

impl LaunchError {
    /// The exit code for this error: those of env(1), unless `run` itself was refused.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotInPath(_) | Self::NotFound(_) | Self::NoInterpreter { .. } => NOT_FOUND,
            Self::Refused { source, .. } if source.kind() == io::ErrorKind::NotFound => NOT_FOUND,
            Self::Folder(_) | Self::NotExecutable(_) | Self::Refused { .. } => NOT_EXECUTABLE,
            Self::NoLibrary | Self::NotALibrary(_) | Self::BadLibraryPath(_) | Self::Guard(_) => {
                OWN_FAILURE
            }
            Self::Policy(_)
            | Self::Strict(_)
            | Self::NoStack(_)
            | Self::Capture(_)
            | Self::Containers(_)
            | Self::Device(_) => REFUSED,
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
            (LaunchError::Capture("x".into()), 2),
        ] {
            assert_eq!(error.exit_code(), code, "{error}");
        }
    }
}
