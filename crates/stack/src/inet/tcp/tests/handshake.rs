//! The handshake: the SYN and its answer, the options they negotiate, and SYNs that are lost or wrong.

use super::super::{Ecn, connection::State::*};
use super::script::{Setup, ms, secs};
use crate::inet::SocketError;

// -- options

//= RFC 9293 3.7.1 test
//# TCP endpoints MUST implement both sending and receiving the MSS Option (MUST-14).
//= RFC 9293 3.7.1 test
//# TCP implementations SHOULD send an MSS Option in every SYN segment when its receive MSS differs from the [...]
//= RFC 7323 2.2 test
//# Thus, a TCP that is prepared to scale windows SHOULD send the option, even if its own scale factor is 1 and [...]
#[test]
pub(super) fn a_syn_offers_all_that_the_host_allows() {
    let mut t = Setup::new().mss(1_460).connect();
    t.expect("S 0:0(0) win 65535 <mss 1460,sackOK,ts 1000 0,ws 7>");
}

#[test]
pub(super) fn a_syn_offers_no_disabled_option() {
    let setup = Setup::new().config(|c| {
        c.tcp_sack = false;
        c.tcp_timestamps = false;
        c.tcp_window_scaling = false;
    });
    let mut t = setup.connect();
    t.expect("S 0:0(0) <mss 1000,no sackOK,no ts,no ws>");
    t.inject("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,ts 1 1000,ws 7>"); // takes it nevertheless
    t.expect(". 1:1(0) ack 1 <no ts>");
    let info = t.info();
    assert!(!info.sack && !info.timestamps && info.window_scale.is_none());
}

//= RFC 7323 3.2 test
//# and MAY send a TSopt in <SYN,ACK> only if it received a TSopt in the initial <SYN> segment for the connection.
//= RFC 7323 2.2 test
//# both sides MUST send Window Scale options in their <SYN> segments to enable window scaling in either direction.
//= RFC 9293 3.10.7.2 test
//# Set RCV.NXT to SEG.SEQ+1, IRS is set to SEG.SEQ, and any other control or text should be queued for [...]
#[test]
pub(super) fn a_syn_ack_takes_only_what_the_syn_offered() {
    let offers = [
        ("<mss 1000>", "<mss 1000,no sackOK,no ts,no ws>"),
        ("<mss 1000,sackOK>", "<mss 1000,sackOK,no ts,no ws>"),
        ("<mss 1000,ts 5 0>", "<mss 1000,no sackOK,ts 1000 5,no ws>"),
        ("<mss 1000,ws 7>", "<mss 1000,no sackOK,no ts,ws 7>"),
        ("<mss 1000,sackOK,ts 5 0,ws 0>", "<mss 1000,sackOK,ts 1000 5,ws 7>"),
    ];
    for (offer, answer) in offers {
        let mut t = Setup::new().listen();
        t.inject(&format!("S 0:0(0) win 65535 {offer}"));
        t.expect(&format!("S. 0:0(0) ack 1 {answer}"));
    }
}

#[test]
pub(super) fn a_full_syn_queue_answers_with_a_cookie() {
    // RFC 4987. The MSS comes from the table of its family; a bare connection has no queue.
    let mut t = Setup::new().mss(1_400).config(|c| c.tcp_max_syn_backlog = 0).listen();
    t.inject("S 0:0(0) win 65535 <mss 1400,sackOK,ts 5 0,ws 7>");
    t.expect("S. 0:0(0) ack 1 <mss 1400,sackOK,ws 7>");
    t.inject(". 1:1(0) ack 1 win 500 <ts 6 1000>");
    t.check_state(Established);
    let info = t.info();
    assert!([1_400, 1_300, 1_220].contains(&(info.snd_mss + 12)), "{info:?}");
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.inject(". 1:1(0) ack 11 win 500 <ts 7 1000>");
}

