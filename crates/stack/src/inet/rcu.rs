//! RCU: readers take no lock, and what a writer has unlinked is freed once every reader that may have seen it has left.
//! Threads are not registered and need no cleanup at their exit: a reader claims one of a few slots for as long as it
//! reads.
//!
//! A slot holds the epoch in which its reader entered. A writer unlinks, tags the garbage with the current epoch and
//! starts the next one; a reader of a later epoch cannot have seen the garbage. A writer never waits: it marks the
//! readers that may still see its garbage, and a marked reader frees the garbage when it leaves.
//!
//! Reader and writer are ordered as both modify the slot's word. If the writer's access came first, the reader sees its
//! unlinking. If the reader's came first, the writer sees the reader.

use crate::sync::{AtomicU64, Mutex, Ordering, lock, thread_number};

/// The word of a slot: the reader's epoch in bits 1 and up, and [`MARK`]; 0 if the slot is free.
#[derive(Debug)]
#[repr(align(128))] // its own cache line and the one the CPU prefetches with it
struct Slot(AtomicU64);

/// Set by a writer: the reader must free garbage when it leaves.
const MARK: u64 = 1;

/// One reader in `Domain::overflow`.
const OVERFLOW_READER: u64 = 2;

/// The readers of one data structure and its garbage.
#[derive(Debug)]
pub(crate) struct Domain<G> {
    slots: Box<[Slot]>,
    /// The number of readers that found no free slot, in bits 1 and up, and [`MARK`].
    overflow: Slot,
    epoch: AtomicU64,
    /// The garbage not yet freed, with the epoch in which it was unlinked, oldest first.
    garbage: Mutex<Vec<(u64, G)>>,
    batch: usize,
}

/// A read-side critical section.
#[must_use]
pub(crate) struct Section<'d, G> {
    domain: &'d Domain<G>,
    slot: Option<&'d Slot>,
}

impl<G> Domain<G> {
    /// `slots` is rounded up to a power of two. While more readers than slots are inside, no garbage is freed. A
    /// writer tries to free garbage when there are `batch` pieces.
    pub(crate) fn new(slots: usize, batch: usize) -> Domain<G> {
        Domain {
            slots: (0..slots.next_power_of_two()).map(|_| Slot(AtomicU64::new(0))).collect(),
            overflow: Slot(AtomicU64::new(0)),
            epoch: AtomicU64::new(1),
            garbage: Mutex::new(Vec::new()),
            batch,
        }
    }

    /// Enters a read-side critical section: what is reachable from now on is not freed before the section is
    /// dropped. Never waits.
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

    /// Frees `garbage` after the readers that may see it have left. It must be unlinked already.
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

    /// Frees the garbage that no reader can see any more.
    #[cold]
    pub(crate) fn collect(&self) {
        let mut waiting = lock(&self.garbage);
        let Some(&(newest, _)) = waiting.last() else { return };
        let oldest = self.oldest_reader(newest);
        let free = waiting.partition_point(|(epoch, _)| *epoch < oldest);
        let free: Vec<_> = waiting.drain(..free).collect();
        // Dropping garbage may run any code, so the lock is released first.
        drop(waiting);
        drop(free);
    }

    /// Marks all readers that may see garbage of the epoch `newest` and returns the epoch of the oldest.
    fn oldest_reader(&self, newest: u64) -> u64 {
        let epochs = self.slots.iter().filter_map(|slot| mark(&slot.0, |word| word >> 1 > newest));
        let oldest = epochs.map(|word| word >> 1).min().unwrap_or(u64::MAX);
        // The epochs of readers without a slot are unknown, so they count as the oldest.
        mark(&self.overflow.0, |word| word == MARK).map_or(oldest, |_| 0)
    }
}

/// Claims `slot` if it is free.
#[inline]
fn claim(slot: &Slot, word: u64) -> bool {
    slot.0.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Marks the reader in `word` and returns the word, unless there is no reader or `pass` returns true for it.
fn mark(word: &AtomicU64, pass: impl Fn(u64) -> bool) -> Option<u64> {
    let mut known = 0;
    loop {
        // The write happens even if the value stays the same: it makes the unlinking visible to the next reader.
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
