//! Putting fragments together (RFC 791 section 3.2, RFC 815). Bounded in bytes, in datagrams and in
//! fragments of one datagram; the oldest datagram goes first. Fragments that overlap drop their datagram,
//! as Linux does in the spirit of RFC 5722: no honest sender makes them.

use super::{Inet, counters::Count, input::Inbound};
use crate::{
    napi::Pass,
    sync::lock,
    time::Instant,
    wire::{
        Protocol,
        icmp::{Type, code},
        ipv4,
    },
};
use std::{
    collections::{BTreeMap, VecDeque},
    net::Ipv4Addr,
    time::Duration,
};

/// How long a datagram may take to become whole (Linux's `ipfrag_time`).
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes kept, overhead included (`ipfrag_high_thresh`).
pub(super) const BYTES: usize = 4 << 20;
/// The most datagrams begun and not whole.
pub(super) const DATAGRAMS: usize = 1024;
/// The most fragments of one datagram: 64 KiB in pieces of 256 bytes.
pub(super) const FRAGMENTS: usize = 256;
/// What a fragment costs beside its bytes.
const OVERHEAD: usize = 64;

/// RFC 791 section 3.2: the fields that say that fragments belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    src: Ipv4Addr,
    dst: Ipv4Addr,
    ident: u16,
    protocol: u8,
}

#[derive(Debug)]
struct Partial {
    serial: u64,
    key: Key,
    /// Type of service and time to live of the first fragment, once it has come.
    first: Option<(u8, u8)>,
    /// By offset; none overlaps the next.
    pieces: Vec<(usize, Box<[u8]>)>,
    /// Bytes in `pieces`.
    have: usize,
    /// Bytes of the whole, once the last fragment has come.
    total: Option<usize>,
    cost: usize,
}

#[derive(Debug, Default)]
pub(super) struct Reassembly {
    partials: BTreeMap<Key, Partial>,
    /// Every datagram begun, oldest first, some of them gone since.
    begun: VecDeque<(Instant, Key, u64)>,
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
    Nonsense,
}

impl Reassembly {
    /// Takes in a fragment. The second value is how many datagrams were given up to make room.
    pub(super) fn add(&mut self, packet: ipv4::Packet<&[u8]>, now: Instant) -> (Outcome, u64) {
        let key = Key {
            src: packet.src(),
            dst: packet.dst(),
            ident: packet.ident(),
            protocol: packet.protocol().0,
        };
        if !self.partials.contains_key(&key) {
            self.serial += 1;
            self.begun.push_back((now + TIMEOUT, key, self.serial));
            self.partials.insert(key, Partial::new(self.serial, key));
        }
        let Some(partial) = self.partials.get_mut(&key) else { return (Outcome::Waiting, 0) };
        let before = if partial.pieces.is_empty() { 0 } else { partial.cost };
        let outcome = partial.add(packet);
        self.bytes += partial.cost - before;
        if outcome != Outcome::Waiting {
            self.remove(key);
        }
        let mut evicted = 0;
        while self.bytes > BYTES || self.partials.len() > DATAGRAMS {
            let Some((_, key, serial)) = self.begun.pop_front() else { break };
            if self.partials.get(&key).is_some_and(|partial| partial.serial == serial) {
                self.remove(key);
                evicted += 1;
            }
        }
        // Datagrams that became whole leave their place in the queue behind: bound that too.
        if self.begun.len() > 2 * DATAGRAMS {
            let partials = &self.partials;
            self.begun.retain(|(_, key, serial)| {
                partials.get(key).is_some_and(|partial| partial.serial == *serial)
            });
        }
        (outcome, evicted)
    }

    fn remove(&mut self, key: Key) -> Option<Partial> {
        let partial = self.partials.remove(&key)?;
        self.bytes -= partial.cost;
        Some(partial)
    }

    /// Drops what was begun too long ago: of each datagram its first fragment, if that has come.
    fn tick(&mut self, now: Instant) -> Vec<Option<Vec<u8>>> {
        let mut late = Vec::new();
        while let Some(&(deadline, key, serial)) = self.begun.front() {
            let alive = self.partials.get(&key).is_some_and(|partial| partial.serial == serial);
            if alive && deadline > now {
                break;
            }
            self.begun.pop_front();
            if alive && let Some(partial) = self.remove(key) {
                late.push(partial.first());
            }
        }
        late
    }

    fn next(&self) -> Option<Instant> {
        self.begun.front().map(|(deadline, ..)| *deadline)
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize, usize) {
        (self.bytes, self.partials.len(), self.begun.len())
    }
}

impl Partial {
    fn new(serial: u64, key: Key) -> Partial {
        let cost = 2 * OVERHEAD;
        Partial { serial, key, first: None, pieces: Vec::new(), have: 0, total: None, cost }
    }

