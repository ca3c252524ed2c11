//! The table from napi id to context: read without a lock, by any number of threads, while contexts come
//! and go. A context is let go only when every reader that could hold it has gone (RCU in spirit: Linux's
//! `napi_by_id` under `rcu_read_lock`, `napi_hash_del` then a grace period).
//!
//! A slot is one word (id, how many readers are inside) beside a pointer. A reader enters only by a
//! compare-exchange that still sees its id, clones the [`Arc`], and leaves; removal takes the id away
//! first and then waits for the readers inside, who are there for a handful of instructions.

use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering, UnsafeCell, spin_wait};

/// How many contexts can live at once.
pub const CAPACITY: usize = 1024;

const READERS: u64 = u32::MAX as u64;

struct Slot<T> {
    /// The id in the upper half (0: no entry), readers inside in the lower.
    word: AtomicU64,
    entry: UnsafeCell<Option<Arc<T>>>,
}

/// Ids handed out and not yet taken back, each with what it names.
pub struct Table<T> {
    slots: Box<[Slot<T>]>,
    next: AtomicU32,
    first_id: u32,
}

// SAFETY: `entry` is written only by the thread that moved the slot's word from free to BUSY or that took
// the id out and saw no readers, and read only by readers counted in the word.
unsafe impl<T: Send + Sync> Sync for Table<T> {}
// SAFETY: as above; nothing in it is bound to a thread.
unsafe impl<T: Send + Sync> Send for Table<T> {}

/// An id that no context gets: the slot is being filled or emptied.
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

    /// Enters what `make` makes of its id. Ids are not used again before 2^32 have been.
    ///
    /// `None` if every slot is taken, or `make` makes nothing.
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
            // SAFETY: the word was free and is BUSY by our hand: no reader enters, no other writer either.
            slot.entry.with_mut(|cell| unsafe { *cell = Some(entry) });
            slot.word.store(u64::from(id) << 32, Ordering::Release);
            return Some(mine);
        }
        None
    }

    /// What `id` names, unless it is gone. Lock-free.
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
        // SAFETY: we are counted as a reader of this very id; the entry is not written until we leave.
        let entry = slot.entry.with(|cell| unsafe { (*cell).clone() });
        slot.word.fetch_sub(1, Ordering::Release);
        entry
    }

    /// Takes `id` out. When this returns no reader is inside and nobody will find it; clones of the
    /// [`Arc`] that readers made live on with them.
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
        // SAFETY: the id is out and the last reader has left; the slot is BUSY by our hand.
        let entry = slot.entry.with_mut(|cell| unsafe { (*cell).take() });
        slot.word.store(0, Ordering::Release);
        entry
    }
}
