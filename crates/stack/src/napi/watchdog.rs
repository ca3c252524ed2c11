//! The watchdog: one thread for all queues of the process that are left to pollers. It checks them periodically, and
//! kicks the interrupt thread of a queue that no thread has polled since. Pollers never re-arm its timer, because that
//! is a system call; they only record the time of their last poll.
//!
//! While no queue is watched it sleeps without a timeout. It is model-checked in `tests/loom.rs`.

use super::{Context, Upper};
use crate::{
    sync::{Arc, Mutex, lock},
    sys,
    time::{self, Instant},
};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

/// The watchdog of a process.
pub(crate) struct Watchdog<U: Upper> {
    event: OwnedFd,
    watch: Mutex<Watch<U>>,
}

struct Watch<U: Upper> {
    contexts: Vec<Arc<Context<U>>>,
    /// When it checks next; `None`: not before it is woken.
    next: Option<Instant>,
    stopped: bool,
}

impl<U: Upper> Watchdog<U> {
    pub(super) fn new() -> io::Result<Watchdog<U>> {
        let watch = Watch { contexts: Vec::new(), next: None, stopped: false };
        Ok(Watchdog { event: sys::eventfd()?, watch: Mutex::new(watch) })
    }

    /// Checks `context` from now on, for as long as its handoff is `WATCHING`.
    pub(super) fn watch(&self, context: &Arc<Context<U>>) {
        let mut watch = lock(&self.watch);
        if !watch.contexts.iter().any(|watched| Arc::ptr_eq(watched, context)) {
            watch.contexts.push(context.clone());
        }
        let due = context.check_due();
        let too_late = watch.next.is_none_or(|next| due < next);
        drop(watch);
        if too_late {
            self.wake();
        }
    }

    /// Removes `context`, whose interrupt thread has ended.
    pub(super) fn forget(&self, context: &Arc<Context<U>>) {
        lock(&self.watch).contexts.retain(|watched| !Arc::ptr_eq(watched, context));
    }

    pub(super) fn stop(&self) {
        lock(&self.watch).stopped = true;
        self.wake();
    }

    fn wake(&self) {
        sys::signal(self.event.as_raw_fd());
    }

    /// The watchdog thread's main loop.
    pub(super) fn run(&self) {
        loop {
            let mut watch = lock(&self.watch);
            if watch.stopped {
                return;
            }
            let now = time::now();
            // One wake-up checks all of them, so that queues polled at the same time share wake-ups.
            watch.contexts.retain(|context| context.check_pollers(now));
            watch.next = watch.contexts.iter().map(|context| context.check_due()).min();
            let next = watch.next;
            drop(watch);
            // Already past only if this thread was delayed: then it checks again at once.
            let timeout = next.map(|next| next - time::now());
            if sys::poll(self.event.as_raw_fd(), timeout) > 0 {
                sys::drain(self.event.as_raw_fd());
            }
        }
    }
}
