//! How long to wait for a silent peer: keep-alive, retransmissions without an answer, `TCP_USER_TIMEOUT`, and orphans
//! after close.

use super::super::connection::State::*;
use super::script::{Script, Setup, ms, secs};
use crate::inet::SocketError;
use std::time::Duration;

fn keeping() -> Setup {
    Setup::new().options(|o| {
        o.keepalive = true;
        o.keep_idle = secs(10);
        o.keep_interval = secs(3);
        o.keep_count = 4;
    })
}

//= RFC 9293 3.8.4 test
//# If keep-alives are included, the application MUST be able to turn them on or off for each TCP connection [...]
#[test]
pub(super) fn an_idle_connection_is_not_touched() {
    let mut t = Script::established();
    t.silent(secs(100_000));
    t.check_state(Established);
}

//= RFC 9293 3.8.4 test
//# An implementation SHOULD send a keep-alive segment with no data (SHLD-12)
//= RFC 9293 3.8.4 test
//# Keep-alive packets MUST only be sent when no sent data is outstanding, and no data or acknowledgment packets [...]
#[test]
pub(super) fn keep_alive_probes_an_idle_peer_until_it_answers() {
    let mut t = keeping().established();
    for _ in 0..3 {
        t.expect_after(10_000..=10_000, ". 0:0(0) ack 1");
        t.inject(". 1:1(0) ack 1");
    }
    t.check_state(Established);
}

//= RFC 9293 3.8.4 test
//# Consequently, if a keep-alive mechanism is implemented it MUST NOT interpret failure to respond to any [...]
#[test]
pub(super) fn keep_alive_gives_up_and_resets() {
    let mut t = keeping().established();
    t.expect_after(10_000..=10_000, ". 0:0(0) ack 1");
    for _ in 0..3 {
        t.expect_after(3_000..=3_000, ". 0:0(0) ack 1");
    }
    t.expect_after(3_000..=3_000, "R. 1:1(0) ack 1");
    t.check_state(Closed);
    assert_eq!(t.error(), Some(libc::ETIMEDOUT));
}

//= RFC 9293 3.8.4 test
//# Keep-alive packets MUST only be sent when no sent data is outstanding, and no data or acknowledgment packets [...]
#[test]
pub(super) fn data_from_the_peer_postpones_keep_alive() {
    let mut t = keeping().established();
    t.advance(secs(8));
    t.inject("P. 1:11(10) ack 1");
    t.advance(ms(50));
    t.ignore();
    t.silent(secs(9));
    t.expect_after(500..=1_100, ". 0:0(0) ack 11");
    t.inject(". 11:11(0) ack 1");
}

//= RFC 9293 3.8.4 test
//# Keep-alive packets MUST only be sent when no sent data is outstanding, and no data or acknowledgment packets [...]
#[test]
pub(super) fn keep_alive_does_not_probe_while_data_is_in_flight() {
    // Data in flight already shows whether the peer is alive: after 10 s of silence, and after 20.
    let mut t = keeping().config(|c| c.tcp_early_retrans = false).established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    let mut wait = 200;
    for _ in 0..7 {
        t.expect_after(wait * 9 / 10..=wait * 11 / 10 + 10, "P. 1:11(10) ack 1");
        wait *= 2;
    }
    t.inject(". 1:1(0) ack 11");
    t.check_state(Established);
}

//= RFC 9293 3.8.4 test
//# This interval MUST be configurable (MUST-27) and MUST default to no less than two hours (MUST-28).
#[test]
pub(super) fn keep_alive_begins_after_two_hours_or_as_configured() {
    let on = || Setup::new().options(|o| o.keepalive = true);
    let mut t = on().established();
    t.expect_after(7_200_000..=7_200_000, ". 0:0(0) ack 1");
    t.inject(". 1:1(0) ack 1");
    let mut t = on().config(|c| c.tcp_keepalive_time = secs(60)).established();
    t.expect_after(60_000..=60_000, ". 0:0(0) ack 1");
    t.inject(". 1:1(0) ack 1");
}

//= RFC 9293 3.8.4 test
//# If keep-alives are included, the application MUST be able to turn them on or off for each TCP connection [...]
#[test]
pub(super) fn keep_alive_switched_on_later_works_too() {
    let mut t = Script::established();
    t.silent(secs(100));
    t.configure(|o| {
        o.keepalive = true;
        o.keep_idle = secs(10);
    });
    t.advance(secs(11));
    t.expect(". 0:0(0) ack 1");
    t.inject(". 1:1(0) ack 1");
}

//= RFC 9293 3.8.3 test
//# The following procedure MUST be used to handle excessive retransmissions of data segments (MUST-20):
//= RFC 9293 3.8.3 test
//# The value of R2 SHOULD correspond to at least 100 seconds (SHLD-11).
#[test]
pub(super) fn a_peer_that_does_not_acknowledge_is_given_up_after_fifteen_minutes() {
    // Linux's 924.6 s.
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.advance(secs(900));
    t.check_state(Established);
    t.advance(secs(300));
    assert!((12..=20).contains(&t.ignore()));
    t.check_state(Closed);
    assert_eq!(t.error(), Some(libc::ETIMEDOUT));
}

