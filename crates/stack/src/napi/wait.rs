//! A thread that sleeps, and waking it. Every sleep of the stack (a receive, a poll, an epoll wait) is on
//! the one [`Waiter`] of its thread: a word for the fast answer and an eventfd, so that a thread can wait
//! for its own wake-up and for a NIC's interrupt in one call.
//!
//! No wake-up is lost: who waits first makes itself known (under the lock of what it waits for), then looks
//! once more, then sleeps; [`wake`](Waiter::wake) in between turns the sleep into a return.

use crate::{
    sync::{Arc, AtomicU32, Ordering},
    sys::{drain, eventfd, poll, signal},
};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const WOKEN: u32 = 2;

/// Where one thread sleeps.
#[derive(Debug)]
pub struct Waiter {
    state: AtomicU32,
    event: OwnedFd,
}

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// [`Waiter::wake`].
    Woken,
    /// The other descriptor is readable.
    Readable,
    /// The time is over.
    Timeout,
    /// A signal was handled.
    Interrupted,
}

impl Waiter {
    pub(crate) fn new() -> io::Result<Waiter> {
        Ok(Waiter { state: AtomicU32::new(AWAKE), event: eventfd()? })
    }

    /// The calling thread's own.
    ///
    /// # Errors
    /// No descriptor is left (EMFILE, ENFILE).
    pub fn of_this_thread() -> io::Result<Arc<Waiter>> {
        thread_local!(static MINE: std::cell::OnceCell<Arc<Waiter>> = const { std::cell::OnceCell::new() });
        MINE.with(|mine| match mine.get() {
            Some(waiter) => Ok(waiter.clone()),
            None => {
                let waiter = Arc::new(Waiter::new()?);
                Ok(mine.get_or_init(|| waiter).clone())
            }
        })
    }

    /// Starts a new wait: forgets wake-ups meant for earlier ones. Call it before making the waiter known
    /// to whoever is to wake it.
    pub fn start(&self) {
        self.state.store(AWAKE, Ordering::Release);
    }

    /// Ends the wait, or keeps it from beginning. Any thread may call it, any number of times.
    pub fn wake(&self) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            signal(self.event.as_raw_fd());
        }
    }

    /// Whether [`wake`](Waiter::wake) was called since [`start`](Waiter::start).
    #[inline]
    pub fn is_woken(&self) -> bool {
        self.state.load(Ordering::Acquire) == WOKEN
    }

    /// Sleeps until woken (or, rarely, for no reason), `other` is readable, or `timeout` is over (`None`: never). Returns at once if
    /// it was woken before.
    pub fn sleep(&self, other: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Wake {
        if self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            return Wake::Woken;
        }
        let event = self.event.as_raw_fd();
        let other = other.map_or(-1, |fd| fd.as_raw_fd());
        let mut fds =
            [event, other].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let ready = poll(&mut fds, timeout);
        let signalled = ready > 0 && fds[0].revents != 0;
        if signalled {
            drain(event);
        }
        let woken = self
            .state
            .compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Acquire)
            .is_err();
        match ready {
            // A signal without a wake-up is the late echo of an earlier wait's: let the caller look.
            _ if woken || signalled => Wake::Woken,
            0 => Wake::Timeout,
            ready if ready < 0 => Wake::Interrupted,
            _ => Wake::Readable,
        }
    }
}

/// What threads are to be woken when a pass over the queue is over: after the queue is released, so that a
/// woken thread that takes our CPU does not find it owned.
#[derive(Default)]
pub struct WakeList {
    first: [Option<Arc<Waiter>>; 4],
    more: Vec<Arc<Waiter>>,
}

impl WakeList {
    /// Adds a waiter. Allocates only from the fifth on.
    pub fn push(&mut self, waiter: Arc<Waiter>) {
        match self.first.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(waiter),
            None => self.more.push(waiter),
        }
    }

    /// Wakes them all.
    #[inline]
    pub fn wake_all(&mut self) {
        if self.first[0].is_some() {
            self.first.iter_mut().filter_map(Option::take).for_each(|waiter| waiter.wake());
            self.more.drain(..).for_each(|waiter| waiter.wake());
        }
    }
}
