//! The watchdog: one clock for all queues of the process that are left to pollers. While there are any it
//! looks at them now and then, and calls the interrupt thread of one that nobody has polled since. Nobody
//! puts it off, for to set a timer is a system call; pollers only note when they were there.
//!
//! While no queue is watched it sleeps without a clock. It is model-checked in `tests/loom.rs`.

use super::Context;
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
#[derive(Debug)]
pub(crate) struct Watchdog {
    event: OwnedFd,
    watch: Mutex<Watch>,
}

#[derive(Debug, Default)]
struct Watch {
    contexts: Vec<Arc<Context>>,
    /// When it next looks; `None`: not before it is called.
    next: Option<Instant>,
    stopped: bool,
}

impl Watchdog {
    pub(super) fn new() -> io::Result<Watchdog> {
        Ok(Watchdog { event: sys::eventfd()?, watch: Mutex::default() })
    }

    /// From now on looks at `context`, for as long as its handoff says `WATCHING`.
    pub(super) fn watch(&self, context: &Arc<Context>) {
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

    /// Lets go of `context`, which its interrupt thread no longer serves.
    pub(super) fn forget(&self, context: &Arc<Context>) {
        lock(&self.watch).contexts.retain(|watched| !Arc::ptr_eq(watched, context));
    }

    pub(super) fn stop(&self) {
        lock(&self.watch).stopped = true;
        self.wake();
    }

    fn wake(&self) {
        sys::signal(self.event.as_raw_fd());
    }

    /// The watchdog thread's whole life.
    pub(super) fn run(&self) {
        loop {
            let mut watch = lock(&self.watch);
            if watch.stopped {
                return;
            }
            let now = time::now();
            // One wake-up looks at all of them, so that queues polled side by side share their looks.
            watch.contexts.retain(|context| context.check_pollers(now));
            watch.next = watch.contexts.iter().map(|context| context.check_due()).min();
            let next = watch.next;
            drop(watch);
            // Elapsed already only if this thread was held up: then it looks again at once.
            let timeout = next.map(|next| next - time::now());
            if sys::poll(self.event.as_raw_fd(), timeout) > 0 {
                sys::drain(self.event.as_raw_fd());
            }
        }
    }
}
