//! Faults that other user-space stacks are known for: the audit of smoltcp's TCP that came with xarxa, and complaints
//! of users of mTCP, gVisor and Asterinas. One script each; the other scripts of a feature are in the file named
//! after it. `isn` tests that initial numbers have a clock component.

use super::super::connection::State::*;
use super::script::{Script, Setup, ms, secs};
use crate::inet::{SocketError, tcp::Config};
use std::time::Duration;

//= RFC 9293 3.10.7.4 test
//# If the ACK acks something not yet sent (SEG.ACK > SND.NXT), then send an ACK, drop the segment, and return.
#[test]
pub(super) fn an_ack_of_data_not_sent_is_answered_and_nothing_else() {
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.inject("P. 1:101(100) ack 500");
    t.expect(". 11:11(0) ack 1"); // its data is dropped with it
    t.recv_nothing();
    t.inject(". 1:1(0) ack 11");
    t.silent(secs(5));
}

//= RFC 5961 4.2 test
//# If the SYN bit is set, irrespective of the sequence number, TCP MUST send an ACK (also referred to as [...]
//= RFC 5961 4.2 test
//# After sending the acknowledgment, TCP MUST drop the unacceptable segment and stop processing further.
#[test]
pub(super) fn a_syn_in_the_window_is_challenged_and_changes_nothing() {
    let mut t = Script::established();
    t.inject("S 100:100(0) win 65535 <mss 1000>");
    t.expect(". 1:1(0) ack 1");
    t.check_state(Established);
    t.inject("P. 1:101(100) ack 1");
    t.expect_after(0..=40, ". 1:1(0) ack 101");
    t.recv(100);
}

//= RFC 5961 3.2 test
//# 3) If the RST bit is set and the sequence number does not exactly match the next expected sequence value, [...]
//= RFC 5961 3.2 test
//# 2) If the RST bit is set and the sequence number exactly matches the next expected sequence number [...]
#[test]
pub(super) fn a_reset_in_the_window_but_not_at_its_edge_is_challenged() {
    // A blind attacker hits the window, not the edge.
    let mut t = Script::established();
    t.inject("R 1001:1001(0)");
    t.expect(". 1:1(0) ack 1");
    t.check_state(Established);
    t.inject("R 1:1(0)"); // the true peer answers the challenge like this
    t.check_state(Closed);
}

//= RFC 5961 3.2 test
//# 1) If the RST bit is set and the sequence number is outside the current receive window, silently drop the segment.
#[test]
pub(super) fn a_reset_outside_of_the_window_is_not_even_answered() {
    let mut t = Script::established();
    t.inject("R 70001:70001(0)");
    t.inject("R 0:0(0)");
    t.inject("R. -70000:-70000(0) ack 1");
    t.check_state(Established);
    t.silent(secs(1));
}

//= RFC 5961 5.2 test
//# The ACK value is considered acceptable only if it is in the range of ((SND.UNA - MAX.SND.WND) <= SEG.ACK <= [...]
#[test]
pub(super) fn data_injected_with_an_ack_out_of_range_is_dropped() {
    // A blind attacker must guess the acknowledgment too.
    let mut t = Script::established();
    t.inject("P. 1:101(100) ack -100000");
    t.expect(". 1:1(0) ack 1");
    t.recv_nothing();
}

#[test]
pub(super) fn data_injected_with_an_ack_from_before_the_connection_is_dropped() {
    // Within the window of RFC 5961, but below our first sequence number.
    let mut t = Script::established();
    t.inject("P. 1:101(100) ack -10");
    t.expect(". 1:1(0) ack 1");
    t.recv_nothing();
}

//= RFC 5961 5.2 test
//# The ACK value is considered acceptable only if it is in the range of ((SND.UNA - MAX.SND.WND) <= SEG.ACK <= [...]
#[test]
pub(super) fn data_injected_with_an_ack_older_than_the_window_is_dropped() {
    let mut t = Setup::new().peer("win 2000 <mss 1000,sackOK>").established();
    t.send(4_000);
    t.expect_data(1, 2_001);
    t.inject(". 1:1(0) ack 2001 win 2000");
    t.expect_data(2_001, 4_001);
    t.inject(". 1:1(0) ack 4001 win 2000");
    t.inject("P. 1:101(100) ack 2000");
    t.expect(". 4001:4001(0) ack 1");
    t.recv_nothing();
    t.inject("P. 1:101(100) ack 2001"); // this may be an old segment of the peer's
    t.expect_after(0..=40, ". 4001:4001(0) ack 101");
    t.recv(100);
}

