//! The scoreboard: the segments in flight, and the state of each (RFC 2018, RFC 6675). Owns the ring of sent segments
//! and the four lists they are on; decides nothing.
//!
//! Segments lie in the ring in sequence order, so a cumulative ACK removes them at the front, and a SACK block is
//! found by binary search. Each segment is also on one list, linked through the ring: in flight, in the order of
//! sending; lost, in about the order of sequence; lost again; SACKed. The costs:
//!
//! - a cumulative ACK: the segments that it removes;
//! - a SACK block: a binary search, and the segments that it newly SACKs. SACKed segments are skipped: a SACKed
//!   segment knows the length of a run of SACKed segments from it on, and a skip lengthens the runs it used (path
//!   compression). However a peer splits its blocks, an ACK costs O(log n) amortised;
//! - the search of RACK for lost segments: those it marks, and one more;
//! - the next segment to retransmit: O(1).
//!
//! A timeout, an undo and a change of the MSS go over the whole ring; each happens at most once per round trip.

use super::super::seq::Seq;
use crate::time::Instant;
use std::{collections::VecDeque, ops::Range};

/// The state of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentState {
    /// Sent or retransmitted, and nothing reported.
    Flight,
    /// Reported by SACK.
    Sacked,
    /// The original is lost.
    Lost,
    /// The retransmission is lost too.
    LostRetransmission,
}

/// A segment that is not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub start: Seq,
    pub end: Seq,
    /// When it was last sent.
    pub at: Instant,
    /// The distance in the ring to its neighbours in its list; 0: there is none.
    before: i32,
    next: i32,
    /// If it is SACKed: so many segments from here on are, at least.
    run: u32,
    pub state: SegmentState,
    /// It was sent more than once.
    pub retransmitted: bool,
}

impl Sent {
    /// Bytes of sequence space.
    #[inline]
    pub fn len(&self) -> u32 {
        self.end - self.start
    }
}

/// The ends of a list, by number: positions in the ring counted from the first segment ever sent.
#[derive(Clone, Copy, Debug, Default)]
struct List {
    head: u32,
    tail: u32,
    segments: u32,
    bytes: u32,
}

/// With more segments in flight than this, small segments are joined.
pub(super) const SEPARATE_MAX: usize = 256;
/// The segments (of 32 bytes) that an empty ring may keep allocated.
const IDLE_CAPACITY: usize = 64;

/// The scoreboard of one connection.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    ring: VecDeque<Sent>,
    /// The number of the segment at the front.
    first: u32,
    lists: [List; 4],
    /// The retransmitted part of the bytes in flight.
    retransmitted: u32,
    /// Segments visited while skipping SACKed ones.
    #[cfg(test)]
    pub looks: u64,
}

impl Scoreboard {
    /// Frees the memory that the ring does not need.
    pub fn free_idle_memory(&mut self) {
        self.ring.shrink_to_fit();
    }

    /// Bytes in this state.
    #[inline]
    pub fn bytes(&self, state: SegmentState) -> u32 {
        self.lists[state as usize].bytes
    }

    /// Segments in this state.
    #[inline]
    pub fn segments(&self, state: SegmentState) -> u32 {
        self.lists[state as usize].segments
    }

    /// Whether a segment is lost and not retransmitted.
    #[inline]
    pub fn any_lost(&self) -> bool {
        self.segments(SegmentState::Lost) + self.segments(SegmentState::LostRetransmission) > 0
    }

    /// Bytes in flight that are retransmissions.
    #[inline]
    pub fn retransmitted_bytes(&self) -> u32 {
        self.retransmitted
    }

    /// Segments in flight that are retransmissions.
    pub fn retransmitted_segments(&self) -> u32 {
        let retransmitted = |s: &&Sent| s.retransmitted && s.state == SegmentState::Flight;
        if self.retransmitted == 0 {
            0
        } else {
            self.ring.iter().filter(retransmitted).count() as u32
        }
    }

