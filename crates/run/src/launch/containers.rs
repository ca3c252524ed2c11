//! The directory by which processes of other network namespaces of this host are found: it must be one in which no other
//! user can put a socket in the place of a program's.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::process::geteuid;

use super::LaunchError;

/// Mode bits: the group and others may write; only the owner of a file may replace it.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// # Errors
/// There is no such directory, or other users can replace what is in it.
pub(super) fn check(directory: &str) -> Result<(), LaunchError> {
    let refused = |why: &str| LaunchError::Containers(format!("{directory}: {why}"));
    let found = fs::metadata(directory).map_err(|error| refused(&error.to_string()))?;
    if !found.is_dir() {
        return Err(refused("not a directory"));
    }
    if found.uid() != 0 && found.uid() != geteuid().as_raw() {
        return Err(refused("it belongs to another user; it must be yours or root's"));
    }
    if found.mode() & OTHERS_WRITE != 0 && found.mode() & STICKY == 0 {
        return Err(refused("other users can replace what is in it; chmod go-w, or +t"));
    }
    Ok(())
}

/// What the user is to know at the start.
pub(super) fn notice(directory: &str) -> String {
    format!(
        "containers {directory}: connections with programs of other network namespaces that share it pass firewalls and \
         network policies by"
    )
}
