//! The timer wheel: a hierarchy of levels of 64 slots. A slot of the first level is a quarter of a millisecond; each
//! further level is 64 times as with_slack. Inserting, cancelling and finding the next deadline cost the same for any
//! number of timers; an entry moves to a finer level at most seven times.
//!
//! Knows nothing of its payload, of clocks or of locks. A timer never fires early, and less than one slot late.

use crate::time::Instant;
use std::num::NonZeroU32;

/// Nanoseconds of a slot of the finest level, as a power of two: 262 us.
const SHIFT: u32 = 18;
/// Slots of a level, as a power of two.
const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
/// Enough for every instant: 64 bits less those of a slot.
const LEVELS: usize = 8;

const NONE: u32 = u32::MAX;

/// An empty wheel keeps this many entries allocated; more are freed.
const KEEP: usize = 1024;

/// A timer on the wheel. Once the timer has fired or was cancelled the handle is invalid, even after its entry was
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    index: u32,
    generation: NonZeroU32,
}

#[derive(Debug)]
struct Entry<T> {
    tick: u64,
    generation: NonZeroU32,
    /// Neighbours in the ring of its slot; a free entry uses `next` alone.
    prev: u32,
    next: u32,
    /// Level and slot.
    position: u16,
    payload: Option<T>,
}

#[derive(Debug)]
pub(super) struct Wheel<T> {
    /// Everything before this tick has fired; timers at this tick may be about to.
    now: u64,
    entries: Vec<Entry<T>>,
    /// The generation of an entry that was never used.
    generation: NonZeroU32,
    free: u32,
    len: usize,
    /// The first entry of each slot, whose entries are a ring.
    slots: [[u32; SLOTS]; LEVELS],
    /// A bit for each slot that is not empty.
    occupied: [u64; LEVELS],
}

impl<T> Default for Wheel<T> {
    fn default() -> Wheel<T> {
        Wheel {
            now: 0,
            entries: Vec::new(),
            generation: NonZeroU32::MIN,
            free: NONE,
            len: 0,
            slots: [[NONE; SLOTS]; LEVELS],
            occupied: [0; LEVELS],
        }
    }
}

/// The slack of a [`with_slack`] timer, as a part of its span: a power of two.
const SLACK: u32 = 5;

/// The time for a timer that is set at `now` for `at` and need not be exact: `at`, or up to a 32nd of the span later,
/// together with others. A wake-up takes the CPU from a thread that polls there, and where many connections come and
/// go each would cost one.
pub(super) fn with_slack(now: Instant, at: Instant) -> Instant {
    let span = at.nanos().saturating_sub(now.nanos());
    let grain = 1 << (span >> SLACK).checked_ilog2().unwrap_or(0);
    Instant::from_nanos(at.nanos().checked_next_multiple_of(grain).unwrap_or(u64::MAX))
}

/// The first tick not before `at`.
fn tick_of(at: Instant) -> u64 {
    at.nanos().div_ceil(1 << SHIFT)
}

impl<T> Wheel<T> {
    /// Fires `payload` at `at`, or with the next drain if that has passed.
    pub(super) fn insert(&mut self, at: Instant, payload: T) -> Handle {
        let tick = tick_of(at);
        let index = match self.entries.get(self.free as usize) {
            Some(entry) => std::mem::replace(&mut self.free, entry.next),
            None => {
                let generation = self.generation;
                let (prev, next) = (NONE, NONE);
                self.entries.push(Entry {
                    tick,
                    generation,
                    prev,
                    next,
                    position: 0,
                    payload: None,
                });
                self.entries.len() as u32 - 1
            }
        };
        let entry = &mut self.entries[index as usize];
        entry.tick = tick;
        entry.payload = Some(payload);
        let handle = Handle { index, generation: entry.generation };
        self.len += 1;
        self.link(index);
        handle
    }

    /// Cancels a timer; `None` if it is not on the wheel any more.
    pub(super) fn cancel(&mut self, handle: Handle) -> Option<T> {
        self.live(handle)?;
        self.unlink(handle.index);
        self.release(handle.index)
    }

    /// Moves a timer to another time; false if it is not on the wheel any more.
    pub(super) fn modify(&mut self, handle: Handle, at: Instant) -> bool {
        if self.live(handle).is_none() {
            return false;
        }
        self.unlink(handle.index);
        self.entries[handle.index as usize].tick = tick_of(at);
        self.link(handle.index);
        true
    }

    /// The earliest time at which a timer set for `at` fires.
    pub(super) fn fires(at: Instant) -> Instant {
        // Rounding up the last tick would overflow.
        Instant::from_nanos(tick_of(at).min(u64::MAX >> SHIFT) << SHIFT)
    }

    /// When to drain next: no timer fires before.
    pub(super) fn next(&self) -> Option<Instant> {
        let (tick, _) = self.first()?;
        Some(Instant::from_nanos(tick.min(u64::MAX >> SHIFT) << SHIFT))
    }

