//! The handling of lost segments: SACK and RACK, tail loss probes, fast retransmit without SACK, the timeout, and
//! spurious losses.

use super::super::Algorithm;
use super::script::{Script, Setup, ms, secs};

/// Ten segments are in flight over a path of 100 ms, whose round trip is known. They begin with 1001.
fn ten() -> Script {
    ten_of(Setup::new())
}

fn ten_of(setup: Setup) -> Script {
    let mut t = setup.round_trip(ms(100)).established();
    t.send(1_000);
    t.expect("P. 1:1001(1000) ack 1");
    t.advance(ms(100));
    t.inject(". 1:1(0) ack 1001");
    t.send(10_000);
    t.expect_data(1_001, 11_001);
    t.advance(ms(100));
    t
}

// -- SACK, RFC 2018, RFC 6675, RFC 8985

//= RFC 8985 3.3.2 test
//# The reordering window SHOULD be set to zero if no reordering has been observed on the connection so far, and [...]
//= RFC 6675 5 test
//# Upon the receipt of any ACK containing SACK information, the scoreboard MUST be updated via the Update () routine.
#[test]
pub(super) fn three_segments_sacked_beyond_a_hole_fill_it() {
    let mut t = ten();
    t.inject(". 1:1(0) ack 1001 <sack 2001:3001>");
    t.inject(". 1:1(0) ack 1001 <sack 2001:4001>");
    t.expect_nothing();
    t.inject(". 1:1(0) ack 1001 <sack 2001:5001>");
    t.expect(". 1001:2001(1000) ack 1");
    t.inject(". 1:1(0) ack 11001");
    t.silent(secs(5));
}

#[test]
pub(super) fn tcp_info_counts_segments_however_small() {
    let mut t = Setup::new().options(|o| o.nodelay = true).established();
    for _ in 0..10 {
        t.send(1);
    }
    t.ignore();
    assert_eq!(t.info().unacked, 10);
    t.inject(". 1:1(0) ack 2 <sack 4:8>");
    t.ignore(); // one of the two in the hole, or both
    let info = t.info();
    assert_eq!((info.unacked, info.sacked, info.delivered), (9, 4, 5));
    assert_eq!((info.lost, info.retrans > 0), (2, true), "{info:?}");
    t.inject(". 1:1(0) ack 11");
    let info = t.info();
    assert_eq!((info.unacked, info.sacked, info.delivered), (0, 0, 10));
}

#[test]
pub(super) fn one_ack_may_report_all_three() {
    let mut t = ten();
    t.inject(". 1:1(0) ack 1001 <sack 3001:6001>");
    t.expect(". 1001:2001(1000) ack 1");
    t.expect(". 2001:3001(1000) ack 1");
    t.ignore();
    t.inject(". 1:1(0) ack 11001");
    t.silent(secs(5));
}

#[test]
pub(super) fn several_holes_are_filled_in_one_round_trip() {
    let mut t = ten();
    t.inject(". 1:1(0) ack 1001 <sack 4001:5001 2001:3001>");
    t.ignore();
    t.inject(". 1:1(0) ack 1001 <sack 10001:11001 6001:9001 4001:5001 2001:3001>");
    t.advance(ms(60)); // RACK waits a quarter of a round trip for those near the end
    let mut holes = t.take_ranges();
    holes.sort_unstable();
    let want = [(1_001, 2_001), (3_001, 4_001), (5_001, 6_001), (9_001, 10_001)];
    assert_eq!(holes, want, "each hole once");
    t.inject(". 1:1(0) ack 11001");
    t.silent(secs(5));
}

//= RFC 8985 6.2 test
//# For each segment that has not been SACKed, RACK considers that segment lost if another segment that was sent [...]
#[test]
pub(super) fn a_retransmission_that_is_lost_is_sent_again_without_a_timeout() {
    // RFC 6675 would have to wait for the timeout.
    let mut t = ten();
    t.inject(". 1:1(0) ack 1001 <sack 2001:5001>");
    t.expect(". 1001:2001(1000) ack 1"); // lost again
    t.send(3_000);
    t.ignore();
    t.advance(ms(50));
    t.inject_quietly(". 1:1(0) ack 1001 <sack 2001:11001>");
    t.ignore();
    t.advance(ms(60));
    t.inject_quietly(". 1:1(0) ack 1001 <sack 2001:12001>"); // sent after the retransmission
    let before = t.info().retransmits;
    t.advance(ms(60));
    assert!(t.take_ranges().contains(&(1_001, 2_001)), "not retransmitted");
    assert_eq!(t.info().retransmits, before, "by timeout");
    t.inject(". 1:1(0) ack 14001");
    t.ignore();
}