    /// How many segments were ever acknowledged, wrapping.
    pub fn acknowledged(&self) -> u32 {
        self.first
    }

    /// How many segments are not acknowledged.
    #[inline]
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// The first segment not acknowledged.
    #[inline]
    pub fn front(&self) -> Option<&Sent> {
        self.ring.front()
    }

    /// The last segment sent.
    #[inline]
    pub fn back(&self) -> Option<&Sent> {
        self.ring.back()
    }

    /// Whether exactly one segment is on the board, in flight and sent once.
    #[inline]
    pub fn is_one_in_flight(&self) -> bool {
        self.ring.len() == 1 && self.segments(SegmentState::Flight) == 1 && self.retransmitted == 0
    }

    /// Removes the only segment.
    #[inline]
    pub fn take_one(&mut self) -> Option<Sent> {
        debug_assert!(self.is_one_in_flight());
        self.first = self.first.wrapping_add(1);
        self.lists[SegmentState::Flight as usize] = List::default();
        self.ring.pop_front()
    }

    /// As if the only segment had been added and removed.
    #[inline]
    pub fn pass_one(&mut self) {
        self.first = self.first.wrapping_add(1);
        self.lists[SegmentState::Flight as usize] = List::default();
    }

    /// All segments, in sequence order.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &Sent> {
        self.ring.iter()
    }

    //= RFC 8985 4
    //# For each data segment sent, the sender MUST store its most recent transmission time with a timestamp whose
    //# granularity is finer than 1/4 of the minimum RTT of the connection.
    /// Adds new data sent now, in segments of at most `mss` bytes.
    #[inline(always)]
    pub fn push(&mut self, range: Range<Seq>, mss: u32, now: Instant) {
        if self.ring.is_empty() && (1..=mss).contains(&(range.end - range.start)) {
            self.push_only(range, now);
        } else {
            self.push_more(range, mss, now);
        }
    }

    /// Adds one segment to an empty board.
    #[inline]
    fn push_only(&mut self, range: Range<Seq>, at: Instant) {
        let (state, bytes) = (SegmentState::Flight, range.end - range.start);
        self.ring.push_back(Sent {
            start: range.start,
            end: range.end,
            at,
            before: 0,
            next: 0,
            run: 1,
            state,
            retransmitted: false,
        });
        let only = self.first;
        self.lists[state as usize] = List { head: only, tail: only, segments: 1, bytes };
    }

    fn push_more(&mut self, range: Range<Seq>, mss: u32, now: Instant) {
        let mut start = range.start;
        if self.ring.len() >= SEPARATE_MAX {
            self.join(&mut start, range.end, mss, now);
        }
        if !start.before(range.end) {
            return;
        }
        let (state, position, bytes) = (SegmentState::Flight, self.ring.len(), range.end - start);
        let mut before = self.link_tail(position, state).wrapping_neg();
        while start.before(range.end) {
            let end = range.end.min(start + mss.max(1));
            let next = i32::from(end != range.end);
            let sent =
                Sent { start, end, at: now, before, next, run: 1, state, retransmitted: false };
            self.ring.push_back(sent);
            (start, before) = (end, -1);
        }
        let list = &mut self.lists[state as usize];
        list.tail = self.first.wrapping_add(self.ring.len() as u32 - 1);
        list.segments += (self.ring.len() - position) as u32;
        list.bytes = list.bytes.wrapping_add(bytes);
    }

    /// Adds to the last segment if that has room, so that a million writes of one byte are not a million segments.
    fn join(&mut self, start: &mut Seq, end: Seq, mss: u32, now: Instant) {
        let last = self.ring.len().saturating_sub(1);
        let Some(sent) = self.ring.get(last) else { return };
        if sent.state == SegmentState::Flight
            && !sent.retransmitted
            && sent.len() + (end - *start) <= mss
        {
            self.unlink(last);
            if let Some(sent) = self.ring.get_mut(last) {
                (sent.end, sent.at) = (end, now);
            }
            self.link(last, SegmentState::Flight);
            *start = end;
        }
    }

    /// Records that `range` was retransmitted now; returns how many bytes of it are on the board.
    pub fn resent(&mut self, range: Range<Seq>, now: Instant) -> u32 {
        if self.is_inside(range.start) || self.is_inside(range.end) {
            self.split_at(range.start, range.end);
        }
        let mut bytes = 0;
        let mut position = self.position(range.start);
        while let Some(&sent) = self.ring.get(position).filter(|s| s.start.before(range.end)) {
            bytes += sent.len();
            if sent.state != SegmentState::Sacked {
                self.unlink(position);
                if let Some(sent) = self.ring.get_mut(position) {
                    (sent.at, sent.retransmitted) = (now, true);
                }
                self.link(position, SegmentState::Flight);
            }
            position += 1;
        }
        bytes
    }

    //= RFC 6675 4
    //# Given the information provided in an ACK, each octet that is cumulatively ACKed or SACKed should be marked
    //# accordingly in the scoreboard data structure, and the total number of octets SACKed should be recorded.
    /// Removes everything before `una`. `report` gets each segment as it was, or the removed part of it.
    pub fn ack(&mut self, una: Seq, mut report: impl FnMut(&Sent)) {
        while let Some(&sent) = self.ring.front().filter(|s| s.start.before(una)) {
            if sent.end.after(una) {
                report(&Sent { end: una, ..sent });
                self.count_out(&sent, una - sent.start);
                if let Some(front) = self.ring.front_mut() {
                    front.start = una;
                }
                return;
            }
            report(&sent);
            self.pop_front(&sent);
        }
        if self.ring.is_empty() && self.ring.capacity() > IDLE_CAPACITY {
            self.ring.shrink_to(IDLE_CAPACITY);
        }
    }

    /// Removes the first segment, `sent`, which is mostly also the first of its list.
    #[inline]
    fn pop_front(&mut self, sent: &Sent) {
        if sent.before == 0 {
            if let Some(next) = self.ring.get_mut(sent.next as usize).filter(|_| sent.next != 0) {
                next.before = 0;
            }
            let list = &mut self.lists[sent.state as usize];
            list.head = self.first.wrapping_add(sent.next as u32);
            list.segments = list.segments.saturating_sub(1);
            self.count_out(sent, sent.len());
        } else {
            self.unlink(0);
        }
        self.ring.pop_front();
        self.first = self.first.wrapping_add(1);
    }

    /// Marks the segments within `block` as SACKed. `report` gets each newly SACKed segment as it was. A segment is
    /// SACKed whole or not at all: a receiver holds all of it or none.
    pub fn sack(&mut self, block: Range<Seq>, mut report: impl FnMut(&Sent)) {
        let mut position = self.position(block.start);
        loop {
            position = self.skip_sacked(position);
            let Some(sent) = self.ring.get_mut(position) else { return };
            if sent.end.after(block.end) {
                return;
            }
            report(sent);
            sent.run = 1;
            self.move_to(position, SegmentState::Sacked);
            position += 1;
        }
    }

    /// The first position at or after `position` that is not SACKed.
    fn skip_sacked(&mut self, position: usize) -> usize {
        let mut end = position;
        while let Some(sent) = self.ring.get(end).filter(|s| s.state == SegmentState::Sacked) {
            end += sent.run as usize;
            #[cfg(test)]
            {
                self.looks += 1;
            }
        }
        let mut at = position;
        while let Some(sent) = self.ring.get_mut(at).filter(|_| at < end) {
            let run = std::mem::replace(&mut sent.run, (end - at) as u32);
            at += run as usize;
        }
        end
    }

    /// The segment in flight with the oldest send time.
    #[inline]
    pub fn oldest(&self) -> Option<&Sent> {
        self.head(SegmentState::Flight)
    }

    /// Marks [`oldest`](Self::oldest) as lost.
    pub fn mark_oldest_lost(&mut self) {
        if let Some(position) = self.head_position(SegmentState::Flight) {
            self.mark_lost(position);
        }
    }

    /// Marks the first segment not acknowledged as lost, if it is in flight.
    pub fn mark_front_lost(&mut self) {
        if self.front().is_some_and(|s| s.state == SegmentState::Flight) {
            self.mark_lost(0);
        }
    }

    /// Marks as lost all segments in flight for which `lost` holds.
    pub fn mark_lost_where(&mut self, lost: impl Fn(&Sent) -> bool) {
        for sent in &mut self.ring {
            match sent.state {
                SegmentState::Flight if lost(sent) => sent.state = SegmentState::Lost,
                SegmentState::LostRetransmission => sent.state = SegmentState::Lost,
                _ => {}
            }
        }
        self.relink();
    }

    /// Clears all SACKs: the receiver has dropped what it reported (RFC 2018 section 8).
    pub fn clear_sacks(&mut self) {
        for sent in &mut self.ring {
            if sent.state == SegmentState::Sacked {
                sent.state = SegmentState::Flight;
            }
        }
        self.relink();
    }

    /// Clears all marks of lost segments.
    pub fn clear_lost(&mut self) {
        for sent in &mut self.ring {
            if matches!(sent.state, SegmentState::Lost | SegmentState::LostRetransmission) {
                sent.state = SegmentState::Flight;
            }
        }
        self.relink();
    }

    /// The next lost segment to retransmit: the first in sequence order, except in the rare case of a segment that
    /// was found lost late.
    pub fn next_lost(&self) -> Option<&Sent> {
        match (self.head(SegmentState::Lost), self.head(SegmentState::LostRetransmission)) {
            (Some(a), Some(b)) => Some(if a.start.before(b.start) { a } else { b }),
            (a, b) => a.or(b),
        }
    }

    /// Splits all segments to at most `mss` bytes; larger ones in flight are lost (RFC 1191 section 6).
    pub fn shrink(&mut self, mss: u32) {
        if self.ring.iter().all(|s| s.len() <= mss) {
            return;
        }
        let whole = std::mem::take(&mut self.ring);
        for sent in whole {
            let large = sent.len() > mss && sent.state == SegmentState::Flight;
            let state = if large { SegmentState::Lost } else { sent.state };
            let mut start = sent.start;
            while start.before(sent.end) {
                let end = sent.end.min(start + mss.max(1));
                self.ring.push_back(Sent { start, end, state, run: 1, ..sent });
                start = end;
            }
        }
        self.relink();
    }

    /// Whether `seq` lies inside a segment, not at its edge.
    fn is_inside(&self, seq: Seq) -> bool {
        let position = self.ring.partition_point(|s| s.end.at_most(seq));
        self.ring.get(position).is_some_and(|s| s.start.before(seq))
    }

    /// Splits segments at `a` and `b`. Needed only if a retransmission has other boundaries than the original: with a
    /// window smaller than a segment.
    fn split_at(&mut self, a: Seq, b: Seq) {
        let whole = std::mem::take(&mut self.ring);
        for mut sent in whole {
            sent.run = 1;
            for edge in [a, b] {
                if sent.start.before(edge) && sent.end.after(edge) {
                    self.ring.push_back(Sent { end: edge, ..sent });
                    sent.start = edge;
                }
            }
            self.ring.push_back(sent);
        }
        self.relink();
    }

    /// The position of the first segment that begins at or after `seq`.
    #[inline]
    fn position(&self, seq: Seq) -> usize {
        self.ring.partition_point(|s| s.start.before(seq))
    }

    fn head_position(&self, state: SegmentState) -> Option<usize> {
        let list = &self.lists[state as usize];
        (list.segments > 0).then(|| list.head.wrapping_sub(self.first) as usize)
    }

    fn head(&self, state: SegmentState) -> Option<&Sent> {
        self.ring.get(self.head_position(state)?)
    }

    fn mark_lost(&mut self, position: usize) {
        let retransmitted = self.ring.get(position).is_some_and(|s| s.retransmitted);
        self.move_to(
            position,
            if retransmitted { SegmentState::LostRetransmission } else { SegmentState::Lost },
        );
    }

    fn move_to(&mut self, position: usize, state: SegmentState) {
        self.unlink(position);
        self.link(position, state);
    }

    /// Removes a segment from its list.
    fn unlink(&mut self, position: usize) {
        let Some(&sent) = self.ring.get(position) else { return };
        let Sent { before, next, .. } = sent;
        let (earlier, later) = (offset(position, before), offset(position, next));
        if let Some(sent) = self.ring.get_mut(earlier).filter(|_| before != 0) {
            sent.next = if next == 0 { 0 } else { next.wrapping_sub(before) };
        }
        if let Some(sent) = self.ring.get_mut(later).filter(|_| next != 0) {
            sent.before = if before == 0 { 0 } else { before.wrapping_sub(next) };
        }
        let list = &mut self.lists[sent.state as usize];
        if before == 0 {
            list.head = self.first.wrapping_add(later as u32);
        }
        if next == 0 {
            list.tail = self.first.wrapping_add(earlier as u32);
        }
        list.segments = list.segments.saturating_sub(1);
        self.count_out(&sent, sent.len());
    }

    #[inline]
    fn count_out(&mut self, sent: &Sent, bytes: u32) {
        let list = &mut self.lists[sent.state as usize];
        list.bytes = list.bytes.saturating_sub(bytes);
        if sent.retransmitted && sent.state == SegmentState::Flight {
            self.retransmitted = self.retransmitted.saturating_sub(bytes);
        }
    }

    /// Adds a segment at the end of a list.
    fn link(&mut self, position: usize, state: SegmentState) {
        let distance = self.link_tail(position, state);
        let Some(sent) = self.ring.get_mut(position) else { return };
        (sent.state, sent.before, sent.next) = (state, distance.wrapping_neg(), 0);
        let list = &mut self.lists[state as usize];
        list.tail = self.first.wrapping_add(position as u32);
        list.segments += 1;
        list.bytes = list.bytes.wrapping_add(sent.len());
        if sent.retransmitted && state == SegmentState::Flight {
            self.retransmitted = self.retransmitted.wrapping_add(sent.len());
        }
    }

    /// Links the tail of a list to `position`, or makes `position` the head of an empty list. Returns the distance
    /// from the old tail, or 0.
    #[inline]
    fn link_tail(&mut self, position: usize, state: SegmentState) -> i32 {
        let number = self.first.wrapping_add(position as u32);
        let list = &mut self.lists[state as usize];
        if list.segments == 0 {
            list.head = number;
            return 0;
        }
        let distance = number.wrapping_sub(list.tail) as i32;
        if let Some(tail) = self.ring.get_mut(offset(position, distance.wrapping_neg())) {
            tail.next = distance;
        }
        distance
    }

    /// Rebuilds the lists from the states.
    fn relink(&mut self) {
        (self.lists, self.retransmitted) = Default::default();
        let mut flight: Vec<(Instant, usize)> = Vec::new();
        for position in 0..self.ring.len() {
            let Some(sent) = self.ring.get_mut(position) else { break };
            let (state, at) = (sent.state, sent.at);
            sent.run = 1;
            match state {
                SegmentState::Flight => flight.push((at, position)),
                _ => self.link(position, state),
            }
        }
        flight.sort_unstable();
        for (_, position) in flight {
            self.link(position, SegmentState::Flight);
        }
    }
}

/// The position `by` away.
#[inline]
fn offset(position: usize, by: i32) -> usize {
    position.wrapping_add_signed(by as isize)
}
