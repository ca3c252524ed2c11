//! TCP segments between IP and TCP. On receive it checks the checksum. On transmit it writes runs of segments straight
//! into the frames of one ring, under one lock and with one doorbell. It also holds the queue of packets to this host:
//! they are delivered after their sender has released its locks.

use super::{
    Inet, Path, SendError,
    counters::Count,
    iface::Transmit,
    input::{Arrival, Cast, Inbound},
    tcp::tuple::Tuple,
    template::TransportBuf,
};
use crate::{
    inet::Pass,
    nic::Checksum,
    sync::{AtomicU64, Mutex, Ordering, lock},
    time::Instant,
    wire::{Rest, tcp},
};
use std::collections::VecDeque;

/// The most queued packets to this host (the kernel's `netdev_max_backlog`).
const LOCAL_QUEUE_MAX: usize = 1000;

/// The most packets to this host delivered in one go.
const LOCAL_BURST: usize = 256;

/// The ECN field of a packet that a router has marked (RFC 3168 section 5).
const CONGESTION_EXPERIENCED: u8 = 3;

impl Inet {
    /// Processes a TCP segment in an IP packet that is for us.
    #[inline(always)]
    pub(super) fn tcp_input<'a, P: Inbound<'a>>(
        &self,
        arrival: &Arrival<'_>,
        packet: P,
        cast: Cast,
        pass: &mut Pass,
    ) {
        //= RFC 9293 3.9.2.3
        //# A TCP implementation MUST silently discard an incoming SYN segment that is addressed to a broadcast or
        //# multicast address [(MUST-57)].
        // Other segments to such addresses are of no use either.
        let segment = match tcp::Packet::new_checked(packet.payload()) {
            Ok(segment) if cast == Cast::Unicast && arrival.to_us => segment,
            _ => return self.counters.add(Count::TcpInErrs),
        };
        let mut partial = false;
        match arrival.checksum {
            Checksum::Partial => partial = true,
            Checksum::Unverified | Checksum::MaybePartial => {
                let addresses = packet.address_sum();
                if segment.verify_checksum(addresses).is_err() {
                    partial = arrival.checksum == Checksum::MaybePartial
                        && segment.has_partial_checksum(addresses);
                    if !partial {
                        self.counters.add(Count::TcpInCsumErrors);
                        return self.counters.add(Count::TcpInErrs);
                    }
                }
            }
        }
        self.tcp_checked_input(arrival, packet, (&segment, Rest::NONE), partial, pass);
    }

    /// The same for a segment with a correct checksum, and what follows its first piece.
    #[inline(always)]
    pub(super) fn tcp_checked_input<'a, P: Inbound<'a>>(
        &self,
        arrival: &Arrival<'_>,
        packet: P,
        (segment, rest): (&tcp::Packet<&[u8]>, Rest<'_>),
        partial: bool,
        pass: &mut Pass,
    ) {
        match arrival.received {
            Some(received) => {
                received.tcp_segments.add(1);
                if partial {
                    received.tcp_partial.add(1);
                }
            }
            None => self.counters.add(Count::TcpInSegs),
        }
        let local = (packet.dst().into(), segment.dst_port());
        let tuple = Tuple::of(local, (packet.src().into(), segment.src_port()));
        let congested = packet.ecn() == CONGESTION_EXPERIENCED;
        self.tcp_deliver(arrival, tuple, (segment, rest), congested, pass);
    }
}

/// Segments of one path that are sent together. The first takes the lock of the ring. Dropping the run rings the
/// doorbell and releases the lock: keep it only briefly, and send nothing else meanwhile.
pub(super) struct SegmentBatch<'a> {
    inet: &'a Inet,
    path: &'a Path,
    now: Instant,
    tx: Option<Transmit<'a>>,
}

impl Inet {
    /// Begins a run of segments over `path`. The caller may hold locks: no packet is delivered before it calls
    /// [`deliver_local`](Inet::deliver_local), which it must do after releasing them.
    #[inline]
    pub(super) fn segment_batch<'a>(&'a self, path: &'a Path, now: Instant) -> SegmentBatch<'a> {
        SegmentBatch { inet: self, path, now, tx: None }
    }
}