//= RFC 9293 3.7.1 test
//# If an MSS Option is not received at connection setup, TCP implementations MUST assume a default send MSS of [...]
#[test]
pub(super) fn a_peer_that_names_no_mss_gets_536() {
    let mut t = Setup::new().peer("").established();
    t.send(1_000);
    t.expect(". 1:537(536) ack 1");
    t.ignore();
}

#[test]
pub(super) fn an_mss_below_tcp_min_snd_mss_is_raised() {
    // Linux's tcp_min_snd_mss: CVE-2019-11479.
    let mut t = Setup::new().peer("<mss 48>").established();
    t.send(96);
    t.expect(". 1:49(48) ack 1");
    t.ignore();
    assert_eq!(t.info().snd_mss, 48);
}

#[test]
pub(super) fn no_setting_makes_segments_too_small_for_their_options() {
    let setup = Setup::new().config(|c| c.tcp_min_snd_mss = 0);
    let mut t = setup.peer("<mss 5,ts 1 1000>").established();
    assert_eq!(t.info().snd_mss, 48 - 12);
}

//= RFC 9293 3.7.1 test
//# TCP endpoints MUST implement both sending and receiving the MSS Option (MUST-14).
//= RFC 9293 3.7.1 test
//# The maximum size of a segment that a TCP endpoint really sends, the "effective send MSS", MUST be the [...]
#[test]
pub(super) fn maxseg_limits_both_directions() {
    let mut t = Setup::new().options(|o| o.max_segment = 600).connect();
    t.expect("S 0:0(0) <mss 600>");
    t.inject("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK>");
    t.expect(". 1:1(0) ack 1");
    t.send(600);
    t.expect("P. 1:601(600) ack 1");
}

#[test]
pub(super) fn segments_leave_room_for_timestamps() {
    let mut t = Setup::new().peer("<mss 1000,sackOK,ts 1 1000>").established();
    t.send(2_000);
    t.expect(". 1:989(988) ack 1 <ts 1000 1>");
    t.expect(". 989:1977(988) ack 1 <ts 1000 1>");
    t.expect("P. 1977:2001(24) ack 1 <ts 1000 1>");
}

//= RFC 7323 2.2 test
//# The window field in a segment where the SYN bit is set (i.e., a <SYN> or <SYN,ACK>) MUST NOT be scaled.
//= RFC 7323 2.3 test
//# SND.WND = SEG.WND << Snd.Wind.Shift
#[test]
pub(super) fn the_window_of_a_syn_is_not_scaled_and_those_after_it_are() {
    let mut t = Setup::new().peer("win 2000 <mss 1000,sackOK,ws 3>").established();
    t.send(9_000);
    t.expect_data(1, 2_001); // not 16000
    t.inject(". 1:1(0) ack 2001 win 500"); // 4000
    t.expect_data(2_001, 6_001);
}

//= RFC 7323 2.2 test
//# The window field in a segment where the SYN bit is set (i.e., a <SYN> or <SYN,ACK>) MUST NOT be scaled.
#[test]
pub(super) fn the_window_of_a_syn_ack_in_a_simultaneous_open_is_not_scaled() {
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0)");
    t.inject("S 0:0(0) win 2000 <mss 1000,sackOK,ws 7>");
    t.expect("S. 0:0(0) ack 1");
    t.inject("S. 0:0(0) ack 1 win 2000 <mss 1000,sackOK,ws 7>");
    t.check_state(Established);
    t.ignore();
    t.send(10_000);
    let out: i64 = t.take_ranges().iter().map(|(start, end)| end - start).sum();
    assert!((1_800..=2_000).contains(&out), "{out}");
}

//= RFC 7323 2.3 test
//# Upon receiving a <SYN> segment with a Window Scale option containing shift.cnt = S, a TCP MUST set [...]
#[test]
pub(super) fn the_window_of_the_third_ack_is_scaled() {
    let mut t = Setup::new().listen();
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK,ws 7>");
    t.expect("S. 0:0(0) ack 1");
    t.inject(". 1:1(0) ack 1 win 40"); // 5120
    t.check_state(Established);
    t.send(10_000);
    let out: i64 = t.take_ranges().iter().map(|(start, end)| end - start).sum();
    assert_eq!(out, 5_000);
}

