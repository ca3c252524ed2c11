//! The frames of a queue that several processes share: which frames each process has, and how they return to the
//! kernel. Owns the protocol in shared memory; the rings are behind two traits, so that the models in `tests/loom.rs`
//! run it with rings of their own.
//!
//! Each process has a *slot*. A receive frame is on the fill ring, with the kernel, on the RX ring of one slot, or held
//! by one slot until that process returns it, many at a time, to the fill ring. A transmit frame belongs to one slot
//! for ever; any process takes it off the shared completion ring, and marks it as returned to its slot.
//!
//! Fill and completion ring each have a lock, a word with the holder's slot. It is only ever tried, and held for the
//! time of a copy. A process may end at any instruction. The guard, which sees its end, then releases the locks that
//! the process held ([`Control::release_locks`]), and learns which frames it had ([`Control::take_held`]). Nothing else
//! takes a lock from its holder.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The fill ring, whose producers are the processes in turn.
pub(crate) trait Fill {
    /// The index of the next entry to write.
    fn producer(&self) -> u32;
    fn write(&self, at: u32, frame: u32);
    /// Shows the kernel all entries before `producer`.
    fn publish(&self, producer: u32);
}

/// The completion ring, whose consumers are the processes in turn.
pub(crate) trait Completion {
    fn producer(&self) -> u32;
    fn consumer(&self) -> u32;
    fn read(&self, at: u32) -> u32;
    /// Returns all entries before `consumer` to the kernel.
    fn release(&self, consumer: u32);
}

/// A lock that names its holder: 0, or the slot and one.
#[repr(C, align(64))]
struct Lock(AtomicU32);

