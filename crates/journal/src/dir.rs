//! The directory of journals. Creates it for writers; touches nothing in it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// The state directory, created if it is missing.
///
/// # Errors
/// Those of [`find_state_dir`]; [`Error::Io`] for a directory that cannot be created.
pub fn state_dir() -> Result<PathBuf> {
    let dir = find_state_dir()?;
    make(&dir).map(|()| dir)
}

/// The state directory's path, whether or not it exists: `$BUSYPOLL_STATE`, else `/run/busypoll` for root,
/// else `$XDG_RUNTIME_DIR/busypoll` (or `/run/user/UID/busypoll`). A reboot clears both, as it does the changes.
///
/// # Errors
/// [`Error::NoDirectory`], [`Error::Relative`].
pub fn find_state_dir() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(dir) = variable("BUSYPOLL_STATE") {
        // A rollback may run in another directory.
        if dir.is_relative() {
            return Err(Error::Relative(dir));
        }
        return Ok(dir);
    }
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        let dir = Path::new("/run/busypoll");
        // Root of a user namespace cannot write to the machine's /run.
        let there = if dir.is_dir() { dir } else { Path::new("/run") };
        if !is_forbidden(access(there, Access::WRITE_OK)) {
            return Ok(dir.into());
        }
    }
    let runtime = variable("XDG_RUNTIME_DIR")
        .or_else(|| Some(PathBuf::from(format!("/run/user/{}", uid.as_raw()))))
        .filter(|dir| dir.is_dir())
        .ok_or(Error::NoDirectory)?;
    Ok(runtime.join("busypoll"))
}

fn is_forbidden(access: rustix::io::Result<()>) -> bool {
    matches!(access, Err(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

/// Creates a directory, durably, that other users may read but not write.
pub(crate) fn make(dir: &Path) -> Result<()> {
    if !dir.is_dir() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(dir)
            .map_err(Error::io("make the directory", dir))?;
        if let Some(parent) = dir.parent() {
            // Some file systems cannot sync a directory, and a parent may be unreadable. The sync of
            // the directory itself, after each file created in it, is the one that matters.
            let _ = File::open(parent).and_then(|d| d.sync_all());
        }
    }
    // Root can write everywhere except on a read-only file system; the check is for other users.
    access(dir, Access::WRITE_OK).map_err(io::Error::from).map_err(Error::io("write in", dir))
}

/// Makes the directory's entries durable.
pub(crate) fn sync(dir: &Path) -> Result<()> {
    fs::File::open(dir).and_then(|d| d.sync_all()).map_err(Error::io("sync the directory", dir))
}
