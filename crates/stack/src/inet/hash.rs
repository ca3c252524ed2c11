//! A hash table that is read without a lock (see [`rcu`](super::rcu)), for lookups that are many and changes that are
//! few. It grows and shrinks with what it holds.
//!
//! A table is cut into shards, each an array of slots that is probed one after the other. A change locks its shard;
//! one that finds the array too full, or far too large, puts another in its place, so that only the writers of one
//! shard wait for it. An entry is a node that never moves: readers of either array find it.

use super::rcu::{Domain, Section};
use crate::sync::{AtomicPtr, AtomicU64, Mutex, Ordering, lock};
use std::{
    hash::{BuildHasher, Hash},
    ptr,
};

struct Node<K, V> {
    key: K,
    value: V,
}

/// One slot of an array; `node` is null (nothing, and the end of a search), [`tombstone`], or an entry whose hash is `hash`.
struct Slot<K, V> {
    hash: AtomicU64,
    node: AtomicPtr<Node<K, V>>,
}

/// A power of two of slots, at least [`MIN_SLOTS`].
struct Array<K, V>(Box<[Slot<K, V>]>);

const MIN_SLOTS: usize = 8;

/// What readers may still see: freed when dropped.
enum Garbage<K, V> {
    Node(*mut Node<K, V>),
    Array(*mut Array<K, V>),
}

#[repr(align(64))]
struct Shard<K, V> {
    array: AtomicPtr<Array<K, V>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: usize,
    /// Slots that are not null.
    used: usize,
}

/// How a table is laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// A power of two.
    pub(crate) shards: usize,
    /// Readers at a time that find room at once.
    pub(crate) readers: usize,
    /// How many removed entries may wait to be freed together.
    pub(crate) batch: usize,
}

pub(crate) struct Table<K, V, S> {
    hasher: S,
    shards: Box<[Shard<K, V>]>,
    live: AtomicU64,
    domain: Domain<Garbage<K, V>>,
}

// SAFETY: garbage is owned: entries and arrays that nobody else frees.
unsafe impl<K: Send, V: Send> Send for Garbage<K, V> {}
// SAFETY: entries are shared by reference, and dropped by whichever thread comes to it.
unsafe impl<K: Send + Sync, V: Send + Sync, S: Sync> Sync for Table<K, V, S> {}
// SAFETY: as above; nothing in it is bound to a thread.
unsafe impl<K: Send + Sync, V: Send + Sync, S: Send> Send for Table<K, V, S> {}

/// A slot whose entry was removed: a search goes on.
fn tombstone<T>() -> *mut T {
    ptr::dangling_mut()
}

/// What becomes of the entry of a key.
pub(crate) enum Change<V> {
    Keep,
    Put(V),
    Remove,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    Put,
    Removed,
}

/// A reader, which keeps what it has found.
#[must_use]
pub(crate) struct Reader<'t, K, V, S> {
    table: &'t Table<K, V, S>,
    _section: Section<'t, Garbage<K, V>>,
}

impl<K: Copy + Eq + Hash, V, S: BuildHasher> Table<K, V, S> {
    pub(crate) fn new(hasher: S, layout: Layout) -> Table<K, V, S> {
        let shard = |_| Shard { array: AtomicPtr::new(ptr::null_mut()), state: Mutex::default() };
        Table {
            hasher,
            shards: (0..layout.shards).map(shard).collect(),
            live: AtomicU64::new(0),
            domain: Domain::new(layout.readers, layout.batch),
        }
    }

    /// Begins to read.
    #[inline]
    pub(crate) fn read(&self) -> Reader<'_, K, V, S> {
        Reader { table: self, _section: self.domain.enter() }
    }

    /// The upper bits choose the shard, the lower ones the slot.
    #[inline]
    fn shard(&self, hash: u64) -> &Shard<K, V> {
        &self.shards[(hash >> 32) as usize & (self.shards.len() - 1)]
    }

    /// Changes the entry of `key` as `change` says, which is asked once, under the lock of its shard. What
    /// became of it, if anything.
    pub(crate) fn change(
        &self,
        key: K,
        change: impl FnOnce(Option<&V>) -> Change<V>,
    ) -> Option<Changed> {
        let hash = self.hasher.hash_one(key);
        let shard = self.shard(hash);
        let mut state = lock(&shard.state);
        // SAFETY: an array is replaced, and an entry removed, under the lock that is held here.
        let array = unsafe { shard.array.load(Ordering::Relaxed).as_ref() };
        let found = array.and_then(|array| Some((array, array.find(hash, &key)?)));
        // SAFETY: as above.
        let value = found.map(|(_, (_, node))| unsafe { &(*node).value });
        match (change(value), found) {
            (Change::Keep, _) | (Change::Remove, None) => None,
            (Change::Put(value), Some((array, (at, old)))) => {
                let node = Box::into_raw(Box::new(Node { key, value }));
                array.0[at].node.store(node, Ordering::Release);
                drop(state);
                self.domain.retire(Garbage::Node(old));
                Some(Changed::Put)
            }
            (Change::Put(value), None) => {
                let node = Box::into_raw(Box::new(Node { key, value }));
                let full = array.is_none_or(|array| (state.used + 1) * 2 > array.0.len());
                let before = if full { self.rebuild(shard, &mut state) } else { None };
                // SAFETY: as above; there is one now.
                let array = unsafe { &*shard.array.load(Ordering::Relaxed) };
                state.used += usize::from(array.put(hash, node));
                state.live += 1;
                self.live.fetch_add(1, Ordering::Relaxed);
                drop(state);
                before.into_iter().for_each(|before| self.domain.retire(before));
                Some(Changed::Put)
            }
            (Change::Remove, Some((array, (at, old)))) => {
                state.used -= usize::from(array.clear_slot(at));
                state.live -= 1;
                self.live.fetch_sub(1, Ordering::Relaxed);
                let large = array.0.len() > MIN_SLOTS.max(state.live * 16);
                let before = if large { self.rebuild(shard, &mut state) } else { None };
                drop(state);
                before.into_iter().for_each(|before| self.domain.retire(before));
                self.domain.retire(Garbage::Node(old));
                Some(Changed::Removed)
            }
        }
    }

    /// Puts another array in the place of a shard's: a third full, with one entry more. What it was before.
    #[cold]
    fn rebuild(&self, shard: &Shard<K, V>, state: &mut State) -> Option<Garbage<K, V>> {
        let slots = ((state.live + 1) * 3).next_power_of_two().max(MIN_SLOTS);
        let slot = |_| Slot { hash: AtomicU64::new(0), node: AtomicPtr::new(ptr::null_mut()) };
        let array = Array((0..slots).map(slot).collect());
        let before = shard.array.load(Ordering::Relaxed);
        // SAFETY: it is replaced under the lock the caller holds.
        if let Some(before) = unsafe { before.as_ref() } {
            for (hash, node) in before.entries() {
                array.put(hash, node);
            }
        }
        state.used = state.live;
        shard.array.store(Box::into_raw(Box::new(array)), Ordering::Release);
        (!before.is_null()).then(|| Garbage::Array(before))
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.live.load(Ordering::Relaxed) as usize
    }
}

