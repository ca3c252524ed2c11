//! RACK: loss found by time (RFC 8985 section 6): what was sent long enough before something that has arrived
//! is lost. Owns the variables of section 5.2 and the reordering timer.

use super::{
    super::seq::Seq,
    scoreboard::{Place, Scoreboard, Sent},
};
use crate::time::Instant;
use std::time::Duration;

/// RFC 8985 section 6.2 step 4: "RACK.reo_wnd_persist = 16" recoveries.
const PERSIST: u8 = 16;

/// The variables of RFC 8985 section 5.2, by their names there.
#[derive(Debug, Default)]
pub(super) struct Rack {
    /// RACK.segment: what was sent last of all that has arrived.
    xmit: Instant,
    end: Seq,
    rtt: Duration,
    /// The highest number that arrived.
    fack: Seq,
    /// The round in which a DSACK came ends here.
    dsack_round: Option<Seq>,
    /// The reordering window, in quarters of the shortest round trip.
    quarters: u8,
    persist: u8,
    /// How often an original arrived after one sent later.
    pub reorderings: u32,
    /// An arrival has changed RACK.segment since the last look.
    pub advanced: bool,
    /// When the reordering window ends.
    pub deadline: Option<Instant>,
}

impl Rack {
    pub fn new(una: Seq) -> Rack {
        Rack { end: una, fack: una, quarters: 1, ..Rack::default() }
    }

    /// A segment arrived. `before`: what we echo of it was sent before this time, if time stamps can tell.
    pub fn arrived(
        &mut self,
        sent: &Sent,
        before: Option<Instant>,
        min: Option<Duration>,
        now: Instant,
    ) {
        let rtt = now.since(sent.at);
        // Section 6.2 step 2: what was sent again may have been answered for its first time: "ACK.ts_option.
        // echo_reply < Segment.xmit_ts", or sooner than the shortest round trip.
        if sent.again && (before.is_some_and(|b| b <= sent.at) || min.is_some_and(|min| rtt < min))
        {
            return;
        }
        self.advanced = true;
        self.rtt = rtt;
        // RACK_sent_after(sent, RACK.segment).
        if self.xmit < sent.at || self.xmit == sent.at && self.end.before(sent.end) {
            (self.xmit, self.end) = (sent.at, sent.end);
        }
    }

    /// All that was out has arrived, `sent` last.
    #[inline]
    pub fn newest(&mut self, sent: &Sent, rtt: Duration) {
        (self.rtt, self.xmit, self.end) = (rtt, sent.at, sent.end);
        (self.advanced, self.deadline) = (false, None);
        self.highest(sent.end);
    }

    /// Section 6.2 step 3: an original that arrived after one sent later; `fack` is that before this ACK. What
    /// was sent again counts too if the time stamp shows that the original is answered.
    #[inline]
    pub fn out_of_order(&mut self, sent: &Sent, before: Option<Instant>) {
        let original = !sent.again || before.is_some_and(|before| before <= sent.at);
        self.reorderings += u32::from(original && sent.end.before(self.fack));
    }

    /// The highest of an ACK.
    #[inline]
    pub fn highest(&mut self, end: Seq) {
        self.fack = self.fack.max(end);
    }

    /// Step 4, on a DSACK: once per round the window grows by a quarter of the shortest round trip.
    pub fn duplicate(&mut self, una: Seq, nxt: Seq) {
        // One of long ago, which the numbers have gone around since, is not within what is in flight.
        if self.dsack_round.is_some_and(|round| una.before(round) && round.at_most(nxt)) {
            return;
        }
        self.dsack_round = Some(nxt);
        self.quarters = self.quarters.saturating_add(1);
        self.persist = PERSIST;
    }

    /// Step 4, at the end of a recovery.
    pub fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.quarters = 1;
        }
    }

    /// RACK_update_reo_wnd: how much later than expected is not lost yet. `certain`: in recovery, or enough
    /// was SACKed.
    fn window(&self, certain: bool, min: Option<Duration>, srtt: Option<Duration>) -> Duration {
        if self.reorderings == 0 && certain {
            return Duration::ZERO;
        }
        let quarter = min.unwrap_or_default() / 4;
        // "RACK.reo_wnd = min(RACK.reo_wnd_mult * RACK.min_RTT / 4, SRTT)"
        (quarter * u32::from(self.quarters)).min(srtt.unwrap_or_default())
    }

    /// RACK_detect_loss: marks what is lost, sets the timer for what will be. The list of what is in flight is
    /// in order of sending, so the first that is not lost ends the search.
    pub fn detect(
        &mut self,
        board: &mut Scoreboard,
        certain: bool,
        min: Option<Duration>,
        srtt: Option<Duration>,
        now: Instant,
    ) -> Found {
        (self.deadline, self.advanced) = (None, false);
        let wait = self.rtt + self.window(certain, min, srtt);
        let mut found = Found::default();
        while let Some(sent) = board.oldest() {
            if !self.sent_after(sent) {
                break;
            }
            if sent.at + wait > now {
                // "timeout = max(remaining, timeout)": of all sent before RACK.segment, which was the last.
                self.deadline = Some(self.xmit + wait);
                break;
            }
            found.bytes += sent.len();
            found.again |= sent.again;
            board.lose_oldest();
        }
        found
    }

    /// RACK_sent_after(RACK.segment, sent).
    fn sent_after(&self, sent: &Sent) -> bool {
        self.xmit > sent.at || self.xmit == sent.at && self.end.after(sent.end)
    }

    /// RACK_mark_losses_on_RTO (section 6.3): the first, and all that are older than a round trip.
    pub fn timed_out(
        &mut self,
        board: &mut Scoreboard,
        min: Option<Duration>,
        srtt: Option<Duration>,
        now: Instant,
    ) {
        let Some(first) = board.front().map(|s| s.start) else { return };
        if board.front().is_some_and(|s| s.place == Place::Sacked) {
            // RFC 2018 section 8: after a timeout the SACKs are not to be trusted; here: if the first
            // is among them, the receiver has thrown it away.
            board.forget_sacks();
            board.lose_where(|_| true);
        } else {
            let wait = self.rtt + self.window(false, min, srtt);
            board.lose_where(|s| s.start == first || s.at + wait <= now);
        }
        self.deadline = None;
    }
}

/// What was found lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    pub bytes: u32,
    /// Some of it had been sent again.
    pub again: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_of_three_gibibytes_ago_is_over() {
        let mut rack = Rack::new(Seq(0));
        rack.duplicate(Seq(0), Seq(1_000));
        rack.duplicate(Seq(500), Seq(2_000));
        assert_eq!(rack.quarters, 2);
        let una = Seq(3 << 30);
        rack.duplicate(una, una + 1_000);
        assert_eq!(rack.quarters, 3);
    }
}
