//! The steady exchange, the shortest part of the predicted path: request and response alternate, each in one small
//! segment, and only the predicted path touches the connection. What only other code can change is asked once, when the
//! exchange begins; each segment then answers for what may differ from the one before. All other code reaches the
//! connection by [`Core::lock`](super::flow::Core::lock), which ends the exchange: [`settle`](Connection::settle) leaves
//! the state as if there had been none. `tests/predicted.rs` compares.

use super::{
    connection::{Connection, NEVER},
    plain::Plain,
    predicted::MOST,
};
use crate::time::Instant;

/// Whether the exchange is steady.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Steady {
    #[default]
    No,
    /// A polling reader took the last data: the next segment sent may begin an exchange.
    Perhaps,
    Yes,
}

impl Connection {
    /// Other code than the predicted path is about to touch the connection.
    #[inline(always)]
    pub(super) fn settle(&mut self) {
        if self.steady != Steady::No {
            self.end_exchange();
        }
    }

    #[cold]
    fn end_exchange(&mut self) {
        if std::mem::take(&mut self.steady) == Steady::Yes {
            self.recovery.settle();
        }
    }

    #[inline(always)]
    pub(super) fn is_steady(&self) -> bool {
        self.steady == Steady::Yes
    }

    /// Whether an exchange begins with the segment of new data that is about to be recorded as sent. Then nothing that is
    /// asked here changes until [`settle`](Connection::settle).
    #[cold]
    pub(super) fn begins_exchange(&mut self) -> bool {
        let begins = self.steady == Steady::Perhaps
            && self.fast
            && self.timestamps
            && self.snd_una == self.snd_nxt
            && self.snd_wnd_max >= 2 * self.snd_mss
            && self.may_queue() >= 2 * self.snd_mss as usize
            && self.probe_at == NEVER
            && self.stuck_since == NEVER
            && self.tail_probe.is_none()
            && self.reset.is_none()
            && self.marks.is_none()
            && self.error.is_none()
            && self.soft_error.is_none()
            && self.duplicate_acks == 0
            && self.probes_out == 0
            && !(self.ecn
                | self.echo_ce
                | self.cwr_due
                | self.ack_now
                | self.notify
                | self.nospace)
            && !(self.write_shut | self.probe_due | self.push_due | self.forced | self.more)
            && !self.options.cork
            && self.options.receive_low_water <= 1
            && self.receiver.is_steady(MOST)
            && self.recovery.is_at_rest();
        self.steady = if begins { Steady::Yes } else { Steady::No };
        begins
    }

    /// Whether `segment`, with at most [`MOST`] bytes of data, is the next of the exchange.
    #[inline(always)]
    pub(super) fn continues(&self, segment: &Plain, len: usize, now: Instant) -> bool {
        self.is_steady()
            && segment.seq == self.receiver.next()
            && segment.ack == self.snd_nxt
            && self.ts_recent.wrapping_sub(segment.stamps.0) as i32 <= 0
            && self.receiver.continues(len, now)
    }

    /// As [`predicted_taken`](Connection::predicted_taken), for a segment that [continues](Connection::continues) the
    /// exchange.
    #[inline(always)]
    pub(super) fn taken_steadily(&mut self, segment: &Plain, len: usize, now: Instant) {
        debug_assert_eq!(segment.seq, self.last_ack_sent);
        self.counts.segs_in = self.counts.segs_in.wrapping_add(1);
        (self.ts_recent, self.ts_recent_at, self.last_ack_at) = (segment.stamps.0, now, now);
        let advances = self.recovery.is_lone_in_flight();
        self.update_window(segment.seq, segment.ack, segment.window, advances);
        if advances {
            self.recovery.lone_acked(now);
            self.counts.bytes_acked += u64::from(segment.ack.0.wrapping_sub(self.snd_una.0));
            self.snd_una = segment.ack;
            self.buffer.ack_all();
        }
        self.counts.data_segs_in = self.counts.data_segs_in.wrapping_add(1);
        self.counts.bytes_received += len as u64;
        self.last_data_in = now;
        self.receiver.taken_steadily(len, now);
        if self.receiver.window_update_due() {
            std::hint::cold_path();
            self.receiver.announce_quickly(now);
        }
    }

    /// Whether `len` bytes of new data are the next segment of the exchange.
    #[inline(always)]
    pub(super) fn continues_sending(&self, len: usize, now: Instant) -> bool {
        self.is_steady()
            && !self.recovery.is_lone_in_flight()
            && len > 0
            && len <= self.snd_mss.min(self.snd_wnd) as usize
            && self.buffer.takes(len)
            && self.recovery.was_sent_lately(now)
    }
}
