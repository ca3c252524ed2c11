//! When timed work is due next: between who does it, in [`Inet::tick`](super::Inet::tick), and who comes upon more.
//! What is due itself lies elsewhere, under locks. It is model-checked in `tests/loom.rs`.

use crate::{
    sync::{AtomicU64, Ordering},
    time::Instant,
};

const NEVER: u64 = u64::MAX;
/// Instead of a deadline while what is due is done. Whoever does it looks at the end at what was set meanwhile, so
/// nobody is called for that.
const RUNNING: u64 = u64::MAX - 1;

pub struct Deadline(AtomicU64);

impl Deadline {
    pub fn never() -> Deadline {
        Deadline(AtomicU64::new(NEVER))
    }

    /// Work was laid down that is due `at` then. True: somebody must be called, who else would come too late.
    #[must_use]
    pub fn set(&self, at: Instant) -> bool {
        let before = self.0.fetch_min(at.nanos(), Ordering::SeqCst);
        before > at.nanos() && before != RUNNING
    }

    /// Whether something is due at `now`. Then the caller does it, looks for what is due `next`, and says so to
    /// [`end`](Deadline::end).
    pub fn begin(&self, now: Instant) -> bool {
        // Deadlines set from here on count again; the caller finds those of before.
        let due = |at| (at <= now.nanos()).then_some(RUNNING);
        self.0.fetch_update(Ordering::SeqCst, Ordering::Acquire, due).is_ok()
    }

    pub fn end(&self, next: Option<Instant>) {
        if let Some(next) = next {
            self.0.fetch_min(next.nanos(), Ordering::SeqCst);
        }
        // Fails if there is a deadline again.
        let _ = self.0.compare_exchange(RUNNING, NEVER, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// When to [`begin`](Deadline::begin) again.
    pub fn next(&self) -> Option<Instant> {
        match self.0.load(Ordering::Acquire) {
            RUNNING | NEVER => None,
            nanos => Some(Instant::from_nanos(nanos)),
        }
    }
}
