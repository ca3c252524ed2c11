//! When a busy-polling thread yields the CPU (sched_yield). The peer that our packet has just woken may be waiting for
//! this CPU, so the thread yields early and often. A thread that computes without end, however, then keeps the CPU for
//! a whole time slice, a hundred round trips long, while the answer lies in the ring. The two cases differ only in how
//! long the yield took. After several long yields in a row the thread stops yielding for a number of waits: it polls
//! for a small part of the length of such a yield and then sleeps, as when the scheduler ends the kernel's
//! `napi_busy_loop`. A peer on the same CPU loses at most that part of its time.

use crate::time::{self, Instant};
use std::{cell::Cell, thread, time::Duration};

/// How often a thread that polls in vain yields the CPU. Answers that come sooner cost nothing. It yields at once where
/// its last yield has let another thread run: that one is likely to be the peer.
const YIELD_INTERVAL: Duration = Duration::from_micros(5);

/// A yield that takes this long has let another thread run.
const SWITCH: Duration = Duration::from_micros(2);

/// A yield that takes this long counts as long: another thread may be computing.
const LONG_YIELD: Duration = Duration::from_micros(500);

/// After this many long yields in a row the thread stops yielding.
const LONG_YIELDS: u32 = 3;

/// A wait without yields polls for the shortest of the long yields divided by this.
const SPIN_FRACTION: u32 = 20;

/// The number of waits without yields before the thread yields again: the first time, and at most. The number doubles
/// each time the yields that follow are long again.
const WAITS: [u32; 2] = [64, 16384];

/// What a thread has learnt from its yields.
#[derive(Clone, Copy)]
struct YieldHistory {
    /// The last yield has let another thread run, for a short time.
    shares: bool,
    /// The number of long yields in a row up to now, and the shortest of them.
    long_yields: u32,
    shortest: Duration,
    /// Waits left without yields, and how many there were in this round.
    waits_left: u32,
    waits: u32,
}

impl YieldHistory {
    const fn new() -> YieldHistory {
        YieldHistory {
            shares: false,
            long_yields: 0,
            shortest: Duration::MAX,
            waits_left: 0,
            waits: 0,
        }
    }

    fn interval(&self) -> Duration {
        if self.shares { Duration::ZERO } else { YIELD_INTERVAL }
    }

    /// How long this wait may go on polling without a yield. `None`: it yields.
    fn spin_without_yield(&mut self) -> Option<Duration> {
        self.waits_left = self.waits_left.checked_sub(1)?;
        Some(self.shortest / SPIN_FRACTION)
    }

    /// Records a yield that took `took`.
    fn record(&mut self, took: Duration) {
        if took < LONG_YIELD {
            *self = YieldHistory { shares: took >= SWITCH, ..YieldHistory::new() };
            return;
        }
        self.shares = false;
        let first = self.long_yields == 0;
        self.shortest = if first { took } else { took.min(self.shortest) };
        self.long_yields += 1;
        if self.long_yields == LONG_YIELDS {
            self.long_yields = 0;
            self.waits = (self.waits * 2).clamp(WAITS[0], WAITS[1]);
            self.waits_left = self.waits;
        }
    }
}

thread_local! {
    static YIELD_HISTORY: Cell<YieldHistory> = const { Cell::new(YieldHistory::new()) };
}

/// The yields of one busy loop.
#[derive(Debug)]
pub(super) struct YieldPolicy {
    due: Instant,
    /// This loop sleeps instead of yielding.
    sleeps: bool,
}

impl YieldPolicy {
    pub(super) fn new(begun: Instant) -> YieldPolicy {
        YieldPolicy { due: begun + YIELD_HISTORY.get().interval(), sleeps: false }
    }

    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Yields the CPU, or lets the loop poll on without a yield. False: the caller is to sleep instead.
    #[cold]
    pub(super) fn yield_or_sleep(&mut self, now: Instant) -> bool {
        if self.sleeps {
            return false;
        }
        let mut history = YIELD_HISTORY.get();
        if let Some(time) = history.spin_without_yield() {
            (self.due, self.sleeps) = (now + time, true);
        } else {
            let before = time::now();
            thread::yield_now();
            let back = time::now();
            history.record(back - before);
            self.due = back + history.interval();
        }
        YIELD_HISTORY.set(history);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = Duration::from_millis(3);
    const BRIEF: Duration = Duration::from_micros(20);

    impl YieldHistory {
        /// How many waits do not yield.
        fn count_waits(&mut self) -> u32 {
            (0..).find(|_| self.spin_without_yield().is_none()).unwrap()
        }
    }

    #[test]
    fn after_long_yields_ever_more_waits_do_not_yield() {
        let mut history = YieldHistory::new();
        for waits in [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 16384] {
            for took in [SLICE * 2, SLICE, SLICE * 3] {
                assert_eq!(history.spin_without_yield(), None);
                history.record(took);
            }
            assert_eq!(history.spin_without_yield(), Some(SLICE / SPIN_FRACTION));
            assert_eq!(history.count_waits(), waits - 1);
        }
        // The computing thread has ended.
        history.record(BRIEF);
        (0..LONG_YIELDS).for_each(|_| history.record(SLICE));
        assert_eq!(history.count_waits(), 64);
    }

    #[test]
    fn a_thread_yields_at_once_where_its_last_yield_let_another_run() {
        let mut history = YieldHistory::new();
        assert_eq!(history.interval(), YIELD_INTERVAL);
        // Nothing else ran; the peer did; a thread that computes did.
        for (took, interval) in [
            (SWITCH / 4, YIELD_INTERVAL),
            (BRIEF, Duration::ZERO),
            (SWITCH / 4, YIELD_INTERVAL),
            (BRIEF, Duration::ZERO),
            (SLICE, YIELD_INTERVAL),
        ] {
            history.record(took);
            assert_eq!(history.interval(), interval, "{took:?}");
        }
    }

    #[test]
    fn a_short_yield_between_long_ones_resets_the_count() {
        let mut history = YieldHistory::new();
        for took in [SLICE, SLICE, BRIEF].repeat(100) {
            history.record(took);
            assert_eq!(history.spin_without_yield(), None);
        }
    }

    #[test]
    fn a_wait_without_yields_ends_in_sleep() {
        YIELD_HISTORY.set(YieldHistory { shortest: SLICE, waits_left: 1, ..YieldHistory::new() });
        let begun = time::now();
        let mut yield_policy = YieldPolicy::new(begun);
        assert!(!yield_policy.is_due(begun) && yield_policy.is_due(begun + YIELD_INTERVAL));
        assert!(yield_policy.yield_or_sleep(begun + YIELD_INTERVAL));
        assert!(!yield_policy.is_due(begun + SLICE / SPIN_FRACTION));
        assert!(yield_policy.is_due(begun + YIELD_INTERVAL + SLICE / SPIN_FRACTION));
        assert!(!yield_policy.yield_or_sleep(begun + SLICE));
        // The next wait yields.
        let mut yield_policy = YieldPolicy::new(begun);
        assert!(
            yield_policy.yield_or_sleep(begun + YIELD_INTERVAL)
                && yield_policy.yield_or_sleep(time::now())
        );
    }
}
