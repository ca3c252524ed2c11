//! What else a wait for sockets minds: things of the kernel's, which no packet of ours tells of.

use crate::{napi::Outside, time::Instant};
use std::time::Duration;

/// While a wait busy polls, the kernel's things are looked at so often: each look is a system call.
const INTERVAL: Duration = Duration::from_micros(10);

/// Things of the kernel's that a wait for sockets minds beside them.
pub trait Beside {
    /// Looks without waiting: whether something is there.
    fn look(&mut self) -> bool;

    /// What to sleep on beside the sockets' wake-up.
    fn outside(&mut self) -> &mut Outside;
}

impl Beside for Outside {
    fn look(&mut self) -> bool {
        Outside::look(self)
    }

    fn outside(&mut self) -> &mut Outside {
        self
    }
}

/// Looking now and then, in a busy loop.
pub(super) struct Look<'a> {
    beside: &'a mut dyn Beside,
    next: Instant,
    found: bool,
}

impl Look<'_> {
    pub(super) fn new(now: Instant, beside: &mut dyn Beside) -> Look<'_> {
        Look { beside, next: now + INTERVAL, found: false }
    }

    /// Whether it is time again.
    #[inline]
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + INTERVAL;
        }
        due
    }

    /// Looks.
    pub(super) fn found(&mut self) -> bool {
        self.found = self.beside.look();
        self.found
    }

    /// What the last look came to.
    pub(super) fn has_found(&self) -> bool {
        self.found
    }
}
