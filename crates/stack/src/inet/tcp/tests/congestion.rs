//! The sending rate without losses: initial window, slow start, idle periods; and ECN.

use super::super::{Algorithm, Ecn};
use super::script::{Script, Setup, ms, secs};
use std::time::Duration;

/// A path of 50 ms and a buffer that holds all data written.
fn wide() -> Script {
    Setup::new().options(|o| o.send_buffer = 200_000).round_trip(ms(50)).established()
}

//= RFC 9293 3.1 test
//# The window size MUST be treated as an unsigned number, or else large window sizes will appear like negative [...]
#[test]
pub(super) fn the_initial_window_is_ten_segments() {
    // RFC 6928.
    let mut t = Script::established();
    t.send(16_000);
    t.expect_data(1, 10_001);
    t.expect_nothing();
}

//= RFC 5681 3.1 test
//# The slow start and congestion avoidance algorithms MUST be used by a TCP sender to control the amount of [...]
//= RFC 9293 3.8.2 test
//# A TCP endpoint MUST implement the basic congestion control algorithms slow start, congestion avoidance, and [...]
#[test]
pub(super) fn slow_start_doubles_the_window_each_round_trip() {
    let mut t = wide();
    let _ = t.try_send(200_000, false);
    t.expect_data(1, 10_001);
    t.advance(ms(50));
    t.inject(". 1:1(0) ack 10001");
    t.expect_data(10_001, 30_001);
}

#[test]
pub(super) fn an_ack_of_many_segments_opens_the_window_by_all_of_them() {
    // Appropriate byte counting, RFC 3465: Linux counts segments, not acknowledgments.
    let mut t = wide();
    let _ = t.try_send(200_000, false);
    t.expect_data(1, 10_001);
    t.advance(ms(50));
    for i in 1..=10 {
        t.inject(&format!(". 1:1(0) ack {}", i * 1_000 + 1));
        assert_eq!(t.ignore(), 2);
    }
}

#[test]
pub(super) fn acks_of_parts_of_segments_do_not_open_the_window_faster() {
    // ACK division, RFC 3465 section 2.3: a peer acknowledges each byte separately.
    let mut t = wide();
    let _ = t.try_send(200_000, false);
    t.expect_data(1, 10_001);
    t.advance(ms(50));
    let mut sent = 0;
    for i in 1..=100 {
        t.inject(&format!(". 1:1(0) ack {}", i * 10 + 1));
        sent += t.ignore();
    }
    assert!(sent <= 3, "{sent} segments for one acknowledged");
}

//= RFC 9438 4.6 test
//# Implementations that use _cwnd_ MUST use other measures to prevent _cwnd_ from growing when the volume of [...]
#[test]
pub(super) fn an_application_that_sends_little_does_not_open_the_window() {
    // RFC 7661: an unused window shows nothing about the path.
    let mut t = Script::established();
    let before = t.info().snd_cwnd;
    let mut at = 1;
    for _ in 0..50 {
        t.send(100);
        t.ignore();
        at += 100;
        t.advance(ms(50));
        t.inject(&format!(". 1:1(0) ack {at}"));
    }
    assert!(t.info().snd_cwnd <= 2 * before, "{} of {before}", t.info().snd_cwnd);
}

/// A window of at least thirty segments, all of them acknowledged, the last by `last`.
fn grown(last: &str) -> Script {
    let mut t = wide();
    let _ = t.try_send(30_000, false);
    t.expect_data(1, 10_001);
    t.advance(ms(50));
    t.inject(". 1:1(0) ack 10001");
    t.expect_data(10_001, 30_001);
    t.advance(ms(50));
    t.inject(last);
    assert!(t.info().snd_cwnd >= 30);
    t
}

fn expect_slow_start(t: &mut Script) {
    let burst = t.ignore();
    assert_eq!(burst, 10, "a burst of {burst} after ten seconds");
    t.inject_quietly(". 1:1(0) ack 40001");
    t.ignore();
}

//= RFC 5681 4.1 test
//# For the purposes of this standard, we define RW = min(IW,cwnd).
#[test]
pub(super) fn slow_start_restarts_after_idle() {
    let mut t = grown(". 1:1(0) ack 30001");
    t.silent(secs(10));
    let _ = t.try_send(50_000, false);
    expect_slow_start(&mut t);
}

#[test]
pub(super) fn a_window_that_reopens_after_a_long_time_is_not_filled_at_once() {
    // The application makes no call then: Linux checks in tcp_ack_update_window.
    let mut t = grown(". 1:1(0) ack 30001 win 0");
    let _ = t.try_send(50_000, false);
    for _ in 0..10 {
        t.advance(secs(1));
        if t.ignore() > 0 {
            t.inject(". 1:1(0) ack 30001 win 0");
        }
    }
    t.inject_quietly(". 1:1(0) ack 30001 win 65535");
    expect_slow_start(&mut t);
}

#[test]
pub(super) fn the_algorithm_can_be_changed_on_a_connection() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
        let mut t = Script::established();
        t.send(5_000);
        t.expect_data(1, 5_001);
        t.configure(|o| o.congestion = Some(algorithm));
        t.inject(". 1:1(0) ack 5001");
        t.send(5_000);
        t.expect_data(5_001, 10_001);
    }
}

// -- ECN, RFC 3168

fn ecn() -> Script {
    ecn_over(ms(0))
}

