//! Timestamps (RFC 7323): sent, echoed, used for round trips, and to detect old segments (PAWS).

use super::super::connection::State::*;
use super::script::{Script, Setup, ms, secs};

fn stamped() -> Script {
    Setup::new().peer("<mss 1000,sackOK,ts 100 1000>").established()
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

#[test]
pub(super) fn the_echo_is_of_the_segment_that_advanced_the_acknowledgment() {
    // Section 4.3, example A: with delayed ACKs the earlier of two.
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

#[test]
pub(super) fn an_old_segment_is_dropped_and_answered() {
    // PAWS, section 5.3: its number is right, its timestamp is not.
    let mut t = stamped();
    t.inject("P. 1:11(10) ack 1 <ts 99 1000>");
    t.expect(". 1:1(0) ack 1 <ts 1000 100>");
    t.recv_nothing();
    t.inject("P. 1:11(10) ack 1 <ts 100 1000>");
    t.recv(10);
    t.ignore();
}

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

#[test]
pub(super) fn a_reset_is_not_subject_to_paws() {
    // Section 5.2: "an <RST> segment […] MUST NOT be subjected to the PAWS check".
    let mut t = stamped();
    t.inject("R 1:1(0) <ts 1 1000>");
    t.check_state(Closed);
}

#[test]
pub(super) fn after_24_days_the_last_timestamp_is_invalid() {
    // Section 5.5: an idle connection whose peer's clock has gone half round.
    let mut t = stamped();
    t.silent(secs(25 * 86_400));
    t.inject("P. 1:11(10) ack 1 <ts 50 1000>");
    t.ignore();
    t.recv(10);
}

#[test]
pub(super) fn with_timestamps_retransmissions_give_round_trip_samples() {
    // Section 3.2: Karn's algorithm is not needed if the echo shows which transmission was acknowledged.
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
    // RFC 7323 section 3.2 would drop it; middleboxes strip options, and Linux accepts it.
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