//= RFC 8985 3.3.2 test
//# Otherwise, the reordering window SHOULD start from a small fraction of the round-trip time or zero if no [...]
#[test]
pub(super) fn reordering_by_less_than_a_quarter_of_a_round_trip_is_no_loss() {
    let mut t = ten();
    t.inject(". 1:1(0) ack 1001 <sack 2001:3001>");
    t.advance(ms(5));
    t.inject(". 1:1(0) ack 3001");
    t.inject(". 1:1(0) ack 11001");
    t.silent(secs(5));
}

#[test]
pub(super) fn invalid_sack_blocks_are_ignored() {
    // Below SND.UNA, above SND.NXT, reversed, empty: CVE-2019-11477 and the like.
    let mut t = ten();
    for sack in ["20001:21001", "900:950", "5001:4001", "3001:3001", "-70000:5001", "10001:90001"] {
        t.inject(&format!(". 1:1(0) ack 1001 <sack {sack}>"));
        t.advance(ms(1));
    }
    t.ignore();
    assert_eq!(t.info().sacked, 0);
    t.inject(". 1:1(0) ack 11001");
    t.silent(secs(5));
}

//= RFC 6675 4 test
//# SACK information is advisory and therefore SACKed data MUST NOT be removed from the TCP's retransmission [...]
#[test]
pub(super) fn a_peer_may_renege_on_what_it_sacked() {
    // RFC 2018 section 8: reneging. SACKed data is kept until it is acknowledged.
    let mut t = ten();
    t.inject(". 1:1(0) ack 1001 <sack 2001:11001>");
    t.expect(". 1001:2001(1000) ack 1");
    t.advance(ms(100));
    t.inject_quietly(". 1:1(0) ack 2001"); // and the rest is gone
    let mut sent = Vec::new();
    for _ in 0..20 {
        t.advance(ms(500));
        sent.extend(t.take_ranges());
        if let Some((_, end)) = sent.iter().max_by_key(|(_, end)| *end) {
            let end = *end;
            t.inject_quietly(&format!(". 1:1(0) ack {end}"));
            sent.extend(t.take_ranges());
        }
    }
    sent.sort_unstable();
    sent.dedup();
    let want: Vec<(i64, i64)> = (2..11).map(|i| (i * 1_000 + 1, i * 1_000 + 1_001)).collect();
    assert_eq!(sent, want);
}

// -- tail loss probes, RFC 8985

//= RFC 8985 7.3 test
//# If such an unsent segment is not available, then the sender SHOULD retransmit the highest-sequence segment [...]
//= RFC 8985 7.2 test
//# First, the default PTO interval is 2*SRTT.
#[test]
pub(super) fn a_lost_last_segment_gets_a_tail_probe_before_the_timeout() {
    let mut t = ten();
    t.inject(". 1:1(0) ack 9001"); // the last two are lost
    t.expect_after(150..=260, "P. 10001:11001(1000) ack 1");
    t.advance(ms(100));
    t.inject(". 1:1(0) ack 9001 <sack 10001:11001>");
    t.expect_after(0..=60, ". 9001:10001(1000) ack 1");
    t.inject(". 1:1(0) ack 11001");
    t.silent(secs(5));
}

//= RFC 8985 7.3 test
//# If both conditions are met, then the sender SHOULD transmit a previously unsent data segment, if one exists [...]
#[test]
pub(super) fn a_tail_probe_sends_new_data_if_there_is_some() {
    let mut t = Setup::new().peer("<mss 1000,sackOK>").established();
    t.send(12_000);
    t.expect_data(1, 10_001); // the initial window
    t.expect_after(1..=1_000, ". 10001:11001(1000) ack 1");
    t.ignore();
    t.inject(". 1:1(0) ack 11001");
    t.ignore();
    t.inject(". 1:1(0) ack 12001");
}

