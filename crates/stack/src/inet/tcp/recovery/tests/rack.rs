//! RACK against a literal transcription of RFC 8985, which walks all segments each time.

use super::super::{
    super::seq::Seq,
    rack::Rack,
    scoreboard::{Scoreboard, SegmentState},
};
use crate::time::Instant;
use proptest::prelude::*;
use std::time::Duration;

const MSS: u32 = 1_000;

#[derive(Clone, Debug)]
enum Step {
    Send,
    Resend,
    /// SACKs one of the segments in flight.
    Arrive(usize),
    /// Acknowledges this many.
    Ack(usize),
    Duplicate,
    Recovered,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Send),
        3 => Just(Step::Resend),
        5 => (0usize..12).prop_map(Step::Arrive),
        2 => (0usize..4).prop_map(Step::Ack),
        1 => Just(Step::Duplicate),
        1 => Just(Step::Recovered),
        4 => (0u64..8).prop_map(Step::Wait),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    end_seq: u32,
    xmit_ts: u64,
    retransmitted: bool,
    lost: bool,
    acked: bool,
}

/// RFC 8985 word for word; times in ms, ACK for a SACKed segment.
#[derive(Default)]
struct Text {
    segments: Vec<Segment>,
    xmit_ts: u64,
    end_seq: u32,
    rtt: u64,
    fack: u32,
    reordering_seen: bool,
    reo_wnd_mult: u64,
    reo_wnd_persist: u64,
    dsack_round: Option<u32>,
}

fn sent_after(t1: u64, seq1: u32, t2: u64, seq2: u32) -> bool {
    t1 > t2 || t1 == t2 && seq1 > seq2
}

impl Text {
    /// Steps 2 and 3.
    fn update(&mut self, newly: &[Segment], min_rtt: u64, now: u64) {
        for segment in newly {
            let rtt = now - segment.xmit_ts;
            if segment.retransmitted && rtt < min_rtt {
                continue;
            }
            self.rtt = rtt;
            if sent_after(segment.xmit_ts, segment.end_seq, self.xmit_ts, self.end_seq) {
                (self.xmit_ts, self.end_seq) = (segment.xmit_ts, segment.end_seq);
            }
        }
        for segment in newly {
            if segment.end_seq > self.fack {
                self.fack = segment.end_seq;
            } else if segment.end_seq < self.fack && !segment.retransmitted {
                self.reordering_seen = true;
            }
        }
    }

    /// Step 5; returns the remaining time of the timer.
    fn detect_loss(&mut self, min_rtt: u64, srtt: u64, certain: bool, now: u64) -> Option<u64> {
        let reo_wnd = if !self.reordering_seen && certain {
            0
        } else {
            (self.reo_wnd_mult * min_rtt / 4).min(srtt)
        };
        let mut timeout = None;
        for segment in self.segments.iter_mut().filter(|s| !s.acked && !s.lost) {
            if sent_after(self.xmit_ts, self.end_seq, segment.xmit_ts, segment.end_seq) {
                let remaining = (segment.xmit_ts + self.rtt + reo_wnd).saturating_sub(now);
                if remaining == 0 {
                    segment.lost = true;
                } else {
                    timeout = timeout.max(Some(remaining));
                }
            }
        }
        timeout
    }
}

