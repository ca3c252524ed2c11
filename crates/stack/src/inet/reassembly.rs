//! Reassembly of fragments (RFC 791 section 3.2, RFC 815; RFC 8200 section 4.5). Bounded in bytes, in datagrams and
//! in fragments per datagram; the oldest datagram is evicted first. Overlapping fragments drop their datagram, as
//! RFC 5722 requires for IPv6 and Linux does for both: no valid sender produces them.

use super::{
    Inet,
    counters::Count,
    input::{Inbound, Inbound4},
    input6::Inbound6,
    neighbour::earlier,
};
use crate::{
    inet::Pass,
    memory_pressure::{self, Level},
    sync::{Mutex, lock},
    time::Instant,
    wire::{
        Protocol,
        extension::{self, FRAGMENT_LEN, Fragment},
        icmp::{Type, code},
        icmpv6, ipv4, ipv6,
    },
};
use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

/// How long an IPv4 datagram may take to become complete (Linux's `ipfrag_time`).
const TIMEOUT: Duration = Duration::from_secs(30);
/// RFC 8200 section 4.5: "within 60 seconds of the reception of the first-arriving fragment".
const TIMEOUT6: Duration = Duration::from_secs(60);
/// The most bytes kept, including overhead (`ipfrag_high_thresh`).
pub(super) const BYTES: usize = 4 << 20;
/// The most incomplete datagrams.
pub(super) const DATAGRAMS: usize = 1024;
/// The most fragments of one datagram: 64 KiB in fragments of 256 bytes.
pub(super) const FRAGMENTS: usize = 256;
/// The memory cost of a fragment besides its data, bytes.
const OVERHEAD: usize = 64;
/// RFC 3168 section 5: congestion experienced.
const CE: u8 = 3;
const HAS_CE: u8 = 1 << CE;
/// A fragment is marked Not-ECT: its transport is not ECN-capable.
const HAS_NOT_ECT: u8 = 1;

/// RFC 791 section 3.2, RFC 8200 section 4.5: the fields that all fragments of one datagram have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    src: IpAddr,
    dst: IpAddr,
    ident: u32,
    /// 0 for IPv6, where the fragments of one packet may have different next headers.
    protocol: u8,
}

/// A fragment.
#[derive(Clone, Debug)]
pub(super) struct Frag<'a> {
    key: Key,
    offset: usize,
    more: bool,
    /// The ECN field (RFC 3168 section 5).
    ecn: u8,
    data: &'a [u8],
    head: Head<&'a [u8]>,
}

/// The header fields that the reassembled packet takes from its first fragment.
#[derive(Clone, Debug)]
enum Head<B> {
    V4 {
        tos: u8,
        ttl: u8,
    },
    V6 {
        /// The bytes before the fragment header.
        before: B,
        /// The offset in `before` of the next header field that names the fragment header, and its new value.
        next_header_at: usize,
        next: Protocol,
    },
}

impl<'a> Frag<'a> {
    pub(super) fn v4(packet: &ipv4::Packet<&'a [u8]>) -> Frag<'a> {
        let (src, dst) = (packet.src().into(), packet.dst().into());
        Frag {
            key: Key { src, dst, ident: packet.ident().into(), protocol: packet.protocol().0 },
            offset: packet.fragment_offset(),
            more: packet.more_fragments(),
            ecn: packet.ecn(),
            data: packet.payload(),
            head: Head::V4 { tos: packet.dscp() << 2 | packet.ecn(), ttl: packet.ttl() },
        }
    }

    pub(super) fn v6(packet: &ipv6::Packet<&'a [u8]>, fragment: &Fragment<'a>) -> Frag<'a> {
        let &Fragment { ident, offset, more, next, next_header_at, header_at, data } = fragment;
        let before = packet.bytes().get(..header_at).unwrap_or_default();
        let (src, dst) = (packet.src().into(), packet.dst().into());
        let key = Key { src, dst, ident, protocol: 0 };
        let (ecn, head) = (packet.ecn(), Head::V6 { before, next_header_at, next });
        Frag { key, offset, more, ecn, data, head }
    }
}

#[derive(Debug)]
struct FragQueue {
    serial: u64,
    key: Key,
    /// From the first fragment, once it has arrived.
    head: Option<Head<Box<[u8]>>>,
    /// Sorted by offset, without overlap.
    fragments: Vec<(usize, Box<[u8]>)>,
    /// Bytes in `fragments`.
    have: usize,
    /// Bytes of the complete payload, once the last fragment has arrived.
    total: Option<usize>,
    /// The ECN codepoints of its fragments, one bit for each of the four.
    ecn_seen: u8,
    cost: usize,
}

