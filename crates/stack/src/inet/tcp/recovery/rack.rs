//! RACK: loss detection by time (RFC 8985 section 6): a segment is lost if another, sent long enough after it, has
//! been delivered. Owns the variables of section 5.2 and the reordering timer.

use super::{
    super::seq::Seq,
    scoreboard::{Scoreboard, SegmentState, Sent},
};
use crate::time::Instant;
use std::time::Duration;

//= RFC 8985 6.2
//# Therefore, RACK persists using the inflated RACK.reo_wnd for up to 16 loss recoveries, after which it resets
//# RACK.reo_wnd to its starting value, min_RTT / 4.
const PERSIST: u8 = 16;

/// The variables of RFC 8985, by their names there.
#[derive(Debug, Default)]
pub(super) struct Rack {
    /// RACK.segment: the segment with the latest send time of all delivered.
    xmit: Instant,
    end: Seq,
    /// In nanoseconds.
    rtt: u64,
    /// The highest sequence number delivered.
    fack: Seq,
    /// The end of the round in which a DSACK came.
    dsack_round: Option<Seq>,
    /// The reordering window, in quarters of the shortest round trip.
    quarters: u8,
    persist: u8,
    /// How often an original was delivered after a segment sent later.
    pub reorderings: u32,
    /// RACK.segment has changed since the last detection.
    pub advanced: bool,
    /// When the reordering window ends.
    pub deadline: Option<Instant>,
}

impl Rack {
    pub fn new(una: Seq) -> Rack {
        Rack { end: una, fack: una, quarters: 1, ..Rack::default() }
    }

    /// A segment was delivered. `before`: the transmission that the timestamp echoes was made before this time.
    pub fn arrived(
        &mut self,
        sent: &Sent,
        before: Option<Instant>,
        min: Option<Duration>,
        now: Instant,
    ) {
        let rtt = now.nanos_since(sent.at);
        //= RFC 8985 6.2
        //# To avoid spurious inferences, ignore a segment as invalid if any of its sequence range has been
        //# retransmitted before and if either of two conditions is true:
        // Its timestamp shows that the ACK is for the original, or it came sooner than the shortest round trip.
        if sent.retransmitted
            && (before.is_some_and(|b| b <= sent.at)
                || min.is_some_and(|min| Duration::from_nanos(rtt) < min))
        {
            return;
        }
        self.advanced = true;
        self.rtt = rtt;
        //= RFC 8985 6.2
        //# If Segment.xmit_ts equals RACK.xmit_ts (e.g., due to clock granularity limits), then compare
        //# Segment.end_seq and RACK.end_seq to break the tie when deciding whether to update the RACK.segment's
        //# associated state.
        if self.xmit < sent.at || self.xmit == sent.at && self.end.before(sent.end) {
            (self.xmit, self.end) = (sent.at, sent.end);
        }
    }

    /// Everything in flight was delivered; the last segment, up to `end`, was sent at `at`.
    #[inline]
    pub fn all_delivered(&mut self, end: Seq, at: Instant, rtt: u64) {
        (self.rtt, self.xmit, self.end) = (rtt, at, end);
        (self.advanced, self.deadline) = (false, None);
        self.highest(end);
    }

    //= RFC 8985 6.2
    //# If a never-retransmitted segment that's below RACK.fack is (selectively or cumulatively) acknowledged, it has
    //# been delivered out of order.
    /// `fack` is from before this ACK. A retransmitted segment counts too if the timestamp shows that the ACK is for
    /// its original.
    #[inline]
    pub fn out_of_order(&mut self, sent: &Sent, before: Option<Instant>) {
        let original = !sent.retransmitted || before.is_some_and(|before| before <= sent.at);
        self.reorderings += u32::from(original && sent.end.before(self.fack));
    }

    /// The highest sequence number of an ACK.
    #[inline]
    pub fn highest(&mut self, end: Seq) {
        self.fack = self.fack.max(end);
    }

