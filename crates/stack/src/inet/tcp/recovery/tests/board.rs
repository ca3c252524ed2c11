//! The scoreboard against a list that is searched from end to end, and the most an attacker can make it cost.

use super::super::{
    super::seq::Seq,
    scoreboard::{SEPARATE_MAX, Scoreboard, SegmentState},
};
use crate::time::Instant;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Push(u32),
    Sack(u32, u32),
    Ack(u32),
    /// Retransmits a part of the data in flight, in thousandths.
    Resend(u32, u32),
    ResendLost,
    LoseOldest,
    LoseFront,
    /// A timeout.
    LoseAll(bool),
    Unlose,
    Forget,
    Shrink(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1u32..3_000).prop_map(Step::Push),
        8 => (0u32..1_000, 1u32..300).prop_map(|(a, b)| Step::Sack(a, b)),
        4 => (0u32..400).prop_map(Step::Ack),
        1 => (0u32..1_000, 1u32..200).prop_map(|(a, b)| Step::Resend(a, b)),
        3 => Just(Step::ResendLost),
        3 => Just(Step::LoseOldest),
        1 => Just(Step::LoseFront),
        1 => any::<bool>().prop_map(Step::LoseAll),
        1 => Just(Step::Unlose),
        1 => Just(Step::Forget),
        1 => (100u32..1_000).prop_map(Step::Shrink),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    start: u32,
    end: u32,
    at: u64,
    state: SegmentState,
    retransmitted: bool,
}

/// The segments sent, from `una` on, in order; and the lost ones, in the order of detection.
#[derive(Default)]
struct Model {
    entries: Vec<Entry>,
    lost: Vec<u32>,
    lost_again: Vec<u32>,
}

impl Model {
    fn set(&mut self, i: usize, state: SegmentState) {
        let e = &mut self.entries[i];
        let start = e.start;
        e.state = state;
        self.lost.retain(|&s| s != start);
        self.lost_again.retain(|&s| s != start);
        match state {
            SegmentState::Lost => self.lost.push(start),
            SegmentState::LostRetransmission => self.lost_again.push(start),
            _ => {}
        }
    }

    fn in_order(&mut self) {
        let of =
            |state| self.entries.iter().filter(|e| e.state == state).map(|e| e.start).collect();
        (self.lost, self.lost_again) =
            (of(SegmentState::Lost), of(SegmentState::LostRetransmission));
    }

    fn oldest(&self) -> Option<usize> {
        let flight = |i: &usize| self.entries[*i].state == SegmentState::Flight;
        (0..self.entries.len()).filter(flight).min_by_key(|&i| (self.entries[i].at, i))
    }

    fn next_lost(&self) -> Option<u32> {
        self.lost.first().into_iter().chain(self.lost_again.first()).min().copied()
    }

    fn split(&mut self, at: u32) {
        if let Some(i) = self.entries.iter().position(|e| e.start < at && at < e.end) {
            let mut tail = self.entries[i];
            self.entries[i].end = at;
            tail.start = at;
            self.entries.insert(i + 1, tail);
            self.in_order();
        }
    }

    fn bytes(&self, filter: impl Fn(&Entry) -> bool) -> u32 {
        self.entries.iter().filter(|e| filter(e)).map(|e| e.end - e.start).sum()
    }
}

const MSS: u32 = 1_000;