//= RFC 5961 7 test
//# An implementation SHOULD include an ACK throttling mechanism to be conservative.
#[test]
pub(super) fn challenge_acks_are_rate_limited() {
    let mut t = Script::established();
    for _ in 0..100 {
        t.inject_quietly("S 100:100(0) win 65535 <mss 1000>");
        t.inject_quietly("R 1001:1001(0)");
        t.advance(ms(10));
    }
    t.ignore();
    assert!(t.info().segs_out < 10, "{} in a second", t.info().segs_out);
}

//= RFC 5961 7 test
//# The values for both the time and number of ACKs SHOULD be tunable by the system administrator to accommodate [...]
#[test]
pub(super) fn the_number_and_the_pause_of_challenge_acks_are_configured() {
    let answers = |limit, pause| {
        let change = |config: &mut Config| {
            (config.tcp_challenge_ack_limit, config.tcp_invalid_ratelimit) = (limit, pause);
        };
        let mut t = Setup::new().config(change).established();
        for _ in 0..50 {
            t.inject_quietly("S 100:100(0) win 65535 <mss 1000>");
            t.advance(ms(10));
        }
        t.ignore();
        t.info().segs_out
    };
    let (all, few) = (answers(1_000, Duration::ZERO), answers(2, Duration::ZERO));
    assert!(all >= 50 && few < 10, "{all} and {few}");
    let seldom = answers(1_000, secs(1));
    assert!(seldom < 5, "{seldom}");
}

//= RFC 9293 3.8.6 test
//# A TCP receiver SHOULD NOT shrink the window, i.e., move the right window edge to the left (SHLD-14).
//= RFC 7323 2.3 test
//# The window field (SEG.WND) of every outgoing segment, with the exception of <SYN> segments, MUST be [...]
#[test]
pub(super) fn the_right_edge_does_not_move_left_when_the_window_is_rounded_to_its_scale() {
    // For any content of the buffer and any scale: `script` checks the edge of each segment.
    let mut t = Setup::new().peer("<mss 1000,sackOK,ws 7>").established();
    let mut at = 1;
    for len in [1, 127, 128, 129, 1000, 999, 3, 500, 63] {
        t.inject(&format!("P. {at}:{}({len}) ack 1", at + len));
        at += len;
        t.advance(ms(50));
        t.ignore();
    }
    t.recv((at - 1) as usize);
    t.ignore();
}

#[test]
pub(super) fn a_fin_out_of_order_is_kept() {
    let mut t = Script::established();
    t.inject("F. 1001:1002(0) ack 1"); // its data is under way still
    t.expect(". 1:1(0) ack 1");
    t.check_state(Established);
    t.inject(". 1:1001(1000) ack 1");
    t.expect(". 1:1(0) ack 1002");
    t.check_state(CloseWait);
    t.recv(1000);
    t.recv_end();
}

#[test]
pub(super) fn a_fin_with_data_out_of_order_is_kept() {
    let mut t = Script::established();
    t.inject("PF. 1001:1502(500) ack 1");
    t.expect(". 1:1(0) ack 1 <sack 1001:1501>");
    t.inject(". 1:1001(1000) ack 1");
    t.expect(". 1:1(0) ack 1502");
    t.check_state(CloseWait);
    t.recv(1500);
    t.recv_end();
}

//= RFC 5681 3.2 test
//# On the first and second duplicate ACKs received at a sender, a TCP SHOULD send a segment of previously [...]
#[test]
pub(super) fn limited_transmit_sends_new_data_on_duplicate_acks() {
    // Without it a small window yields too few duplicates to show a loss.
    let mut t = Setup::new().peer("<mss 1000>").established();
    t.send(14_000);
    t.expect_data(1, 10_001);
    t.inject(". 1:1(0) ack 1");
    t.expect(". 10001:11001(1000) ack 1");
    t.inject(". 1:1(0) ack 1");
    t.expect(". 11001:12001(1000) ack 1");
    t.inject(". 1:1(0) ack 1");
    t.expect(". 1:1001(1000) ack 1"); // and the third is fast retransmit
    t.ignore();
}

