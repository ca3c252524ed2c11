//! The table from napi id to context. Any number of threads read it without a lock while contexts come and go. A
//! context is released only after every reader that could see it has left, as with RCU (Linux: `napi_by_id` under
//! `rcu_read_lock`; `napi_hash_del`, then a grace period).
//!
//! A slot is one word (the id and the number of readers inside) and a pointer. A reader enters by a
//! compare-exchange that still sees its id, clones the [`Arc`], and leaves. Removal clears the id
//! first and then waits for the readers inside, which takes a few instructions.

use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering, UnsafeCell, spin_wait};

/// How many contexts can exist at once.
pub const CAPACITY: usize = 1024;

const READERS: u64 = u32::MAX as u64;

struct Slot<T> {
    /// The id in the upper half (0: no entry), readers inside in the lower.
    word: AtomicU64,
    entry: UnsafeCell<Option<Arc<T>>>,
}

/// The ids in use and their entries.
pub struct Table<T> {
    slots: Box<[Slot<T>]>,
    next: AtomicU32,
    first_id: u32,
}

// SAFETY: `entry` is written only by the thread that changed the slot's word from free to BUSY, or that cleared the id
// and saw no readers; it is read only by readers counted in the word.
unsafe impl<T: Send + Sync> Sync for Table<T> {}
// SAFETY: as above; nothing in it is bound to a thread.
unsafe impl<T: Send + Sync> Send for Table<T> {}

/// In place of an id: the slot is being filled or emptied.
const BUSY: u64 = 1 << 32;

impl<T> Table<T> {
    /// A table of `capacity` slots whose ids start at `first_id`, which is at least 2.
    pub fn new(capacity: usize, first_id: u32) -> Table<T> {
        let slots = (0..capacity)
            .map(|_| Slot { word: AtomicU64::new(0), entry: UnsafeCell::new(None) })
            .collect();
        Table { slots, next: AtomicU32::new(0), first_id }
    }

    fn slot(&self, id: u32) -> Option<&Slot<T>> {
        let index = id.checked_sub(self.first_id)? as usize % self.slots.len();
        self.slots.get(index)
    }

    /// Inserts the entry that `make` makes for a new id. Ids are reused only after 2^32 others.
    ///
    /// `None` if every slot is in use, or `make` returns `None`.
    pub fn insert_with(&self, make: impl FnOnce(u32) -> Option<Arc<T>>) -> Option<Arc<T>> {
        for _ in 0..2 * self.slots.len() {
            let id = self.first_id.checked_add(self.next.fetch_add(1, Ordering::Relaxed))?;
            let slot = self.slot(id)?;
            if slot.word.compare_exchange(0, BUSY, Ordering::Acquire, Ordering::Relaxed).is_err() {
                continue;
            }
            let Some(entry) = make(id) else {
                slot.word.store(0, Ordering::Release);
                return None;
            };
            let mine = entry.clone();
            // SAFETY: the word was free and this thread made it BUSY: no reader and no other writer enters.
            slot.entry.with_mut(|cell| unsafe { *cell = Some(entry) });
            slot.word.store(u64::from(id) << 32, Ordering::Release);
            return Some(mine);
        }
        None
    }

    /// The entry of `id`, unless it was removed. Lock-free.
    pub fn get(&self, id: u32) -> Option<Arc<T>> {
        let slot = self.slot(id)?;
        let mut word = slot.word.load(Ordering::Relaxed);
        loop {
            if word >> 32 != u64::from(id) || word & READERS == READERS {
                return None;
            }
            match slot.word.compare_exchange_weak(
                word,
                word + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        // SAFETY: this thread is counted as a reader of this id; the entry is not written until it leaves.
        let entry = slot.entry.with(|cell| unsafe { (*cell).clone() });
        slot.word.fetch_sub(1, Ordering::Release);
        entry
    }

    /// Removes `id`. When this returns, no reader is inside and no lookup finds it. Clones of the [`Arc`] that readers
    /// made stay valid.
    pub fn remove(&self, id: u32) -> Option<Arc<T>> {
        let slot = self.slot(id)?;
        let mut word = slot.word.load(Ordering::Relaxed);
        loop {
            if word >> 32 != u64::from(id) {
                return None;
            }
            let gone = BUSY | word & READERS;
            match slot.word.compare_exchange_weak(word, gone, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        while slot.word.load(Ordering::Acquire) != BUSY {
            spin_wait();
        }
        // SAFETY: the id is cleared and the last reader has left; this thread made the slot BUSY.
        let entry = slot.entry.with_mut(|cell| unsafe { (*cell).take() });
        slot.word.store(0, Ordering::Release);
        entry
    }
}
