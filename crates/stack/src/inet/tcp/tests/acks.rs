//! When received data is acknowledged: at once at the start and out of order, else every second segment or a little
//! later; and what an acknowledgment contains (SACK, DSACK).

use super::super::TcpOptions;
use super::script::{Script, Setup, ms, secs};

/// A connection past its first, quick acknowledgments, and the peer's next number.
fn settled() -> (Script, i64) {
    let mut t = Script::established();
    // It answers, so it is in pingpong mode: no more quick acknowledgments.
    for i in 0..20 {
        let (from, to) = (1 + i * 10, 11 + i * 10);
        t.inject_quietly(&format!("P. {from}:{to}(10) ack {}", 1 + i * 10));
        t.recv(10);
        t.send(10);
    }
    t.inject_quietly(". 201:201(0) ack 201");
    t.advance(secs(2));
    t.expect_nothing();
    (t, 201)
}

#[test]
pub(super) fn the_first_segments_are_acknowledged_at_once() {
    // Slow start of the peer must not wait for us (Linux's quick-ACK mode).
    let mut t = Script::established();
    for i in 0..8 {
        let (from, to) = (1 + i * 1_000, 1_001 + i * 1_000);
        t.inject(&format!(". {from}:{to}(1000) ack 1"));
        t.expect(&format!(". 1:1(0) ack {to}"));
        t.recv(1_000);
        t.ignore();
    }
}

#[test]
pub(super) fn an_answer_carries_the_acknowledgment() {
    let (mut t, at) = settled();
    t.inject(&format!("P. {at}:{}(10) ack 201", at + 10));
    t.expect_nothing();
    t.advance(ms(5));
    t.recv(10);
    t.send(10);
    t.expect(&format!("P. 201:211(10) ack {}", at + 10));
    t.inject(&format!(". {}:{}(0) ack 211", at + 10, at + 10));
    t.silent(secs(1));
}

//= RFC 9293 3.8.6.3 test
//# A TCP endpoint SHOULD implement a delayed ACK (SHLD-18), but an ACK should not be excessively delayed; in [...]
//= RFC 5681 4.2 test
//# Specifically, an ACK SHOULD be generated for at least every second full-sized segment, and MUST be generated [...]
#[test]
pub(super) fn without_an_answer_the_acknowledgment_comes_after_40_ms() {
    // Linux's TCP_ATO_MIN.
    let (mut t, at) = settled();
    t.inject(&format!("P. {at}:{}(10) ack 201", at + 10));
    t.expect_after(1..=200, &format!(". 201:201(0) ack {}", at + 10));
}

//= RFC 9293 3.8.6.3 test
//# An ACK SHOULD be generated for at least every second full-sized segment or 2*RMSS bytes of new data
#[test]
pub(super) fn every_second_full_segment_is_acknowledged_at_once() {
    let (mut t, mut at) = settled();
    for _ in 0..20 {
        t.inject_quietly(&format!(". {at}:{}(1000) ack 201", at + 1_000));
        at += 1_000;
        t.recv(1_000);
        t.inject_quietly(&format!(". {at}:{}(1000) ack 201", at + 1_000));
        at += 1_000;
        t.recv(1_000);
        assert!(t.acked() >= at - 1_000, "two segments without acknowledgment");
    }
    t.ignore();
}

#[test]
pub(super) fn quick_ack_switches_delays_off_and_on() {
    let (mut t, at) = settled();
    t.configure(|o: &mut TcpOptions| o.quick_ack = Some(true));
    t.inject(&format!("P. {at}:{}(10) ack 201", at + 10));
    t.expect(&format!(". 201:201(0) ack {}", at + 10));
    let mut t = Setup::new().options(|o| o.quick_ack = Some(false)).established();
    t.inject("P. 1:11(10) ack 1");
    t.expect_after(1..=200, ". 1:1(0) ack 11");
}

//= RFC 5681 4.2 test
//# Out-of-order data segments SHOULD be acknowledged immediately, in order to accelerate loss recovery.
//= RFC 5681 4.2 test
//# To provide feedback to senders recovering from losses, the receiver SHOULD send an immediate ACK when it [...]
//= RFC 5681 3.2 test
//# A TCP receiver SHOULD send an immediate duplicate ACK when an out-of-order segment arrives.
#[test]
pub(super) fn out_of_order_and_hole_filled_are_acknowledged_at_once() {
    let (mut t, at) = settled();
    let sack = format!("{}:{}", at + 1_000, at + 2_000);
    t.inject(&format!(". {sack}(1000) ack 201"));
    t.expect(&format!(". 201:201(0) ack {at} <sack {sack}>"));
    t.inject(&format!(". {at}:{}(1000) ack 201", at + 1_000));
    t.expect(&format!(". 201:201(0) ack {} <no sack>", at + 2_000));
}

