//! Putting fragments together (RFC 791 section 3.2, RFC 815; RFC 8200 section 4.5). Bounded in bytes, in datagrams and
//! in fragments of one datagram; the oldest datagram goes first. Fragments that overlap drop their datagram,
//! as RFC 5722 demands over IPv6 and Linux does over both: no honest sender makes them.

use super::{
    Inet,
    counters::Count,
    input::{Inbound, Inbound4},
    input6::Inbound6,
    neighbour::earlier,
};
use crate::{
    napi::Pass,
    scarce::{self, Level},
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

/// How long a datagram of IPv4 may take to become whole (Linux's `ipfrag_time`).
const TIMEOUT: Duration = Duration::from_secs(30);
/// RFC 8200 section 4.5: "within 60 seconds of the reception of the first-arriving fragment".
const TIMEOUT6: Duration = Duration::from_secs(60);
/// The most bytes kept, overhead included (`ipfrag_high_thresh`).
pub(super) const BYTES: usize = 4 << 20;
/// The most datagrams by_age and not whole.
pub(super) const DATAGRAMS: usize = 1024;
/// The most fragments of one datagram: 64 KiB in fragments of 256 bytes.
pub(super) const FRAGMENTS: usize = 256;
/// What a fragment costs beside its bytes.
const OVERHEAD: usize = 64;
/// RFC 3168 section 5: congestion experienced.
const CE: u8 = 3;
const HAS_CE: u8 = 1 << CE;
/// A fragment is of no ECN-capable transport.
const HAS_NOT_ECT: u8 = 1;

/// RFC 791 section 3.2, RFC 8200 section 4.5: the fields that say that fragments belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    src: IpAddr,
    dst: IpAddr,
    ident: u32,
    /// Over IPv4; over IPv6 fragments of one packet may contradict each other in it.
    protocol: u8,
}

/// A fragment.
#[derive(Clone, Debug)]
pub(super) struct Frag<'a> {
    key: Key,
    offset: usize,
    more: bool,
    /// RFC 3168 section 5: what it says about congestion.
    ecn: u8,
    data: &'a [u8],
    head: Head<&'a [u8]>,
}

/// What the whole packet has from the headers of its first fragment.
#[derive(Clone, Debug)]
enum Head<B> {
    V4 {
        tos: u8,
        ttl: u8,
    },
    V6 {
        /// The packet before its fragment header.
        before: B,
        /// Where in that the fragment header is named, and what stands behind it.
        named_at: usize,
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
        let &Fragment { ident, offset, more, next, named_at, header_at, data } = fragment;
        let before = packet.bytes().get(..header_at).unwrap_or_default();
        let (src, dst) = (packet.src().into(), packet.dst().into());
        let key = Key { src, dst, ident, protocol: 0 };
        let (ecn, head) = (packet.ecn(), Head::V6 { before, named_at, next });
        Frag { key, offset, more, ecn, data, head }
    }
}

#[derive(Debug)]
struct FragQueue {
    serial: u64,
    key: Key,
    /// From the first fragment, once it has come.
    head: Option<Head<Box<[u8]>>>,
    /// By offset; none overlaps the next.
    fragments: Vec<(usize, Box<[u8]>)>,
    /// Bytes in `fragments`.
    have: usize,
    /// Bytes of the whole, once the last fragment has come.
    total: Option<usize>,
    /// Which of the four ecn_seen its fragments bear, a bit for each.
    ecn_seen: u8,
    cost: usize,
}

/// The datagrams of one family that are not whole.
#[derive(Debug)]
pub(super) struct Reassembly {
    timeout: Duration,
    queues: BTreeMap<Key, FragQueue>,
    /// Every datagram by_age, oldest first, some of them gone since.
    by_age: VecDeque<(Instant, Key, u64)>,
    serial: u64,
    bytes: usize,
}

/// What came of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// More is missing.
    Waiting,
    /// The whole packet, with the header of its first fragment but for the options.
    Whole(Vec<u8>),
    /// It contradicts what came before: all of the datagram is dropped.
    Inconsistent,
    /// A fragment met congestion, and another was sent as if nobody here would act on that: all is dropped.
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

    /// Takes in a fragment. The second value is how many datagrams were given up to make room.
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
        // Datagrams that became whole leave their place in the queue behind: bound that too.
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

    /// Drops what was by_age too long ago: of each datagram its first fragment, if that has come.
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
            // The network may copy a packet; the first to come counts.
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
                Head::V6 { before, named_at, next } => {
                    self.cost += before.len();
                    Head::V6 { before: before.into(), named_at, next }
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
        // RFC 3168 section 5.3: the mark of one fragment is the whole packet's, unless another has none to bear.
        if self.ecn_seen & HAS_CE != 0 && self.ecn_seen & HAS_NOT_ECT != 0 {
            return Outcome::EcnConflict;
        }
        self.whole().map_or(Outcome::Inconsistent, Outcome::Whole)
    }

    /// All fragments are there: they do not overlap and their lengths add up to the whole.
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
            Head::V6 { before, named_at, next } => {
                let mut bytes = before.to_vec();
                *bytes.get_mut(*named_at)? = next.0;
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

    /// The first fragment's header, its options left out, for as much data as there is room.
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

    /// The first fragment, its options left out.
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

/// States in the headers of an IPv6 packet that `more` bytes follow them; `None` if those are too many.
fn set_payload_len(headers: &mut [u8], more: usize) -> Option<()> {
    let len = headers.len().checked_sub(ipv6::HEADER_LEN)? + more;
    let len = u16::try_from(len).ok()?;
    headers.get_mut(4..6)?.copy_from_slice(&len.to_be_bytes());
    Some(())
}

/// What is counted of one family.
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
    /// The whole packet, if `frag` was the last one missing.
    pub(super) fn reassemble(&self, frag: &Frag<'_>, pass: &mut Pass) -> Option<Vec<u8>> {
        let (reassembly, counts) = match frag.head {
            Head::V4 { .. } => (&self.reassembly, COUNTS),
            Head::V6 { .. } => (&self.reassembly6, COUNTS6),
        };
        self.counters.add(counts.received);
        if scarce::is(Level::Short) {
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

    /// Gives up on what has waited too long. When it has to look again.
    pub(super) fn tick_reassembly(&self, pass: &mut Pass) -> Option<Instant> {
        let (expired, next) = self.expire(&self.reassembly, COUNTS, pass);
        for first in expired {
            // RFC 1122 section 3.3.2: "an ICMP Time Exceeded message sent to the source host (if fragment
            // zero has been received)".
            if let Ok(packet) = Inbound4::new(&first)
                && self.topology().has_own_address(packet.dst().into())
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
            // RFC 8200 section 4.5 wants the same.
            if let Ok(packet) = Inbound6::new(&first)
                && self.topology().has_own_address(packet.dst().into())
            {
                let kind = (icmpv6::Type::TIME_EXCEEDED, icmpv6::code::REASSEMBLY_EXCEEDED, 0);
                self.send_error6(kind, &packet, 0, pass);
            }
        }
        earlier(next, next6)
    }

    /// The first fragments, as far as they have come, of what has waited too long.
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
