//! The kind of a program. Reads files, changes nothing.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use busypoll_linux::executable;
pub use busypoll_linux::executable::{Kind, Reach, Why};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::LaunchError;

/// A program that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its path.
    pub path: PathBuf,
    /// How it can be accelerated.
    pub reach: Reach,
}

impl Program {
    /// Finds a program as execvp(3) does, and inspects it.
    ///
    /// # Errors
    /// Not found, not executable.
    pub fn find(name: &OsStr) -> Result<Self, LaunchError> {
        let path = if name.as_bytes().contains(&b'/') {
            let path = PathBuf::from(name);
            match fs::metadata(&path) {
                Ok(m) if m.is_file() && may_be_run(&path) => path,
                Ok(m) if m.is_dir() => return Err(LaunchError::Folder(path)),
                Ok(_) => return Err(LaunchError::NotExecutable(path)),
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    return Err(LaunchError::NotFound(path));
                }
                Err(source) => return Err(LaunchError::Refused { path, source }),
            }
        } else {
            in_path(name)?
        };
        let reach = executable::reach(&path);
        Ok(Self { path, reach })
    }
}

/// Whether this user may execute it, on that file system.
fn may_be_run(path: &Path) -> bool {
    accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

fn in_path(name: &OsStr) -> Result<PathBuf, LaunchError> {
    let folders = env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut unusable = None;
    for folder in env::split_paths(&folders) {
        let path = folder.join(name);
        match fs::metadata(&path) {
            Ok(m) if m.is_file() && may_be_run(&path) => return Ok(path),
            Ok(m) if m.is_file() => unusable = Some(path),
            _ => {}
        }
    }
    Err(match unusable {
        Some(path) => LaunchError::NotExecutable(path),
        None => LaunchError::NotInPath(name.to_string_lossy().into_owned()),
    })
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
