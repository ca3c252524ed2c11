//! Readers without a lock, and when what a writer took out of their sight may be freed: once every reader that could
//! have seen it has left (RCU). Threads are not registered and nothing is done at their end: a reader takes one of a
//! few slots, for as long as it reads.
//!
//! A slot holds the epoch in which its reader entered. A writer unlinks, gives the garbage the epoch of that moment
//! and begins the next; a reader of a later epoch cannot have seen it. A writer never waits: it marks the readers
//! that may still see its garbage, and a marked reader frees it when it leaves.
//!
//! What orders the two is that both change the word of the slot. Where the writer came first, the reader has what
//! the writer unlinked before; where the reader came first, the writer sees it.

use crate::sync::{AtomicU64, Mutex, Ordering, lock, thread_number};

/// A word of a slot: the epoch of its reader from bit 1 on, 0 if there is none.
#[derive(Debug)]
#[repr(align(128))] // a line of its own, and the one the CPU fetches beside it
struct Slot(AtomicU64);

/// A writer waits for the reader to leave.
const MARK: u64 = 1;

/// One reader among those that found no slot free.
const OVERFLOW_READER: u64 = 2;

/// What readers of one structure may see, and its garbage.
#[derive(Debug)]
pub(crate) struct Domain<G> {
    slots: Box<[Slot]>,
    /// How many readers there are without a slot, from bit 1 on.
    overflow: Slot,
    epoch: AtomicU64,
    /// What is not yet freed, and the epoch in which it was unlinked, oldest first.
    garbage: Mutex<Vec<(u64, G)>>,
    batch: usize,
}

/// A reader inside.
#[must_use]
pub(crate) struct Section<'d, G> {
    domain: &'d Domain<G>,
    slot: Option<&'d Slot>,
}

impl<G> Domain<G> {
    /// With room for `slots` readers at a time, a power of two; more keep all garbage while they are there. It is
    /// looked through when there are `batch` pieces.
    pub(crate) fn new(slots: usize, batch: usize) -> Domain<G> {
        Domain {
            slots: (0..slots.next_power_of_two()).map(|_| Slot(AtomicU64::new(0))).collect(),
            overflow: Slot(AtomicU64::new(0)),
            epoch: AtomicU64::new(1),
            garbage: Mutex::new(Vec::new()),
            batch,
        }
    }

    /// What is reachable from now on is not freed before the section is dropped. Waits for nobody.
    #[inline]
    pub(crate) fn enter(&self) -> Section<'_, G> {
        let word = self.epoch.load(Ordering::Acquire) << 1;
        let first = thread_number() & (self.slots.len() - 1);
        match claim(&self.slots[first], word) {
            true => Section { domain: self, slot: Some(&self.slots[first]) },
            false => self.enter_slow(word),
        }
    }

    #[cold]
    fn enter_slow(&self, word: u64) -> Section<'_, G> {
        let slot = self.slots.iter().find(|slot| claim(slot, word));
        if slot.is_none() {
            self.overflow.0.fetch_add(OVERFLOW_READER, Ordering::AcqRel);
        }
        Section { domain: self, slot }
    }

    /// Frees `garbage` when its time has come. No reader that enters from now on reaches it.
    #[cold]
    pub(crate) fn retire(&self, garbage: G) {
        let mut waiting = lock(&self.garbage);
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel);
        waiting.push((epoch, garbage));
        let many = waiting.len() >= self.batch;
        drop(waiting);
        if many {
            self.collect();
        }
    }

    /// Frees what no reader can see any more.
    #[cold]
    pub(crate) fn collect(&self) {
        let mut waiting = lock(&self.garbage);
        let Some(&(newest, _)) = waiting.last() else { return };
        let oldest = self.oldest_reader(newest);
        let free = waiting.partition_point(|(epoch, _)| *epoch < oldest);
        let free: Vec<_> = waiting.drain(..free).collect();
        // To drop it may call anything.
        drop(waiting);
        drop(free);
    }

    /// The epoch of the oldest reader that may see garbage of the epoch `newest`; all such readers are marked.
    fn oldest_reader(&self, newest: u64) -> u64 {
        let epochs = self.slots.iter().filter_map(|slot| mark(&slot.0, |word| word >> 1 > newest));
        let oldest = epochs.map(|word| word >> 1).min().unwrap_or(u64::MAX);
        // When those without a slot entered is not known.
        mark(&self.overflow.0, |word| word == MARK).map_or(oldest, |_| 0)
    }
}

/// Enters by `slot`, if it is free.
#[inline]
fn claim(slot: &Slot, word: u64) -> bool {
    slot.0.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Marks the reader in `word`, unless there is none or it may be passed over.
fn mark(word: &AtomicU64, pass: impl Fn(u64) -> bool) -> Option<u64> {
    let mut known = 0;
    loop {
        // Also where nothing changes, so that whoever enters next has all that was unlinked.
        let marked = if known == 0 || pass(known) { known & !MARK } else { known | MARK };
        match word.compare_exchange(known, marked, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) if marked & MARK == 0 => return None,
            Ok(_) => return Some(known),
            Err(now) => known = now,
        }
    }
}

impl<G> Drop for Section<'_, G> {
    #[inline]
    fn drop(&mut self) {
        let marked = match self.slot {
            Some(slot) => slot.0.swap(0, Ordering::AcqRel) & MARK != 0,
            None => {
                self.domain.overflow.0.fetch_sub(OVERFLOW_READER, Ordering::AcqRel)
                    == OVERFLOW_READER | MARK
            }
        };
        if marked {
            self.domain.collect();
        }
    }
}