#[test]
pub(super) fn a_partial_ack_sends_the_next_hole_at_once() {
    // NewReno, RFC 6582: two losses in one window, no SACK, no timeout.
    let mut t = Setup::new().peer("<mss 1000>").established();
    t.send(10_000);
    t.expect_data(1, 10_001);
    for _ in 0..3 {
        t.inject(". 1:1(0) ack 1");
    }
    t.expect(". 1:1001(1000) ack 1");
    t.inject(". 1:1(0) ack 4001");
    t.expect(". 4001:5001(1000) ack 1");
    t.inject(". 1:1(0) ack 10001");
    t.silent(secs(5));
}

#[test]
pub(super) fn fin_wait_2_of_a_closed_socket_ends() {
    let mut t = Script::established();
    t.close();
    t.expect("F. 1:2(0) ack 1");
    t.inject(". 1:1(0) ack 2");
    t.check_state(FinWait2);
    t.silent(secs(59));
    t.check_state(FinWait2);
    t.advance(secs(2));
    t.check_state(Closed);
}

#[test]
pub(super) fn fin_wait_2_of_a_socket_that_still_reads_does_not_end() {
    let mut t = Script::established();
    t.shutdown_write();
    t.expect("F. 1:2(0) ack 1");
    t.inject(". 1:1(0) ack 2");
    t.silent(secs(3_600));
    t.check_state(FinWait2);
}

//= RFC 9293 3.8.6.2.2 test
//# A TCP implementation MUST include a SWS avoidance algorithm in the receiver (MUST-39).
#[test]
pub(super) fn small_reads_do_not_open_a_silly_window() {
    let mut t = Setup::new().options(|o| o.receive_buffer = 8_000).established();
    let at = t.fill_window();
    for _ in 0..9 {
        t.recv(100); // less than a segment makes no window update
        t.expect_nothing();
    }
    t.inject(&format!(". {at}:{}(1) ack 1", at + 1)); // a probe: still closed
    t.expect(". 1:1(0) win 0");
    t.recv(3_000);
    t.expect(". 1:1(0)");
    assert!(t.offers() >= 3_000, "{}", t.offers());
}

//= RFC 9293 3.8.6.2.1 test
//# A TCP implementation MUST include a SWS avoidance algorithm in the sender (MUST-38).
#[test]
pub(super) fn a_window_of_less_than_a_segment_is_not_filled_with_small_segments() {
    let mut t = Setup::new().peer("win 4000 <mss 1000,sackOK>").established();
    t.inject(". 1:1(0) ack 1 win 4000");
    t.send(10_000);
    t.expect_data(1, 4_001);
    t.inject(". 1:1(0) ack 4001 win 100");
    t.silent(ms(150)); // not 100 bytes
    t.inject(". 1:1(0) ack 4001 win 4000");
    t.expect_data(4_001, 8_001);
}

//= RFC 9293 3.8.6 test
//# However, a sending TCP peer MUST be robust against window shrinking, which may cause the "usable window" [...]
#[test]
pub(super) fn a_window_that_shrank_below_what_was_sent_does_not_stall() {
    let setup = Setup::new().peer("win 4000 <mss 1000,sackOK>").config(|c| c.tcp_frto = false);
    let mut t = setup.established();
    t.send(8_000);
    t.expect_data(1, 4_001);
    t.inject(". 1:1(0) ack 2001 win 0");
    // Data in flight is now beyond the window; its first segment asks whether that is still so.
    t.expect_after(100..=1_000, ". 2001:3001(1000) ack 1");
    t.expect_after(100..=2_000, ". 2001:3001(1000) ack 1");
    t.inject(". 1:1(0) ack 3001 win 4000");
    t.expect(". 3001:4001(1000) ack 1");
    t.expect(". 4001:5001(1000) ack 1");
    t.inject(". 1:1(0) ack 5001 win 4000");
    t.expect_data(5_001, 8_001);
}