impl Lock {
    fn try_lock(&self, slot: usize) -> bool {
        let holder = slot as u32 + 1;
        self.0.compare_exchange(0, holder, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn unlock(&self) {
        self.0.store(0, Ordering::Release);
    }

    fn is_held_by(&self, slot: usize) -> bool {
        self.0.load(Ordering::Acquire) == slot as u32 + 1
    }
}

/// The state of one slot. Its process writes it, and, between two processes, the guard; `returned` is written under the
/// completion ring's lock.
#[repr(C, align(64))]
struct Slot<const HELD: usize, const WORDS: usize, const SHARE: usize> {
    /// How many frames are held: the first of `frames`.
    held: AtomicU32,
    /// 1 while the held frames are put on the fill ring, which begins at the entry `base`.
    publishing: AtomicU32,
    base: AtomicU32,
    /// How many of `given` the process has not taken yet.
    left: AtomicU32,
    /// Whether a bit of `returned` may be set.
    has_returned: AtomicU32,
    /// Its process, as that one sees its number.
    pid: AtomicU32,
    /// A bit for each of its transmit frames that another process has taken off the completion ring.
    returned: [AtomicU64; WORDS],
    frames: [AtomicU32; HELD],
    /// The receive frames that the guard has given to the process when it began.
    given: [AtomicU32; SHARE],
}

/// What the processes of a queue share besides its rings and frames. All zeros is the state of a queue without
/// processes.
#[repr(C)]
pub(crate) struct Control<
    const SLOTS: usize,
    const HELD: usize,
    const WORDS: usize,
    const SHARE: usize,
> {
    fill: Lock,
    completion: Lock,
    /// A bit for each slot that has a process. The guard writes it.
    attached: AtomicU32,
    slots: [Slot<HELD, WORDS, SHARE>; SLOTS],
}

impl<const SLOTS: usize, const HELD: usize, const WORDS: usize, const SHARE: usize>
    Control<SLOTS, HELD, WORDS, SHARE>
{
    /// In memory of its own, for the models.
    #[cfg(test)]
    #[allow(dead_code)]
    pub(crate) fn new() -> Self {
        let word = || AtomicU32::new(0);
        let slot = |_| Slot {
            held: word(),
            publishing: word(),
            base: word(),
            left: word(),
            has_returned: word(),
            pid: word(),
            returned: std::array::from_fn(|_| AtomicU64::new(0)),
            frames: std::array::from_fn(|_| word()),
            given: std::array::from_fn(|_| word()),
        };
        Control {
            fill: Lock(word()),
            completion: Lock(word()),
            attached: word(),
            slots: std::array::from_fn(slot),
        }
    }

    /// The slots that have a process, a bit for each.
    pub(crate) fn attached(&self) -> u32 {
        self.attached.load(Ordering::Acquire)
    }

    pub(crate) fn set_attached(&self, slots: u32) {
        self.attached.store(slots, Ordering::Release);
    }

    /// The process of a slot, as that one sees its number; 0: none has begun.
    pub(crate) fn pid(&self, slot: usize) -> u32 {
        self.slots.get(slot).map_or(0, |of| of.pid.load(Ordering::Relaxed))
    }

    pub(crate) fn set_pid(&self, slot: usize, pid: u32) {
        self.slots[slot].pid.store(pid, Ordering::Relaxed);
    }

    /// Notes a frame that `slot` has taken off its RX ring, after `held` others. It counts as held from
    /// [`set_held`](Control::set_held) on.
    #[inline]
    pub(crate) fn hold(&self, slot: usize, held: usize, frame: u32) {
        self.slots[slot].frames[held].store(frame, Ordering::Relaxed);
    }

    /// From now on `slot` holds that many frames. Called before the RX ring's entries are released: until then a frame
    /// may be in both places, never in none.
    #[inline]
    pub(crate) fn set_held(&self, slot: usize, held: usize) {
        self.slots[slot].held.store(held as u32, Ordering::Release);
    }

    /// Puts the frames that `slot` holds on the fill ring. False: another process is doing the same.
    pub(crate) fn refill(&self, slot: usize, fill: &impl Fill) -> bool {
        let own = &self.slots[slot];
        let held = own.held.load(Ordering::Relaxed).min(HELD as u32);
        if held == 0 {
            return true;
        }
        if !self.fill.try_lock(slot) {
            return false;
        }
        let base = fill.producer();
        for (at, frame) in (0..held).zip(&own.frames) {
            fill.write(base.wrapping_add(at), frame.load(Ordering::Relaxed));
        }
        // If the process ends between these stores, `release_locks` tells by the fill ring's producer whether the frames are
        // on the ring: as long as the lock is held, no other process moves it.
        own.base.store(base, Ordering::Relaxed);
        own.publishing.store(1, Ordering::Release);
        fill.publish(base.wrapping_add(held));
        own.held.store(0, Ordering::Release);
        own.publishing.store(0, Ordering::Release);
        self.fill.unlock();
        true
    }

    /// Takes the next of the frames that the guard has given, as many as can be held, to be put on the fill ring. False:
    /// there are none left.
    pub(crate) fn take_given(&self, slot: usize) -> bool {
        let own = &self.slots[slot];
        let left = own.left.load(Ordering::Relaxed).min(SHARE as u32);
        let taken = left.min(HELD as u32);
        for (at, given) in own.given[..left as usize].iter().rev().take(taken as usize).enumerate()
        {
            self.hold(slot, at, given.load(Ordering::Relaxed));
        }
        self.set_held(slot, taken as usize);
        own.left.store(left - taken, Ordering::Release);
        taken > 0
    }

    /// Takes everything off the completion ring. The bits of `slot`'s own frames go to `own`, those of others are
    /// marked as returned; `owner` names a frame's slot and bit. False: another process is doing the same.
    #[inline]
    pub(crate) fn clean(
        &self,
        slot: usize,
        ring: &impl Completion,
        owner: impl Fn(u32) -> Option<(usize, usize)>,
        mut own: impl FnMut(usize),
    ) -> bool {
        if !self.completion.try_lock(slot) {
            return false;
        }
        self.drain(ring, owner, |of, bit| {
            of == slot && {
                own(bit);
                true
            }
        });
        if self.slots[slot].has_returned.load(Ordering::Relaxed) != 0 {
            self.take_returned(slot, own);
        }
        self.completion.unlock();
        true
    }

    /// Takes everything off the completion ring, under its lock. Frames that `own` does not take are marked as returned.
    /// Marking a frame twice does no harm, as its process takes marks under the same lock.
    #[inline]
    fn drain(
        &self,
        ring: &impl Completion,
        owner: impl Fn(u32) -> Option<(usize, usize)>,
        mut own: impl FnMut(usize, usize) -> bool,
    ) {
        let (begin, end) = (ring.consumer(), ring.producer());
        let mut at = begin;
        while at != end {
            if let Some((slot, bit)) = owner(ring.read(at))
                && !own(slot, bit)
                && let Some(of) = self.slots.get(slot)
                && let Some(word) = of.returned.get(bit / 64)
            {
                word.fetch_or(1 << (bit % 64), Ordering::Relaxed);
                of.has_returned.store(1, Ordering::Relaxed);
            }
            at = at.wrapping_add(1);
        }
        if begin != end {
            ring.release(end);
        }
    }

    #[cold]
    fn take_returned(&self, slot: usize, mut own: impl FnMut(usize)) {
        self.slots[slot].has_returned.store(0, Ordering::Relaxed);
        for (at, word) in self.slots[slot].returned.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                own(at * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    /// The guard's, before a process begins with `slot`: gives it receive frames.
    pub(crate) fn give(&self, slot: usize, frames: impl Iterator<Item = u32>) {
        let own = &self.slots[slot];
        let mut left = 0;
        for (place, frame) in own.given.iter().zip(frames) {
            place.store(frame, Ordering::Relaxed);
            left += 1;
        }
        own.left.store(left, Ordering::Release);
    }

    /// The guard's, after the process of `slot` has ended in any way: releases the locks it held.
    pub(crate) fn release_locks(
        &self,
        slot: usize,
        fill: &impl Fill,
        completion: &impl Completion,
        owner: impl Fn(u32) -> Option<(usize, usize)>,
    ) {
        let own = &self.slots[slot];
        if self.fill.is_held_by(slot) {
            let is_published = own.publishing.load(Ordering::Relaxed) != 0
                && fill.producer() != own.base.load(Ordering::Relaxed);
            if is_published {
                own.held.store(0, Ordering::Relaxed);
            }
            own.publishing.store(0, Ordering::Relaxed);
            self.fill.unlock();
        }
        if self.completion.is_held_by(slot) {
            self.drain(completion, owner, |of, _| of == slot);
            self.completion.unlock();
        }
    }

    /// The guard's, after that: takes the receive frames that the process held. A frame may come twice, and may also be
    /// on its RX ring.
    pub(crate) fn take_held(&self, slot: usize, mut frames: impl FnMut(u32)) {
        let own = &self.slots[slot];
        let held = own.held.swap(0, Ordering::Relaxed) as usize;
        let left = own.left.swap(0, Ordering::Relaxed) as usize;
        let all = own.frames.iter().take(held).chain(own.given.iter().take(left));
        all.for_each(|frame| frames(frame.load(Ordering::Relaxed)));
    }
}