impl<K: Copy + Eq + Hash, V, S: BuildHasher> Reader<'_, K, V, S> {
    #[inline]
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let hash = self.table.hasher.hash_one(key);
        let array = self.table.shard(hash).array.load(Ordering::Acquire);
        // SAFETY: what a reader reaches is not freed before it leaves.
        let (_, node) = unsafe { array.as_ref() }?.find(hash, key)?;
        // SAFETY: as above.
        Some(unsafe { &(*node).value })
    }

    /// Every entry, and its key. Changes meanwhile may be seen or not.
    pub(crate) fn each(&self, mut see: impl FnMut(&K, &V)) {
        for shard in &self.table.shards {
            // SAFETY: as in `get`.
            let Some(array) = (unsafe { shard.array.load(Ordering::Acquire).as_ref() }) else {
                continue;
            };
            for (_, node) in array.entries() {
                // SAFETY: as in `get`.
                let node = unsafe { &*node };
                see(&node.key, &node.value);
            }
        }
    }
}

impl<K: Eq, V> Array<K, V> {
    /// The slots in which an entry of this hash may lie, in their order. At least half of all are null.
    #[inline]
    fn probe(&self, hash: u64) -> impl Iterator<Item = usize> {
        let last = self.0.len() - 1;
        (0..self.0.len()).map(move |step| (hash as usize).wrapping_add(step) & last)
    }

    /// The entry of `key`, and its slot. The caller is a reader, or holds the lock.
    #[inline]
    fn find(&self, hash: u64, key: &K) -> Option<(usize, *mut Node<K, V>)> {
        for at in self.probe(hash) {
            let slot = &self.0[at];
            let node = slot.node.load(Ordering::Acquire);
            if node.is_null() {
                return None;
            }
            // The hash may be that of the slot's next entry already: this one is gone then.
            if slot.hash.load(Ordering::Relaxed) != hash || node == tombstone() {
                continue;
            }
            // SAFETY: neither null nor `tombstone`, so an entry; the caller keeps it from being freed.
            if unsafe { &(*node).key } == key {
                return Some((at, node));
            }
        }
        None
    }

    /// Enters what is not there yet, under the lock; whether it took a slot that was null.
    fn put(&self, hash: u64, node: *mut Node<K, V>) -> bool {
        for slot in self.probe(hash).map(|at| &self.0[at]) {
            let before = slot.node.load(Ordering::Relaxed);
            if before.is_null() || before == tombstone() {
                slot.hash.store(hash, Ordering::Relaxed);
                slot.node.store(node, Ordering::Release);
                return before.is_null();
            }
        }
        unreachable!("half of the slots are null");
    }

    /// Takes the entry out of a slot, under the lock; whether the slot is null now: no search has gone on from it.
    fn clear_slot(&self, at: usize) -> bool {
        let next = &self.0[(at + 1) & (self.0.len() - 1)];
        let ends = next.node.load(Ordering::Relaxed).is_null();
        let left = if ends { ptr::null_mut() } else { tombstone() };
        self.0[at].node.store(left, Ordering::Release);
        ends
    }

    fn entries(&self) -> impl Iterator<Item = (u64, *mut Node<K, V>)> {
        let all = self.0.iter();
        let all =
            all.map(|slot| (slot.hash.load(Ordering::Relaxed), slot.node.load(Ordering::Acquire)));
        all.filter(|(_, node)| !node.is_null() && *node != tombstone())
    }
}

impl<K, V> Drop for Garbage<K, V> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`, unlinked, and no reader is left that could have seen it.
        unsafe {
            match *self {
                Garbage::Node(node) => drop(Box::from_raw(node)),
                Garbage::Array(array) => drop(Box::from_raw(array)),
            }
        }
    }
}

impl<K, V, S> Drop for Table<K, V, S> {
    fn drop(&mut self) {
        for shard in &self.shards {
            let array = shard.array.load(Ordering::Relaxed);
            // SAFETY: neither readers nor writers are left.
            for slot in unsafe { array.as_ref() }.iter().flat_map(|array| &array.0) {
                let node = slot.node.load(Ordering::Relaxed);
                if !node.is_null() && node != tombstone() {
                    drop(Garbage::Node(node));
                }
            }
            if !array.is_null() {
                drop(Garbage::Array(array));
            }
        }
    }
}
