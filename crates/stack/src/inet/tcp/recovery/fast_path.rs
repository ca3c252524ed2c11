//! The fast path of an ACK: one segment was in flight, sent once, without any sign of loss, and it is acknowledged.
//! Every request and response of a request-response program is of this kind. Does what [`Recovery::acked`] would do,
//! without the checks that cannot apply, and defers it until the response was sent.

use super::{super::seq::Seq, Acked, Phase, Recovery, congestion::Growth};
use crate::time::Instant;
use std::time::Duration;

impl Recovery {
    #[inline(always)]
    fn is_fast_path(&self, ack: Seq) -> bool {
        self.phase == Phase::Open
            && ack == self.nxt
            && self.board.is_one_in_flight()
            && self.tlp.is_idle()
            && self.reneged.is_none()
            && !self.undo.open()
    }

    /// An ACK without SACK blocks and ECE has acknowledged everything queued. Its processing can wait: the answer
    /// that the application may be about to give does not depend on it, and is sent first. False: not on the fast
    /// path, call [`acked`](Recovery::acked).
    #[inline]
    pub fn acked_all_fast(&mut self, ack: Seq, now: Instant) -> bool {
        self.process_deferred_ack();
        let plain = self.is_fast_path(ack);
        if plain {
            self.defer_ack(now);
        }
        plain
    }

    /// Whether [`acked_all_fast`](Recovery::acked_all_fast) would be on the fast path, and has nothing to process
    /// before.
    #[inline]
    pub fn is_all_acked_fast(&self, ack: Seq) -> bool {
        !self.ack_deferred && self.is_fast_path(ack)
    }

    /// Defers that ACK.
    #[inline]
    pub fn defer_ack(&mut self, now: Instant) {
        // Nothing is in flight that could time out.
        (self.ack_deferred, self.timeout_from, self.new_first) = (true, now, false);
    }

    /// Processes a deferred ACK, before anything else changes. Until then nothing is in flight and no timer runs, but
    /// the window and the timeout have their old values: call this before [`room`](Recovery::room) or
    /// [`rto`](Recovery::rto).
    #[inline]
    pub fn process_deferred_ack(&mut self) {
        if std::mem::take(&mut self.ack_deferred) {
            self.process_deferred();
        }
    }

    #[inline(never)]
    fn process_deferred(&mut self) {
        self.process_only_segment(self.timeout_from);
    }

    /// The same, if more data is queued.
    #[inline]
    pub fn acked_fast(&mut self, ack: Seq, now: Instant) -> Option<Acked> {
        self.process_deferred_ack();
        if self.is_fast_path(ack) { self.process_only_segment(now) } else { None }
    }

    /// The only segment in flight was acknowledged at `now`.
    #[inline(always)]
    fn process_only_segment(&mut self, now: Instant) -> Option<Acked> {
        self.validate_window(self.in_flight());
        (self.new_first, self.timeouts, self.dup_acks) = (false, 0, 0);
        let sent = self.board.take_one()?;
        (self.tlp.deadline, self.undo.first) = (None, None);
        Some(self.only_delivered((sent.end, sent.len()), sent.at, now))
    }

    /// All that was in flight was acknowledged at `now`: `len` bytes up to `end`, sent at `at`.
    #[inline(always)]
    pub(super) fn only_delivered(
        &mut self,
        (end, len): (Seq, u32),
        at: Instant,
        now: Instant,
    ) -> Acked {
        let rtt = now.nanos_since(at);
        self.rack.all_delivered(end, at, rtt);
        self.una = end;
        self.measured(rtt, rtt, now);
        let rtt = || Some(Duration::from_nanos(rtt));
        // A window that is not used does not grow, so slow start need not be watched either.
        let used = self.window_limited
            || self.congestion.slow_start() && self.congestion.cwnd / 2 < self.max_in_flight;
        if used {
            let growth = Growth {
                delivered: len,
                srtt: self.rtt.srtt().unwrap_or_default(),
                rtt: rtt(),
                una: self.una,
                nxt: self.nxt,
                now,
            };
            self.congestion.watch(&growth);
            self.congestion.grow(&growth);
        }
        Acked { newly_acked: len, delivered: len, rtt: rtt() }
    }
}