    /// How many timers there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Passes what is due at `now` to `fired`, in at most `steps` steps. False: there is more to do.
    pub(super) fn drain(
        &mut self,
        now: Instant,
        steps: usize,
        mut fired: impl FnMut(Handle, T),
    ) -> bool {
        let until = now.nanos() >> SHIFT;
        for _ in 0..steps {
            match self.first() {
                Some((tick, level)) if tick <= until => {
                    self.now = self.now.max(tick);
                    let slot = self.occupied[level].trailing_zeros() as usize;
                    let index = self.slots[level][slot];
                    self.unlink(index);
                    if level > 0 {
                        // To a finer level, or due.
                        self.link(index);
                        continue;
                    }
                    let generation = self.entries[index as usize].generation;
                    if let Some(payload) = self.release(index) {
                        fired(Handle { index, generation }, payload);
                    }
                }
                _ => {
                    self.now = self.now.max(until);
                    return true;
                }
            }
        }
        false
    }

    /// The first tick at which there is work, and its level. Slots before the slot of `now` are empty on every level;
    /// the slot of `now` itself may still have to move to finer levels.
    fn first(&self) -> Option<(u64, usize)> {
        let start = |level: usize| {
            let slot = u64::from(self.occupied[level].trailing_zeros());
            let shift = BITS * level as u32;
            let mask = u64::MAX.checked_shl(shift + BITS).unwrap_or(0);
            (self.now & mask | slot << shift, level)
        };
        (0..LEVELS).filter(|&level| self.occupied[level] != 0).map(start).min()
    }

    fn live(&self, handle: Handle) -> Option<&Entry<T>> {
        let entry = self.entries.get(handle.index as usize)?;
        (entry.generation == handle.generation && entry.payload.is_some()).then_some(entry)
    }

    /// Puts an entry into its slot, behind those already there.
    fn link(&mut self, index: u32) {
        let tick = self.entries[index as usize].tick.max(self.now);
        // The highest bit in which the tick differs from now gives the level.
        let level = (tick ^ self.now).checked_ilog2().unwrap_or(0) / BITS;
        let slot = (tick >> (BITS * level)) as usize % SLOTS;
        let first = &mut self.slots[level as usize][slot];
        let (head, tail) = match *first {
            NONE => {
                *first = index;
                self.occupied[level as usize] |= 1 << slot;
                (index, index)
            }
            head => (head, self.entries[head as usize].prev),
        };
        let entry = &mut self.entries[index as usize];
        entry.position = (level as u16) << BITS | slot as u16;
        (entry.prev, entry.next) = (tail, head);
        self.entries[tail as usize].next = index;
        self.entries[head as usize].prev = index;
    }

    fn unlink(&mut self, index: u32) {
        let Entry { prev, next, position, .. } = self.entries[index as usize];
        let (level, slot) = (usize::from(position >> BITS), usize::from(position) % SLOTS);
        if next == index {
            self.slots[level][slot] = NONE;
            self.occupied[level] &= !(1 << slot);
            return;
        }
        self.entries[prev as usize].next = next;
        self.entries[next as usize].prev = prev;
        let first = &mut self.slots[level][slot];
        if *first == index {
            *first = next;
        }
    }

    fn release(&mut self, index: u32) -> Option<T> {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
        entry.next = self.free;
        self.free = index;
        self.len -= 1;
        let payload = entry.payload.take();
        if self.len == 0 && self.entries.len() > KEEP {
            self.free_entries();
        }
        payload
    }

