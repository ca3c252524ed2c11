//! A list of free blocks that any thread, signal handler or forked child may use at any moment. It has no lock, as the
//! holder might be interrupted or missing after a fork.
//!
//! Blocks are named by index, and the list is a stack (Treiber). The head holds the index of the first block and a
//! count that every change increments; each block holds the index of the next. A thread that has read the second
//! block's index and comes late fails its exchange by the count, whatever has happened to the blocks meanwhile.

use super::sync::{AtomicU32, AtomicU64, Ordering};

/// Where each block stores the index of the next.
pub(crate) trait Links {
    /// The link of the block with this index, which is in a list or was lately.
    fn link(&self, index: u32) -> &AtomicU32;
}

/// No block has this index.
pub(crate) const NONE: u32 = 0;

/// The list: its head, 0 at first.
pub(crate) struct FreeList(pub(crate) AtomicU64);

fn head(count: u64, first: u32) -> u64 {
    count << 32 | u64::from(first)
}

fn parts(head: u64) -> (u64, u32) {
    (head >> 32, head as u32)
}

impl FreeList {
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

    /// Takes the block that was pushed last.
    pub(crate) fn pop(&self, links: &impl Links) -> Option<u32> {
        let mut at = self.0.load(Ordering::Acquire);
        loop {
            let (count, first) = parts(at);
            if first == NONE {
                return None;
            }
            // Another thread may have taken the block by now, and this may be its data: then the head has changed.
            let next = links.link(first).load(Ordering::Relaxed);
            let new = head(count.wrapping_add(1), next);
            match self.0.compare_exchange_weak(at, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(first),
                Err(now) => at = now,
            }
        }
    }
}
