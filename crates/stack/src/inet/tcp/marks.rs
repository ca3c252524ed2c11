//! Marks on the bytes a connection sends: the end of a record (`MSG_EOR`), and the urgent byte (`MSG_OOB`). Few
//! programs use either, so they are allocated on first use.

use super::{
    connection::Connection,
    output::Out,
    segment::{Flags, Segment},
    seq::Seq,
};
use crate::time::Instant;
use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    ops::Range,
};

/// The most record ends kept; a record beyond them is joined with the next.
const RECORDS: usize = 4_096;

/// The marks of one send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// `MSG_EOR`: its last byte ends a record, and no segment goes beyond that.
    pub record: bool,
    /// `MSG_OOB`: its last byte is urgent.
    pub urgent: bool,
}

/// The marks of the data in the send buffer.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The numbers after the last byte of each record, in order.
    records: VecDeque<Seq>,
    /// SND.UP, the number after the urgent byte.
    urgent: Option<Seq>,
}

impl Connection {
    /// As [`send`](Connection::send). A record ends only if all of the data was taken; the last byte taken is urgent
    /// in any case, as in Linux (`tcp_push`).
    ///
    /// # Errors
    /// As `send`.
    #[cold]
    pub fn send_marked(
        &mut self,
        data: &[IoSlice<'_>],
        more: bool,
        mark: Mark,
        now: Instant,
    ) -> io::Result<usize> {
        let taken = self.send(data, more, now)?;
        let all = taken == data.iter().map(|piece| piece.len()).sum();
        if taken == 0 {
            return Ok(0);
        }
        let (una, end) = (self.snd_una, self.buffer.end());
        let marks = self.marks.get_or_insert_default();
        marks.records.retain(|record| record.after(una));
        if mark.record && all && marks.records.len() < RECORDS {
            marks.records.push_back(end);
        }
        if mark.urgent {
            marks.urgent = Some(end);
        }
        Ok(taken)
    }

    /// The end of the record that `start` lies in, if it has one.
    #[cold]
    pub(super) fn record_end(&self, start: Seq) -> Option<Seq> {
        let records = &self.marks.as_ref()?.records;
        records.get(records.partition_point(|end| end.at_most(start))).copied()
    }

    /// `range` from the beginning of its last record on.
    pub(super) fn last_record(&self, range: Range<Seq>) -> Range<Seq> {
        let Some(marks) = &self.marks else { return range };
        let at = marks.records.partition_point(|end| end.before(range.end));
        let begins = at.checked_sub(1).and_then(|at| marks.records.get(at)).copied();
        begins.map_or(range.start, |begins| begins.max(range.start))..range.end
    }

    /// Whether a small segment that ends at `end` does not wait for more data: the urgent byte is not acknowledged
    /// yet, or a record ends there and the next has begun (`tcp_nagle_test`, `tcp_write_xmit`).
    #[cold]
    pub(super) fn is_marked_to_go(&self, end: Seq) -> bool {
        let Some(marks) = &self.marks else { return false };
        let urgent = marks.urgent.is_some_and(|up| up.after(self.snd_una));
        urgent
            || end.before(self.buffer.end())
                && marks.records.binary_search_by(|a| order(*a, end)).is_ok()
    }

    /// Sends everything allowed, with an urgent pointer until the urgent byte is acknowledged.
    #[cold]
    #[inline(never)]
    pub(super) fn transmit_marked(&mut self, now: Instant, out: &mut Out<'_>) {
        let urgent = self.marks.as_ref().and_then(|marks| marks.urgent);
        let Some(up) = urgent.filter(|up| up.after(self.snd_una)) else {
            return self.transmit_all::<true>(now, out);
        };
        let end = self.buffer.end();
        self.transmit_all::<true>(now, &mut |plain| {
            let mut pointing = plain.clone();
            point_to(up, end, &mut pointing.segment);
            out(&pointing)
        });
    }
}

/// Sets the urgent pointer of an outgoing segment (`__tcp_transmit_skb`).
fn point_to(up: Seq, end: Seq, segment: &mut Segment<'_>) {
    if segment.seq.before(up) {
        match u16::try_from(up - segment.seq) {
            Ok(ahead) => segment.urgent = ahead,
            Err(_) if (segment.seq + u32::from(u16::MAX)).after(end) => segment.urgent = u16::MAX,
            Err(_) => return,
        }
        segment.flags = segment.flags | Flags::URG;
    }
}

fn order(a: Seq, b: Seq) -> std::cmp::Ordering {
    match (a.before(b), a == b) {
        (true, _) => std::cmp::Ordering::Less,
        (_, true) => std::cmp::Ordering::Equal,
        _ => std::cmp::Ordering::Greater,
    }
}
