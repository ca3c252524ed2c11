//! The kernel's file descriptors that a wait for sockets watches as well: no packet of our queues signals them.

use crate::{napi::KernelFds, time::Instant};
use std::time::Duration;

/// How often a busy poll checks the kernel's descriptors: each check is a system call.
const INTERVAL: Duration = Duration::from_micros(10);

/// The checks of the kernel's descriptors during one busy poll.
pub(super) struct KernelFdCheck<'a> {
    kernel_fds: &'a mut KernelFds,
    next: Instant,
    found: bool,
}

impl KernelFdCheck<'_> {
    pub(super) fn new(now: Instant, kernel_fds: &mut KernelFds) -> KernelFdCheck<'_> {
        KernelFdCheck { kernel_fds, next: now + INTERVAL, found: false }
    }

    /// Whether [`INTERVAL`] has passed since the last check.
    #[inline]
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + INTERVAL;
        }
        due
    }

    /// Polls the descriptors without waiting. True if one of them is ready.
    pub(super) fn check(&mut self) -> bool {
        self.found = self.kernel_fds.look();
        self.found
    }

    /// The result of the last check.
    pub(super) fn has_found(&self) -> bool {
        self.found
    }
}
