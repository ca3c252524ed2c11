//! The shared memory in which a user's runs count their spinners: `/dev/shm/busypoll-UID-2`, or, if another user has
//! taken that name, `spinners-2` in the state directory.
//!
//! One file per user, made at the first run and kept: two runs on one machine, such as a server and its client, must
//! know of each other. It holds only which thread spins on which CPU now; entries of dead threads are recognised
//! ([`busypoll_linux::spinners`]).

use std::path::PathBuf;

use busypoll_linux::spinners::Spinners;

/// The version of the layout, in the name: programs of an earlier version may still run.
pub const VERSION: u32 = 2;

/// Makes the file if there is none, and returns its path. `None` if it cannot be made: then each process counts by
/// itself.
pub(super) fn prepare() -> Option<String> {
    let user = rustix::process::geteuid().as_raw();
    let made = |path: PathBuf| Spinners::create(&path).ok().map(|()| path);
    // Any user may take this name; the state directory is the user's own.
    let path = made(PathBuf::from(format!("/dev/shm/busypoll-{user}-{VERSION}"))).or_else(|| {
        let folder = busypoll_journal::state_dir().ok()?;
        made(folder.join(format!("spinners-{VERSION}")))
    });
    path?.to_str().map(str::to_owned)
}