#[test]
pub(super) fn the_newest_block_comes_first() {
    // RFC 2018 section 4.
    let mut t = Script::established();
    t.inject(". 2001:3001(1000) ack 1");
    t.expect(". 1:1(0) ack 1 <sack 2001:3001>");
    t.inject(". 6001:7001(1000) ack 1");
    t.expect(". 1:1(0) ack 1 <sack 6001:7001 2001:3001>");
    t.inject(". 4001:5001(1000) ack 1");
    t.expect(". 1:1(0) ack 1 <sack 4001:5001 6001:7001 2001:3001>");
    t.inject(". 3001:4001(1000) ack 1");
    t.expect(". 1:1(0) ack 1 <sack 2001:5001 6001:7001>");
}

#[test]
pub(super) fn three_sack_blocks_fit_beside_timestamps() {
    let mut t = Setup::new().peer("<mss 1000,sackOK,ts 1 1000>").established();
    for (i, from) in [9_001, 7_001, 5_001, 3_001].into_iter().enumerate() {
        t.inject_quietly(&format!(". {from}:{}(988) ack 1 <ts {} 1000>", from + 988, i + 2));
    }
    t.expect(". 1:1(0) ack 1 <sack 3001:3989 5001:5989 7001:7989>");
}

#[test]
pub(super) fn a_duplicate_is_reported() {
    // RFC 2883 section 4: "The first block of the SACK option specifies the […] duplicate".
    let mut t = Script::established();
    t.inject(". 1:1001(1000) ack 1");
    t.expect(". 1:1(0) ack 1001");
    t.inject(". 1:1001(1000) ack 1");
    t.expect(". 1:1(0) ack 1001 <sack 1:1001>");
    t.inject(". 3001:4001(1000) ack 1");
    t.expect(". 1:1(0) ack 1001 <sack 3001:4001>");
    t.inject(". 3001:4001(1000) ack 1");
    t.expect(". 1:1(0) ack 1001 <sack 3001:4001 3001:4001>");
    t.inject(". 501:1001(500) ack 1");
    t.expect(". 1:1(0) ack 1001 <sack 501:1001 3001:4001>");
}

#[test]
pub(super) fn duplicates_are_not_reported_if_switched_off() {
    let mut t = Setup::new().config(|c| c.tcp_dsack = false).established();
    t.inject(". 1:1001(1000) ack 1");
    t.expect(". 1:1(0) ack 1001");
    t.inject(". 1:1001(1000) ack 1");
    t.expect(". 1:1(0) ack 1001 <no sack>");
}

//= RFC 9293 3.10.7.4 test
//# If a segment's contents straddle the boundary between old and new, only the new parts are processed.
#[test]
pub(super) fn the_new_part_of_a_partly_old_segment_is_taken() {
    let mut t = Script::established();
    t.inject(". 1:1001(1000) ack 1");
    t.expect(". 1:1(0) ack 1001");
    t.inject(". 501:1501(1000) ack 1");
    t.expect_after(0..=40, ". 1:1(0) ack 1501");
    t.recv(1_500);
}

#[test]
pub(super) fn segments_that_overlap_make_one_stream() {
    let mut t = Script::established();
    t.inject(". 501:1501(1000) ack 1");
    t.inject_quietly(". 1001:2001(1000) ack 1");
    t.inject_quietly(". 301:901(600) ack 1");
    t.expect(". 1:1(0) ack 1 <sack 501:901 301:2001>"); // what came twice, and all there is
    t.inject(". 1:1001(1000) ack 1");
    t.expect(". 1:1(0) ack 2001");
    t.recv(2_000);
}

#[test]
pub(super) fn without_sack_an_acknowledgment_out_of_order_says_only_what_is_missing() {
    let mut t = Setup::new().peer("<mss 1000>").established();
    t.inject(". 1001:2001(1000) ack 1");
    t.expect(". 1:1(0) ack 1 <no sack>");
    t.inject(". 2001:3001(1000) ack 1");
    t.expect(". 1:1(0) ack 1 <no sack>");
}

