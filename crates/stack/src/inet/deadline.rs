//! The next deadline of timed work, shared by [`Inet::tick`](super::Inet::tick), which does the work, and the threads
//! that add more. The work itself is kept elsewhere, under locks. Model-checked in `tests/loom.rs`.

use crate::{
    sync::{AtomicU64, Ordering},
    time::Instant,
};

const NEVER: u64 = u64::MAX;
/// The value while a thread does the work that is due. At its end that thread looks at deadlines set meanwhile, so they
/// need no wake.
const RUNNING: u64 = u64::MAX - 1;

pub struct Deadline(AtomicU64);

impl Deadline {
    pub fn never() -> Deadline {
        Deadline(AtomicU64::new(NEVER))
    }

    /// Work was added that is due `at` this time. True: the caller must cause a wake, or `tick` would run too late.
    #[must_use]
    pub fn set(&self, at: Instant) -> bool {
        let before = self.0.fetch_min(at.nanos(), Ordering::SeqCst);
        before > at.nanos() && before != RUNNING
    }

    /// Whether work is due at `now`. If so, the caller must do it and pass the time of the next work to
    /// [`end`](Deadline::end).
    pub fn begin(&self, now: Instant) -> bool {
        // Deadlines set from here on are kept; the caller finds the work of earlier ones.
        let due = |at| (at <= now.nanos()).then_some(RUNNING);
        self.0.fetch_update(Ordering::SeqCst, Ordering::Acquire, due).is_ok()
    }

    pub fn end(&self, next: Option<Instant>) {
        if let Some(next) = next {
            self.0.fetch_min(next.nanos(), Ordering::SeqCst);
        }
        // Fails if a new deadline was set meanwhile.
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
