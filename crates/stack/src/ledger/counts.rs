//! The counters of a socket in its line of the ledger.

use super::{Ledger, LedgerSlot, trace};
use crate::{
    napi::{Pass, Upper},
    time::Instant,
};
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

/// The counters of a socket: UDP counts datagrams, TCP counts events that deliver data, room or a change of state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketCounts {
    /// Found by the socket's own busy poll.
    pub own_polls: u64,
    /// Found by another thread's or socket's busy poll.
    pub other_polls: u64,
    /// Found by the interrupt thread or a leader.
    pub interrupts: u64,
    /// Came through the kernel (fragments out of order, loopback, other interfaces).
    pub kernel: u64,
    /// Dropped because the receive buffer was full.
    pub drops: u64,
    /// TCP segments retransmitted.
    pub retransmits: u64,
}

/// The counters of a socket.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct LineCounts {
    own_polls: AtomicU64,
    pub(super) direct: AtomicU64,
    other_polls: AtomicU64,
    interrupts: AtomicU64,
    kernel: AtomicU64,
    drops: AtomicU64,
    retransmits: AtomicU64,
    /// What happens to the socket is recorded until this time of the monotonic clock; 0: it is not.
    pub(super) traced_until: AtomicU64,
}

impl LineCounts {
    #[inline]
    pub(super) fn set(&self, counts: &SocketCounts) {
        self.own_polls.store(counts.own_polls, Ordering::Relaxed);
        self.other_polls.store(counts.other_polls, Ordering::Relaxed);
        self.interrupts.store(counts.interrupts, Ordering::Relaxed);
        self.kernel.store(counts.kernel, Ordering::Relaxed);
        self.drops.store(counts.drops, Ordering::Relaxed);
        self.retransmits.store(counts.retransmits, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> SocketCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SocketCounts {
            own_polls: of(&self.own_polls).wrapping_add(of(&self.direct)),
            other_polls: of(&self.other_polls),
            interrupts: of(&self.interrupts),
            kernel: of(&self.kernel),
            drops: of(&self.drops),
            retransmits: of(&self.retransmits),
        }
    }
}

/// A socket's direct deliveries, which are counted without its lock.
#[derive(Debug, Default)]
pub(crate) struct DirectCount {
    count: AtomicU64,
    ledger: OnceLock<Arc<Ledger>>,
    /// The number of its line, and 1; 0: it has none.
    line: AtomicU32,
}

impl DirectCount {
    /// Counts one, which this pass has found.
    #[inline]
    pub(crate) fn count(&self, pass: &Pass<'_, impl Upper>) {
        let count = self.count.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if let Some((ledger, at)) = self.line()
            && let Some(line) = ledger.line(at)
        {
            line.counts.direct.store(count, Ordering::Relaxed);
            if line.is_traced() {
                trace::trace_direct(ledger, at, pass);
            }
        }
    }

    /// A call that began then has sent datagrams.
    #[inline]
    pub(crate) fn sent(&self, began: Instant) {
        if let Some((ledger, at)) = self.line()
            && ledger.line(at).is_some_and(|line| line.is_traced())
        {
            trace::trace_sent(ledger, at, began);
        }
    }

    /// How many so far.
    pub(crate) fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Publishes the count in this line from now on. A delivery at the same moment may still store into the old one,
    /// which is one wrong figure of another socket until that socket counts again.
    pub(crate) fn publish(&self, slot: Option<&LedgerSlot>) {
        let line = slot.map_or(0, |slot| slot.at + 1);
        if let Some(slot) = slot {
            self.ledger.get_or_init(|| slot.ledger.clone());
        }
        self.line.store(line, Ordering::Relaxed);
        self.store(self.get());
    }

    fn store(&self, count: u64) {
        if let Some((ledger, at)) = self.line()
            && let Some(line) = ledger.line(at)
        {
            line.counts.direct.store(count, Ordering::Relaxed);
        }
    }

    #[inline]
    fn line(&self) -> Option<(&Ledger, u32)> {
        let at = self.line.load(Ordering::Relaxed).checked_sub(1)?;
        Some((self.ledger.get()?, at))
    }
}
