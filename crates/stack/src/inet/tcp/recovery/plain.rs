//! The plain case: one segment was out, sent once, nothing was amiss, and it is acknowledged. Every request and
//! response of a program that takes turns is of this kind. Does what [`Recovery::acked`] would do, without asking
//! what cannot be, and puts it off until the response has gone.

use super::{super::seq::Seq, Acked, Phase, Recovery, congestion::Growth};
use crate::time::Instant;

impl Recovery {
    #[inline]
    fn is_plain(&self, ack: Seq) -> bool {
        self.phase == Phase::Open
            && ack == self.nxt
            && self.board.is_one_in_flight()
            && self.tlp.is_quiet()
            && self.reneged.is_none()
            && !self.undo.open()
    }

    /// An ACK without SACK blocks and ECE has come, of all there is to be sent. What there is to learn from it can wait:
    /// the answer that the application may be about to give does not depend on it, and goes out first. False: this is no
    /// plain case, ask [`acked`](Recovery::acked).
    #[inline]
    pub fn acked_all_plainly(&mut self, ack: Seq, now: Instant) -> bool {
        self.settle();
        let plain = self.is_plain(ack);
        if plain {
            // Nothing is out any more that could time out.
            (self.unlearnt, self.timeout_from, self.new_first) = (true, now, false);
        }
        plain
    }

    /// Learns what was put off, before anything else changes. Until then nothing is in flight and no timer runs, but the
    /// window and the timeout are those of before: who asks for [`room`](Recovery::room) or [`rto`](Recovery::rto) calls
    /// this first.
    #[inline]
    pub fn settle(&mut self) {
        if std::mem::take(&mut self.unlearnt) {
            self.learn_from(self.timeout_from);
        }
    }

    /// The same, with more to be sent.
    #[inline]
    pub fn acked_plainly(&mut self, ack: Seq, now: Instant) -> Option<Acked> {
        self.settle();
        if self.is_plain(ack) { self.learn_from(now) } else { None }
    }

    /// The only segment that is out was acknowledged at `now`.
    fn learn_from(&mut self, now: Instant) -> Option<Acked> {
        self.note_usage();
        (self.new_first, self.timeouts, self.dups) = (false, 0, 0);
        let sent = self.board.take_one()?;
        let (len, rtt) = (sent.len(), now.since(sent.at));
        self.rack.newest(&sent, rtt);
        (self.tlp.deadline, self.undo.first) = (None, None);
        self.una = sent.end;
        self.measured(rtt, Some(rtt), now);
        // A window that nobody uses does not grow, so there is no slow start to watch either.
        let used = self.limited
            || self.congestion.slow_start() && self.congestion.cwnd / 2 < self.most_out;
        if used {
            let growth = Growth {
                delivered: len,
                srtt: self.rtt.srtt().unwrap_or_default(),
                rtt: Some(rtt),
                una: self.una,
                nxt: self.nxt,
                now,
            };
            self.congestion.watch(&growth);
            self.congestion.grow(&growth);
        }
        Some(Acked { newly_acked: len, delivered: len, rtt: Some(rtt) })
    }
}
