//! The place of a host's poller task, by which tasks that begin to wait reach it.

use crate::{inet::Context, napi::Waiter, sync::Arc};
use std::sync::atomic::{AtomicBool, Ordering};

/// A host has at most one poller task: more would take turns at the same queues.
#[derive(Debug)]
pub(crate) struct PollerSlot {
    taken: AtomicBool,
    waiter: Arc<Waiter>,
}

impl PollerSlot {
    pub(super) fn new() -> PollerSlot {
        PollerSlot { taken: AtomicBool::new(false), waiter: Arc::new(Waiter::of_task()) }
    }

    /// Takes the slot. False if the host has a poller task.
    pub(crate) fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn release(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// The poller task's waiter: woken for each task that begins to wait.
    pub(crate) fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }

    /// A task is about to wait for packets of `context`, or a program in the kernel for its descriptor: from now on the
    /// poller task polls, or else the interrupt thread.
    pub(crate) fn begin_wait(&self, context: Option<&Context>) {
        if self.taken.load(Ordering::Acquire) {
            if !self.waiter.is_woken() {
                self.waiter.wake();
            }
        } else if let Some(context) = context {
            context.leave_to_interrupt_if_polled();
        }
    }
}