    //= RFC 8985 4
    //# RACK DSACK-based reordering window adaptation is RECOMMENDED but is not required.
    //= RFC 8985 6.2
    //# The RACK.reo_wnd increases linearly for every round trip in which the sender receives some DSACK option so
    //# that after N round trips in which a DSACK is received, the RACK.reo_wnd becomes (N+1) * min_RTT / 4, with an
    //# upper-bound of SRTT.
    /// A DSACK has come.
    pub fn duplicate(&mut self, una: Seq, nxt: Seq) {
        // A round of long ago, since which the sequence numbers have wrapped, is not within the data in flight.
        if self.dsack_round.is_some_and(|round| una.before(round) && round.at_most(nxt)) {
            return;
        }
        self.dsack_round = Some(nxt);
        self.quarters = self.quarters.saturating_add(1);
        self.persist = PERSIST;
    }

    /// A recovery has ended.
    pub fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.quarters = 1;
        }
    }

    //= RFC 8985 3.3.2
    //# The reordering window SHOULD be set to zero if no reordering has been observed on the connection so far, and
    //# either (a) three segments have been SACKed since the last recovery or (b) the sender is already in fast or RTO
    //# recovery.
    //= RFC 8985 3.3.2
    //# Otherwise, the reordering window SHOULD start from a small fraction of the round-trip time or zero if no
    //# round-trip time estimate is available.
    //= RFC 8985 3.3.2
    //# The RACK reordering window MUST be bounded, and this bound SHOULD be SRTT.
    /// RACK_update_reo_wnd: how much later than expected a segment is not lost yet. `certain`: in recovery, or enough
    /// was SACKed.
    fn window(&self, certain: bool, min: Option<Duration>, srtt: Option<Duration>) -> Duration {
        if self.reorderings == 0 && certain {
            return Duration::ZERO;
        }
        let quarter = min.unwrap_or_default() / 4;
        (quarter * u32::from(self.quarters)).min(srtt.unwrap_or_default())
    }

    //= RFC 8985 6.2
    //# For each segment that has not been SACKed, RACK considers that segment lost if another segment that was sent
    //# later has been delivered and the reordering window has passed.
    //= RFC 8985 6.2
    //# For timely loss detection, it is RECOMMENDED that the sender install a reordering timer.
    /// RACK_detect_loss: marks lost segments, and sets the timer for later ones. The list of segments in flight is in
    /// the order of sending, so the first that is not lost ends the search.
    pub fn detect(
        &mut self,
        board: &mut Scoreboard,
        certain: bool,
        min: Option<Duration>,
        srtt: Option<Duration>,
        now: Instant,
    ) -> Losses {
        (self.deadline, self.advanced) = (None, false);
        let wait = Duration::from_nanos(self.rtt) + self.window(certain, min, srtt);
        let mut found = Losses::default();
        while let Some(sent) = board.oldest() {
            if !self.sent_after(sent) {
                break;
            }
            if sent.at + wait > now {
                // Of all segments sent before RACK.segment, the latest.
                self.deadline = Some(self.xmit + wait);
                break;
            }
            found.bytes += sent.len();
            found.retransmitted |= sent.retransmitted;
            board.mark_oldest_lost();
        }
        found
    }

    /// RACK_sent_after(RACK.segment, sent).
    fn sent_after(&self, sent: &Sent) -> bool {
        self.xmit > sent.at || self.xmit == sent.at && self.end.after(sent.end)
    }

    //= RFC 8985 6.3
    //# Upon RTO timer expiration, RACK marks the first outstanding segment as lost (since it was sent an RTO ago);
    //# for all the other segments, RACK only marks the segment as lost if the time elapsed since the segment was
    //# transmitted is at least the sum of the recent RTT and the reordering window.
    pub fn timed_out(
        &mut self,
        board: &mut Scoreboard,
        min: Option<Duration>,
        srtt: Option<Duration>,
        now: Instant,
    ) {
        let Some(first) = board.front().map(|s| s.start) else { return };
        if board.front().is_some_and(|s| s.state == SegmentState::Sacked) {
            // RFC 2018 section 8: after a timeout the SACKs are not to be trusted. Here: if the first segment is
            // SACKed, the receiver has dropped it.
            board.clear_sacks();
            board.mark_lost_where(|_| true);
        } else {
            let wait = Duration::from_nanos(self.rtt) + self.window(false, min, srtt);
            board.mark_lost_where(|s| s.start == first || s.at + wait <= now);
        }
        self.deadline = None;
    }
}

/// The segments found lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    pub bytes: u32,
    /// Some of it was retransmitted before.
    pub retransmitted: bool,
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
