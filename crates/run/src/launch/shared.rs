//! The memory in which a user's runs count their spinners: `/dev/shm/busypoll-UID-2`, or, where another user has taken
//! that name, `spinners-2` in the state directory.
//!
//! One file per user, made at the first run and left for the next: two runs on one machine, a server
//! and its client say, must know of each other. It holds nothing but who spins on which CPU now, and
//! entries of the dead are told from those of the living ([`busypoll_linux::spinners`]).

use std::path::PathBuf;

use busypoll_linux::spinners::Spinners;

/// What the file holds, told apart by its name: programs of an earlier version may still run.
const VERSION: u32 = 2;

/// Makes the file where there is none, and says where it is. `None` where it cannot be had: then
/// each process counts by itself.
pub(super) fn prepare() -> Option<String> {
    let user = rustix::process::geteuid().as_raw();
    let made = |path: PathBuf| Spinners::create(&path).ok().map(|()| path);
    // Anybody may take this name; the directory is the user's.
    let path = made(PathBuf::from(format!("/dev/shm/busypoll-{user}-{VERSION}"))).or_else(|| {
        let folder = busypoll_journal::state_dir().ok()?;
        made(folder.join(format!("spinners-{VERSION}")))
    });
    path?.to_str().map(str::to_owned)
}
