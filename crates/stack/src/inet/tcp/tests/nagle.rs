//! When data is held back for more: Nagle's algorithm in Minshall's variant, corks, `MSG_MORE`; and a full transmit
//! ring.

use super::super::connection::State::*;
use super::script::{Script, Setup, ms, secs};

//= RFC 9293 3.7.4 test
//# A TCP implementation SHOULD implement the Nagle algorithm to coalesce short segments (SHLD-7).
#[test]
pub(super) fn a_small_segment_goes_out_when_nothing_is_in_flight() {
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
}

//= RFC 9293 3.7.4 test
//# A TCP implementation SHOULD implement the Nagle algorithm to coalesce short segments (SHLD-7).
#[test]
pub(super) fn a_second_small_segment_waits_for_the_ack_of_the_first() {
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.send(10);
    t.send(10);
    t.expect_nothing();
    t.inject(". 1:1(0) ack 11");
    t.expect("P. 11:31(20) ack 1");
}

#[test]
pub(super) fn a_small_segment_does_not_wait_for_full_ones() {
    // Minshall: otherwise the end of each large write would wait for a delayed acknowledgment.
    let mut t = Script::established();
    t.send(1_500);
    t.expect(". 1:1001(1000) ack 1");
    t.expect("P. 1001:1501(500) ack 1");
    t.send(500);
    t.expect_nothing();
    t.send(500);
    t.expect("P. 1501:2501(1000) ack 1");
}

//= RFC 9293 3.7.4 test
//# However, there MUST be a way for an application to disable the Nagle algorithm on an individual connection [...]
#[test]
pub(super) fn nodelay_sends_each_write() {
    let mut t = Setup::new().options(|o| o.nodelay = true).established();
    for i in 0..5 {
        t.send(10);
        t.expect(&format!("P. {}:{}(10) ack 1", 1 + i * 10, 11 + i * 10));
    }
}

#[test]
pub(super) fn nodelay_set_later_sends_held_data() {
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.send(10);
    t.expect_nothing();
    t.configure(|o| o.nodelay = true);
    t.expect("P. 11:21(10) ack 1");
}

#[test]
pub(super) fn a_cork_sends_only_full_segments_until_it_is_removed() {
    let mut t = Setup::new().options(|o| (o.cork, o.nodelay) = (true, true)).established();
    t.send(600);
    t.expect_nothing();
    t.send(600);
    t.expect(". 1:1001(1000) ack 1");
    t.expect_nothing();
    t.configure(|o| o.cork = false);
    t.expect("P. 1001:1201(200) ack 1");
}

//= RFC 9293 3.9.1.2 test
//# (1) MUST NOT buffer data indefinitely (MUST-60), and (2) MUST set the PSH bit in the last buffered segment [...]
#[test]
pub(super) fn a_cork_does_not_hold_data_for_ever() {
    let mut t = Setup::new().options(|o| o.cork = true).established();
    t.send(10);
    t.silent(ms(150));
    t.expect_after(0..=1_000, "P. 1:11(10) ack 1");
}

#[test]
pub(super) fn data_from_the_peer_does_not_postpone_held_data() {
    let mut t = Setup::new().options(|o| o.cork = true).established();
    t.send(10);
    for i in 0..6 {
        t.advance(ms(30));
        let (from, to) = (1 + i * 10, 11 + i * 10);
        t.inject(&format!("P. {from}:{to}(10) ack 1"));
        t.expect(&format!(". 1:1(0) ack {to}"));
        t.recv(10);
    }
    t.expect_after(0..=22, "P. 1:11(10) ack 61");
}

#[test]
pub(super) fn msg_more_holds_data_until_more_comes() {
    let mut t = Setup::new().options(|o| o.nodelay = true).established();
    t.send_more(10);
    t.expect_nothing();
    t.send(10);
    t.expect("P. 1:21(20) ack 1");
}

#[test]
pub(super) fn a_fin_is_sent_with_held_data() {
    let mut t = Setup::new().options(|o| o.cork = true).established();
    t.send(10);
    t.expect_nothing();
    t.close();
    t.expect("FP. 1:12(10) ack 1");
    t.check_state(FinWait1);
}

#[test]
pub(super) fn a_full_ring_loses_nothing_and_reorders_nothing() {
    let mut t = Setup::new().round_trip(ms(50)).established();
    t.set_ring_full(true);
    t.send(5_000);
    t.inject("P. 1:101(100) ack 1");
    t.expect_nothing();
    t.set_ring_full(false);
    t.advance(ms(5)); // a host tries again by itself
    t.expect_data(1, 5_001);
    assert_eq!(t.acked(), 101, "the data carried the acknowledgment");
}

#[test]
pub(super) fn a_burst_cut_short_by_a_full_ring_continues_where_it_ended() {
    let mut t = Setup::new().round_trip(ms(50)).established();
    t.set_ring_room(3);
    t.send(8_000);
    t.expect_data(1, 3_001);
    t.expect_nothing();
    let info = t.info();
    assert_eq!((info.unacked, info.data_segs_out, info.bytes_sent), (3, 3, 3_000));
    assert_eq!((info.notsent_bytes, info.last_data_sent), (5_000, ms(0)));
    t.set_ring_full(false);
    t.advance(ms(5)); // a host tries again by itself
    t.expect_data(3_001, 8_001);
    t.advance(ms(45));
    t.inject(". 1:1(0) ack 3001");
    assert_eq!(t.info().unacked, 5);
    t.inject(". 1:1(0) ack 8001");
    t.silent(secs(5));
}

#[test]
pub(super) fn a_retransmission_refused_by_a_full_ring_is_sent_later() {
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.set_ring_full(true);
    t.silent(ms(3_000));
    t.set_ring_full(false);
    t.advance(ms(3_000));
    assert!(t.ignore() > 0, "not retransmitted");
    t.inject(". 1:1(0) ack 11");
}

#[test]
pub(super) fn nodelay_sends_data_that_a_cork_holds() {
    // `__tcp_sock_set_nodelay`: pushes the data queued so far; the cork holds back later data.
    let mut t = Setup::new().options(|o| o.cork = true).established();
    t.send(10);
    t.expect_nothing();
    t.configure(|o| o.nodelay = true);
    t.expect("P. 1:11(10) ack 1");
    t.send(10);
    t.expect_nothing();
}

#[test]
pub(super) fn nodelay_with_nothing_queued_sends_no_later_data() {
    let mut t = Script::established();
    t.configure(|o| o.nodelay = true);
    t.send_more(10);
    t.expect_nothing();
    t.send(10);
    t.expect("P. 1:21(20) ack 1");
    let mut t = Script::established();
    t.configure(|o| o.cork = true);
    t.configure(|o| o.nodelay = true);
    t.send(10);
    t.expect_nothing();
}
