//! One script per transition of RFC 9293 figure 5, and the effect of a reset in each state.

use super::super::connection::State::*;
use super::script::{Script, Setup, ms, secs};

// -- opening

#[test]
pub(super) fn closed_to_syn_sent_by_an_active_open() {
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0) <mss 1000,sackOK,ts 1000 0>");
    t.check_state(SynSent);
}

//= RFC 9293 3.10.7.2 test
//# Set RCV.NXT to SEG.SEQ+1, IRS is set to SEG.SEQ, and any other control or text should be queued for [...]
#[test]
pub(super) fn listen_to_syn_received_by_a_syn() {
    let mut t = Setup::new().listen();
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1 <mss 1000,sackOK,no ts,no ws>");
    assert!(!t.is_listening());
}

//= RFC 9293 3.10.7.3 test
//# If SND.UNA > ISS (our SYN has been ACKed), change the connection state to ESTABLISHED, form an ACK segment [...]
#[test]
pub(super) fn syn_sent_to_established_by_a_syn_ack() {
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0)");
    t.inject("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK>");
    t.expect(". 1:1(0) ack 1");
    t.check_state(Established);
}

//= RFC 9293 3.10.7.3 test
//# Otherwise, enter SYN-RECEIVED, form a SYN,ACK segment <SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK>
#[test]
pub(super) fn syn_sent_to_syn_received_by_a_syn_and_on_to_established() {
    // Simultaneous open.
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0)");
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1 <mss 1000,sackOK>");
    t.check_state(SynReceived);
    t.inject("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK>");
    t.check_state(Established);
    t.ignore(); // acknowledging it once more does no harm
    t.send(10);
    t.expect("P. 1:11(10) ack 1");
}

#[test]
pub(super) fn syn_sent_to_closed_by_close() {
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0)");
    t.close();
    t.check_state(Closed);
    t.silent(secs(10));
}

//= RFC 9293 3.10.7.4 test
//# If SND.UNA < SEG.ACK =< SND.NXT, then enter ESTABLISHED state
#[test]
pub(super) fn syn_received_to_established_by_the_ack_of_our_syn() {
    let mut t = Setup::new().listen();
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1");
    t.inject(". 1:1(0) ack 1");
    t.check_state(Established);
}

//= RFC 9293 3.10.4 test
//# If no SENDs have been issued and there is no pending data to send, then form a FIN segment and send it, and [...]
#[test]
pub(super) fn syn_received_to_fin_wait_1_by_close() {
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0)");
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1");
    t.close();
    t.inject(". 1:1(0) ack 1");
    t.expect("F. 1:2(0) ack 1");
    t.check_state(FinWait1);
}

//= RFC 9293 3.10.7.4 test
//# If this connection was initiated with a passive OPEN (i.e., came from the LISTEN state), then return this [...]
#[test]
pub(super) fn syn_received_to_listen_by_a_reset() {
    let mut t = Setup::new().listen();
    t.inject("S 0:0(0) win 65535 <mss 1000,sackOK>");
    t.expect("S. 0:0(0) ack 1");
    t.inject("R 1:1(0)");
    assert!(t.is_listening());
    t.silent(secs(10));
}

// -- closing

#[test]
pub(super) fn established_to_fin_wait_1_by_close() {
    let mut t = Script::established();
    t.close();
    t.expect("F. 1:2(0) ack 1");
    t.check_state(FinWait1);
}

//= RFC 9293 3.10.7.4 test
//# if the FIN segment is now acknowledged, then enter FIN-WAIT-2
#[test]
pub(super) fn fin_wait_1_to_fin_wait_2_by_the_ack_of_our_fin() {
    let mut t = Script::established();
    t.shutdown_write();
    t.expect("F. 1:2(0) ack 1");
    t.inject(". 1:1(0) ack 2");
    t.check_state(FinWait2);
}

//= RFC 9293 3.6.1 test
//# When a connection is closed actively, it MUST linger in the TIME-WAIT state for a time 2xMSL (Maximum [...]
#[test]
pub(super) fn fin_wait_2_to_time_wait_by_a_fin_and_to_closed_a_minute_later() {
    let mut t = Script::established();
    t.close();
    t.expect("F. 1:2(0) ack 1");
    t.inject(". 1:1(0) ack 2");
    t.inject("F. 1:2(0) ack 2");
    t.expect(". 2:2(0) ack 2");
    t.check_state(TimeWait);
    t.silent(ms(59_900));
    t.check_state(TimeWait);
    // A host ends it together with others.
    t.silent(secs(2));
    t.check_state(Closed);
}

