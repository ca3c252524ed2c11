//! Waiting for many: poll, select, epoll, with sockets of ours, the kernel's descriptors, and sets within sets.
//!
//! | module | owns |
//! |---|---|
//! | [`joined`] | which sets a file is a member of |
//! | [`set`] | an epoll of the program: our members, and the kernel's instance for all others |
//! | [`member`] | one file in one set, and how it moves from the kernel's half to ours |
//! | [`bells`] | news from the kernel's halves of inner sets |
//! | [`epoll`] | the calls of epoll |
//! | [`poll`], [`select`] | the calls of those names |
//!
//! A set without a socket of ours that has come to life is the kernel's, and so are its waits. In a mixed one our
//! half spins or sleeps, and minds the kernel's half as the stack minds everything outside: a look every 10 us
//! while it spins, and one poll(2) on both while it sleeps.

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
    /// EINVAL for what is no time span.
    ///
    /// # Safety
    /// `span` is null or valid.
    unsafe fn from_timespec(span: *const libc::timespec) -> io::Result<Deadline> {
        // SAFETY: null or valid, as the caller says.
        let Some(span) = (unsafe { span.as_ref() }) else { return Ok(Deadline::after(None)) };
        let seconds = u64::try_from(span.tv_sec).map_err(|_| error(libc::EINVAL))?;
        let nanos = u32::try_from(span.tv_nsec).ok().filter(|nanos| *nanos < 1_000_000_000);
        let nanos = nanos.ok_or_else(|| error(libc::EINVAL))?;
        Ok(Deadline::after(Some(Duration::new(seconds, nanos))))
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