//= RFC 9293 3.8.6 test
//# but SHOULD NOT time out the connection if data beyond the right window edge is not acknowledged (SHLD-17).
#[test]
pub(super) fn with_an_unlimited_rto_max_a_closed_window_ends_no_connection() {
    // If the peer closes its window meanwhile, the limit is twice `tcp_rto_max`.
    let mut t = Setup::new().config(|c| c.tcp_rto_max = Duration::MAX).established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.inject(". 1:1(0) ack 1 win 0");
    t.advance(secs(2_000));
    assert!(t.ignore() > 5);
    t.check_state(Established);
    t.inject(". 1:1(0) ack 11 win 65535");
    t.silent(secs(5));
}

//= RFC 9293 3.9.2.2 test
//# Since these Unreachable messages indicate soft error conditions, a TCP implementation MUST NOT abort the [...]
#[test]
pub(super) fn an_icmp_error_is_reported_when_the_connection_times_out() {
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.advance(secs(600));
    t.icmp(SocketError::hard(libc::EHOSTUNREACH), 1);
    t.advance(secs(600));
    t.ignore();
    assert_eq!(t.error(), Some(libc::EHOSTUNREACH));
}

//= RFC 9293 3.8.3 test
//# An application MUST (MUST-21) be able to set the value for R2 for a particular connection.
#[test]
pub(super) fn user_timeout_gives_up_in_time() {
    let mut t = Setup::new().options(|o| o.user_timeout = secs(5)).established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.advance(ms(4_900));
    t.ignore();
    t.check_state(Established);
    t.advance(ms(600));
    t.ignore();
    t.check_state(Closed);
    assert_eq!(t.error(), Some(libc::ETIMEDOUT));
}

#[test]
pub(super) fn user_timeout_also_ends_a_connection_that_keeps_writing() {
    // The peer has vanished: no write may restart the time that the timeout counts from.
    let setup = Setup::new().options(|o| (o.user_timeout, o.nodelay) = (secs(5), true));
    let mut t = setup.round_trip(ms(10)).established();
    let mut waited = 0;
    while t.state() == Established {
        assert!(waited < 6_000, "not given up");
        t.send(100);
        t.advance(ms(100));
        t.ignore();
        waited += 100;
    }
    assert!(waited >= 5_000, "given up after {waited} ms");
    assert_eq!(t.error(), Some(libc::ETIMEDOUT));
}

//= RFC 6298 5 test
//# (5.5) The host MUST set RTO <- RTO * 2 ("back off the timer"). The maximum value discussed in (2.5) above [...]
//= RFC 6298 5 test
//# (5.6) Start the retransmission timer, such that it expires after RTO seconds (for the value of RTO after the [...]
#[test]
pub(super) fn retransmission_intervals_double() {
    let config = |c: &mut super::super::Config| c.tcp_early_retrans = false;
    let mut t = Setup::new().config(config).established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    let mut wait = 200;
    for _ in 0..6 {
        t.expect_after(wait * 9 / 10..=wait * 11 / 10 + 10, "P. 1:11(10) ack 1");
        wait *= 2;
    }
    t.inject(". 1:1(0) ack 11");
}

#[test]
pub(super) fn rto_min_may_be_a_millisecond() {
    let setup = Setup::new().config(|c| c.tcp_early_retrans = false);
    let mut t = setup.options(|o| o.rto_min = ms(1)).established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.expect_after(1..=10, "P. 1:11(10) ack 1");
    t.inject(". 1:1(0) ack 11");
}

#[test]
pub(super) fn rto_min_can_be_set_on_a_connection() {
    let mut t = Setup::new().config(|c| c.tcp_early_retrans = false).established();
    t.configure(|o| o.rto_min = ms(1));
    let mut at = 1;
    for _ in 0..60 {
        t.send(10);
        t.ignore();
        t.advance(ms(1));
        at += 10;
        t.inject(&format!(". 1:1(0) ack {at}"));
    }
    assert!(t.info().rto < ms(10), "{:?}", t.info().rto);
    t.configure(|o| o.rto_min = ms(500));
    t.send(10);
    t.ignore();
    t.inject(&format!(". 1:1(0) ack {}", at + 10));
    assert!(t.info().rto >= ms(500), "{:?}", t.info().rto);
}

#[test]
pub(super) fn a_new_keep_idle_counts_the_idle_time_so_far() {
    // `tcp_sock_set_keepidle_locked`.
    let mut t = keeping().options(|o| o.keep_idle = secs(100)).established();
    t.silent(secs(8));
    t.configure(|o| o.keep_idle = secs(10));
    t.expect_after(2_000..=2_000, ". 0:0(0) ack 1");
    t.inject(". 1:1(0) ack 1");
    t.silent(secs(8));
    t.configure(|o| o.keep_idle = secs(3));
    t.expect_after(0..=1, ". 0:0(0) ack 1");
    t.inject(". 1:1(0) ack 1");
}

