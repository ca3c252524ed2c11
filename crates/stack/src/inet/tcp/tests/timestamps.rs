//! Timestamps (RFC 7323): sent, echoed, used for round trips, and to detect old segments (PAWS).

use super::super::connection::State::*;
use super::script::{Script, Setup, ms, secs};

fn stamped() -> Script {
    Setup::new().peer("<mss 1000,sackOK,ts 100 1000>").established()
}

//= RFC 7323 3.2 test
//# the TSopt MUST be sent in every non-<RST> segment for the duration of the connection, and SHOULD be sent in [...]
//= RFC 7323 3.2 test
//# When the ACK bit is set in an outgoing segment, the sender MUST echo a recently received TSval sent by the [...]
//= RFC 7323 4.3 test
//# If: SEG.TSval >= TS.Recent and SEG.SEQ <= Last.ACK.sent then SEG.TSval is copied to TS.Recent; otherwise, [...]
#[test]
pub(super) fn the_timestamp_of_a_segment_behind_a_hole_is_not_echoed() {
    let mut t = Setup::new().peer("<mss 1000,sackOK,ts 1 1000>").established();
    t.inject(". 989:1977(988) ack 1 <ts 50 1000>");
    t.expect(". 1:1(0) ack 1 <ts 1000 1>");
    t.inject(". 1:989(988) ack 1 <ts 60 1000>");
    t.expect(". 1:1(0) ack 1977 <ts 1000 60>");
}

//= RFC 7323 4.1 test
//# A TSecr value received in a segment MAY be used to update the averaged RTT measurement only if the segment [...]
#[test]
pub(super) fn an_echo_that_acknowledges_nothing_new_is_no_sample() {
    let mut t = Setup::new().round_trip(ms(20)).peer("<mss 1000,sackOK,ts 1 1000>").established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    let before = t.info().rtt;
    t.advance(ms(150));
    t.inject_quietly("P. 1:11(10) ack 1 <ts 2 1020>");
    t.ignore();
    assert_eq!(t.info().rtt, before);
    t.inject_quietly(". 11:11(0) ack 11 <ts 3 1020>");
    t.ignore();
    assert!(t.info().rtt > before);
}

//= RFC 9293 3.1 test
//# A TCP implementation MUST be able to receive a TCP Option in any segment (MUST-5).
#[test]
pub(super) fn a_receiver_measures_the_round_trip_by_the_echoed_timestamps() {
    // tcp_rcv_rtt_measure_ts: only full segments count, and each echo once.
    let mut t = Setup::new().peer("<mss 1000,sackOK,ts 1 1000>").established();
    t.advance(ms(30));
    t.inject(". 1:989(988) ack 1 <ts 2 1000>");
    assert_eq!(t.info().rcv_rtt, ms(30));
    t.ignore();
}

//= RFC 7323 5.4 test
//# It MUST tick at least once for each 2^31 bytes sent.
#[test]
pub(super) fn our_clock_ticks_each_millisecond() {
    // Faster than that no link sends 2^31 bytes: 17 terabits a second.
    let mut t = stamped();
    for n in 0..5 {
        t.advance(ms(1));
        t.send(10);
        let (from, to, stamp) = (1 + 10 * n, 11 + 10 * n, 1001 + n);
        t.expect(&format!("P. {from}:{to}(10) ack 1 <ts {stamp} {}>", 100 + n));
        t.inject_quietly(&format!(". 1:1(0) ack {to} <ts {} {stamp}>", 101 + n));
        t.ignore();
    }
}

#[test]
pub(super) fn every_segment_has_our_timestamp_and_echoes_the_peers() {
    let mut t = stamped();
    t.advance(ms(7));
    t.send(10);
    t.expect("P. 1:11(10) ack 1 <ts 1007 100>");
    t.inject("P. 1:11(10) ack 11 <ts 120 1007>");
    t.advance(ms(50));
    t.ignore();
    t.close();
    // It was not read, so the peer gets a reset: with a timestamp, or PAWS would drop it.
    t.check_state(Closed);
    t.expect("R. 11:11(0) ack 11 <ts 1057 120>");
}

//= RFC 7323 4.3 test
//# Thus, when delayed ACKs are in use, the receiver SHOULD reply with the TSval field from the earliest [...]
#[test]
pub(super) fn the_echo_is_of_the_segment_that_advanced_the_acknowledgment() {
    // Example A: with delayed ACKs the earlier of two.
    let mut t = stamped();
    for i in 0..20 {
        t.inject_quietly(&format!(
            "P. {}:{}(10) ack {} <ts 100 1000>",
            1 + i * 10,
            11 + i * 10,
            1 + i * 10
        ));
        t.recv(10);
        t.send(10);
    }
    t.inject_quietly(". 201:201(0) ack 201 <ts 100 1000>");
    t.advance(secs(1));
    t.inject(". 201:1189(988) ack 201 <ts 200 1000>");
    t.inject_quietly(". 1189:2177(988) ack 201 <ts 205 1000>");
    t.advance(ms(50));
    t.expect(". 201:201(0) ack 2177 <ts 2000 200>");
    t.ignore();
}