//= RFC 9293 3.10.7.4 test
//# if the ACK acknowledges our FIN, then enter the TIME-WAIT state
#[test]
pub(super) fn fin_wait_1_to_closing_by_a_fin_and_to_time_wait_by_the_ack() {
    let mut t = Script::established();
    t.close();
    t.expect("F. 1:2(0) ack 1");
    t.inject("F. 1:2(0) ack 1");
    t.expect(". 2:2(0) ack 2");
    t.check_state(Closing);
    t.inject(". 2:2(0) ack 2");
    t.check_state(TimeWait);
}

#[test]
pub(super) fn fin_wait_1_to_time_wait_by_a_fin_that_acknowledges_ours() {
    let mut t = Script::established();
    t.close();
    t.expect("F. 1:2(0) ack 1");
    t.inject("F. 1:2(0) ack 2");
    t.expect(". 2:2(0) ack 2");
    t.check_state(TimeWait);
}

//= RFC 9293 3.10.7.4 test
//# If the FIN bit is set, signal the user "connection closing" and return any pending RECEIVEs with same [...]
#[test]
pub(super) fn established_to_close_wait_by_a_fin() {
    let mut t = Script::established();
    t.inject("F. 1:2(0) ack 1");
    t.expect_after(0..=40, ". 1:1(0) ack 2");
    t.check_state(CloseWait);
    t.recv_end();
}

//= RFC 9293 3.10.7.4 test
//# If our FIN is now acknowledged, delete the TCB, enter the CLOSED state, and return.
#[test]
pub(super) fn close_wait_to_last_ack_by_close_and_to_closed_by_the_ack() {
    let mut t = Script::established();
    t.inject("F. 1:2(0) ack 1");
    t.expect_after(0..=40, ". 1:1(0) ack 2");
    t.close();
    t.expect("F. 1:2(0) ack 2");
    t.check_state(LastAck);
    t.inject(". 2:2(0) ack 2");
    t.check_state(Closed);
    t.silent(secs(100));
}

//= RFC 9293 3.10.7.4 test
//# The only thing that can arrive in this state is a retransmission of the remote FIN. Acknowledge it, and [...]
#[test]
pub(super) fn time_wait_answers_a_repeated_fin_and_restarts() {
    let mut t = Script::established();
    t.close();
    t.expect("F. 1:2(0) ack 1");
    t.inject("F. 1:2(0) ack 2");
    t.expect(". 2:2(0) ack 2");
    t.silent(secs(50));
    t.inject("F. 1:2(0) ack 2");
    t.expect(". 2:2(0) ack 2");
    t.silent(secs(50));
    t.check_state(TimeWait);
    t.silent(secs(12));
    t.check_state(Closed);
}

// -- data on the way through the states

#[test]
pub(super) fn after_our_fin_data_is_still_received() {
    let mut t = Script::established();
    t.shutdown_write();
    t.expect("F. 1:2(0) ack 1");
    t.inject(". 1:1(0) ack 2");
    t.inject("P. 1:501(500) ack 2");
    t.expect_after(0..=40, ". 2:2(0) ack 501");
    t.recv(500);
    t.inject("F. 501:502(0) ack 2");
    t.expect(". 2:2(0) ack 502");
    t.recv_end();
    t.check_state(TimeWait);
}

#[test]
pub(super) fn after_the_peers_fin_we_still_send() {
    let mut t = Script::established();
    t.inject("F. 1:2(0) ack 1");
    t.expect_after(0..=40, ". 1:1(0) ack 2");
    t.send(500);
    t.expect("P. 1:501(500) ack 2");
    t.inject(". 2:2(0) ack 501");
    t.close();
    t.expect("F. 501:502(0) ack 2");
}

//= RFC 9293 3.10.4 test
//# Queue this until all preceding SENDs have been segmentized, then form a FIN segment and send it.
#[test]
pub(super) fn close_sends_what_is_queued_before_its_fin() {
    let mut t = Setup::new().peer("win 1000 <mss 1000,sackOK>").established();
    t.inject(". 1:1(0) ack 1 win 1000");
    t.send(2500);
    t.ignore();
    t.close();
    t.check_state(FinWait1);
    t.inject(". 1:1(0) ack 1001 win 65535");
    t.expect_data(1001, 2501);
    t.inject(". 1:1(0) ack 2502");
    t.check_state(FinWait2);
}