// -- after close

#[test]
pub(super) fn linger_of_zero_resets() {
    let mut t = Setup::new().options(|o| o.linger = Some(Duration::ZERO)).established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.close();
    t.expect("R. 11:11(0) ack 1");
    t.check_state(Closed);
}

//= RFC 9293 3.6.1 test
//# If such a host issues a CLOSE call while received data is still pending in the TCP connection, or if new [...]
#[test]
pub(super) fn close_with_data_unread_resets() {
    let mut t = Script::established();
    t.inject("P. 1:11(10) ack 1");
    t.ignore();
    t.close();
    t.expect("R. 1:1(0) ack 11");
    t.check_state(Closed);
}

//= RFC 9293 3.6.1 test
//# If such a host issues a CLOSE call while received data is still pending in the TCP connection, or if new [...]
#[test]
pub(super) fn data_that_comes_after_close_is_answered_with_a_reset() {
    let mut t = Script::established();
    t.close();
    t.expect("F. 1:2(0) ack 1");
    t.inject(". 1:1(0) ack 2");
    t.inject("P. 1:11(10) ack 2");
    t.expect("R 2:2(0)");
    t.check_state(Closed);
}

//= RFC 9293 3.10.5 test
//# Send a reset segment: <SEQ=SND.NXT><CTL=RST>
#[test]
pub(super) fn abort_resets_and_reports_it() {
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.abort();
    t.expect("R. 11:11(0) ack 1");
    t.check_state(Closed);
    t.silent(secs(100));
}

#[test]
pub(super) fn a_reset_waits_for_room_in_the_ring() {
    let mut t = Script::established();
    t.set_ring_full(true);
    t.abort();
    t.expect_nothing();
    t.set_ring_full(false);
    t.advance(ms(5)); // a host tries again by itself
    t.expect("R. 1:1(0) ack 1");
    t.check_state(Closed);
}

#[test]
pub(super) fn linger2_of_zero_does_not_wait_in_fin_wait_2() {
    let mut t = Setup::new().options(|o| o.linger2 = Some(Duration::ZERO)).established();
    t.close();
    t.expect("F. 1:2(0) ack 1");
    t.inject(". 1:1(0) ack 2");
    t.ignore();
    t.check_state(Closed);
}

#[test]
pub(super) fn an_orphan_whose_peer_vanished_times_out() {
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.close();
    t.advance(secs(2_000));
    t.ignore();
    t.check_state(Closed);
}

#[test]
pub(super) fn tcp_orphan_retries_limits_the_life_of_an_orphan() {
    for (retries, lives) in [(2, 1), (2, 4), (0, 60), (0, 250)] {
        let mut t = Setup::new().config(|c| c.tcp_orphan_retries = retries).established();
        t.send(10);
        t.expect("P. 1:11(10) ack 1");
        t.close();
        t.advance(secs(lives));
        t.ignore();
        // As long as two retransmissions take, 1.4 s; by default eight, 102 s.
        let over = [4, 250].contains(&lives);
        t.check_state(if over { Closed } else { FinWait1 });
    }
}

#[test]
pub(super) fn an_orphan_whose_timeout_has_reached_its_limit_is_given_up() {
    // tcp_orphan_retries, `alive`: eight retransmissions would last 7.4 s.
    let mut t = Setup::new().config(|c| c.tcp_rto_max = secs(1)).established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.close();
    t.advance(secs(4));
    t.ignore();
    t.check_state(Closed);
}

#[test]
pub(super) fn an_abort_after_both_fins_resets_only_a_peer_that_lacks_data() {
    // tcp_disconnect: the peer's FIN has come, and ours is on its way.
    let mut t = Script::established();
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
    t.inject("F. 1:2(0) ack 1");
    t.shutdown_write();
    t.ignore();
    t.check_state(LastAck);
    t.abort();
    t.expect("R. 12:12(0) ack 2");
    t.check_state(Closed);
}

#[test]
pub(super) fn an_orphan_whose_peer_keeps_its_window_closed_times_out() {
    // CVE-2009-1926, "sockstress": the peer answers every probe and never opens.
    for retries in [0, 2] {
        let setup = Setup::new().config(|c| c.tcp_orphan_retries = retries);
        let mut t = setup.peer("win 1000 <mss 1000,sackOK>").established();
        t.send(5_000);
        t.ignore();
        t.inject(". 1:1(0) ack 1001 win 0");
        t.close();
        for _ in 0..2_000 {
            t.advance(secs(1));
            if t.ignore() > 0 {
                t.inject_quietly(". 1:1(0) ack 1001 win 0");
            }
        }
        t.check_state(Closed);
        t.ignore();
    }
}