impl SegmentBatch<'_> {
    /// Sends one segment of `len` bytes, header included, which `fill` writes; `ecn` is the ECN field of the IP
    /// header. A segment to an unresolved neighbour is queued; one to this host is queued for
    /// [`deliver_local`](Inet::deliver_local).
    ///
    /// # Errors
    /// `RingFull`; `TooBig` above [`Path::max_transport_len`], as segments are never fragmented.
    #[inline]
    pub(super) fn push(
        &mut self,
        len: usize,
        ecn: u8,
        mut fill: impl FnMut(TransportBuf<'_>),
    ) -> Result<(), SendError> {
        let Some(iface) = self.path.fast_path(len) else {
            return self.push_slow(len, ecn, fill);
        };
        let tx = match &mut self.tx {
            Some(tx) => tx,
            none => {
                self.path.mark_neighbour_used(self.now);
                none.insert(iface.transmit(self.path.queue))
            }
        };
        self.path.push_segment(tx.ring(), len, ecn, &mut fill).map_err(|_| SendError::RingFull)?;
        tx.count_segment();
        Ok(())
    }

    /// Rings the doorbell now.
    #[inline]
    pub(super) fn doorbell(&mut self) {
        if let Some(tx) = &mut self.tx {
            tx.doorbell();
        }
    }

    /// The caller rings the doorbell later.
    #[inline]
    pub(super) fn ring_later(mut self) {
        if let Some(tx) = &mut self.tx {
            tx.ring_later();
        }
    }

    #[cold]
    fn push_slow(
        &mut self,
        len: usize,
        ecn: u8,
        fill: impl FnMut(TransportBuf<'_>),
    ) -> Result<(), SendError> {
        let path = self.path;
        if len > path.max_transport_len() {
            return Err(SendError::TooBig);
        }
        let packet = path.segment(len, ecn, fill);
        match &path.iface {
            None => self.inet.queue_local(packet),
            Some(iface) => {
                let (queue, mtu) = (path.queue, path.mtu);
                self.inet.link_output(iface, queue, path.next_hop, &packet, mtu, self.now)?;
            }
        }
        self.inet.counters.add(Count::TcpOutSegs);
        Ok(())
    }
}

/// Queued packets to this host.
#[derive(Debug, Default)]
pub(super) struct LocalPackets {
    /// The length of the queue: usually 0, and then the lock is not taken.
    count: AtomicU64,
    queue: Mutex<LocalQueue>,
}

#[derive(Debug, Default)]
struct LocalQueue {
    packets: VecDeque<Vec<u8>>,
    /// A thread is delivering the packets, including those queued meanwhile.
    busy: bool,
}

impl Inet {
    /// Queues a packet to this host for [`deliver_local`](Inet::deliver_local).
    pub(super) fn queue_local(&self, packet: Vec<u8>) {
        let mut queue = lock(&self.local.queue);
        if queue.packets.len() >= LOCAL_QUEUE_MAX {
            drop(queue);
            return self.counters.add(Count::IpOutDiscards);
        }
        queue.packets.push_back(packet);
        self.local.count.store(queue.packets.len() as u64, Ordering::Release);
    }

    /// Delivers the queued packets to this host. Every sender must call it, with no lock held.
    #[inline]
    pub(super) fn deliver_local(&self, pass: &mut Pass) {
        if self.local.count.load(Ordering::Acquire) > 0 {
            self.deliver_local_queue(pass);
        }
    }

    #[cold]
    fn deliver_local_queue(&self, pass: &mut Pass) {
        let mut queue = lock(&self.local.queue);
        if std::mem::replace(&mut queue.busy, true) {
            // A caller further up this call stack, or another thread, is delivering them.
            return;
        }
        for _ in 0..LOCAL_BURST {
            let Some(packet) = queue.packets.pop_front() else { break };
            self.local.count.store(queue.packets.len() as u64, Ordering::Release);
            drop(queue);
            self.local_input(&packet, pass);
            queue = lock(&self.local.queue);
        }
        queue.busy = false;
        let more = !queue.packets.is_empty();
        drop(queue);
        if more {
            self.tick_by(Some(pass.now));
        }
    }
}
