//! The peer's window: closed, probed, opened, shrunk; and ours.

use super::super::connection::State::*;
use super::script::{Script, Setup, ms, secs};
use crate::inet::{SocketError, tcp::TcpOptions};

/// The peer's window is full and closed.
fn closed() -> Script {
    let mut t = Setup::new().peer("win 2000 <mss 1000,sackOK>").established();
    t.send(5_000);
    t.expect_data(1, 2_001);
    t.inject(". 1:1(0) ack 2001 win 0");
    t
}

//= RFC 9293 3.8.6.1 test
//# Probing of zero (offered) windows MUST be supported (MUST-36).
//= RFC 9293 3.8.6.1 test
//# The transmitting host SHOULD send the first zero-window probe when a zero window has existed for the [...]
#[test]
pub(super) fn a_closed_window_is_probed_ever_more_rarely() {
    // An empty segment below the window, as Linux and BSD do it.
    let mut t = closed();
    for wait in [200, 400, 800, 1_600, 3_200, 6_400] {
        t.expect_after(wait / 2..=wait * 2, ". 2000:2000(0) ack 1");
        t.inject(". 1:1(0) ack 2001 win 0");
    }
}

//= RFC 9293 3.8.6.1 test
//# As long as the receiving TCP peer continues to send acknowledgments in response to the probe segments, the [...]
#[test]
pub(super) fn probes_go_on_as_long_as_they_are_answered() {
    let mut t = closed();
    for _ in 0..40 {
        t.advance(secs(60));
        if t.ignore() > 0 {
            t.inject(". 1:1(0) ack 2001 win 0");
        }
    }
    t.check_state(Established);
    t.inject_quietly(". 1:1(0) ack 2001 win 65535");
    t.expect_data(2_001, 5_001);
}

#[test]
pub(super) fn probes_continue_after_their_counter_is_saturated() {
    let mut t = Setup::new().config(|c| c.tcp_retries2 = u8::MAX).established();
    t.inject(". 1:1(0) ack 1 win 0");
    t.send(1_000);
    for _ in 0..300 {
        t.advance(secs(120));
        t.ignore();
        t.inject(". 1:1(0) ack 1 win 0");
    }
    t.check_state(Established);
    t.inject(". 1:1(0) ack 1 win 1000");
    t.expect("P. 1:1001(1000) ack 1");
}

#[test]
pub(super) fn unanswered_probes_end_in_a_timeout() {
    let mut t = closed();
    t.advance(secs(3_600));
    assert!(t.ignore() >= 10);
    t.check_state(Closed);
    assert_eq!(t.error(), Some(libc::ETIMEDOUT));
}

#[test]
pub(super) fn a_window_still_too_small_for_a_segment_does_not_bring_the_next_probe_forward() {
    // tcp_ack_probe: only a window that takes the next segment ends the backoff.
    let mut t = closed();
    for wait in [200, 400, 800] {
        t.expect_after(wait / 2..=wait * 2, ". 2000:2000(0) ack 1");
        t.inject(". 1:1(0) ack 2001 win 0");
    }
    t.inject(". 1:1(0) ack 2001 win 100");
    t.silent(ms(1_000));
    t.expect_after(0..=2_000, ". 2001:2101(100) ack 1");
    t.inject_quietly(". 1:1(0) ack 2101 win 65535");
    t.ignore();
}

#[test]
pub(super) fn an_old_acknowledgment_is_no_answer_to_a_probe() {
    // tcp_ack's old_ack: it says nothing about the present, neither that the peer is alive nor that an error has
    // passed.
    let mut t = closed();
    t.advance(secs(10));
    assert!(t.ignore() > 2);
    t.icmp(SocketError::hard(libc::EHOSTUNREACH), 2_001);
    let probes = t.info().probes;
    t.inject(". 1:1(0) ack 1001"); // overtaken
    assert_eq!(t.info().probes, probes);
    t.advance(secs(3_600));
    t.ignore();
    t.check_state(Closed);
    assert_eq!(t.error(), Some(libc::EHOSTUNREACH));
}

#[test]
pub(super) fn a_window_that_opens_lets_data_out_at_once() {
    let mut t = closed();
    t.inject(". 1:1(0) ack 2001 win 1500");
    t.expect(". 2001:3001(1000) ack 1");
    t.expect_nothing();
    t.inject(". 1:1(0) ack 3001 win 65535");
    t.expect_data(3_001, 5_001);
}

