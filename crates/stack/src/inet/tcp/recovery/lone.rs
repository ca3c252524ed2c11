//! The one segment of a steady exchange: requests and responses alternate, each in one segment, and nothing is ever
//! lost. It is kept beside the scoreboard. When the next one is sent, its acknowledgment is processed as
//! [`process_deferred_ack`](Recovery::process_deferred_ack) would process it, but the segment was never put on the
//! board, no probe was scheduled for it and none cancelled. Before anything else happens, [`settle`](Recovery::settle)
//! makes the calls that were left out.

use super::{super::seq::Seq, Phase, Recovery};
use crate::time::Instant;

/// No timeout of a steady exchange is shorter. Nanoseconds.
const LATELY: u64 = 40_000_000;

/// The segment from SND.NXT on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lone {
    state: LoneState,
    end: Seq,
    at: Instant,
    acked_at: Instant,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LoneState {
    #[default]
    None,
    InFlight,
    Acked,
}

impl Recovery {
    /// Whether nothing is in flight and nothing speaks of a loss, so that the next segment may be a lone one.
    pub fn is_at_rest(&mut self) -> bool {
        self.process_deferred_ack();
        self.board.len() == 0
            && self.phase == Phase::Open
            && self.tlp.is_idle()
            && self.tlp.deadline.is_none()
            && self.rack.deadline.is_none()
            && self.reneged.is_none()
            && !self.undo.open()
            && self.undo.first.is_none()
            && !self.new_first
            && self.timeouts == 0
            && self.rtt.min_rto().min(self.rtt.rto()) >= LATELY
            && self.dup_acks == 0
    }

    /// Whether a lone segment is in flight.
    #[inline(always)]
    pub fn is_lone_in_flight(&self) -> bool {
        self.lone.state == LoneState::InFlight
    }

    /// Whether the last segment was sent so lately that the window [does not shrink](Recovery::idle_restart).
    #[inline(always)]
    pub fn was_sent_lately(&self, now: Instant) -> bool {
        now.nanos_since(self.lone.at) <= LATELY
    }

    /// Not after the timeout of a lone segment that was sent `now`.
    #[inline(always)]
    pub fn lone_timeout(&self, now: Instant) -> Instant {
        Instant::from_nanos(now.nanos() + LATELY)
    }

    /// As [`sent`](Recovery::sent), for a segment that ends at `end`, when the recovery
    /// [is at rest](Recovery::is_at_rest) or the lone segment before this one was acknowledged.
    #[inline(always)]
    pub fn sent_lone(&mut self, end: Seq, now: Instant) {
        if self.lone.state == LoneState::Acked {
            self.process_lone();
        }
        (self.lone.state, self.lone.end, self.lone.at) = (LoneState::InFlight, end, now);
    }

    /// As [`defer_ack`](Recovery::defer_ack), for the lone segment.
    #[inline(always)]
    pub fn lone_acked(&mut self, now: Instant) {
        (self.lone.state, self.lone.acked_at) = (LoneState::Acked, now);
    }

    /// The lone segment joins the others.
    pub fn settle(&mut self) {
        let Lone { state, end, at, acked_at } = std::mem::take(&mut self.lone);
        if state != LoneState::None {
            self.sent(self.nxt..end, at);
        }
        if state == LoneState::Acked {
            self.defer_ack(acked_at);
        }
    }

    #[inline(always)]
    fn process_lone(&mut self) {
        let Lone { end, at, acked_at, .. } = self.lone;
        let len = end.0.wrapping_sub(self.nxt.0);
        self.congestion.idle(at.since(self.last_sent));
        self.prr.sent(len);
        (self.nxt, self.last_sent) = (end, at);
        self.validate_window(len);
        self.board.pass_one();
        self.only_delivered((end, len), at, acked_at);
    }
}