/// The incomplete datagrams of one family.
#[derive(Debug)]
pub(super) struct Reassembly {
    timeout: Duration,
    queues: BTreeMap<Key, FragQueue>,
    /// The deadline of each datagram, oldest first. Datagrams that are complete or dropped may still be listed.
    by_age: VecDeque<(Instant, Key, u64)>,
    serial: u64,
    bytes: usize,
}

/// The result of adding a fragment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The datagram is still incomplete.
    Waiting,
    /// The complete packet, with the header of its first fragment without options.
    Whole(Vec<u8>),
    /// The fragment contradicts earlier ones: the datagram is dropped.
    Inconsistent,
    /// One fragment is marked CE and another Not-ECT: the datagram is dropped.
    EcnConflict,
}

impl Reassembly {
    pub(super) fn v4() -> Reassembly {
        Reassembly::new(TIMEOUT)
    }

    pub(super) fn v6() -> Reassembly {
        Reassembly::new(TIMEOUT6)
    }

    fn new(timeout: Duration) -> Reassembly {
        let (queues, by_age) = Default::default();
        Reassembly { timeout, queues, by_age, serial: 0, bytes: 0 }
    }

    /// Adds a fragment. The second value is how many datagrams were evicted to make room.
    pub(super) fn add(&mut self, frag: &Frag<'_>, now: Instant) -> (Outcome, u64) {
        let key = frag.key;
        if !self.queues.contains_key(&key) {
            self.serial += 1;
            self.by_age.push_back((now + self.timeout, key, self.serial));
            self.queues.insert(key, FragQueue::new(self.serial, key));
        }
        let Some(queue) = self.queues.get_mut(&key) else { return (Outcome::Waiting, 0) };
        let before = if queue.fragments.is_empty() { 0 } else { queue.cost };
        let outcome = queue.add(frag);
        self.bytes += queue.cost - before;
        if outcome != Outcome::Waiting {
            self.remove(key);
        }
        let mut evicted = 0;
        while self.bytes > BYTES || self.queues.len() > DATAGRAMS {
            let Some((_, key, serial)) = self.by_age.pop_front() else { break };
            if self.queues.get(&key).is_some_and(|queue| queue.serial == serial) {
                self.remove(key);
                evicted += 1;
            }
        }
        // Complete datagrams leave their entries in `by_age` behind: these are bounded too.
        if self.by_age.len() > 2 * DATAGRAMS {
            let queues = &self.queues;
            self.by_age.retain(|(_, key, serial)| {
                queues.get(key).is_some_and(|queue| queue.serial == *serial)
            });
        }
        (outcome, evicted)
    }

    fn remove(&mut self, key: Key) -> Option<FragQueue> {
        let queue = self.queues.remove(&key)?;
        self.bytes -= queue.cost;
        Some(queue)
    }

    /// Drops the expired datagrams and returns the first fragment of each, if it has arrived.
    fn tick(&mut self, now: Instant) -> Vec<Option<Vec<u8>>> {
        let mut expired = Vec::new();
        while let Some(&(deadline, key, serial)) = self.by_age.front() {
            let alive = self.queues.get(&key).is_some_and(|queue| queue.serial == serial);
            if alive && deadline > now {
                break;
            }
            self.by_age.pop_front();
            if alive && let Some(queue) = self.remove(key) {
                expired.push(queue.first());
            }
        }
        expired
    }

    fn next(&self) -> Option<Instant> {
        self.by_age.front().map(|(deadline, ..)| *deadline)
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize, usize) {
        (self.bytes, self.queues.len(), self.by_age.len())
    }
}

impl FragQueue {
    fn new(serial: u64, key: Key) -> FragQueue {
        let cost = 2 * OVERHEAD;
        let (head, total, fragments) = Default::default();
        FragQueue { serial, key, head, fragments, have: 0, total, ecn_seen: 0, cost }
    }