//= RFC 9293 3.8.6.2.1 test
//# To avoid a resulting deadlock, it is necessary to have a timeout to force transmission of data, overriding [...]
#[test]
pub(super) fn a_window_that_opens_by_less_than_a_segment_is_used_when_the_probe_is_due() {
    let mut t = closed();
    t.inject(". 1:1(0) ack 2001 win 100");
    t.silent(ms(100));
    t.expect_after(0..=2_000, ". 2001:2101(100) ack 1");
}

//= RFC 9293 3.10.7.4 test
//# If (SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK)), set SND.WND <- SEG.WND, set SND.WL1 <- [...]
#[test]
pub(super) fn an_older_segment_does_not_bring_its_window_back() {
    // SND.WL1.
    let mut t = Setup::new().peer("win 4000 <mss 1000,sackOK>").established();
    t.inject(". 1001:2001(1000) ack 1 win 2000");
    t.inject_quietly(". 1:1001(1000) ack 1 win 60000"); // overtaken
    t.ignore();
    t.send(5_000);
    t.expect_data(1, 2_001);
}

//= RFC 9293 3.10.7.4 test
//# If (SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK)), set SND.WND <- SEG.WND, set SND.WL1 <- [...]
#[test]
pub(super) fn an_older_acknowledgment_does_not_bring_its_window_back() {
    // SND.WL2.
    let mut t = Setup::new().peer("win 4000 <mss 1000,sackOK>").established();
    t.send(8_000);
    t.expect_data(1, 4_001);
    t.inject(". 1:1(0) ack 3001 win 1000");
    t.inject(". 1:1(0) ack 1001 win 60000"); // overtaken
    t.inject(". 1:1(0) ack 4001 win 1000");
    t.expect_data(4_001, 5_001);
}

//= RFC 5681 2 test
//# At any given time, a TCP MUST NOT send data with a sequence number higher than the sum of the highest [...]
#[test]
pub(super) fn a_window_that_closes_is_respected() {
    let mut t = Setup::new().peer("win 4000 <mss 1000,sackOK>").established();
    t.inject(". 1:1(0) ack 1 win 0");
    t.send(1_000);
    t.expect_nothing();
    t.inject(". 1:1(0) ack 1 win 1000");
    t.expect("P. 1:1001(1000) ack 1");
}

#[test]
pub(super) fn a_tail_probe_stays_within_a_window_that_shrank() {
    let mut t = Setup::new().peer("win 4000 <mss 1000,sackOK>").established();
    t.send(4_000);
    t.expect_data(1, 4_001);
    t.inject(". 1:1(0) ack 2001 win 0");
    t.silent(ms(150)); // the probe would be due, of 3001:4001
    t.expect_after(10..=500, ". 2001:3001(1000) ack 1"); // by timeout
}

#[test]
pub(super) fn acknowledgments_stay_within_a_window_that_shrank() {
    // Linux's tcp_acceptable_seq: the peer would drop them beyond the window.
    let mut t = Setup::new().peer("win 4000 <mss 1000,sackOK>").established();
    t.send(4_000);
    t.expect_data(1, 4_001);
    t.inject(". 1:1(0) ack 1001 win 1000");
    t.inject(". 101:201(100) ack 1001 win 1000");
    t.expect(". 2001:2001(0) ack 1");
}

//= RFC 9293 3.8.6.2.1 test
//# (3) or if at least a fraction Fs of the maximum window can be sent
#[test]
pub(super) fn a_small_window_is_used_in_halves() {
    // Linux's tcp_bound_to_half_wnd: one segment would use up a window of less than two.
    let mut t = Setup::new().peer("win 1200 <mss 1000,sackOK>").established();
    t.send(1_200);
    t.expect(". 1:601(600) ack 1");
    t.expect("P. 601:1201(600) ack 1");
}

#[test]
pub(super) fn a_fin_waits_for_the_window_and_is_probed_for() {
    let mut t = Setup::new().peer("win 1000 <mss 500,sackOK>").established();
    t.send(1_000);
    t.expect_data(1, 1_001);
    t.inject(". 1:1(0) ack 1001 win 0");
    t.close();
    t.check_state(FinWait1);
    t.expect_after(50..=2_000, ". 1000:1000(0) ack 1");
    t.inject(". 1:1(0) ack 1001 win 1000");
    t.expect("F. 1001:1002(0) ack 1");
}