//= RFC 7323 2.3 test
//# Thus, the shift count MUST be limited to 14 (which allows windows of 2^30 = 1 GiB).
#[test]
pub(super) fn no_buffer_needs_a_shift_beyond_14() {
    let mut t = Setup::new().config(|c| c.tcp_rmem.max = u32::MAX).connect();
    t.expect("S 0:0(0) <ws 14>");
}

#[test]
pub(super) fn bytes_acked_counts_the_syn_of_an_active_open() {
    // tcpi_bytes_acked, as Linux counts it.
    let mut opened = Setup::new().established();
    let mut crossed = Setup::new().connect();
    crossed.expect("S 0:0(0)");
    crossed.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    crossed.expect("S. 0:0(0) ack 1");
    crossed.inject(". 1:1(0) ack 1");
    let mut accepted = Setup::new().listen();
    accepted.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    accepted.expect("S. 0:0(0) ack 1");
    accepted.inject(". 1:1(0) ack 1");
    for (t, more) in [(&mut opened, 1), (&mut crossed, 1), (&mut accepted, 0)] {
        t.send(10);
        t.expect("P. 1:11(10) ack 1");
        t.inject(". 1:1(0) ack 11");
        assert_eq!(t.info().bytes_acked, 10 + more);
    }
}

// -- lost and late

#[test]
pub(super) fn a_syn_is_retransmitted_four_times_linearly_and_then_with_backoff() {
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0)");
    for seconds in [1, 1, 1, 1, 1, 2, 4, 8, 16, 32] {
        t.expect_after(seconds * 1_000..=seconds * 1_000, "S 0:0(0)");
    }
    t.silent(secs(63));
    t.advance(secs(2));
    t.check_state(Closed);
    assert_eq!(t.error(), Some(libc::ETIMEDOUT));
}

#[test]
pub(super) fn user_timeout_gives_up_a_connect_sooner() {
    let mut t = Setup::new().options(|o| o.user_timeout = ms(2_500)).connect();
    t.expect("S 0:0(0)");
    t.advance(ms(2_499));
    t.check_state(SynSent);
    t.advance(ms(2));
    t.check_state(Closed);
    assert_eq!(t.error(), Some(libc::ETIMEDOUT));
    t.ignore();
}

#[test]
pub(super) fn a_syn_ack_is_retransmitted_and_given_up() {
    let mut t = Setup::new().listen();
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1");
    for seconds in [1, 2, 4, 8, 16] {
        t.expect_after(seconds * 1_000..=seconds * 1_000, "S. 0:0(0) ack 1");
    }
    t.silent(secs(31));
    t.advance(secs(2));
    assert!(t.is_listening());
}

#[test]
pub(super) fn defer_accept_waits_for_data_without_retransmitting_the_syn_ack() {
    let deferred = |seconds| Setup::new().options(|o| o.defer_accept = secs(seconds)).listen();
    let mut t = deferred(5);
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1");
    t.inject(". 1:1(0) ack 1");
    t.silent(ms(2_500));
    t.inject("P. 1:101(100) ack 1");
    t.expect_after(0..=40, ". 1:1(0) ack 101");
    t.check_state(Established);
    t.recv(100);
    // The time until the data is not part of the round trip.
    assert!(t.info().rtt < ms(100), "{:?}", t.info().rtt);

    // Five seconds are those of three SYN-ACKs, 1 + 2 + 4: the third is sent once more, and then any answer will do.
    let mut t = deferred(5);
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1");
    t.inject(". 1:1(0) ack 1");
    t.expect_after(7_000..=7_000, "S. 0:0(0) ack 1");
    t.inject(". 1:1(0) ack 1");
    t.check_state(Established);

    // A FIN also ends the wait for data.
    let mut t = deferred(5);
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1");
    t.inject(". 1:1(0) ack 1");
    t.inject("F. 1:2(0) ack 1");
    t.expect_after(0..=40, ". 1:1(0) ack 2");
    t.check_state(CloseWait);
}