//= RFC 8985 7.3 test
//# First, there is no other previous loss probe still in flight.
//= RFC 8985 7.3 test
//# After attempting to send a loss probe, regardless of whether a loss probe was sent, the sender MUST re-arm [...]
#[test]
pub(super) fn only_one_tail_probe_is_sent() {
    let mut t = ten();
    t.expect_after(1..=300, "P. 10001:11001(1000) ack 1");
    t.expect_after(100..=600, ". 1001:2001(1000) ack 1"); // then it is the timeout's turn
    t.inject(". 1:1(0) ack 11001");
}

#[test]
pub(super) fn a_tail_probe_that_has_waited_for_the_ring_is_dropped_once_it_is_acknowledged() {
    let mut t = ten();
    t.set_ring_full(true);
    t.advance(ms(150));
    t.inject(". 1:1(0) ack 11001");
    t.set_ring_full(false);
    t.silent(secs(5));
}

#[test]
pub(super) fn tail_probes_can_be_disabled() {
    let mut t = ten_of(Setup::new().config(|c| c.tcp_early_retrans = false));
    t.expect_after(190..=500, ". 1001:2001(1000) ack 1");
    t.inject(". 1:1(0) ack 11001");
}

// -- the timeout, RFC 6298

//= RFC 5681 3.1 test
//# Furthermore, upon a timeout (as specified in [RFC2988]) cwnd MUST be set to no more than the loss window, [...]
//= RFC 6298 5 test
//# (5.4) Retransmit the earliest segment that has not been acknowledged by the TCP receiver.
#[test]
pub(super) fn after_a_timeout_all_data_is_retransmitted_in_slow_start() {
    let setup = Setup::new().config(|c| (c.tcp_early_retrans, c.tcp_frto) = (false, false));
    let mut t = ten_of(setup);
    t.expect_after(190..=500, ". 1001:2001(1000) ack 1");
    t.advance(ms(100));
    t.inject(". 1:1(0) ack 2001");
    t.expect(". 2001:3001(1000) ack 1"); // slow start from one segment
    t.expect(". 3001:4001(1000) ack 1");
    t.expect_nothing();
    t.advance(ms(100));
    t.inject(". 1:1(0) ack 4001");
    t.expect_data(4_001, 8_001);
    t.inject(". 1:1(0) ack 11001");
}

#[test]
pub(super) fn a_timeout_is_undone_if_it_was_spurious() {
    // F-RTO, RFC 5682: the acknowledgments were late, nothing was lost.
    let mut t = ten_of(Setup::new().config(|c| c.tcp_early_retrans = false));
    t.send(5_000);
    t.ignore();
    let before = t.info().snd_cwnd;
    t.expect_after(100..=500, ". 1001:2001(1000) ack 1");
    t.advance(ms(10));
    t.inject(". 1:1(0) ack 2001"); // of the first transmission
    t.ignore(); // new data, to see
    t.inject(". 1:1(0) ack 3001");
    t.ignore();
    t.inject(". 1:1(0) ack 11001");
    t.ignore();
    let after = t.info().snd_cwnd;
    assert!(after >= before, "cwnd {before} before, {after} after");
    t.inject(". 1:1(0) ack 16001");
    t.ignore();
}

#[test]
pub(super) fn frto_sends_a_small_segment_too() {
    // RFC 5682 section 3.1 step 2b; in Linux neither Nagle nor a cork holds it back.
    let mut t = ten_of(Setup::new().config(|c| c.tcp_early_retrans = false));
    t.configure(|o| o.cork = true);
    t.send(10);
    t.expect_after(100..=500, ". 1001:2001(1000) ack 1");
    t.inject(". 1:1(0) ack 2001");
    t.expect("P. 11001:11011(10) ack 1");
    t.inject(". 1:1(0) ack 3001"); // it was needless
    t.expect_nothing();
    t.inject(". 1:1(0) ack 11011");
    t.silent(secs(5));
}

