//! The predicted path: the next data of an established connection, for a reader that polls for it, and data that is sent
//! at once, in one segment. Nothing is in flight after such a segment, nothing is out of order, unsent, lost or due: the
//! steady state of requests and responses, and of short messages (Van Jacobson's header prediction, extended to sending).
//!
//! The general path is the authority. What is predicted does the same with fewer questions: it asks all of them first,
//! changes nothing before the last one is answered, and leaves what remains, as timers and acknowledgments, to the code
//! of the general path. `tests/predicted.rs` compares both, step by step.

use super::{
    application::Flow,
    connection::{Connection, NEVER},
    flow::{Core, State},
    plain::Plain,
    receive::AckNeed,
    segment::Flags,
    steady::Steady,
};
use crate::{
    inet::{Inet, Pass},
    lock::Locked,
    time::Instant,
};
use std::{hint::cold_path, sync::Arc};

impl Connection {
    /// Offers the data of `segment` to a reader by `take`, if the segment is as predicted. False if it is not, or the
    /// reader does not take it: nothing has changed.
    #[inline(always)]
    pub(super) fn take_predicted(
        &mut self,
        segment: &Plain,
        data: &[u8],
        now: Instant,
        take: impl FnOnce() -> bool,
    ) -> bool {
        let steady = self.continues(segment, data.len(), now);
        if !steady {
            cold_path();
            self.settle();
            if !self.predicts(segment, data) {
                return false;
            }
        }
        if !take() {
            return false;
        }
        if steady {
            self.taken_steadily(segment, data.len(), now);
        } else {
            self.predicted_taken(segment, data.len(), now);
        }
        true
    }

    /// Whether `segment`, with `data`, is the next data and acknowledges all that was sent, with nothing else to do
    /// than to give the data to a waiting reader.
    #[inline(never)]
    fn predicts(&self, segment: &Plain, data: &[u8]) -> bool {
        self.fast
            && self.timestamps
            && segment.seq == self.receiver.next()
            && segment.ack == self.snd_nxt
            && segment.ack == self.buffer.end()
            && self.ts_recent.wrapping_sub(segment.stamps.0) as i32 <= 0
            && self.receiver.takes_directly(data.len())
            && (self.snd_una == self.snd_nxt || self.recovery.is_all_acked_fast(segment.ack))
            && self.probe_at == NEVER
            && self.tail_probe.is_none()
            && self.reset.is_none()
            && self.duplicate_acks == 0
            && !(self.ecn | self.notify | self.nospace | self.ack_now | self.probe_due)
            && self.options.receive_low_water <= 1
    }

    /// The reader has taken the data of a segment that [is predicted](Connection::predicts).
    #[inline(never)]
    pub(super) fn predicted_taken(&mut self, segment: &Plain, len: usize, now: Instant) {
        self.counts.segs_in = self.counts.segs_in.wrapping_add(1);
        self.note_timestamp(segment.seq, segment.stamps.0, now);
        self.last_ack_at = now;
        self.probes_out = 0;
        self.soft_error = None;
        let advances = self.snd_una != self.snd_nxt;
        self.update_window(segment.seq, segment.ack, segment.window, advances);
        if advances {
            self.recovery.defer_ack(now);
            self.counts.bytes_acked += u64::from(segment.ack - self.snd_una);
            self.snd_una = segment.ack;
            self.buffer.ack(segment.ack);
            self.stuck_since = NEVER;
        }
        self.counts.data_segs_in = self.counts.data_segs_in.wrapping_add(1);
        self.counts.bytes_received += len as u64;
        self.last_data_in = now;
        self.receiver.taken_directly(len, now);
        if self.receiver.window_update_due() {
            cold_path();
            self.receiver.announce_quickly(now);
        }
        self.steady = Steady::Perhaps;
    }

    /// When the connection has to do something next, after a [predicted segment](Connection::predicted_taken); `None`: it
    /// has something to send now. Nothing is in flight or unsent, so it can only be an ACK, or a keep-alive probe.
    #[inline(always)]
    pub(super) fn rests_until(&self) -> Option<Instant> {
        match self.receiver.ack_need() {
            AckNeed::None => Some(self.slow_at),
            AckNeed::By(at) => Some(self.slow_at.min(at)),
            AckNeed::Now => None,
        }
    }

    /// Not after the next deadline of a connection that has just [sent](Connection::sent_predicted) a segment.
    #[inline(always)]
    pub(super) fn busy_until(&self, now: Instant) -> Instant {
        let timeout = if self.is_steady() {
            self.recovery.lone_timeout(now)
        } else if self.recovery.is_one_in_flight() {
            self.recovery.earliest_timeout(now)
        } else {
            return self.deadline().unwrap_or(NEVER);
        };
        self.slow_at.min(timeout)
    }

