//! The counters of a NAPI context, with ixgbe's names (`ethtool -S`: `bp_yields`, `bp_misses`, `bp_cleaned`).

use crate::{
    published::Published,
    sync::{AtomicU64, Ordering},
};

/// A counter that any thread may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. For counters that one thread at a time increments (the owner of the queue, the holder of a lock).
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Adds 1. For counters that several threads increment at once.
    #[inline]
    pub fn add_shared(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The current value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one context, and where they are: other processes may read them.
pub type PlacedCounters = Published<Counters>;

/// The counters of one context.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Counters {
    pub(crate) bp_yields: Counter,
    pub(crate) bp_misses: Counter,
    pub(crate) bp_cleaned: Counter,
    pub(crate) bp_crowded: Counter,
    pub(crate) napi_yields: Counter,
    pub(crate) polls: Counter,
    pub(crate) interrupts: Counter,
    pub(crate) watchdogs: Counter,
    pub(crate) packets: Counter,
}

/// A snapshot of one context's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Busy polls that were refused the queue.
    pub bp_yields: u64,
    /// Busy polls that found nothing.
    pub bp_misses: u64,
    /// Packets found by busy polls.
    pub bp_cleaned: u64,
    /// Busy polls ended because another thread was busy polling on the same CPU.
    pub bp_crowded: u64,
    /// Times the interrupt's side was refused the queue.
    pub napi_yields: u64,
    /// Passes over the queue by the interrupt's side: the interrupt thread and leaders.
    pub polls: u64,
    /// Interrupts taken.
    pub interrupts: u64,
    /// Times the interrupt thread found packets on a queue that its pollers had left.
    pub watchdogs: u64,
    /// All packets.
    pub packets: u64,
    /// Packets that the ring had no room for: over AF_XDP, the kernel's count.
    pub rx_dropped: u64,
}

impl Counters {
    pub(crate) fn snapshot(&self, rx_dropped: u64) -> Stats {
        Stats {
            bp_yields: self.bp_yields.get(),
            bp_misses: self.bp_misses.get(),
            bp_cleaned: self.bp_cleaned.get(),
            bp_crowded: self.bp_crowded.get(),
            napi_yields: self.napi_yields.get(),
            polls: self.polls.get(),
            interrupts: self.interrupts.get(),
            watchdogs: self.watchdogs.get(),
            packets: self.packets.get(),
            rx_dropped,
        }
    }
}
