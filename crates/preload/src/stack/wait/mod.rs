//! Waiting for many: poll, select, epoll, with sockets of ours, the kernel's descriptors, and sets within sets.
//!
//! | module | owns |
//! |---|---|
//! | [`joined`] | which sets a file is a member of |
//! | [`set`] | an epoll of the program: our members, and the kernel's instance for all others |
//! | [`member`] | one file in one set, and how it moves from the kernel's half to ours |
//! | [`alone`] | threads that wait in the kernel's half of a set alone |
//! | [`bells`] | news from the kernel's halves of inner sets |
//! | [`epoll`] | the calls of epoll |
//! | [`poll`], [`select`] | the calls of those names |
//!
//! A set without a socket of ours that has come to life is the kernel's, and so are its waits. In a mixed one our
//! half spins or sleeps, and minds the kernel's half as the stack minds everything outside: a look every 10 us
//! while it spins, and one poll(2) on both while it sleeps.

mod alone;
mod bells;
mod epoll;
mod joined;
mod member;
mod poll;
mod select;
mod set;

pub use epoll::{
    epoll_create, epoll_create1, epoll_ctl, epoll_ctl_other, epoll_pwait, epoll_pwait2, epoll_wait,
    ioctl,
};
pub use joined::Joined;
pub use poll::{of_kernels, poll, poll_chk, ppoll, ppoll_chk};
pub use select::{pselect, select};
pub use set::Set;

/// The calling thread ends. Called inside.
pub fn leave_thread() {
    poll::leave_thread();
    set::leave_thread();
    alone::leave_thread();
}

use super::error;
use busypoll_stack::time::{self, Instant};
use std::{io, time::Duration};

/// When a wait ends; never, if it has no timeout.
#[derive(Clone, Copy)]
struct Deadline {
    at: Option<Instant>,
    /// It is not to wait at all.
    now: bool,
}

impl Deadline {
    /// Milliseconds, below zero for ever, as poll(2) and epoll_wait(2) have it.
    fn from_millis(millis: libc::c_int) -> Deadline {
        Deadline::after(u64::try_from(millis).ok().map(Duration::from_millis))
    }

    fn after(span: Option<Duration>) -> Deadline {
        Deadline { at: span.map(|span| time::now() + span), now: span == Some(Duration::ZERO) }
    }

    /// Null for ever, as ppoll(2) has it.
    ///
    /// # Errors
    /// As [`span`].
    ///
    /// # Safety
    /// That of [`span`].
    unsafe fn from_timespec(time: *const libc::timespec) -> io::Result<Deadline> {
        // SAFETY: the caller's word.
        unsafe { span(time) }.map(Deadline::after)
    }

    /// Whether it is to wait at all.
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

/// A time span of the program's; `None` for a null pointer.
///
/// # Errors
/// EINVAL for what is none.
///
/// # Safety
/// `time` is null or valid.
pub unsafe fn span(time: *const libc::timespec) -> io::Result<Option<Duration>> {
    // SAFETY: null or valid, as the caller says.
    let Some(time) = (unsafe { time.as_ref() }) else { return Ok(None) };
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(nanos @ ..=999_999_999)) => Ok(Some(Duration::new(seconds, nanos))),
        _ => Err(error(libc::EINVAL)),
    }
}