//= RFC 5961 4.2 test
//# If the SYN bit is set, irrespective of the sequence number, TCP MUST send an ACK (also referred to as [...]
#[test]
pub(super) fn a_syn_of_another_number_in_syn_received_is_answered_by_an_ack() {
    // A peer that has started anew answers that with a reset, and then its SYN counts.
    let mut t = Setup::new().listen();
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1");
    t.inject("S 5000:5000(0) win 65535 <mss 1000,sackOK>");
    t.expect(". 1:1(0) ack 1");
    t.inject("R 1:1(0)");
    assert!(t.is_listening());
}

#[test]
pub(super) fn a_syn_that_comes_twice_is_answered_twice() {
    let mut t = Setup::new().listen();
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1");
    t.silent(ms(600));
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1");
}

#[test]
pub(super) fn a_syn_ack_that_comes_twice_is_acknowledged_twice() {
    // Our ACK was lost.
    let mut t = Setup::new().established();
    t.silent(secs(1));
    t.inject("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK>");
    t.expect(". 1:1(0) ack 1");
    t.check_state(Established);
}

#[test]
pub(super) fn the_third_ack_may_be_lost_if_data_follows_it() {
    let mut t = Setup::new().listen();
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1");
    t.inject("P. 1:101(100) ack 1");
    t.expect_after(0..=40, ". 1:1(0) ack 101");
    t.check_state(Established);
    t.recv(100);
}

#[test]
pub(super) fn the_third_ack_may_carry_a_fin() {
    let mut t = Setup::new().listen();
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1");
    t.inject("F. 1:2(0) ack 1");
    t.expect_after(0..=40, ". 1:1(0) ack 2");
    t.check_state(CloseWait);
}

//= RFC 6298 2 test
//# (2.1) Until a round-trip time (RTT) measurement has been made for a segment sent between the sender and [...]
#[test]
pub(super) fn without_a_round_trip_sample_the_rto_is_a_second() {
    // SYNs that were lost leave an RTO of 3 s in the RFC, of 1 s in Linux.
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0)");
    t.expect_after(1_000..=1_000, "S 0:0(0)");
    t.inject("S. 0:0(0) ack 1 win 65535 <mss 1000>");
    t.expect(". 1:1(0) ack 1");
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.silent(ms(900));
    t.expect_after(0..=2_200, "P. 1:11(10) ack 1");
}

// -- wrong

//= RFC 9293 3.10.7.3 test
//# If SEG.ACK =< ISS or SEG.ACK > SND.NXT, send a reset (unless the RST bit is set, if so drop the segment and [...]
#[test]
pub(super) fn a_syn_ack_that_acknowledges_another_number_is_reset() {
    // It belongs to an earlier connection.
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0)");
    t.inject("S. 0:0(0) ack 100 win 65535 <mss 1000>");
    t.expect("R 100:100(0)");
    t.check_state(SynSent);
    t.inject("S. 0:0(0) ack 1 win 65535 <mss 1000>");
    t.expect(". 1:1(0) ack 1");
}

#[test]
pub(super) fn a_syn_ack_that_echoes_another_timestamp_is_reset() {
    // The number is right by chance, but the echo is from before the SYN, or from the future.
    let setup = Setup::new();
    let mut t = setup.connect();
    t.expect("S 0:0(0) <ts 1000 0>");
    for echo in [999, 500, 1_001, 90_000] {
        t.inject(&format!("S. 0:0(0) ack 1 win 65535 <mss 1000,ts 7 {echo}>"));
        t.expect("R 1:1(0)");
        t.check_state(SynSent);
    }
    t.advance(ms(10));
    t.inject("S. 0:0(0) ack 1 win 65535 <mss 1000,ts 7 1000>");
    t.expect(". 1:1(0) ack 1");
}

//= RFC 9293 3.10.7.3 test
//# If SEG.ACK =< ISS or SEG.ACK > SND.NXT, send a reset (unless the RST bit is set, if so drop the segment and [...]
#[test]
pub(super) fn an_ack_of_another_number_in_syn_sent_is_reset() {
    // The peer still has an old connection.
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0)");
    t.inject(". 500:500(0) ack 300");
    t.expect("R 300:300(0)");
    t.check_state(SynSent);
}

