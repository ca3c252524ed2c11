//! The interrupt of a queue that holds frames back: an epoll descriptor with the NIC's own interrupt and a
//! timerfd for the next held frame.
//!
//! Owns the due times of both directions. The timer is set only while unmasked.

use crate::{
    nic::{Coalesce, Interrupt},
    sync::{Mutex, lock},
    sys,
    time::{self, Instant},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// The direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Receive,
    Transmit,
}

const NEVER: u64 = u64::MAX;

pub(super) struct Alarm {
    inner: Arc<dyn Interrupt>,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// When each direction next has a frame to release, in nanoseconds.
    due: [AtomicU64; 2],
    state: Mutex<State>,
}

struct State {
    unmasked: bool,
    /// The time the timer is set to.
    set: u64,
}

impl Alarm {
    pub(super) fn new(inner: Arc<dyn Interrupt>) -> io::Result<Alarm> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: a plain system call.
        let timer = sys::owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        let epoll = sys::epoll()?;
        for fd in [inner.fd(), timer.as_fd()] {
            let (add, readable) = (libc::EPOLL_CTL_ADD, libc::EPOLLIN as u32);
            sys::epoll_control(epoll.as_raw_fd(), add, fd.as_raw_fd(), readable, 0)?;
        }
        let due = [AtomicU64::new(NEVER), AtomicU64::new(NEVER)];
        let state = Mutex::new(State { unmasked: false, set: NEVER });
        Ok(Alarm { inner, epoll, timer, due, state })
    }

    /// Whether `direction` has a frame to release.
    pub(super) fn is_due(&self, direction: Direction, now: Instant) -> bool {
        self.due[direction as usize].load(Relaxed) <= now.nanos()
    }

    /// Sets when `direction` next has a frame to release.
    pub(super) fn set(&self, direction: Direction, due: Option<Instant>) {
        let due = due.map_or(NEVER, Instant::nanos);
        let slot = &self.due[direction as usize];
        if slot.load(Relaxed) != due {
            // Under the lock, so that either `unmask` sees the new time, or this sees `unmasked`.
            let mut state = lock(&self.state);
            slot.store(due, Relaxed);
            if state.unmasked {
                self.set_timer(&mut state, self.next());
            }
        }
    }

    fn next(&self) -> u64 {
        self.due.iter().map(|due| due.load(Relaxed)).min().unwrap_or(NEVER)
    }

    /// Sets the timer to `due`, or stops it; either clears an expiry.
    fn set_timer(&self, state: &mut State, due: u64) {
        if state.set == due {
            return;
        }
        state.set = due;
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = match due {
            NEVER => zero,
            // Not zero, which would stop it.
            due => {
                sys::timespec(Duration::from_nanos(due.saturating_sub(time::now().nanos()).max(1)))
            }
        };
        let spec = libc::itimerspec { it_interval: zero, it_value };
        // SAFETY: `spec` is valid for the call; a valid time on our own timerfd cannot fail.
        unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &spec, std::ptr::null_mut()) };
    }

    fn stop(&self) {
        let mut state = lock(&self.state);
        state.unmasked = false;
        self.set_timer(&mut state, NEVER);
    }
}

impl Interrupt for Alarm {
    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn unmask(&self) -> bool {
        {
            let mut state = lock(&self.state);
            // It may have expired since it was set.
            self.set_timer(&mut state, NEVER);
            let due = self.next();
            if due <= time::now().nanos() {
                state.unmasked = false;
                return false;
            }
            state.unmasked = true;
            self.set_timer(&mut state, due);
        }
        let unmasked = self.inner.unmask();
        if !unmasked {
            self.stop();
        }
        unmasked
    }

    fn mask(&self) {
        self.inner.mask();
        self.stop();
    }

    fn hang_up(&self) -> Option<BorrowedFd<'_>> {
        self.inner.hang_up()
    }

    fn hung_up(&self) {
        self.inner.hung_up();
    }

    fn dropped(&self) -> u64 {
        self.inner.dropped()
    }

    fn set_coalesce(&self, coalesce: Coalesce) -> io::Result<()> {
        self.inner.set_coalesce(coalesce)
    }
}