fn check(steps: &[Step], min_rtt: u64, srtt: u64) {
    let ms = |t: u64| Instant::from_millis(t);
    let span = |t: u64| Some(Duration::from_millis(t));
    let (mut board, mut rack) = (Scoreboard::default(), Rack::new(Seq(0)));
    let mut text = Text { reo_wnd_mult: 1, ..Text::default() };
    let (mut now, mut una, mut nxt) = (1_000u64, 0u32, 0u32);
    for step in steps {
        let mut newly = Vec::new();
        match *step {
            Step::Send => {
                board.push(Seq(nxt)..Seq(nxt + MSS), MSS, ms(now));
                nxt += MSS;
                let (lost, acked, retransmitted) = (false, false, false);
                text.segments.push(Segment {
                    end_seq: nxt,
                    xmit_ts: now,
                    retransmitted,
                    lost,
                    acked,
                });
                // A burst is a millisecond apart, as no two segments leave a link at once.
                now += 1;
                continue;
            }
            Step::Resend => {
                let Some((start, end)) = board.next_lost().map(|s| (s.start, s.end)) else {
                    continue;
                };
                board.resent(start..end, ms(now));
                for segment in text.segments.iter_mut().filter(|s| s.end_seq == end.0) {
                    (segment.lost, segment.retransmitted, segment.xmit_ts) = (false, true, now);
                }
                now += 1;
                continue;
            }
            Step::Wait(time) => {
                now += time;
                continue;
            }
            Step::Duplicate => {
                rack.duplicate(Seq(una), Seq(nxt));
                if text.dsack_round.is_none_or(|round| una >= round) {
                    text.dsack_round = Some(nxt);
                    text.reo_wnd_mult += 1;
                    text.reo_wnd_persist = 16;
                }
                continue;
            }
            Step::Recovered => {
                rack.recovered();
                text.reo_wnd_persist = text.reo_wnd_persist.saturating_sub(1);
                if text.reo_wnd_persist == 0 {
                    text.reo_wnd_mult = 1;
                }
                continue;
            }
            Step::Arrive(which) => {
                let first = una / MSS;
                let Some(segment) = text.segments.get_mut(first as usize + which) else { continue };
                if !segment.acked {
                    newly.push(*segment);
                    segment.acked = true;
                }
                let end = segment.end_seq;
                board.sack(Seq(end - MSS)..Seq(end), |s| {
                    rack.arrived(s, None, span(min_rtt), ms(now));
                    rack.out_of_order(s, None);
                });
            }
            Step::Ack(count) => {
                let to = (una + count as u32 * MSS).min(nxt);
                for segment in text.segments.iter_mut().filter(|s| s.end_seq <= to && !s.acked) {
                    newly.push(*segment);
                    segment.acked = true;
                }
                una = to;
                board.ack(Seq(to), |s| {
                    if s.state != SegmentState::Sacked {
                        rack.arrived(s, None, span(min_rtt), ms(now));
                        rack.out_of_order(s, None);
                    }
                });
            }
        }
        // Within one ACK only segments below the highest before it are out of order: ascending here, so the same.
        let highest = newly.iter().map(|s| s.end_seq).max();
        text.update(&newly, min_rtt, now);
        if let Some(highest) = highest {
            rack.highest(Seq(highest));
        }
        let certain = now.is_multiple_of(3);
        let remaining = text.detect_loss(min_rtt, srtt, certain, now);
        rack.detect(&mut board, certain, span(min_rtt), span(srtt), ms(now));

        assert_eq!(rack.reorderings > 0, text.reordering_seen, "{step:?}");
        for (ours, theirs) in board.iter().zip(&text.segments[(una / MSS) as usize..]) {
            let lost = matches!(ours.state, SegmentState::Lost | SegmentState::LostRetransmission);
            assert_eq!(
                (ours.end.0, lost),
                (theirs.end_seq, theirs.lost && !theirs.acked),
                "{step:?} at {now}"
            );
        }
        // The timer may run to the end for RACK.segment itself, which was sent at the same time or later.
        let ours = rack.deadline.map(|at| at.since(ms(now)).as_millis() as u64);
        assert_eq!(ours.is_some(), remaining.is_some(), "{step:?}");
        assert!(ours >= remaining, "{ours:?} {remaining:?}");
        let latest = text.xmit_ts + text.rtt + text.reo_wnd_mult * min_rtt / 4;
        assert!(ours.is_none_or(|ours| now + ours <= latest), "{step:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    //= RFC 8985 6.2 test
    //# To avoid spurious inferences, ignore a segment as invalid if any of its sequence range has been [...]
    //= RFC 8985 6.2 test
    //# If Segment.xmit_ts equals RACK.xmit_ts (e.g., due to clock granularity limits), then compare [...]
    //= RFC 8985 6.2 test
    //# If a never-retransmitted segment that's below RACK.fack is (selectively or cumulatively) acknowledged, [...]
    //= RFC 8985 6.2 test
    //# For each segment that has not been SACKed, RACK considers that segment lost if another segment that was [...]
    //= RFC 8985 6.2 test
    //# For timely loss detection, it is RECOMMENDED that the sender install a reordering timer.
    //= RFC 8985 3.3.2 test
    //# The RACK reordering window MUST be bounded, and this bound SHOULD be SRTT.
    #[test]
    fn rack_marks_what_rfc_8985_marks(
        steps in prop::collection::vec(step(), 1..150),
        min_rtt in prop_oneof![Just(4u64), Just(16), Just(40)],
    ) {
        check(&steps, min_rtt, min_rtt * 2);
    }
}

/// Step 4: after sixteen recoveries without a DSACK the window is a quarter of a round trip again.
//= RFC 8985 4 test
//# RACK DSACK-based reordering window adaptation is RECOMMENDED but is not required.
//= RFC 8985 6.2 test
//# Therefore, RACK persists using the inflated RACK.reo_wnd for up to 16 loss recoveries, after which it resets [...]
//= RFC 8985 6.2 test
//# The RACK.reo_wnd increases linearly for every round trip in which the sender receives some DSACK option so [...]
#[test]
fn the_reordering_window_shrinks_after_sixteen_recoveries() {
    for recoveries in [15, 16, 17] {
        let mut steps = vec![
            Step::Send,
            Step::Send,
            Step::Arrive(1),
            Step::Arrive(0),
            Step::Ack(2),
            Step::Duplicate,
        ];
        steps.extend(vec![Step::Recovered; recoveries]);
        // The first of two is delivered late; a quarter is 4 ms, and two of them 8.
        steps.extend([Step::Send, Step::Send, Step::Wait(20), Step::Arrive(1)]);
        steps.extend([Step::Wait(6), Step::Ack(0)]);
        check(&steps, 16, 32);
    }
}