//= RFC 9293 3.10.7.4 test
//# If an incoming segment is not acceptable, an acknowledgment should be sent in reply (unless the RST bit is [...]
#[test]
pub(super) fn data_beyond_the_window_is_dropped_and_answered() {
    let mut t = Setup::new().options(|o| o.receive_buffer = 4_000).established();
    let edge = t.acked() + t.offers();
    t.inject(&format!("P. {}:{}(100) ack 1", edge + 1, edge + 101));
    t.expect(". 1:1(0) ack 1 <no sack>");
    t.inject(". 1:1001(1000) ack 1");
    t.ignore();
    t.recv(1_000);
    t.ignore();
    t.recv_nothing();
}

#[test]
pub(super) fn old_acks_are_not_answered() {
    let mut t = Script::established();
    t.send(20);
    t.expect("P. 1:21(20) ack 1");
    t.inject(". 1:1(0) ack 21");
    for _ in 0..10 {
        t.inject(". 1:1(0) ack 1");
    }
    t.silent(secs(5));
}

#[test]
pub(super) fn two_confused_peers_do_not_answer_each_other_for_ever() {
    // Linux's tcp_invalid_ratelimit: an empty segment out of window is answered twice a second.
    let mut t = Script::established();
    let mut answers = 0;
    for _ in 0..100 {
        t.inject(". -5:-5(0) ack 1");
        answers += t.ignore();
        t.advance(ms(10));
    }
    assert!((1..=3).contains(&answers), "{answers} answers in a second");
}

#[test]
pub(super) fn a_fin_that_comes_again_is_answered_each_time() {
    // A FIN takes a sequence number, so its answer is not answered in turn (tcp_oow_rate_limited); our
    // acknowledgments were lost.
    let mut t = Script::established();
    t.inject("F. 1:2(0) ack 1");
    t.expect_after(0..=40, ". 1:1(0) ack 2");
    for _ in 0..5 {
        t.advance(ms(100));
        t.inject("F. 1:2(0) ack 1");
        t.expect(". 1:1(0) ack 2");
    }
}

#[test]
pub(super) fn a_peer_without_sack_gets_all_duplicate_acks_despite_a_full_ring() {
    let mut t = Setup::new().peer("<mss 1000>").established();
    t.set_ring_full(true);
    for from in [1_001, 2_001, 3_001] {
        t.inject(&format!(". {from}:{}(1000) ack 1", from + 1_000));
    }
    t.set_ring_room(1);
    t.advance(ms(5));
    t.set_ring_full(false);
    for _ in 0..3 {
        t.expect(". 1:1(0) ack 1");
    }
    t.expect_nothing();
}

//= RFC 9293 3.10.7.4 test
//# if the TCP endpoint is processing a series of queued segments, it MUST process them all before sending any [...]
//= RFC 5681 3.2 test
//# A TCP receiver SHOULD send an immediate duplicate ACK when an out-of-order segment arrives.
#[test]
pub(super) fn a_peer_without_sack_gets_one_duplicate_ack_for_each_segment_of_a_batch() {
    // Fast retransmit needs three. With SACK, one ACK reports everything.
    for (peer, duplicates) in [("<mss 1000>", 3), ("<mss 1000,sackOK>", 1)] {
        let mut t = Setup::new().peer(peer).established();
        t.set_ring_full(true);
        for from in [1_001, 2_001, 3_001] {
            t.inject(&format!(". {from}:{}(1000) ack 1", from + 1_000));
        }
        t.set_ring_full(false);
        t.advance(ms(5)); // a host tries again by itself
        for _ in 0..duplicates {
            t.expect(". 1:1(0) ack 1");
        }
        t.expect_nothing();
        t.inject(". 1:1001(1000) ack 1");
        t.expect(". 1:1(0) ack 4001");
        t.recv(4_000);
        t.silent(secs(1));
    }
}

//= RFC 9293 3.10.7.4 test
//# If the FIN bit is set, signal the user "connection closing" and return any pending RECEIVEs with same [...]
#[test]
pub(super) fn a_fin_on_a_silent_connection_is_acknowledged_at_once() {
    let mut t = Script::established();
    t.inject("F. 1:2(0) ack 1");
    t.expect(". 1:1(0) ack 2");
    // The ACK of a FIN that ends a stream waits for ours.
    let mut t = Script::established();
    t.inject("P. 1:11(10) ack 1");
    t.expect(". 1:1(0) ack 11");
    t.recv(10);
    t.inject("F. 11:12(0) ack 1");
    t.silent(ms(30));
    t.ignore();
}

#[test]
pub(super) fn old_data_that_comes_with_a_fin_is_not_reported_as_duplicate() {
    let mut t = Script::established();
    t.inject("P. 1:11(10) ack 1");
    t.expect(". 1:1(0) ack 11");
    t.inject("F. 1:12(10) ack 1");
    t.expect(". 1:1(0) ack 12 <no sack>");
}
