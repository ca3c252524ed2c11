//! A list of free blocks that any thread, signal handler or forked child may use at any moment: no lock, so none can be
//! held by somebody who is not there.
//!
//! A block is known by its index, and the list is a stack: the head is the index of the first block beside a count that
//! every change raises, and each block names the next. A thread that has read the second block's index and comes late
//! finds that the count has moved on, whatever became of the blocks in between.

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// Where each block keeps the index of the next.
pub(crate) trait Links {
    /// The word of the block with this index, which is in a list or was lately.
    fn link(&self, index: u32) -> &AtomicU32;
}

/// No block has this index.
pub(crate) const NONE: u32 = 0;

/// The list: its head, zero at first.
pub(crate) struct List(pub(crate) AtomicU64);

fn head(count: u64, first: u32) -> u64 {
    count << 32 | u64::from(first)
}

fn parts(head: u64) -> (u64, u32) {
    (head >> 32, head as u32)
}

impl List {
    /// Adds blocks that are linked from `first` to `last` already.
    pub(crate) fn push(&self, links: &impl Links, first: u32, last: u32) {
        let mut at = self.0.load(Ordering::Relaxed);
        loop {
            let (count, next) = parts(at);
            links.link(last).store(next, Ordering::Relaxed);
            let new = head(count.wrapping_add(1), first);
            match self.0.compare_exchange_weak(at, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => at = now,
            }
        }
    }

    /// Takes the block that was added last.
    pub(crate) fn pop(&self, links: &impl Links) -> Option<u32> {
        let mut at = self.0.load(Ordering::Acquire);
        loop {
            let (count, first) = parts(at);
            if first == NONE {
                return None;
            }
            // The block may be another thread's by now, and this what it has written there: then the head has changed.
            let next = links.link(first).load(Ordering::Relaxed);
            let new = head(count.wrapping_add(1), next);
            match self.0.compare_exchange_weak(at, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(first),
                Err(now) => at = now,
            }
        }
    }
}