#[test]
pub(super) fn a_fin_goes_with_the_last_data() {
    let mut t = Script::established();
    t.send_more(10);
    t.expect_nothing();
    t.shutdown_write();
    t.expect("PF. 1:12(10) ack 1");
}

//= RFC 9293 3.9.1.2 test
//# (1) MUST NOT buffer data indefinitely (MUST-60), and (2) MUST set the PSH bit in the last buffered segment [...]
#[test]
pub(super) fn the_last_of_many_full_segments_has_psh_and_the_fin() {
    let mut t = Script::established();
    t.send(5_000);
    t.expect_data(1, 4_001);
    t.expect("P. 4001:5001(1000) ack 1");
    t.send(10_000);
    t.expect_data(5_001, 10_001);
    t.close();
    t.inject(". 1:1(0) ack 10001");
    t.expect_data(10_001, 14_001);
    t.expect("FP. 14001:15002(1000) ack 1");
    t.inject(". 1:1(0) ack 15002");
    t.check_state(FinWait2);
}

#[test]
pub(super) fn a_fin_with_data_is_received_with_it() {
    let mut t = Script::established();
    t.inject("PF. 1:502(500) ack 1");
    t.expect_after(0..=40, ". 1:1(0) ack 502");
    t.check_state(CloseWait);
    t.recv(500);
    t.recv_end();
}

#[test]
pub(super) fn a_lost_fin_is_retransmitted() {
    let mut t = Script::established();
    t.close();
    t.expect("F. 1:2(0) ack 1");
    t.expect_after(1..=1_100, "F. 1:2(0) ack 1");
    t.inject(". 1:1(0) ack 2");
    t.check_state(FinWait2);
}

// -- resets

/// The effect of a reset with the exact number in the state that `reach` leads to.
fn reset_ends(reach: impl FnOnce(&mut Script), seq: i64, error: Option<i32>) {
    let mut t = Script::established();
    reach(&mut t);
    t.ignore();
    t.inject(&format!("R {seq}:{seq}(0)"));
    t.check_state(Closed);
    assert_eq!(t.error(), error);
    t.silent(secs(100));
}

//= RFC 9293 3.10.7.4 test
//# If the RST bit is set, then any outstanding RECEIVEs and SEND should receive "reset" responses.
//= RFC 5961 3.2 test
//# 2) If the RST bit is set and the sequence number exactly matches the next expected sequence number [...]
//= RFC 9293 3.6 test
//# then the local application MUST be informed whether it closed normally or was aborted (MUST-12).
#[test]
pub(super) fn a_reset_ends_every_state() {
    let reset = Some(libc::ECONNRESET);
    reset_ends(|_| (), 1, reset);
    reset_ends(|t| t.shutdown_write(), 1, reset);
    let fin_wait_2 = |t: &mut Script| {
        t.shutdown_write();
        t.ignore();
        t.inject(". 1:1(0) ack 2");
    };
    reset_ends(fin_wait_2, 1, reset);
    // The peer had sent everything: writing fails.
    reset_ends(|t| t.inject("F. 1:2(0) ack 1"), 2, Some(libc::EPIPE));
    let last_ack = |t: &mut Script| {
        t.inject("F. 1:2(0) ack 1");
        t.shutdown_write();
    };
    reset_ends(last_ack, 2, reset);
    let closing = |t: &mut Script| {
        t.shutdown_write();
        t.ignore();
        t.inject("F. 1:2(0) ack 1");
    };
    reset_ends(closing, 2, reset);
    let time_wait = |t: &mut Script| {
        t.shutdown_write();
        t.ignore();
        t.inject("F. 1:2(0) ack 2");
    };
    reset_ends(time_wait, 2, None);
}

//= RFC 9293 3.10.7.3 test
//# If the ACK was acceptable, then signal to the user "error: connection reset", drop the segment, enter CLOSED [...]
#[test]
pub(super) fn a_refused_connect_reports_econnrefused() {
    let mut t = Setup::new().connect();
    t.expect("S 0:0(0)");
    t.inject("R. 0:0(0) ack 1");
    t.check_state(Closed);
    assert_eq!(t.error(), Some(libc::ECONNREFUSED));
}