//= RFC 7323 4.3 test
//# An <ACK> for an out-of-order segment SHOULD, therefore, contain the timestamp from the most recent segment [...]
//= RFC 7323 4.3 test
//# Thus, the timestamp from the latest segment (which filled the hole) MUST be echoed.
#[test]
pub(super) fn a_hole_keeps_the_echo_from_before_it() {
    // Example B: the echo of an out-of-order segment would make the round trip too short.
    let mut t = stamped();
    t.inject(". 1:101(100) ack 1 <ts 110 1000>");
    t.expect(". 1:1(0) ack 101 <ts 1000 110>");
    t.inject(". 201:301(100) ack 1 <ts 120 1000>");
    t.expect(". 1:1(0) ack 101 <ts 1000 110>");
    t.inject(". 101:201(100) ack 1 <ts 130 1000>");
    t.expect(". 1:1(0) ack 301 <ts 1000 130>");
}

//= RFC 7323 5.3 test
//# R1) If there is a Timestamps option in the arriving segment, SEG.TSval < TS.Recent, TS.Recent is valid (see [...]
//= RFC 7323 5.3 test
//# Also, PAWS processing MUST take precedence over the regular TCP acceptability check
#[test]
pub(super) fn an_old_segment_is_dropped_and_answered() {
    // Its number is right, its timestamp is not.
    let mut t = stamped();
    t.inject("P. 1:11(10) ack 1 <ts 99 1000>");
    t.expect(". 1:1(0) ack 1 <ts 1000 100>");
    t.recv_nothing();
    t.inject("P. 1:11(10) ack 1 <ts 100 1000>");
    t.recv(10);
    t.ignore();
}

//= RFC 7323 5.3 test
//# R1) If there is a Timestamps option in the arriving segment, SEG.TSval < TS.Recent, TS.Recent is valid (see [...]
#[test]
pub(super) fn the_peers_clock_may_wrap() {
    let mut t = Setup::new().peer("<mss 1000,sackOK,ts 4294967290 1000>").established();
    t.inject("P. 1:11(10) ack 1 <ts 5 1000>");
    t.ignore();
    t.recv(10);
    t.inject("P. 11:21(10) ack 1 <ts 4294967295 1000>");
    t.ignore();
    t.recv_nothing();
}

//= RFC 7323 5.2 test
//# When an <RST> segment is received, it MUST NOT be subjected to the PAWS check
#[test]
pub(super) fn a_reset_is_not_subject_to_paws() {
    let mut t = stamped();
    t.inject("R 1:1(0) <ts 1 1000>");
    t.check_state(Closed);
}

//= RFC 7323 5.5 test
//# If TS.Recent is found to be invalid, then the segment is accepted, regardless of the failure of the [...]
#[test]
pub(super) fn after_24_days_the_last_timestamp_is_invalid() {
    // An idle connection whose peer's clock has gone half round.
    let mut t = stamped();
    t.silent(secs(25 * 86_400));
    t.inject("P. 1:11(10) ack 1 <ts 50 1000>");
    t.ignore();
    t.recv(10);
}

//= RFC 7323 4.1 test
//# Values of this clock MUST be at least approximately proportional to real time, in order to measure actual RTT.
#[test]
pub(super) fn with_timestamps_retransmissions_give_round_trip_samples() {
    // Karn's algorithm is not needed if the echo shows which transmission was acknowledged.
    let mut t = stamped();
    t.send(10);
    t.expect("P. 1:11(10) ack 1 <ts 1000 100>");
    t.advance(secs(1));
    assert!(t.ignore() >= 1);
    t.advance(ms(100));
    t.ignore();
    t.inject(". 1:1(0) ack 11 <ts 101 1000>"); // the first one arrived after all
    let rtt = t.info().rtt;
    assert!(rtt >= ms(100), "{rtt:?}: measured against the copy");
}

#[test]
pub(super) fn a_segment_without_timestamps_is_accepted_as_in_linux() {
    // RFC 7323 would drop it; middleboxes strip options, and Linux accepts it.
    let mut t = stamped();
    t.inject("P. 1:11(10) ack 1");
    t.ignore();
    t.recv(10);
}

#[test]
pub(super) fn an_echo_from_the_future_gives_no_round_trip_sample() {
    let mut t = stamped();
    let before = t.info().rtt;
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.advance(ms(5));
    t.inject(". 1:1(0) ack 11 <ts 101 900000>");
    assert!(t.info().rtt <= before.max(ms(5)), "{:?}", t.info().rtt);
    t.check_state(Established);
}