    fn add(&mut self, frag: &Frag<'_>) -> Outcome {
        let data = frag.data;
        let (start, end) = (frag.offset, frag.offset + data.len());
        let at = self.fragments.partition_point(|(offset, _)| *offset < start);
        if self
            .fragments
            .get(at)
            .is_some_and(|(offset, frag)| *offset == start && frag.len() == data.len())
        {
            // The network may duplicate a packet; the first copy counts.
            return Outcome::Waiting;
        }
        let before = at.checked_sub(1).and_then(|before| self.fragments.get(before));
        let overlaps = before.is_some_and(|(offset, frag)| offset + frag.len() > start)
            || self.fragments.get(at).is_some_and(|(offset, _)| *offset < end);
        let reaches =
            self.fragments.last().map_or(0, |(offset, frag)| offset + frag.len()).max(end);
        let total = if frag.more { self.total } else { Some(end) };
        let contradicts = self.total.is_some_and(|old| total != Some(old))
            || total.is_some_and(|total| reaches > total);
        if overlaps || contradicts || self.fragments.len() >= FRAGMENTS {
            return Outcome::Inconsistent;
        }
        if start == 0 {
            self.head = Some(match frag.head {
                Head::V4 { tos, ttl } => Head::V4 { tos, ttl },
                Head::V6 { before, next_header_at, next } => {
                    self.cost += before.len();
                    Head::V6 { before: before.into(), next_header_at, next }
                }
            });
        }
        self.total = total;
        self.ecn_seen |= 1 << frag.ecn;
        self.have += data.len();
        self.cost += data.len() + OVERHEAD;
        self.fragments.insert(at, (start, data.into()));
        if self.total != Some(self.have) {
            return Outcome::Waiting;
        }
        // RFC 3168 section 5.3: CE on one fragment marks the whole packet, unless another fragment is Not-ECT.
        if self.ecn_seen & HAS_CE != 0 && self.ecn_seen & HAS_NOT_ECT != 0 {
            return Outcome::EcnConflict;
        }
        self.whole().map_or(Outcome::Inconsistent, Outcome::Whole)
    }

    /// The reassembled packet. All fragments are present: they do not overlap and their lengths add up to the total.
    fn whole(&self) -> Option<Vec<u8>> {
        let marked = self.ecn_seen & HAS_CE != 0;
        let mut bytes = match self.head.as_ref()? {
            Head::V4 { .. } => {
                let mut bytes = vec![0; ipv4::HEADER_LEN + self.have];
                let mut packet = self.write_v4(&mut bytes)?;
                packet.set_dont_fragment(false);
                if marked {
                    packet.set_tos(packet.dscp() << 2 | CE);
                }
                bytes.truncate(ipv4::HEADER_LEN);
                bytes
            }
            Head::V6 { before, next_header_at, next } => {
                let mut bytes = before.to_vec();
                *bytes.get_mut(*next_header_at)? = next.0;
                set_payload_len(&mut bytes, self.have)?;
                if marked {
                    *bytes.get_mut(1)? |= CE << 4;
                }
                bytes
            }
        };
        bytes.reserve_exact(self.have);
        self.fragments.iter().for_each(|(_, frag)| bytes.extend_from_slice(frag));
        Some(bytes)
    }

    /// Writes the first fragment's header without options; the payload fills the rest of `bytes`.
    fn write_v4<'a>(&self, bytes: &'a mut [u8]) -> Option<ipv4::Packet<&'a mut [u8]>> {
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (self.key.src, self.key.dst) else { return None };
        let Head::V4 { tos, ttl } = *self.head.as_ref()? else { return None };
        let len = bytes.len() - ipv4::HEADER_LEN;
        let protocol = Protocol(self.key.protocol);
        let mut packet = ipv4::Packet::init(bytes, src, dst, protocol, len).ok()?;
        packet.set_tos(tos);
        packet.set_ttl(ttl);
        packet.set_ident(self.key.ident as u16);
        Some(packet)
    }

    /// The first fragment without options.
    fn first(&self) -> Option<Vec<u8>> {
        let (0, data) = self.fragments.first()? else { return None };
        match self.head.as_ref()? {
            Head::V4 { .. } => {
                let mut bytes = vec![0; ipv4::HEADER_LEN + data.len()];
                let mut packet = self.write_v4(&mut bytes)?;
                packet.set_fragment(0, true).ok()?;
                packet.payload_mut().copy_from_slice(data);
                Some(bytes)
            }
            Head::V6 { before, next, .. } => {
                let mut bytes = before.to_vec();
                set_payload_len(&mut bytes, FRAGMENT_LEN + data.len())?;
                let mut header = [0; FRAGMENT_LEN];
                extension::put_fragment(&mut header, *next, 0, true, self.key.ident).ok()?;
                bytes.extend_from_slice(&header);
                bytes.extend_from_slice(data);
                Some(bytes)
            }
        }
    }
}

