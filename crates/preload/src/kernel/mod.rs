//! The kernel plane: Linux's own busy polling, switched on by how the program waits.
//!
//! | where it waits | what makes the kernel poll | module |
//! |---|---|---|
//! | recv and the like | `SO_BUSY_POLL` of the socket | [`sockets`], [`receive`] |
//! | epoll | `EPIOCSPARAMS` of the instance | [`sockets`], [`epoll`] |
//! | poll, select | `EPIOCSPARAMS` of a private instance, waited on first | [`poll`], [`private_epoll`] |
//! | epoll instances in others | the same | [`nested`] |
//!
//! Changes sockets and epoll instances of this program alone, and nothing of the system.
//! [`spin_policy`](crate::spin_policy) decides for each wait whether polling is allowed. [`fd_state`] holds the state
//! of each descriptor.

mod busy_poll_options;
mod close;
mod epoll;
mod fd_state;
mod nested;
mod poll;
mod private_epoll;
mod receive;
mod sockets;
mod timeout;
mod watched;

pub use close::{close, close_range, dup, dup2, dup3, fcntl};
pub use epoll::{
    epoll_create, epoll_create1, epoll_ctl, epoll_pwait, epoll_pwait2, epoll_wait, ioctl,
};
pub use poll::{__poll_chk, __ppoll_chk, poll, ppoll, pselect, select};
pub use receive::{
    __read_chk, __recv_chk, __recvfrom_chk, read, readv, recv, recvfrom, recvmmsg, recvmsg,
};
pub use sockets::{accept4, bind, connect, setsockopt, socket};

use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_long};

use crate::config::{self, Config};
use crate::inside::is_inside;
use crate::{real, seccomp};

/// Whether any socket of this program is for this plane: every hook reads this first.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// Called at load time.
pub fn prepare(config: &'static Config) {
    if config.is_kernel() {
        crate::spin_policy::prepare(config);
        private_epoll::prepare();
        ACTIVE.store(true, Ordering::Release);
    }
}

/// The program is about to restrict its system calls (seccomp); `confine` does it and returns the result. From then on
/// its calls are passed on unchanged. Where polling was switched on, the kernel goes on polling.
pub fn confined(confine: impl FnOnce() -> c_long) -> c_long {
    let active = ACTIVE.swap(false, Ordering::Relaxed);
    let confined = seccomp::set_confined(true);
    let result = confine();
    if result < 0 {
        ACTIVE.store(active, Ordering::Relaxed);
        seccomp::set_confined(confined);
    }
    result
}

/// # Safety
/// That of prctl(2).
pub unsafe fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    // SAFETY: the caller's contract.
    let by_kernel = || unsafe { real::prctl(option, a, b, c, d) };
    match option {
        // PR_SET_TSC disables the counter that our clock reads.
        libc::PR_SET_SECCOMP | libc::PR_SET_TSC => confined(|| by_kernel().into()) as c_int,
        _ => by_kernel(),
    }
}

/// The configuration, if this plane has anything to do.
#[inline]
fn active() -> Option<&'static Config> {
    // The library's own calls are not the program's.
    if ACTIVE.load(Ordering::Relaxed) && !is_inside() { config::get() } else { None }
}
