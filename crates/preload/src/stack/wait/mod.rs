//! Waiting for many descriptors: poll, select and epoll, on sockets of ours, the kernel's descriptors, and nested epoll
//! sets.
//!
//! | module | owns |
//! |---|---|
//! | [`member_files`] | the files of a set's members: activated, adopted by a child |
//! | [`kernel_waiters`] | threads that wait only in the kernel's half of a set |
//! | [`epoll`] | the calls of epoll |
//! | [`poll`], [`select`] | the calls of those names |
//!
//! A set without an active socket of ours is the kernel's, and so are its waits. In a mixed set our half spins or
//! sleeps. It watches the kernel's half as the stack watches all descriptors of the kernel: it checks every 10 us while
//! it spins, and makes one poll(2) on both while it sleeps.

mod epoll;
mod kernel_waiters;
mod member_files;
mod poll;
mod select;

pub use epoll::{
    epoll_create, epoll_create1, epoll_ctl, epoll_ctl_other, epoll_pwait, epoll_pwait2, epoll_wait,
    ioctl, is_kernel_member,
};
pub use poll::{
    poll, poll_chk, ppoll, ppoll_chk, wait_for_kernel_fd, wait_inside, wait_with_source,
};
pub use select::{pselect, select};

/// The calling thread ends. Called inside.
pub fn on_thread_exit() {
    poll::on_thread_exit();
    epoll_set::on_thread_exit();
    kernel_waiters::on_thread_exit();
}

use super::{common::error, epoll_set};
use busypoll_stack::time::{self, Instant};
use std::{io, time::Duration};

/// When a wait ends; never, if it has no timeout.
#[derive(Clone, Copy)]
struct Deadline {
    at: Option<Instant>,
    /// Returns at once.
    now: bool,
}

impl Deadline {
    /// Milliseconds, negative for ever, as in poll(2) and epoll_wait(2).
    fn from_millis(millis: libc::c_int) -> Deadline {
        Deadline::after(u64::try_from(millis).ok().map(Duration::from_millis))
    }

    fn after(span: Option<Duration>) -> Deadline {
        Deadline { at: span.map(|span| time::now() + span), now: span == Some(Duration::ZERO) }
    }

    /// Null for ever, as in ppoll(2).
    ///
    /// # Errors
    /// As [`span`].
    ///
    /// # Safety
    /// That of [`span`].
    unsafe fn from_timespec(time: *const libc::timespec) -> io::Result<Deadline> {
        // SAFETY: the caller's contract.
        unsafe { span(time) }.map(Deadline::after)
    }

    /// Whether it waits at all.
    fn waits(&self) -> bool {
        !self.now
    }

    fn left(&self) -> Option<Duration> {
        match self {
            Deadline { now: true, .. } => Some(Duration::ZERO),
            Deadline { at, .. } => at.map(|at| at - time::now()),
        }
    }

    fn is_over(&self) -> bool {
        self.now || self.at.is_some_and(|at| time::now() >= at)
    }
}

/// A timeout of the program's; `None` for a null pointer.
///
/// # Errors
/// EINVAL for an invalid one.
///
/// # Safety
/// `time` is null or valid.
pub unsafe fn span(time: *const libc::timespec) -> io::Result<Option<Duration>> {
    // SAFETY: null or valid, by the caller's contract.
    let Some(time) = (unsafe { time.as_ref() }) else { return Ok(None) };
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(nanos @ ..=999_999_999)) => Ok(Some(Duration::new(seconds, nanos))),
        _ => Err(error(libc::EINVAL)),
    }
}