#[test]
pub(super) fn a_fin_alone_in_flight_keeps_its_timeout_through_duplicate_acks() {
    let mut t = Script::established();
    t.close();
    t.expect("F. 1:2(0) ack 1");
    for _ in 0..4 {
        t.inject_quietly(". 1:1(0) ack 1");
    }
    t.ignore();
    t.expect_after(1..=1_500, "F. 1:2(0) ack 1");
}

//= RFC 5681 2 test
//# At any given time, a TCP MUST NOT send data with a sequence number higher than the sum of the highest [...]
#[test]
pub(super) fn one_pass_sends_no_more_than_the_window() {
    // However much there is to send, and however often transmit is called.
    let mut t = Script::established();
    let _ = t.try_send(1 << 20, false);
    let sent = t.ignore();
    assert!(sent <= 10, "{sent} segments, the initial window is ten");
    for _ in 0..10 {
        t.retry_transmit();
    }
    t.expect_nothing();
}

#[test]
pub(super) fn icmp_about_data_not_in_flight_is_ignored() {
    // RFC 5927 section 4.1.
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.icmp_too_big(300, 5_000);
    t.icmp_too_big(300, -5_000);
    t.icmp(SocketError::hard(libc::ECONNREFUSED), 5_000);
    assert_eq!((t.error(), t.info().snd_mss), (None, 1_000));
    t.check_state(Established);
}

//= RFC 9293 3.9.2.2 test
//# Since these Unreachable messages indicate soft error conditions, a TCP implementation MUST NOT abort the [...]
#[test]
pub(super) fn icmp_about_data_in_flight_does_not_end_a_connection_at_once() {
    // RFC 5461: a hard error is soft once the connection is established.
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.icmp(SocketError::hard(libc::EHOSTUNREACH), 1);
    t.check_state(Established);
    t.inject(". 1:1(0) ack 11");
    t.silent(secs(5));
    assert_eq!(t.error(), None);
}

//= RFC 9293 3.10.7.4 test
//# Segments with higher beginning sequence numbers SHOULD be held for later processing (SHLD-31).
#[test]
pub(super) fn data_behind_a_hole_is_kept() {
    // A stack without reassembly drops it and needs all of it again.
    let mut t = Script::established();
    t.inject(". 1001:2001(1000) ack 1");
    t.expect(". 1:1(0) ack 1 <sack 1001:2001>");
    t.inject(". 3001:4001(1000) ack 1");
    t.expect(". 1:1(0) ack 1 <sack 3001:4001 1001:2001>");
    t.inject(". 1:1001(1000) ack 1");
    t.expect(". 1:1(0) ack 2001 <sack 3001:4001>");
    t.inject(". 2001:3001(1000) ack 1");
    t.expect(". 1:1(0) ack 4001 <no sack>");
    t.recv(4_000);
}

#[test]
pub(super) fn acknowledgments_of_large_segments_are_not_delayed() {
    // gVisor and Asterinas: a delayed acknowledgment for each segment of a large MTU brings 26 Mb/s.
    let mut t = Setup::new().mss(8_960).peer("<mss 8960,sackOK>").established();
    let mut at = 1;
    for _ in 0..40 {
        t.inject(&format!(". {at}:{}(8960) ack 1", at + 8_960));
        let first = t.ignore();
        at += 8_960;
        t.inject(&format!(". {at}:{}(8960) ack 1", at + 8_960));
        at += 8_960;
        assert!(first + t.ignore() >= 1, "two full segments, no acknowledgment");
        t.recv(2 * 8_960);
        t.ignore();
    }
}

#[test]
pub(super) fn an_urgent_flag_does_not_disturb_the_stream() {
    let mut t = Script::established();
    t.inject("PU. 1:101(100) ack 1");
    t.expect_after(0..=40, ". 1:1(0) ack 101");
    // It points to the first byte, which is then urgent.
    t.skip_urgent();
    t.recv(99);
}

//= RFC 9293 3.10.7.4 test
//# if the ACK bit is off, drop the segment and return
#[test]
pub(super) fn segments_without_ack_are_dropped() {
    let mut t = Script::established();
    t.inject("P 1:101(100)");
    t.inject("F 1:2(0)");
    t.recv_nothing();
    t.check_state(Established);
    t.silent(secs(1));
}