fn check(base: u32, steps: &[Step]) {
    let (mut board, mut model) = (Scoreboard::default(), Model::default());
    let (mut una, mut nxt, mut now, mut mss) = (0u32, 0u32, 1u64, MSS);
    let seq = |offset: u32| Seq(base.wrapping_add(offset));
    for step in steps {
        now += 1;
        let at = Instant::from_nanos(now);
        let out = nxt - una;
        let part =
            |thousandths: u32| una + (u64::from(out) * u64::from(thousandths) / 1_000) as u32;
        match *step {
            Step::Push(len) => {
                board.push(seq(nxt)..seq(nxt + len), mss, at);
                let mut start = nxt;
                // Beyond this many the last segment takes what it has room for.
                if model.entries.len() >= SEPARATE_MAX
                    && let Some(last) = model.entries.last_mut()
                    && (last.state, last.retransmitted) == (SegmentState::Flight, false)
                    && start + len - last.start <= mss
                {
                    start += len;
                    (last.end, last.at) = (start, now);
                }
                while start < nxt + len {
                    let end = (start + mss).min(nxt + len);
                    let state = SegmentState::Flight;
                    model.entries.push(Entry { start, end, at: now, state, retransmitted: false });
                    start = end;
                }
                nxt += len;
            }
            Step::Sack(from, len) => {
                let (a, b) = (part(from), part(from + len).min(nxt));
                let mut reported = Vec::new();
                board.sack(seq(a)..seq(b), |s| reported.push((s.start, s.state)));
                let mut expected = Vec::new();
                for i in 0..model.entries.len() {
                    let e = model.entries[i];
                    if a <= e.start && e.end <= b && e.state != SegmentState::Sacked {
                        expected.push((seq(e.start), e.state));
                        model.set(i, SegmentState::Sacked);
                    }
                }
                assert_eq!(reported, expected);
            }
            Step::Ack(thousandths) => {
                let to = part(thousandths);
                let mut reported = 0;
                board.ack(seq(to), |s| reported += s.len());
                assert_eq!(reported, to - una);
                while model.entries.first().is_some_and(|e| e.end <= to) {
                    let gone = model.entries.remove(0).start;
                    model.lost.retain(|&s| s != gone);
                    model.lost_again.retain(|&s| s != gone);
                }
                if let Some(first) = model.entries.first_mut().filter(|e| e.start < to) {
                    let was = std::mem::replace(&mut first.start, to);
                    for s in model.lost.iter_mut().chain(&mut model.lost_again) {
                        *s = if *s == was { to } else { *s };
                    }
                }
                una = to;
            }
            Step::Resend(..) | Step::ResendLost => {
                let (a, b) = match *step {
                    Step::Resend(from, len) => (part(from), part(from + len).min(nxt)),
                    _ => match board.next_lost().map(|s| (s.start, s.len())) {
                        Some((start, len)) => {
                            let start = start.0.wrapping_sub(base);
                            (start, start + len)
                        }
                        None => continue,
                    },
                };
                if a >= b {
                    continue;
                }
                assert_eq!(board.resent(seq(a)..seq(b), at), b - a);
                model.split(a);
                model.split(b);
                for i in 0..model.entries.len() {
                    let e = model.entries[i];
                    if a <= e.start && e.end <= b && e.state != SegmentState::Sacked {
                        model.set(i, SegmentState::Flight);
                        (model.entries[i].at, model.entries[i].retransmitted) = (now, true);
                    }
                }
            }
            Step::LoseOldest => {
                let oldest = model.oldest();
                let expected = oldest.map(|i| seq(model.entries[i].start));
                assert_eq!(board.oldest().map(|s| s.start), expected);
                board.mark_oldest_lost();
                if let Some(i) = oldest {
                    let retransmitted = model.entries[i].retransmitted;
                    model.set(
                        i,
                        if retransmitted {
                            SegmentState::LostRetransmission
                        } else {
                            SegmentState::Lost
                        },
                    );
                }
            }
            Step::LoseFront => {
                board.mark_front_lost();
                if let Some(first) =
                    model.entries.first().filter(|e| e.state == SegmentState::Flight)
                {
                    let state = if first.retransmitted {
                        SegmentState::LostRetransmission
                    } else {
                        SegmentState::Lost
                    };
                    model.set(0, state);
                }
            }
            Step::LoseAll(old) => {
                let limit = now / 2;
                board.mark_lost_where(|s| !old || s.at.nanos() <= limit);
                for e in &mut model.entries {
                    match e.state {
                        SegmentState::Flight if !old || e.at <= limit => {
                            e.state = SegmentState::Lost
                        }
                        SegmentState::LostRetransmission => e.state = SegmentState::Lost,
                        _ => {}
                    }
                }
                model.in_order();
            }
            Step::Unlose => {
                board.clear_lost();
                for e in &mut model.entries {
                    if e.state != SegmentState::Sacked {
                        e.state = SegmentState::Flight;
                    }
                }
                model.in_order();
            }
            Step::Forget => {
                board.clear_sacks();
                for e in &mut model.entries {
                    if e.state == SegmentState::Sacked {
                        e.state = SegmentState::Flight;
                    }
                }
                model.in_order();
            }
            Step::Shrink(to) => {
                mss = mss.min(to);
                board.shrink(mss);
                if model.entries.iter().all(|e| e.end - e.start <= mss) {
                    continue;
                }
                for mut e in std::mem::take(&mut model.entries) {
                    if e.end - e.start > mss && e.state == SegmentState::Flight {
                        e.state = SegmentState::Lost;
                    }
                    while e.start < e.end {
                        let end = e.end.min(e.start + mss);
                        model.entries.push(Entry { end, ..e });
                        e.start = end;
                    }
                }
                model.in_order();
            }
        }
        let ours: Vec<_> = board
            .iter()
            .map(|s| Entry {
                start: s.start.0.wrapping_sub(base),
                end: s.end.0.wrapping_sub(base),
                at: s.at.nanos(),
                state: s.state,
                retransmitted: s.retransmitted,
            })
            .collect();
        assert_eq!(ours, model.entries, "{step:?}");
        for state in [
            SegmentState::Flight,
            SegmentState::Sacked,
            SegmentState::Lost,
            SegmentState::LostRetransmission,
        ] {
            assert_eq!(board.bytes(state), model.bytes(|e| e.state == state), "{state:?} {step:?}");
        }
        let retransmitted = model.bytes(|e| e.state == SegmentState::Flight && e.retransmitted);
        assert_eq!(board.retransmitted_bytes(), retransmitted, "{step:?}");
        assert_eq!(
            board.oldest().map(|s| s.at.nanos()),
            model.oldest().map(|i| model.entries[i].at)
        );
        assert_eq!(board.next_lost().map(|s| s.start), model.next_lost().map(seq), "{step:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    //= RFC 6675 4 test
    //# Given the information provided in an ACK, each octet that is cumulatively ACKed or SACKed should be [...]
    #[test]
    fn the_scoreboard_equals_a_plain_list(
        base in prop_oneof![Just(0u32), Just(u32::MAX - 5_000), any::<u32>()],
        steps in prop::collection::vec(step(), 1..120),
    ) {
        check(base, &steps);
    }
}

/// A hostile receiver with 4,096 segments to report on, a hundred thousand ACKs with four blocks each: every second
/// segment first, then the gaps, and always blocks that span everything.
#[test]
fn no_split_of_sack_blocks_costs_more_than_a_few_looks_per_ack() {
    let (mut board, count) = (Scoreboard::default(), 4_096u32);
    let at = Instant::from_nanos(1);
    board.push(Seq(0)..Seq(count * MSS), MSS, at);
    let segment = |i: u32| Seq(i * MSS)..Seq((i + 1) * MSS);
    let mut acks = 0u64;
    for offset in [2, 1] {
        for i in (offset..count).step_by(2) {
            // The new block, the two beside it, and everything so far, split so that it marks nothing new.
            board.sack(segment(i), |_| {});
            board.sack(segment(i - 1).start + 1..segment(i).end, |_| {});
            board.sack(Seq(MSS)..segment(1).end - 1, |_| {});
            board.sack(segment(i).start..segment(i).end + MSS / 2, |_| {});
            acks += 1;
        }
    }
    assert_eq!(board.segments(SegmentState::Sacked), count - 1);
    for _ in 0..100_000 {
        for block in 0..4 {
            board.sack(Seq(MSS + block)..Seq(count * MSS), |_| panic!("nothing is new"));
        }
        acks += 1;
    }
    assert!(board.looks < acks * 4 * 2, "{} looks for {acks} ACKs", board.looks);
}

#[test]
fn small_writes_do_not_fill_memory() {
    let mut board = Scoreboard::default();
    for i in 0..1_000_000u32 {
        board.push(Seq(i)..Seq(i + 1), MSS, Instant::from_nanos(u64::from(i)));
    }
    assert!(board.len() < 256 + 1_001, "{}", board.len());
    board.ack(Seq(1_000_000), |_| {});
    assert_eq!(board.len(), 0);
}