#[test]
pub(super) fn lost_data_is_retransmitted_at_once_if_no_new_data_can_be_sent() {
    // RFC 5682 section 3.1 step 2b, "If the TCP sender does not have any new data to send, [or] the receiver window
    // [...]": here half a segment of window.
    let mut t = ten_of(Setup::new().config(|c| c.tcp_early_retrans = false));
    t.inject(". 1:1(0) ack 1001 win 10500");
    t.send(1_000);
    t.expect_after(100..=500, ". 1001:2001(1000) ack 1");
    t.inject(". 1:1(0) ack 2001 win 9500");
    t.expect(". 2001:3001(1000) ack 1");
    t.expect(". 3001:4001(1000) ack 1");
    t.inject_quietly(". 1:1(0) ack 11001 win 65535");
    t.expect("P. 11001:12001(1000) ack 1");
    t.inject(". 1:1(0) ack 12001");
}

#[test]
pub(super) fn a_needless_retransmission_is_undone_by_dsack() {
    // DSACK, RFC 3708 and Linux: both copies arrived.
    let mut t = ten();
    let before = t.info().snd_cwnd;
    t.inject(". 1:1(0) ack 1001 <sack 2001:5001>");
    t.expect(". 1001:2001(1000) ack 1");
    t.advance(ms(10));
    t.inject_quietly(". 1:1(0) ack 5001"); // it was only late
    t.advance(ms(90));
    t.inject_quietly(". 1:1(0) ack 11001 <sack 1001:2001>");
    let after = t.info().snd_cwnd;
    assert!(after >= before, "cwnd {before} before, {after} after");
    t.ignore();
}

//= RFC 6298 3 test
//# TCP MUST use Karn's algorithm [KP87] for taking RTT samples. That is, RTT samples MUST NOT be made using [...]
#[test]
pub(super) fn retransmitted_segments_give_no_round_trip_sample() {
    // No timestamps here.
    let mut t = Setup::new().config(|c| c.tcp_early_retrans = false).established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    let before = t.info().rtt;
    t.advance(ms(250));
    assert_eq!(t.ignore(), 1);
    t.inject(". 1:1(0) ack 11");
    assert_eq!(t.info().rtt, before);
}

#[test]
pub(super) fn the_timeout_follows_the_round_trip() {
    let mut t = ten();
    t.inject(". 1:1(0) ack 11001");
    let info = t.info();
    assert!((90..=110).contains(&info.rtt.as_millis()), "{:?}", info.rtt);
    assert!((200..=400).contains(&info.rto.as_millis()), "{:?}", info.rto);
}

// -- how much is sent meanwhile

//= RFC 5681 3.1 test
//# ssthresh = max (FlightSize / 2, 2*SMSS) (4)
//= RFC 9438 4.6 test
//# The parameter β__cubic_ SHOULD be set to 0.7, which is different from the multiplicative decrease factor [...]
#[test]
pub(super) fn a_loss_halves_the_window_or_nearly() {
    for (algorithm, part) in [(Algorithm::NewReno, 5..=6), (Algorithm::Cubic, 7..=8)] {
        let mut t = ten_of(Setup::new().options(|o| o.congestion = Some(algorithm)));
        let before = t.info().snd_cwnd;
        t.inject(". 1:1(0) ack 1001 <sack 2001:5001>");
        t.expect(". 1001:2001(1000) ack 1");
        t.advance(ms(100));
        t.inject_quietly(". 1:1(0) ack 11001");
        let after = t.info().snd_ssthresh;
        assert!(part.contains(&(after * 10 / before)), "{algorithm:?}: {after} of {before}");
    }
}

//= RFC 8985 9.3 test
//# The Proportional Rate Reduction (PRR) algorithm [RFC6937] is RECOMMENDED for the specific congestion control [...]
#[test]
pub(super) fn recovery_sends_about_one_segment_for_two_that_arrive() {
    // Proportional rate reduction, RFC 6937: no burst, no silence.
    let mut t = ten_of(Setup::new().options(|o| o.congestion = Some(Algorithm::NewReno)));
    t.send(6_000);
    t.ignore();
    t.inject(". 1:1(0) ack 1001 <sack 2001:5001>");
    let mut sent = t.ignore();
    for end in [6_001, 7_001, 8_001, 9_001, 10_001, 11_001] {
        t.inject(&format!(". 1:1(0) ack 1001 <sack 2001:{end}>"));
        let now = t.ignore();
        assert!(now <= 3, "a burst of {now}");
        sent += now;
    }
    assert!((3..=8).contains(&sent), "{sent} segments for nine that arrived");
    t.inject_quietly(". 1:1(0) ack 17001");
    t.ignore();
}
