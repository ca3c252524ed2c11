//! Out-of-order data: intervals beyond RCV.NXT, none of which touches the next.
//!
//! If the same byte arrives twice, the first one counts: data that was reported to the sender as held is not replaced
//! by anything an outsider may send later.

use super::super::seq::Seq;
use std::ops::Range;

/// The most intervals of one connection. More of them do not help an honest sender, and each segment of a malicious
/// one costs a search and a move among this many: a microsecond or two.
pub(super) const INTERVALS: usize = 512;

/// One interval.
#[derive(Clone, Copy, Debug)]
struct Held {
    start: Seq,
    end: Seq,
    /// When a segment last fell into it, counted in such segments.
    stamp: u32,
}

/// One word while all data is in order.
#[derive(Debug, Default)]
pub(super) struct Reassembly(Option<Box<List>>);

/// Not empty, except while it is being changed.
#[derive(Debug, Default)]
struct List {
    /// By sequence number.
    held: Vec<Held>,
    clock: u32,
}

impl Reassembly {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    #[inline]
    fn held(&self) -> &[Held] {
        self.0.as_ref().map_or(&[], |list| &list.held)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = Range<Seq>> + '_ {
        self.held().iter().map(|held| held.start..held.end)
    }

    /// After the last byte held.
    pub(super) fn end(&self) -> Option<Seq> {
        self.held().last().map(|held| held.end)
    }

    /// The intervals that `range` overlaps or touches.
    fn adjacent(&self, range: &Range<Seq>) -> Range<usize> {
        let first = self.held().partition_point(|held| held.end.before(range.start));
        let count = self.held().get(first..).unwrap_or_default();
        first..first + count.partition_point(|held| held.start.at_most(range.end))
    }

    /// The parts of `range` that are not held, in order.
    pub(super) fn gaps(&self, range: Range<Seq>) -> Gaps<'_> {
        let adjacent = self.held().get(self.adjacent(&range)).unwrap_or_default();
        Gaps { held: adjacent, at: range.start, end: range.end }
    }

    /// The first run of bytes in `range` that is held.
    pub(super) fn duplicate(&self, range: &Range<Seq>) -> Option<Range<Seq>> {
        self.held()
            .get(self.adjacent(range))?
            .iter()
            .map(|held| held.start.max(range.start)..held.end.min(range.end))
            .find(|overlap| overlap.start.before(overlap.end))
    }

    /// Whether `range` can be added: it extends an interval, or there may be one more.
    pub(super) fn fits(&self, range: &Range<Seq>) -> bool {
        self.held().len() < INTERVALS || !self.adjacent(range).is_empty()
    }

    /// Counts `range`, which is not empty, as held.
    pub(super) fn add(&mut self, range: Range<Seq>) {
        let adjacent = self.adjacent(&range);
        let List { held, clock } = &mut **self.0.get_or_insert_default();
        *clock = clock.wrapping_add(1);
        let mut new = Held { start: range.start, end: range.end, stamp: *clock };
        match held.get(adjacent.clone()) {
            Some([first, .., last]) => {
                new.start = new.start.min(first.start);
                new.end = new.end.max(last.end);
            }
            Some([only]) => {
                new.start = new.start.min(only.start);
                new.end = new.end.max(only.end);
            }
            _ => {}
        }
        let first = adjacent.start;
        match held.get_mut(first) {
            Some(old) if !adjacent.is_empty() => {
                *old = new;
                held.drain(first + 1..adjacent.end);
            }
            _ => held.insert(first, new),
        }
    }

    /// All bytes before `next` have arrived: returns where contiguous data ends now, held data included.
    pub(super) fn advance(&mut self, mut next: Seq) -> Seq {
        let Some(list) = &mut self.0 else { return next };
        let mut gone = 0;
        for held in &list.held {
            if next.before(held.start) {
                break;
            }
            next = next.max(held.end);
            gone += 1;
        }
        list.held.drain(..gone);
        if list.held.is_empty() {
            self.0 = None;
        }
        next
    }

    /// The intervals, by when a segment last fell into them, newest first (RFC 2018 section 4).
    pub(super) fn newest(&self) -> impl Iterator<Item = Range<Seq>> {
        const MOST: usize = super::super::segment::MAX_SACKS;
        let mut best: [Option<(u32, Held)>; MOST] = [None; MOST];
        let mut worst = u32::MAX;
        let clock = self.0.as_ref().map_or(0, |list| list.clock);
        // The newest interval is most often the last: then each other costs one comparison.
        for &held in self.held().iter().rev() {
            let age = clock.wrapping_sub(held.stamp);
            if age >= worst {
                continue;
            }
            let mut new = Some((age, held));
            for place in &mut best {
                let (Some((age, _)), old) = (new, *place) else { break };
                if old.is_none_or(|(older, _)| older > age) {
                    *place = new;
                    new = old;
                }
            }
            worst = best.last().copied().flatten().map_or(u32::MAX, |(age, _)| age);
        }
        best.into_iter().flatten().map(|(_, held)| held.start..held.end)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}

/// See [`Reassembly::gaps`].
pub(super) struct Gaps<'a> {
    held: &'a [Held],
    at: Seq,
    end: Seq,
}

impl Iterator for Gaps<'_> {
    type Item = Range<Seq>;

    fn next(&mut self) -> Option<Range<Seq>> {
        while self.at.before(self.end) {
            let start = self.at;
            let Some((held, rest)) = self.held.split_first() else {
                self.at = self.end;
                return Some(start..self.end);
            };
            self.held = rest;
            self.at = start.max(held.end);
            let end = held.start.min(self.end);
            if start.before(end) {
                return Some(start..end);
            }
        }
        None
    }
}
