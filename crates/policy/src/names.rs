//! The names by which rules match a program.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::text::glob;

/// A program's names. Each may be empty: unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The file that the kernel runs, with symbolic links resolved.
    pub executable: PathBuf,
    /// The path it was started by: the same, a symbolic link to it, or the script that it interprets.
    pub called: PathBuf,
}

impl Names {
    /// For a program of which only the executable is known.
    pub fn of(executable: impl Into<PathBuf>) -> Self {
        Self { executable: executable.into(), called: PathBuf::new() }
    }

    /// Whether `pattern` matches one of them: the whole path if it contains a slash, else the last part.
    pub(crate) fn fit(&self, pattern: &str) -> bool {
        let fits = |path: &Path| {
            let whole = path.as_os_str().as_bytes();
            let name = path.file_name().map_or(whole, OsStr::as_bytes);
            glob(pattern.as_bytes(), if pattern.contains('/') { whole } else { name })
        };
        fits(&self.executable) || !self.called.as_os_str().is_empty() && fits(&self.called)
    }
}