/// Sets the payload length of an IPv6 packet for `more` bytes after `headers`; `None` if that is too many.
fn set_payload_len(headers: &mut [u8], more: usize) -> Option<()> {
    let len = headers.len().checked_sub(ipv6::HEADER_LEN)? + more;
    let len = u16::try_from(len).ok()?;
    headers.get_mut(4..6)?.copy_from_slice(&len.to_be_bytes());
    Some(())
}

/// The counters of one family.
struct Counts {
    received: Count,
    whole: Count,
    failed: Count,
    timeout: Count,
    overlap: Count,
    evicted: Count,
}

const COUNTS: Counts = Counts {
    received: Count::IpReasmReqds,
    whole: Count::IpReasmOKs,
    failed: Count::IpReasmFails,
    timeout: Count::IpReasmTimeout,
    overlap: Count::IpReasmOverlaps,
    evicted: Count::IpReasmEvicted,
};

const COUNTS6: Counts = Counts {
    received: Count::Ip6ReasmReqds,
    whole: Count::Ip6ReasmOKs,
    failed: Count::Ip6ReasmFails,
    timeout: Count::Ip6ReasmTimeout,
    overlap: Count::Ip6ReasmOverlaps,
    evicted: Count::Ip6ReasmEvicted,
};

impl Inet {
    /// Adds a fragment. Returns the reassembled packet if it is complete.
    pub(super) fn reassemble(&self, frag: &Frag<'_>, pass: &mut Pass) -> Option<Vec<u8>> {
        let (reassembly, counts) = match frag.head {
            Head::V4 { .. } => (&self.reassembly, COUNTS),
            Head::V6 { .. } => (&self.reassembly6, COUNTS6),
        };
        self.counters.add(counts.received);
        if memory_pressure::is(Level::Short) {
            self.counters.add(counts.failed);
            return None;
        }
        let mut reassembly = lock(reassembly);
        let (outcome, evicted) = reassembly.add(frag, pass.now);
        let next = reassembly.next();
        drop(reassembly);
        self.tick_by(next);
        self.counters.add_n(counts.evicted, evicted);
        self.counters.add_n(counts.failed, evicted);
        match outcome {
            Outcome::Waiting => None,
            Outcome::Whole(packet) => {
                self.counters.add(counts.whole);
                Some(packet)
            }
            Outcome::Inconsistent => {
                self.counters.add(counts.overlap);
                self.counters.add(counts.failed);
                None
            }
            Outcome::EcnConflict => {
                self.counters.add(counts.failed);
                None
            }
        }
    }

    /// Drops the expired datagrams and sends errors about them. Returns when it must run next.
    pub(super) fn tick_reassembly(&self, pass: &mut Pass) -> Option<Instant> {
        let (expired, next) = self.expire(&self.reassembly, COUNTS, pass);
        for first in expired {
            // RFC 1122 section 3.3.2: "an ICMP Time Exceeded message sent to the source host (if fragment
            // zero has been received)".
            if let Ok(packet) = Inbound4::new(&first)
                && self.topology().has_address(packet.dst().into())
                && self.send_error(
                    (Type::TIME_EXCEEDED, code::REASSEMBLY_EXCEEDED),
                    packet,
                    0,
                    pass,
                )
            {
                self.counters.add(Count::IcmpOutTimeExcds);
            }
        }
        let (expired, next6) = self.expire(&self.reassembly6, COUNTS6, pass);
        for first in expired {
            // RFC 8200 section 4.5 requires the same.
            if let Ok(packet) = Inbound6::new(&first)
                && self.topology().has_address(packet.dst().into())
            {
                let kind = (icmpv6::Type::TIME_EXCEEDED, icmpv6::code::REASSEMBLY_EXCEEDED, 0);
                self.send_error6(kind, &packet, 0, pass);
            }
        }
        earlier(next, next6)
    }

    /// Drops and counts the expired datagrams of one family. Returns their first fragments and when the next expires.
    fn expire(
        &self,
        reassembly: &Mutex<Reassembly>,
        counts: Counts,
        pass: &Pass,
    ) -> (impl Iterator<Item = Vec<u8>> + use<>, Option<Instant>) {
        let mut reassembly = lock(reassembly);
        let expired = reassembly.tick(pass.now);
        let next = reassembly.next();
        drop(reassembly);
        self.counters.add_n(counts.timeout, expired.len() as u64);
        self.counters.add_n(counts.failed, expired.len() as u64);
        (expired.into_iter().flatten(), next)
    }
}
