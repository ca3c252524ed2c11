//! ICMP errors, as far as they may be trusted (RFC 5927), and path MTU discovery.

use super::super::connection::State::*;
use super::script::{Script, Setup, ms, secs};
use crate::inet::SocketError;

#[test]
pub(super) fn a_packet_too_big_is_sent_again_in_smaller_pieces() {
    // RFC 1191 section 6.5: at once, not after a timeout.
    let mut t = Script::established();
    t.send(2_000);
    t.expect_data(1, 2_001);
    t.icmp_too_big(600, 1);
    assert_eq!(t.info().snd_mss, 600);
    t.advance(ms(1));
    t.expect_data(1, 601);
    t.ignore();
    t.inject_quietly(". 1:1(0) ack 2001");
    t.send(1_200);
    t.expect_data(2_001, 3_201);
}

#[test]
pub(super) fn the_path_mtu_may_be_the_minimum_of_ipv6() {
    // RFC 8201 section 4: 1280 bytes.
    let mut t = Setup::new().mss(1_400).peer("<mss 1400,sackOK>").established();
    t.send(2_800);
    t.expect_data(1, 2_801);
    t.icmp_too_big(1_220, 1);
    assert_eq!(t.info().snd_mss, 1_220);
    t.expect_data(1, 1_221);
    t.ignore();
    t.inject(". 1:1(0) ack 2801");
    t.send(1_220);
    t.expect("P. 2801:4021(1220) ack 1");
    t.inject(". 1:1(0) ack 4021");
}

#[test]
pub(super) fn icmp_does_not_raise_the_path_mtu() {
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.icmp_too_big(5_000, 1);
    assert_eq!(t.info().snd_mss, 1_000);
    t.inject(". 1:1(0) ack 11");
}

#[test]
pub(super) fn a_smaller_path_mtu_does_not_reduce_the_window() {
    // RFC 1191 section 6.5: "the retransmission […] should not change the congestion window".
    let mut t = Script::established();
    t.send(10_000);
    t.expect_data(1, 10_001);
    let before = t.info().snd_ssthresh;
    t.icmp_too_big(500, 1);
    t.ignore();
    assert_eq!(t.info().snd_ssthresh, before);
}

#[test]
pub(super) fn maxseg_set_after_the_handshake_has_no_effect() {
    // As in Linux, where the handshake has fixed `mss_clamp`; and nothing counts as lost.
    let mut t = Setup::new().mss(1_400).peer("<mss 1400,sackOK>").established();
    t.send(10_000);
    t.expect_data(1, 10_001);
    t.configure(|o| o.max_segment = 500);
    t.expect_nothing();
    t.inject(". 1:1(0) ack 10001");
    t.send(1_400);
    t.expect("P. 10001:11401(1400) ack 1");
    t.icmp_too_big(1_220, 10_001);
    assert_eq!(t.info().snd_mss, 1_220);
    t.ignore();
}

#[test]
pub(super) fn with_nothing_in_flight_icmp_errors_are_ignored() {
    let mut t = Script::established();
    t.icmp_too_big(300, 0);
    t.icmp_too_big(300, 2);
    t.icmp_too_big(300, -100);
    assert_eq!(t.info().snd_mss, 1_000);
}

#[test]
pub(super) fn a_hard_error_is_remembered_only_until_there_is_progress() {
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.icmp(SocketError::hard(libc::ENETUNREACH), 1);
    t.inject(". 1:1(0) ack 11");
    t.send(10);
    t.expect("P. 11:21(10) ack 1");
    t.advance(secs(2_000));
    t.ignore();
    t.check_state(Closed);
    assert_eq!(t.error(), Some(libc::ETIMEDOUT), "the old error had passed");
}
