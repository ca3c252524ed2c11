//! What kind of program it is. Reads files, changes nothing.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use busypoll_linux::executable;
pub use busypoll_linux::executable::{Kind, Reach, Why};

use super::LaunchError;

/// A program that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Where it is.
    pub path: PathBuf,
    /// How it can be reached.
    pub reach: Reach,
}

impl Program {
    /// Finds a program as execvp(3) does, and looks what it is.
    ///
    /// # Errors
    /// Not found, not executable.
    pub fn find(name: &OsStr) -> Result<Self, LaunchError> {
        let path = if name.as_bytes().contains(&b'/') {
            let path = PathBuf::from(name);
            match fs::metadata(&path) {
                Ok(m) if m.is_file() && m.mode() & 0o111 != 0 => path,
                Ok(_) => return Err(LaunchError::NotExecutable(path)),
                Err(_) => return Err(LaunchError::NotFound(path)),
            }
        } else {
            in_path(name)?
        };
        let reach = look(&path, 0);
        Ok(Self { path, reach })
    }
}

fn in_path(name: &OsStr) -> Result<PathBuf, LaunchError> {
    let folders = env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut unusable = None;
    for folder in env::split_paths(&folders) {
        let path = folder.join(name);
        match fs::metadata(&path) {
            Ok(m) if m.is_file() && m.mode() & 0o111 != 0 => return Ok(path),
            Ok(m) if m.is_file() => unusable = Some(path),
            _ => {}
        }
    }
    Err(match unusable {
        Some(path) => LaunchError::NotExecutable(path),
        None => LaunchError::NotInPath(name.to_string_lossy().into_owned()),
    })
}

/// A script's interpreter may be a script itself, four times (`fs/exec.c`).
const SCRIPTS: u32 = 4;

fn look(path: &Path, depth: u32) -> Reach {
    let mut head = [0; 256];
    let n = File::open(path).and_then(|mut file| file.read(&mut head)).unwrap_or(0);
    let head = head.get(..n).unwrap_or_default();
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&b| b == b'\n').next().unwrap_or_default().trim_ascii();
        let interpreter = line.split(|b| b.is_ascii_whitespace()).next().unwrap_or_default();
        // `env` finds what follows it in PATH.
        let after = line.get(interpreter.len()..).unwrap_or_default().trim_ascii();
        let target = if interpreter.ends_with(b"/env") {
            let name = after.split(|b| b.is_ascii_whitespace()).next().unwrap_or_default();
            in_path(OsStr::from_bytes(name)).ok()
        } else {
            Some(PathBuf::from(OsString::from_vec(interpreter.to_vec())))
        };
        return match target {
            Some(target) if depth < SCRIPTS => look(&target, depth + 1),
            _ => Reach::Preload,
        };
    }
    executable::reach(path)
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