fn ecn_over(round_trip: Duration) -> Script {
    let mut t = Setup::new().config(|c| c.tcp_ecn = Ecn::On).connect();
    t.expect("SEW 0:0(0)");
    t.advance(round_trip);
    t.inject("SE. 0:0(0) ack 1 win 65535 <mss 1000,sackOK>");
    t.expect("[not-ect] . 1:1(0) ack 1");
    t
}

#[test]
pub(super) fn only_new_data_is_ecn_capable() {
    // Section 6.1.4: not pure acknowledgments; 6.1.5: not retransmissions.
    let mut t = ecn();
    t.send(10);
    t.expect("[ect0] P. 1:11(10) ack 1");
    t.advance(secs(1));
    while t.sent_some() {
        t.expect("[not-ect] P. 1:11(10) ack 1");
    }
    t.inject("P. 1:11(10) ack 11");
    t.expect_after(0..=40, "[not-ect] . 11:11(0) ack 11");
}

#[test]
pub(super) fn a_ce_mark_is_echoed_until_cwr() {
    // Section 6.1.3.
    let mut t = ecn();
    t.inject("[ce] . 1:1001(1000) ack 1");
    t.expect("E. 1:1(0) ack 1001");
    t.inject_quietly(". 1001:2001(1000) ack 1");
    t.advance(ms(50));
    t.expect("E. 1:1(0) ack 2001");
    t.ignore();
    t.inject("W. 2001:3001(1000) ack 1");
    t.expect(". 1:1(0) ack 3001");
}

#[test]
pub(super) fn the_first_ce_mark_is_acknowledged_at_once() {
    // RFC 3168 leaves it open; Linux does not delay this acknowledgment.
    let mut t = ecn();
    let mut at = 1;
    for _ in 0..40 {
        t.inject_quietly(&format!("P. {at}:{}(10) ack {at}", at + 10));
        at += 10;
        t.recv(10);
        t.send(10);
    }
    t.inject_quietly(&format!(". {at}:{at}(0) ack {at}"));
    t.advance(secs(1));
    t.inject(&format!("[ce] P. {at}:{}(10) ack {at}", at + 10));
    t.expect(&format!("E. {at}:{at}(0) ack {}", at + 10));
}

#[test]
pub(super) fn ece_reduces_the_window_once_per_round_trip_and_is_answered_by_cwr() {
    // Section 6.1.2.
    let setup = Setup::new().config(|c| c.tcp_ecn = Ecn::On);
    let mut t = setup.options(|o| o.congestion = Some(Algorithm::NewReno)).connect();
    t.expect("SEW 0:0(0)");
    t.advance(ms(50));
    t.inject("SE. 0:0(0) ack 1 win 65535 <mss 1000,sackOK>");
    t.expect(". 1:1(0) ack 1");
    t.send(10_000);
    t.expect_data(1, 10_001);
    t.advance(ms(50));
    t.inject("E. 1:1(0) ack 2001");
    t.ignore();
    t.inject("E. 1:1(0) ack 4001");
    t.ignore();
    let ssthresh = t.info().snd_ssthresh;
    assert!((4..=6).contains(&ssthresh), "{ssthresh}");
    t.inject_quietly("E. 1:1(0) ack 10001");
    t.send(1_000);
    t.expect("PW. 10001:11001(1000) ack 1");
    t.send(1_000);
    t.expect("P. 11001:12001(1000) ack 1"); // CWR only once
    t.inject(". 1:1(0) ack 12001");
}

#[test]
pub(super) fn the_first_of_many_segments_carries_cwr() {
    let mut t = ecn_over(ms(50));
    t.send(10_000);
    t.expect_data(1, 10_001);
    t.advance(ms(50));
    t.inject_quietly("E. 1:1(0) ack 10001");
    t.send(5_000);
    t.expect("[ect0] W. 10001:11001(1000) ack 1");
    t.expect("[ect0] . 11001:12001(1000) ack 1");
    t.expect("[ect0] . 12001:13001(1000) ack 1");
    t.ignore();
    t.inject_quietly(". 1:1(0) ack 15001");
    t.ignore();
}

#[test]
pub(super) fn ece_counts_on_data_that_acknowledges_nothing_new() {
    let mut t = ecn();
    t.send(15_000);
    t.expect_data(1, 10_001);
    let before = t.info().snd_ssthresh;
    t.inject("PE. 1:11(10) ack 1");
    assert!(t.info().snd_ssthresh < before, "{:?}", t.info());
    t.ignore();
}

#[test]
pub(super) fn an_undone_reduction_sends_no_cwr() {
    // Linux's tcp_ecn_withdraw_cwr; before the undo there was no room for new data.
    let mut t = ecn_over(ms(100));
    t.send(16_000);
    t.expect_data(1, 10_001);
    t.advance(ms(100));
    t.inject(". 1:1(0) ack 1 <sack 1001:4001>");
    t.expect("[not-ect] . 1:1001(1000) ack 1");
    t.advance(ms(10));
    t.inject(". 1:1(0) ack 4001 <sack 1:1001>"); // it was only late
    t.expect("[ect0] . 10001:11001(1000) ack 1");
    t.expect_data(11_001, 15_001);
    t.inject(". 1:1(0) ack 15001");
    t.expect("[ect0] P. 15001:16001(1000) ack 1");
}

#[test]
pub(super) fn ece_without_negotiated_ecn_is_ignored() {
    let mut t = Script::established();
    t.send(10_000);
    t.expect_data(1, 10_001);
    let before = t.info().snd_cwnd;
    t.inject("E. 1:1(0) ack 5001");
    assert!(t.info().snd_cwnd >= before);
}