//= RFC 9293 3.10.7.3 test
//# If the ACK was acceptable, then signal to the user "error: connection reset", drop the segment, enter CLOSED [...]
#[test]
pub(super) fn a_reset_without_the_right_ack_does_not_refuse_a_connect() {
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0)");
    t.inject("R 0:0(0)");
    t.inject("R. 0:0(0) ack 77");
    t.check_state(SynSent);
    assert_eq!(t.error(), None);
}

#[test]
pub(super) fn data_does_not_end_a_handshake_nor_does_a_fin() {
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0)");
    t.inject("F 0:1(0)");
    t.inject("P 1:101(100)");
    t.check_state(SynSent);
}

//= RFC 9293 3.10.7.4 test
//# If the segment acknowledgment is not acceptable, form a reset segment <SEQ=SEG.ACK><CTL=RST>
#[test]
pub(super) fn an_ack_of_another_number_in_syn_received_is_reset() {
    let mut t = Setup::new().listen();
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1");
    t.inject(". 1:1(0) ack 999");
    t.expect("R 999:999(0)");
    t.inject(". 1:1(0) ack 1");
    t.check_state(Established);
}

//= RFC 9293 3.9.2.2 test
//# TCP implementations MUST act on an ICMP error message passed up from the IP layer, directing it to the [...]
#[test]
pub(super) fn icmp_refuses_a_connect_in_flight_and_no_other() {
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0)");
    t.icmp(SocketError::hard(libc::EHOSTUNREACH), 5);
    t.check_state(SynSent);
    t.icmp(SocketError::hard(libc::EHOSTUNREACH), 0);
    t.check_state(Closed);
    assert_eq!(t.error(), Some(libc::EHOSTUNREACH));
}

#[test]
pub(super) fn data_written_before_the_handshake_ends_waits() {
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0)");
    let early = t.try_send(10, false).map_err(|e| e.raw_os_error());
    assert_eq!(early, Err(Some(libc::EAGAIN)));
    t.inject("S. 0:0(0) ack 1 win 65535 <mss 1000>");
    t.expect(". 1:1(0) ack 1");
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
}

// -- ECN, RFC 3168 section 6.1.1

#[test]
pub(super) fn ecn_is_requested_only_if_on_and_accepted_if_requested() {
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0)"); // no E, no W
    t.close();
    let mut t = Setup::new().config(|c| c.tcp_ecn = Ecn::On).connect();
    t.expect("SEW 0:0(0)");
    t.inject("SE. 0:0(0) ack 1 win 65535 <mss 1000>");
    t.expect(". 1:1(0) ack 1");
    assert!(t.info().ecn);

    let mut t = Setup::new().listen();
    t.inject("SEW 0:0(0) win 65535 <mss 1000>");
    t.expect("SE. 0:0(0) ack 1");
    let mut t = Setup::new().config(|c| c.tcp_ecn = Ecn::Off).listen();
    t.inject("SEW 0:0(0) win 65535 <mss 1000>");
    t.expect("S. 0:0(0) ack 1");
}

#[test]
pub(super) fn a_peer_that_mirrors_the_flags_does_not_support_ecn() {
    // RFC 3168 section 6.1.1: some hosts reflect reserved bits.
    let mut t = Setup::new().config(|c| c.tcp_ecn = Ecn::On).connect();
    t.expect("SEW 0:0(0)");
    t.inject("SEW. 0:0(0) ack 1 win 65535 <mss 1000>");
    t.expect(". 1:1(0) ack 1");
    assert!(!t.info().ecn);
}

#[test]
pub(super) fn a_retransmitted_syn_does_not_request_ecn() {
    let mut t = Setup::new().config(|c| c.tcp_ecn = Ecn::On).connect();
    t.expect("SEW 0:0(0)");
    t.expect_after(1_000..=1_000, "S 0:0(0)");
}
