//! Network namespaces. A thread may enter another one than that of the Host, and the sockets that it makes there are
//! the kernel's.

use super::not_accelerated;
use crate::{real, report::Once};
use libc::c_int;
use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

/// The namespace of a thread: the device and the inode of its file.
type Namespace = (u64, u64);

/// That of the process before any thread has left it. `None`: it cannot be known.
static FIRST: OnceLock<Option<Namespace>> = OnceLock::new();

/// Some thread may be in another one.
static MAY_DIFFER: AtomicBool = AtomicBool::new(false);

static REPORTED: Once = Once::new();

/// # Safety
/// That of unshare(2).
pub unsafe fn unshare(flags: c_int) -> c_int {
    if flags & libc::CLONE_NEWNET != 0 {
        before_entering();
    }
    // SAFETY: the caller's contract.
    unsafe { real::unshare(flags) }
}

/// # Safety
/// That of setns(2).
pub unsafe fn setns(fd: c_int, kinds: c_int) -> c_int {
    // 0: of any kind.
    if kinds == 0 || kinds & libc::CLONE_NEWNET != 0 {
        before_entering();
    }
    // SAFETY: the caller's contract.
    unsafe { real::setns(fd, kinds) }
}

fn before_entering() {
    FIRST.get_or_init(present);
    MAY_DIFFER.store(true, Ordering::Relaxed);
}

/// Whether a socket that the thread makes now belongs to the Host's namespace. If not, that may be reported.
pub fn is_first(is_reported: bool) -> bool {
    !MAY_DIFFER.load(Ordering::Relaxed) || is_first_now(is_reported)
}

#[cold]
fn is_first_now(is_reported: bool) -> bool {
    let is_first = FIRST.get().is_some_and(|first| first.is_some() && *first == present());
    if !is_first && is_reported {
        let why = format_args!(
            "{}: a socket is made in another network namespace",
            not_accelerated::device()
        );
        not_accelerated::report(&REPORTED, why, "it stays with the kernel");
    }
    is_first
}

/// That of the calling thread.
fn present() -> Option<Namespace> {
    let stat = rustix::fs::stat(c"/proc/thread-self/ns/net").ok()?;
    Some((stat.st_dev, stat.st_ino))
}