// -- ours

#[test]
pub(super) fn a_reader_that_stops_closes_our_window_and_one_that_starts_opens_it() {
    let mut t = Setup::new().options(|o| o.receive_buffer = 4_000).established();
    let all = t.offers();
    let at = t.fill_window();
    assert_eq!(at, all + 1, "all that was offered found room");
    t.recv(all as usize);
    t.expect(&format!(". 1:1(0) ack {at}")); // at once, or the peer would wait for its probe
    assert!(t.offers() >= all / 2);
}

#[test]
pub(super) fn a_probe_of_our_closed_window_is_answered_and_its_byte_not_kept() {
    let mut t = Setup::new().options(|o| o.receive_buffer = 2_000).established();
    let at = t.fill_window();
    for _ in 0..3 {
        t.inject(&format!("P. {at}:{}(1) ack 1", at + 1));
        t.expect(&format!(". 1:1(0) ack {at} win 0"));
        t.inject(&format!(". {}:{}(0) ack 1", at - 1, at - 1)); // Linux's kind of probe
        t.advance(secs(1));
        t.ignore();
    }
    t.recv((at - 1) as usize);
    t.ignore();
    t.recv_nothing();
}

//= RFC 9293 3.10.7.4 test
//# If the RCV.WND is zero, no segments will be acceptable, but special allowance should be made to accept valid [...]
#[test]
pub(super) fn acknowledgments_that_come_while_our_window_is_closed_still_count() {
    let mut t = Setup::new().options(|o| o.receive_buffer = 2_000).established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    let mut at = 1;
    while t.offers() > 0 {
        let len = t.offers().min(1_000);
        t.inject_quietly(&format!(". {at}:{}({len}) ack 1", at + len));
        at += len;
    }
    t.inject_quietly(&format!(". {at}:{}(1000) ack 11", at + 1_000));
    t.ignore();
    assert_eq!(t.unacknowledged(), 0);
}

/// The window after a stream of so many round trips was read.
fn offered_after(setup: Setup, rounds: usize) -> (i64, i64) {
    let mut t = setup.peer("<mss 1000,sackOK,ws 7>").established();
    let before = t.offers();
    let mut at = 1;
    for _ in 0..rounds {
        for _ in 0..(t.offers() / 1_000).min(64) {
            t.inject_quietly(&format!(". {at}:{}(1000) ack 1", at + 1_000));
            at += 1_000;
            t.recv(1_000);
        }
        t.advance(ms(10));
    }
    t.ignore();
    (before, t.offers())
}

#[test]
pub(super) fn the_window_grows_while_a_stream_is_read() {
    // Autotuning: the window follows what the application reads per round trip.
    let (before, after) = offered_after(Setup::new(), 60);
    assert!(after > 2 * before, "from {before} to {after}");
}

#[test]
pub(super) fn a_fixed_buffer_does_not_grow() {
    let (_, after) = offered_after(Setup::new().options(|o| o.receive_buffer = 20_000), 30);
    assert!(after <= 20_000, "{after}");
}

#[test]
pub(super) fn without_tcp_moderate_rcvbuf_no_window_grows() {
    let (_, after) = offered_after(Setup::new().config(|c| c.tcp_moderate_rcvbuf = false), 60);
    assert!(after <= 131_072, "{after}");
}

#[test]
pub(super) fn unsent_data_exceeds_notsent_lowat_by_half_of_the_window_at_most() {
    // `tcp_xmit_size_goal`: a large segment is no larger than half of the largest window offered.
    for (window, most) in [(8_000, 4_000), (65_535, 32_000)] {
        let lowat = |o: &mut TcpOptions| o.notsent_low_water = 1;
        let mut t = Setup::new().options(lowat).round_trip(ms(50)).connect();
        t.expect("S 0:0(0)");
        t.inject(&format!("S. 0:0(0) ack 1 win {window} <mss 1000,sackOK>"));
        t.expect(". 1:1(0) ack 1");
        let sent = t.try_send(100_000, false).ok();
        assert_eq!(sent, Some(most), "{window}");
        t.ignore();
    }
}