    /// Whether `len` bytes of new data would leave at once, in one segment.
    #[inline(never)]
    fn predicts_sending(&self, len: usize) -> bool {
        self.fast
            && self.timestamps
            && self.snd_nxt == self.buffer.end()
            && len > 0
            && len <= self.snd_mss.min(self.snd_edge() - self.snd_nxt) as usize
            && (self.snd_una == self.snd_nxt || self.sends_behind(len))
            && self.snd_wnd_max >= 2 * self.snd_mss
            && self.buffer.takes(len)
            && self.may_queue() >= len
            && !self.receiver.has_sacks()
            && !self.recovery.wants_new()
            && self.probe_at == NEVER
            && self.tail_probe.is_none()
            && self.marks.is_none()
            && self.error.is_none()
            && self.duplicate_acks == 0
            && !(self.ecn | self.echo_ce | self.cwr_due | self.notify | self.nospace)
            && !(self.write_shut | self.probe_due | self.push_due | self.forced | self.options.cork)
    }

    /// Whether `len` bytes may leave behind others that are in flight.
    #[inline]
    fn sends_behind(&self, len: usize) -> bool {
        (len >= self.snd_mss as usize || !self.nagle_holds())
            && self.recovery.has_room()
            && self.recovery.next_retransmission().is_none()
    }

    /// The header of `len` bytes of new data that would leave at once; `None` if anything stands against it. Nothing
    /// counts as sent before [`sent_predicted`](Connection::sent_predicted).
    #[inline(always)]
    pub(super) fn predict_sending(&mut self, len: usize, now: Instant) -> Option<Plain> {
        let window = if self.continues_sending(len, now) {
            self.receiver.window_steadily()
        } else {
            cold_path();
            if self.is_steady() {
                self.settle();
            }
            if !self.predicts_sending(len) {
                return None;
            }
            if self.snd_una == self.snd_nxt {
                self.recovery.idle_restart(now);
            }
            self.receiver.window()
        };
        Some(Plain {
            seq: self.snd_nxt,
            ack: self.receiver.next(),
            flags: Flags::ACK | Flags::PSH,
            window: self.on_the_wire(window),
            stamps: (self.timestamp(now), self.ts_recent),
        })
    }

    /// `data` has been sent, with the header that [`predict_sending`](Connection::predict_sending) returned.
    #[inline(always)]
    pub(super) fn sent_predicted(&mut self, data: &[u8], now: Instant) {
        let (start, len) = (self.snd_nxt, data.len() as u32);
        let end = start + len;
        if self.is_steady() || self.begins_exchange() {
            self.recovery.sent_lone(end, now);
        } else {
            cold_path();
            self.recovery.sent(start..end, now);
        }
        self.more = false;
        self.buffer.append(data);
        self.data_sent(1, len, true, now);
        self.snd_nxt = end;
        if len < self.snd_mss {
            self.small_end = end;
        }
    }
}

/// The most bytes of data that are predicted: longer segments are mostly of streams, of which every other one is
/// acknowledged.
pub(super) const MOST: usize = 512;

impl Core {
    /// Processes a segment of this flow, if it is as predicted and a reader takes its data in this pass. False if not:
    /// nothing has changed.
    #[inline(always)]
    pub(super) fn predicted(
        self: &Arc<Core>,
        inet: &Inet,
        segment: &Plain,
        data: &[u8],
        pass: &mut Pass<'_>,
    ) -> bool {
        if data.is_empty() || data.len() > MOST {
            return false;
        }
        let mut state = self.enter_predicted(&mut pass.now);
        if !state.receives_from(pass.napi) {
            return false;
        }
        if !state.take_predicted(inet, segment, data, pass) {
            return false;
        }
        if state.rests() {
            state.update_ledger(&self.tuple, inet, pass);
        } else {
            self.answer_predicted(state, inet, pass);
        }
        true
    }

    /// A predicted segment is to be answered at once, or the timer is too late for what it leaves.
    #[cold]
    fn answer_predicted(
        self: &Arc<Core>,
        mut state: Locked<'_, State>,
        inet: &Inet,
        pass: &mut Pass<'_>,
    ) {
        state.connection.settle();
        self.end_segment(state, inet, (true, false), pass);
        inet.deliver_local(pass);
    }
}

impl Flow {
    /// As [`send`](Flow::send), for data that leaves at once. False if it does not: nothing was queued.
    #[inline(always)]
    pub(crate) fn send_predicted(&self, data: &[u8], mut now: Instant) -> bool {
        let mut state = self.core.enter_predicted(&mut now);
        let sent = state.send_predicted(&self.core.tuple, data, &self.inet, now);
        if sent {
            self.core.update_after(state, &self.inet, now);
        }
        sent
    }
}
