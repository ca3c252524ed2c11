//! A hash table whose readers take no lock (see [`rcu`](super::rcu)), for many lookups and few changes. It grows and
//! shrinks with its content.
//!
//! A table is divided into shards. Each is an array of slots with linear probing. A change locks its shard. If the
//! array is too full, or far too large, the change replaces it, and only writers of that shard wait. An entry is a node
//! that never moves, so readers of the old and the new array find it.

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

/// One slot of an array; `node` is null (empty: a search ends here), [`tombstone`], or an entry whose hash is `hash`.
struct Slot<K, V> {
    hash: AtomicU64,
    node: AtomicPtr<Node<K, V>>,
}

/// The slots: a power of two of them, at least [`MIN_SLOTS`].
struct Array<K, V>(Box<[Slot<K, V>]>);

const MIN_SLOTS: usize = 8;

/// Unlinked memory that readers may still see. Dropping it frees it.
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

/// The dimensions of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// The number of shards, a power of two.
    pub(crate) shards: usize,
    /// How many readers at a time find a slot of their own (see [`Domain::new`]).
    pub(crate) readers: usize,
    /// How many removed entries are freed together.
    pub(crate) batch: usize,
}

pub(crate) struct Table<K, V, S> {
    hasher: S,
    shards: Box<[Shard<K, V>]>,
    live: AtomicU64,
    domain: Domain<Garbage<K, V>>,
}

// SAFETY: garbage is owned: no other code frees its entries and arrays.
unsafe impl<K: Send, V: Send> Send for Garbage<K, V> {}
// SAFETY: entries are shared by reference, and any thread may drop them.
unsafe impl<K: Send + Sync, V: Send + Sync, S: Sync> Sync for Table<K, V, S> {}
// SAFETY: as above; no part of it is bound to a thread.
unsafe impl<K: Send + Sync, V: Send + Sync, S: Send> Send for Table<K, V, S> {}

/// Marks a slot whose entry was removed: a search goes on past it.
fn tombstone<T>() -> *mut T {
    ptr::dangling_mut()
}

/// What to do with the entry of a key.
pub(crate) enum Change<V> {
    Keep,
    Put(V),
    Remove,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    Put,
    Removed,
}

/// A reader. What it has found stays valid until it is dropped.
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

    /// Enters a read-side critical section.
    #[inline]
    pub(crate) fn read(&self) -> Reader<'_, K, V, S> {
        Reader { table: self, _section: self.domain.enter() }
    }

    /// The upper bits choose the shard, the lower ones the slot.
    #[inline]
    fn shard(&self, hash: u64) -> &Shard<K, V> {
        &self.shards[(hash >> 32) as usize & (self.shards.len() - 1)]
    }

    /// Changes the entry of `key` as `change` returns, which is called once, under the lock of the shard. Returns
    /// what was done, if anything.
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
                // SAFETY: as above; the array exists now.
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

    /// Replaces a shard's array by one that is at most a third full with one more entry. Returns the old array.
    #[cold]
    fn rebuild(&self, shard: &Shard<K, V>, state: &mut State) -> Option<Garbage<K, V>> {
        let slots = ((state.live + 1) * 3).next_power_of_two().max(MIN_SLOTS);
        let slot = |_| Slot { hash: AtomicU64::new(0), node: AtomicPtr::new(ptr::null_mut()) };
        let array = Array((0..slots).map(slot).collect());
        let before = shard.array.load(Ordering::Relaxed);
        // SAFETY: it is replaced only under the lock, which the caller holds.
        if let Some(before) = unsafe { before.as_ref() } {
            for (hash, node) in before.entries() {
                array.put(hash, node);
            }
        }
        state.used = state.live;
        shard.array.store(Box::into_raw(Box::new(array)), Ordering::Release);
        (!before.is_null()).then(|| Garbage::Array(before))
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.live.load(Ordering::Relaxed) as usize
    }
}

impl<K: Copy + Eq + Hash, V, S: BuildHasher> Reader<'_, K, V, S> {
    #[inline]
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let hash = self.table.hasher.hash_one(key);
        let array = self.table.shard(hash).array.load(Ordering::Acquire);
        // SAFETY: what a reader reaches is not freed before the reader is dropped.
        let (_, node) = unsafe { array.as_ref() }?.find(hash, key)?;
        // SAFETY: as above.
        Some(unsafe { &(*node).value })
    }

    /// Calls `see` with every entry and its key. Concurrent changes may be seen or not.
    pub(crate) fn for_each(&self, mut see: impl FnMut(&K, &V)) {
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
    /// The slots where an entry of this hash may be, in probing order. At least half of all slots are null.
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
            // The hash may already be that of the slot's next entry: then this entry was removed.
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

    /// Adds an entry that is not in the array, under the lock. Returns whether its slot was null.
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

    /// Removes the entry of a slot, under the lock. Returns whether the slot is null now: that is safe if the next slot
    /// is null, as no search goes on past this one.
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
        // SAFETY: made by `Box::into_raw`, unlinked, and no reader is left that may have seen it.
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