    fn add(&mut self, packet: ipv4::Packet<&[u8]>) -> Outcome {
        let data = packet.payload();
        let (start, end) = (packet.fragment_offset(), packet.fragment_offset() + data.len());
        let at = self.pieces.partition_point(|(offset, _)| *offset < start);
        if self
            .pieces
            .get(at)
            .is_some_and(|(offset, piece)| *offset == start && piece.len() == data.len())
        {
            // The network may copy a packet; the first to come counts.
            return Outcome::Waiting;
        }
        let before = at.checked_sub(1).and_then(|before| self.pieces.get(before));
        let overlaps = before.is_some_and(|(offset, piece)| offset + piece.len() > start)
            || self.pieces.get(at).is_some_and(|(offset, _)| *offset < end);
        let reaches = self.pieces.last().map_or(0, |(offset, piece)| offset + piece.len()).max(end);
        let total = if packet.more_fragments() { self.total } else { Some(end) };
        let contradicts = self.total.is_some_and(|old| total != Some(old))
            || total.is_some_and(|total| reaches > total);
        if overlaps || contradicts || self.pieces.len() >= FRAGMENTS {
            return Outcome::Nonsense;
        }
        if start == 0 {
            self.first = Some((packet.dscp() << 2 | packet.ecn(), packet.ttl()));
        }
        self.total = total;
        self.have += data.len();
        self.cost += data.len() + OVERHEAD;
        self.pieces.insert(at, (start, data.into()));
        if self.total == Some(self.have) { self.whole() } else { Outcome::Waiting }
    }

    /// All pieces are there: they do not overlap and their lengths add up to the whole.
    fn whole(&mut self) -> Outcome {
        let mut bytes = vec![0; ipv4::HEADER_LEN + self.have];
        let Some(mut packet) = self.lay_header(&mut bytes) else { return Outcome::Nonsense };
        packet.set_dont_fragment(false);
        let mut room = packet.payload_mut();
        for (_, piece) in &self.pieces {
            let (here, rest) = room.split_at_mut(piece.len());
            here.copy_from_slice(piece);
            room = rest;
        }
        Outcome::Whole(bytes)
    }

    /// The first fragment's header, its options left out, for as much data as there is room.
    fn lay_header<'a>(&self, bytes: &'a mut [u8]) -> Option<ipv4::Packet<&'a mut [u8]>> {
        let Key { src, dst, ident, protocol } = self.key;
        let (tos, ttl) = self.first?;
        let len = bytes.len() - ipv4::HEADER_LEN;
        let mut packet = ipv4::Packet::init(bytes, src, dst, Protocol(protocol), len).ok()?;
        packet.set_tos(tos);
        packet.set_ttl(ttl);
        packet.set_ident(ident);
        Some(packet)
    }

    /// The first fragment, its options left out.
    fn first(&self) -> Option<Vec<u8>> {
        let (0, data) = self.pieces.first()? else { return None };
        let mut bytes = vec![0; ipv4::HEADER_LEN + data.len()];
        let mut packet = self.lay_header(&mut bytes)?;
        packet.set_fragment(0, true).ok()?;
        packet.payload_mut().copy_from_slice(data);
        Some(bytes)
    }
}

impl Inet {
    /// The whole packet, if `fragment` was the last piece missing.
    pub(super) fn reassemble(
        &self,
        fragment: ipv4::Packet<&[u8]>,
        pass: &mut Pass,
    ) -> Option<Vec<u8>> {
        self.counters.add(Count::IpReasmReqds);
        let mut reassembly = lock(&self.reassembly);
        let (outcome, evicted) = reassembly.add(fragment, pass.now);
        let next = reassembly.next();
        drop(reassembly);
        self.tick_by(next);
        self.counters.add_n(Count::IpReasmEvicted, evicted);
        self.counters.add_n(Count::IpReasmFails, evicted);
        match outcome {
            Outcome::Waiting => None,
            Outcome::Whole(packet) => {
                self.counters.add(Count::IpReasmOKs);
                Some(packet)
            }
            Outcome::Nonsense => {
                self.counters.add(Count::IpReasmOverlaps);
                self.counters.add(Count::IpReasmFails);
                None
            }
        }
    }

    /// Gives up on what has waited too long. When it has to look again.
    pub(super) fn tick_reassembly(&self, pass: &mut Pass) -> Option<Instant> {
        let mut reassembly = lock(&self.reassembly);
        let late = reassembly.tick(pass.now);
        let next = reassembly.next();
        drop(reassembly);
        for first in late {
            self.counters.add(Count::IpReasmTimeout);
            self.counters.add(Count::IpReasmFails);
            // RFC 1122 section 3.3.2: "an ICMP Time Exceeded message sent to the source host (if fragment
            // zero has been received)".
            let first = first.as_deref().map(Inbound::new);
            if let Some(Ok(packet)) = first
                && self.topology().own(packet.dst())
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
        next
    }
}