    #[cold]
    fn free_entries(&mut self) {
        // Above all generations used: old handles stay invalid.
        let used = self.entries.iter().map(|entry| entry.generation).max();
        self.generation = used.unwrap_or(NonZeroU32::MIN);
        (self.entries, self.free) = (Vec::new(), NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const SLOT: Duration = Duration::from_nanos(1 << SHIFT);

    fn fired(wheel: &mut Wheel<u32>, now: Instant) -> Vec<u32> {
        let mut all = Vec::new();
        while !wheel.drain(now, 3, |_, payload| all.push(payload)) {}
        all
    }

    #[test]
    fn an_emptied_wheel_frees_its_entries_and_old_handles_stay_invalid() {
        let mut wheel = Wheel::default();
        let fill = |wheel: &mut Wheel<u32>, count| -> Vec<Handle> {
            (0..count).map(|n| wheel.insert(Instant::from_millis(1), n)).collect()
        };
        for round in 0..3 {
            let old = fill(&mut wheel, 5_000);
            assert_eq!(fired(&mut wheel, Instant::from_millis(2 + round)).len(), 5_000);
            assert_eq!(wheel.entries.capacity(), 0);
            let new = fill(&mut wheel, 5_000);
            assert!(old.iter().all(|handle| wheel.cancel(*handle).is_none()));
            assert!(new.iter().all(|handle| wheel.cancel(*handle).is_some()));
        }
        // Some are kept: a request-response program allocates nothing.
        fill(&mut wheel, 100);
        fired(&mut wheel, Instant::from_millis(9));
        assert!(wheel.entries.capacity() >= 100);
    }

    #[test]
    fn fires_on_time_and_in_order() {
        let mut wheel = Wheel::default();
        let ms = Instant::from_millis;
        for (n, at) in [(1, 200), (2, 1), (3, 60_000), (4, 1), (5, 7_200_000)] {
            wheel.insert(ms(at), n);
        }
        assert_eq!(fired(&mut wheel, Instant::from_micros(999)), []);
        assert_eq!(fired(&mut wheel, ms(1) + SLOT), [2, 4]);
        assert_eq!(fired(&mut wheel, ms(59_999)), [1]);
        assert_eq!(fired(&mut wheel, ms(7_199_999)), [3]);
        assert_eq!(fired(&mut wheel, ms(7_200_000) + SLOT), [5]);
        assert_eq!((wheel.len(), wheel.next()), (0, None));
    }

    #[test]
    fn a_timer_with_slack_is_at_most_a_32nd_late_and_fires_with_others() {
        let base = 12_345_678_901;
        for (span, instants) in [(0, 64), (1_000_000, 64), (200_000_000, 6), (60_000_000_000, 2)] {
            let mut seen = std::collections::BTreeSet::new();
            // 64 timers, set 300 us one after the other.
            for now in (0..64).map(|n| base + n * 300_000) {
                let at = now + span;
                let fires = with_slack(Instant::from_nanos(now), Instant::from_nanos(at)).nanos();
                assert!((at..=at + span / 32).contains(&fires), "{span}: {at} {fires}");
                seen.insert(fires);
            }
            assert!(seen.len() <= instants, "{span}: {}", seen.len());
        }
        let end = Instant::from_nanos(u64::MAX);
        assert_eq!(with_slack(Instant::ZERO, end), end);
        assert_eq!(with_slack(end, Instant::ZERO), Instant::ZERO);
    }

    #[test]
    fn an_old_handle_is_invalid() {
        let mut wheel = Wheel::default();
        let first = wheel.insert(Instant::from_millis(5), 1);
        assert_eq!(wheel.cancel(first), Some(1));
        let second = wheel.insert(Instant::from_millis(6), 2);
        assert_eq!(wheel.cancel(first), None);
        assert!(!wheel.modify(first, Instant::ZERO));
        assert!(wheel.modify(second, Instant::from_millis(1)));
        assert_eq!(fired(&mut wheel, Instant::from_millis(2)), [2]);
        assert!(!wheel.modify(second, Instant::ZERO));
    }

    #[test]
    fn a_timer_at_the_last_instant_does_not_overflow() {
        let mut wheel = Wheel::default();
        wheel.insert(Instant::from_nanos(u64::MAX), 1);
        assert!(wheel.next().is_some());
        assert_eq!(fired(&mut wheel, Instant::from_millis(1)), []);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Cancel(usize),
        Shift(usize, u64),
        Advance(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let span = || prop_oneof![0..3_000_000u64, 0..40_000_000_000u64, 0..10_000_000_000_000u64];
        let step = prop_oneof![
            4 => span().prop_map(Step::Insert),
            1 => any::<usize>().prop_map(Step::Cancel),
            2 => (any::<usize>(), span()).prop_map(|(which, at)| Step::Shift(which, at)),
            3 => span().prop_map(Step::Advance),
        ];
        proptest::collection::vec(step, 1..200)
    }

    proptest! {
        // Against a list: what is due fires, within a slot; nothing else fires.
        #[test]
        fn fires_as_a_list_of_timers_would(steps in steps()) {
            let mut wheel = Wheel::default();
            let mut list: Vec<(u64, u32, Handle)> = Vec::new();
            let (mut now, mut count) = (0, 0);
            for step in steps {
                match step {
                    Step::Insert(span) => {
                        count += 1;
                        let at = now + span;
                        list.push((at, count, wheel.insert(Instant::from_nanos(at), count)));
                    }
                    Step::Cancel(which) if !list.is_empty() => {
                        let (_, n, handle) = list.swap_remove(which % list.len());
                        prop_assert_eq!(wheel.cancel(handle), Some(n));
                    }
                    Step::Shift(which, span) if !list.is_empty() => {
                        let which = which % list.len();
                        list[which].0 = now + span;
                        prop_assert!(wheel.modify(list[which].2, Instant::from_nanos(now + span)));
                    }
                    Step::Advance(span) => {
                        now += span;
                        let got = fired(&mut wheel, Instant::from_nanos(now));
                        for n in &got {
                            let due = list.iter().find(|(_, other, _)| other == n).map(|(at, ..)| *at);
                            prop_assert!(due.is_some_and(|at| at <= now), "early");
                        }
                        list.retain(|(_, n, _)| !got.contains(n));
                        let slot = SLOT.as_nanos() as u64;
                        prop_assert!(list.iter().all(|(at, ..)| at + slot > now), "late");
                    }
                    _ => {}
                }
                prop_assert_eq!(wheel.len(), list.len());
                let next = wheel.next().map(Instant::nanos);
                prop_assert_eq!(next.is_some(), !list.is_empty());
                let earliest = list.iter().map(|(at, ..)| *at).min();
                let slot = SLOT.as_nanos() as u64;
                prop_assert!(next.zip(earliest).is_none_or(|(next, at)| next < at.max(now) + slot));
            }
        }
    }
}
