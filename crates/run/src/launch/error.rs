//! Why a program is not started.

use std::io;
use std::path::PathBuf;

use busypoll_policy::FileError;

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
    /// Which interface the stack plane has cannot be told.
    #[error("--dev: {0}")]
    Device(String),
}
