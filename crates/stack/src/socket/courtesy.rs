//! When who polls in vain lets others have the CPU. The peer that what we sent has just woken may wait for it, so it
//! is offered early and often. But who computes without end takes it for a whole time slice, a hundred times what a
//! round trip takes, and the answer lies there meanwhile. Which of the two it was nobody tells us, only how long we
//! were gone. So a thread that is gone for long, again and again, offers the CPU no more for a while: it polls for a
//! small part of such a turn, and then sleeps, as it would when the scheduler ends the kernel's `napi_busy_loop`. A
//! peer loses that part of its time at the most.

use crate::time::{self, Instant};
use std::{cell::Cell, thread, time::Duration};

/// How often who polls in vain offers the CPU. Answers that come sooner cost nothing.
const COURTESY: Duration = Duration::from_micros(5);

/// Who takes the CPU for so long may be one that computes.
const LONG: Duration = Duration::from_micros(500);

/// If so many in a row do, it is kept.
const TURNS: u32 = 3;

/// The part of their turns for which a wait polls then.
const PART: u32 = 20;

/// For how many waits it is kept before others have another chance to be brief: the first time, and at the most. Each
/// time that they are not, it is kept for twice as many.
const WAITS: [u32; 2] = [64, 16384];

/// What a thread has learnt of those beside it.
#[derive(Clone, Copy)]
struct Manners {
    /// The last turns that were long, in a row, and the shortest of them.
    turns: u32,
    shortest: Duration,
    /// Waits left in which the CPU is kept, and how many they were.
    waits: u32,
    kept: u32,
}

impl Manners {
    const fn new() -> Manners {
        Manners { turns: 0, shortest: Duration::MAX, waits: 0, kept: 0 }
    }

    /// For how long this wait may go on polling without offering the CPU. `None`: it is to offer it.
    fn keep(&mut self) -> Option<Duration> {
        self.waits = self.waits.checked_sub(1)?;
        Some(self.shortest / PART)
    }

    /// Others were offered it, and had it for so long.
    fn gave(&mut self, took: Duration) {
        if took < LONG {
            return *self = Manners::new();
        }
        let first = self.turns == 0;
        self.shortest = if first { took } else { took.min(self.shortest) };
        self.turns += 1;
        if self.turns == TURNS {
            self.turns = 0;
            self.kept = (self.kept * 2).clamp(WAITS[0], WAITS[1]);
            self.waits = self.kept;
        }
    }
}

thread_local! {
    static MANNERS: Cell<Manners> = const { Cell::new(Manners::new()) };
}

/// Of one time of polling.
pub(super) struct Courtesy {
    due: Instant,
    keeps: bool,
}

impl Courtesy {
    pub(super) fn new(begun: Instant) -> Courtesy {
        Courtesy { due: begun + COURTESY, keeps: false }
    }

    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Offers the CPU, or keeps it. False: it is time to sleep instead.
    #[cold]
    pub(super) fn pay(&mut self, now: Instant) -> bool {
        if self.keeps {
            return false;
        }
        let mut manners = MANNERS.get();
        if let Some(time) = manners.keep() {
            (self.due, self.keeps) = (now + time, true);
        } else {
            let before = time::now();
            thread::yield_now();
            let back = time::now();
            manners.gave(back - before);
            self.due = back + COURTESY;
        }
        MANNERS.set(manners);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = Duration::from_millis(3);
    const BRIEF: Duration = Duration::from_micros(20);

    impl Manners {
        /// How many waits keep the CPU.
        fn waits(&mut self) -> u32 {
            (0..).find(|_| self.keep().is_none()).unwrap()
        }
    }

    #[test]
    fn beside_one_that_computes_the_cpu_is_kept_ever_longer() {
        let mut manners = Manners::new();
        for waits in [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 16384] {
            for took in [SLICE * 2, SLICE, SLICE * 3] {
                assert_eq!(manners.keep(), None);
                manners.gave(took);
            }
            assert_eq!(manners.keep(), Some(SLICE / PART));
            assert_eq!(manners.waits(), waits - 1);
        }
        // It has ended.
        manners.gave(BRIEF);
        (0..TURNS).for_each(|_| manners.gave(SLICE));
        assert_eq!(manners.waits(), 64);
    }

    #[test]
    fn now_and_then_a_long_turn_changes_nothing() {
        let mut manners = Manners::new();
        for took in [SLICE, SLICE, BRIEF].repeat(100) {
            manners.gave(took);
            assert_eq!(manners.keep(), None);
        }
    }

    #[test]
    fn a_wait_that_keeps_the_cpu_ends_by_sleep() {
        MANNERS.set(Manners { shortest: SLICE, waits: 1, ..Manners::new() });
        let begun = time::now();
        let mut courtesy = Courtesy::new(begun);
        assert!(!courtesy.is_due(begun) && courtesy.is_due(begun + COURTESY));
        assert!(courtesy.pay(begun + COURTESY));
        assert!(!courtesy.is_due(begun + SLICE / PART));
        assert!(courtesy.is_due(begun + COURTESY + SLICE / PART));
        assert!(!courtesy.pay(begun + SLICE));
        // The next one offers it.
        let mut courtesy = Courtesy::new(begun);
        assert!(courtesy.pay(begun + COURTESY) && courtesy.pay(time::now()));
    }
}
