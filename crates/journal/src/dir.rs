//! Where journals are kept. Makes the directory; touches nothing in it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The state directory, made if it is missing: `$BUSYPOLL_STATE`, else `/run/busypoll` for root, else
/// `$XDG_RUNTIME_DIR/busypoll` (or `/run/user/UID/busypoll`). Both latter go with a reboot, as the
/// changes do.
///
/// # Errors
/// [`Error::NoDirectory`], [`Error::Relative`]; [`Error::Io`] for a directory that cannot be made.
pub fn state_dir() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(dir) = variable("BUSYPOLL_STATE") {
        // Whoever is to undo what is written there may stand elsewhere.
        if dir.is_relative() {
            return Err(Error::Relative(dir));
        }
        return make(&dir).map(|()| dir);
    }
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        let dir = PathBuf::from("/run/busypoll");
        match make(&dir) {
            // Root of a user namespace: /run is not its own.
            Err(Error::Io { source, .. }) if is_forbidden(&source) => {}
            made => return made.map(|()| dir),
        }
    }
    let runtime = variable("XDG_RUNTIME_DIR")
        .or_else(|| Some(PathBuf::from(format!("/run/user/{}", uid.as_raw()))))
        .filter(|dir| dir.is_dir())
        .ok_or(Error::NoDirectory)?;
    let dir = runtime.join("busypoll");
    make(&dir).map(|()| dir)
}

fn is_forbidden(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Makes a directory, durably, that others may read but not write.
pub(crate) fn make(dir: &Path) -> Result<()> {
    if !dir.is_dir() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(dir)
            .map_err(Error::io("make the directory", dir))?;
        if let Some(parent) = dir.parent() {
            // Not every file system can sync a directory, and a parent may be unreadable: the sync of
            // the directory itself, after each file made in it, is the one that counts.
            let _ = File::open(parent).and_then(|d| d.sync_all());
        }
    }
    // As root one can write everywhere but on a read-only file system; ask for the rest of us.
    rustix::fs::access(dir, rustix::fs::Access::WRITE_OK)
        .map_err(io::Error::from)
        .map_err(Error::io("write in", dir))
}

/// Makes the names in a directory durable.
pub(crate) fn sync(dir: &Path) -> Result<()> {
    fs::File::open(dir).and_then(|d| d.sync_all()).map_err(Error::io("sync the directory", dir))
}
