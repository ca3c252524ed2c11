//! Part of a trial: a time in which the thread keeps to one way.

use std::cell::Cell;

/// A trial keeps to one way for a stretch of time, in nanoseconds, and counts the waits of its second half. The
/// scheduler moves a thread that sleeps to its waker's CPU, and takes a tick or more to separate two threads that spin
/// on one CPU. If waits of both kinds alternated, that would distort both.
pub(super) const STRETCH: u64 = 5_000_000;
const WARM_UP: u64 = STRETCH / 2;
pub(super) struct Stretch {
    pub(super) began: Cell<u64>,
    pub(super) spins: Cell<bool>,
    /// Waits of its second half. Those of a spinning stretch count even if another thread spun, or none was allowed to.
    pub(super) waits: Cell<u32>,
    nanos: Cell<u64>,
    /// When the first of them ended and the last, and the steps of work until then.
    from: Cell<(u64, u64)>,
    to: Cell<(u64, u64)>,
}

impl Stretch {
    pub(super) const fn new() -> Self {
        Self {
            began: Cell::new(0),
            spins: Cell::new(true),
            waits: Cell::new(0),
            nanos: Cell::new(0),
            from: Cell::new((0, 0)),
            to: Cell::new((0, 0)),
        }
    }

    pub(super) fn begin(&self, now: u64) {
        self.began.set(now);
        self.waits.set(0);
        self.nanos.set(0);
    }

    /// The mean wait, and the mean time of a step of work with its waits. Few steps would make it a matter of chance:
    /// then the waits stand for them.
    pub(super) fn means(&self) -> Option<(u64, u64)> {
        let waits = u64::from(self.waits.get());
        let wait = self.nanos.get().checked_div(waits)?;
        let ((from, steps_before), (to, steps)) = (self.from.get(), self.to.get());
        let steps = steps.saturating_sub(steps_before).max(waits - 1).max(1);
        Some((wait, to.saturating_sub(from) / steps))
    }

    /// `steps`: of work on the CPU until now.
    pub(super) fn ended(&self, began: u64, now: u64, steps: u64) {
        if began.saturating_sub(self.began.get()) < WARM_UP {
            return;
        }
        if self.waits.get() == 0 {
            self.from.set((now, steps));
        }
        self.to.set((now, steps));
        self.waits.set(self.waits.get().saturating_add(1));
        self.nanos.set(self.nanos.get().saturating_add(now.saturating_sub(began)));
    }
}
