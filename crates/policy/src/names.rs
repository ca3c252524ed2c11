//! By which names rules know a program.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::text::glob;

/// A program's names. Each may be empty: not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The file that the kernel runs, with links followed.
    pub executable: PathBuf,
    /// What it was started as: the same, a link to it, or the script that it reads.
    pub called: PathBuf,
}

impl Names {
    /// Of a program of which no other name is known.
    pub fn of(executable: impl Into<PathBuf>) -> Self {
        Self { executable: executable.into(), called: PathBuf::new() }
    }

    /// Whether `pattern` is for one of them: for the whole path if there is a slash in it, else for its last part.
    pub(crate) fn fit(&self, pattern: &str) -> bool {
        let fits = |path: &Path| {
            let whole = path.as_os_str().as_bytes();
            let name = path.file_name().map_or(whole, OsStr::as_bytes);
            glob(pattern.as_bytes(), if pattern.contains('/') { whole } else { name })
        };
        fits(&self.executable) || !self.called.as_os_str().is_empty() && fits(&self.called)
    }
}
