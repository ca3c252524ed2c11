//! What the last packets of a receive queue have shown. The next packet is mostly like the last one, and then needs no
//! check of its addresses and no lookup of its socket.
//!
//! Only the owner of the queue reads and writes it, so the words need no order among them.

use super::{UdpEndpoint, demux::Address};
use crate::{
    napi::Counter,
    sync::{Arc, AtomicU64, Ordering},
};
use std::net::Ipv4Addr;

/// The counters of a receive queue, and its last packets. Written only by the owner of the queue.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Received {
    pub(super) udp_datagrams: Counter,
    pub(super) udp_partial: Counter,
    pub(super) tcp_segments: Counter,
    pub(super) tcp_partial: Counter,
    /// Source and destination of the last IPv4 packet to one host that was for us.
    accepted: AtomicU64,
    pub(super) datagram4: LastDatagram,
    pub(super) datagram6: LastDatagram,
}

impl Received {
    /// Whether the last packet accepted was from `src` to `dst`. The answer never changes for an interface: its own
    /// addresses stay, and of those of the kernel the steering program decides.
    #[inline]
    pub(super) fn has_accepted(&self, src: Ipv4Addr, dst: Ipv4Addr) -> bool {
        self.accepted.load(Ordering::Relaxed) == both(src, dst)
    }

    pub(super) fn accept(&self, src: Ipv4Addr, dst: Ipv4Addr) {
        self.accepted.store(both(src, dst), Ordering::Relaxed);
    }
}

#[inline]
fn both(src: Ipv4Addr, dst: Ipv4Addr) -> u64 {
    u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits())
}

/// The last datagram of one family that was for the socket of the polling thread.
#[derive(Default)]
pub(super) struct LastDatagram {
    /// Its addresses and ports.
    words: [AtomicU64; 5],
    /// The number of changes of the socket table before its lookup.
    changes: AtomicU64,
    /// Its socket's endpoint; 0: none.
    endpoint: AtomicU64,
}

impl LastDatagram {
    /// Whether a lookup of `local` and `remote`, in a table with that many changes, would find `endpoint`.
    #[inline]
    pub(super) fn was_for<A: Address>(
        &self,
        endpoint: &Arc<dyn UdpEndpoint>,
        local: (A, u16),
        remote: (A, u16),
        changes: u64,
    ) -> bool {
        let is = |(known, word): (&AtomicU64, u64)| known.load(Ordering::Relaxed) == word;
        self.endpoint.load(Ordering::Relaxed) == number(&**endpoint)
            && self.changes.load(Ordering::Relaxed) == changes
            && self.words.iter().zip(A::words(local, remote)).all(is)
    }

    /// A lookup has found `endpoint`.
    #[cold]
    pub(super) fn note<A: Address>(
        &self,
        endpoint: &dyn UdpEndpoint,
        local: (A, u16),
        remote: (A, u16),
        changes: u64,
    ) {
        self.endpoint.store(number(endpoint), Ordering::Relaxed);
        self.changes.store(changes, Ordering::Relaxed);
        for (known, word) in self.words.iter().zip(A::words(local, remote)) {
            known.store(word, Ordering::Relaxed);
        }
    }
}

/// An endpoint's address: while the table has not changed no other endpoint can have it.
#[inline]
pub(super) fn number(endpoint: &dyn UdpEndpoint) -> u64 {
    std::ptr::from_ref(endpoint).cast::<()>().addr() as u64
}
