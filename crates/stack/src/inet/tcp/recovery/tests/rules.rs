//! Rules about the timer, the window and the end of recovery.

use super::*;

//= RFC 6298 5 test
//# (5.1) Every time a packet containing data is sent (including a retransmission), if the timer is not running, [...]
//= RFC 6298 5 test
//# (5.2) When all outstanding data has been acknowledged, turn off the retransmission timer.
#[test]
fn the_timer_runs_while_data_is_outstanding() {
    let mut flow = Flow::with(|settings, _| settings.probes = false);
    assert_eq!(flow.recovery.deadline(), None);
    flow.send(1);
    let expires = flow.at() + flow.recovery.rto();
    assert_eq!(flow.recovery.deadline(), Some(expires));
    flow.wait(5).send(1);
    assert_eq!(flow.recovery.deadline(), Some(expires), "it runs already");
    flow.wait(RTT).ack(1, &[]);
    assert!(flow.recovery.deadline().is_some());
    flow.wait(1).ack(2, &[]);
    assert_eq!(flow.recovery.deadline(), None);
    // Also after a retransmission.
    flow.send(1);
    assert_eq!(flow.fire(), Fired::TimedOut { times: 1 });
    assert_eq!(flow.repair(), [3]);
    assert_eq!(flow.recovery.deadline(), Some(flow.at() + flow.recovery.rto()));
}

//= RFC 5681 3.1 test
//# The initial value of ssthresh SHOULD be set arbitrarily high (e.g., to the size of the largest possible [...]
//= RFC 5681 3.1 test
//# ssthresh = max (FlightSize / 2, 2*SMSS) (4)
#[test]
fn the_slow_start_threshold_begins_high_and_is_half_the_flight_after_a_loss() {
    let mut flow = Flow::with(|settings, _| settings.algorithm = Algorithm::NewReno);
    // More than the greatest window, with the greatest scale.
    assert!(flow.recovery.congestion.ssthresh >= 65_535 << 14);
    assert_eq!(flow.fill(), 10);
    flow.wait(RTT).ack(0, &[(2, 10)]);
    assert_eq!(flow.recovery.congestion.ssthresh, 5 * MSS);
}

//= RFC 5681 3.1 test
//# The RECOMMENDED way to increase cwnd during congestion avoidance is to count the number of bytes that have been [...]
//= RFC 5681 3.1 test
//# Note that during congestion avoidance, cwnd MUST NOT be increased by more than SMSS bytes per RTT.
#[test]
fn congestion_avoidance_grows_by_a_segment_for_each_window_of_bytes() {
    let mut flow = Flow::reno(20);
    // However many acknowledgments there are for a window.
    for (window, step) in [(20, 1), (21, 3), (22, 22)] {
        flow.wait(RTT);
        let (from, mut acked) = (flow.sent - window, 0);
        while acked < window {
            assert_eq!(flow.cwnd(), window);
            acked += step;
            flow.ack(from + acked.min(window), &[]);
        }
        assert_eq!(flow.cwnd(), window + 1);
        flow.fill();
    }
}

//= RFC 6675 5 test
//# (A) An incoming cumulative ACK for a sequence number greater than RecoveryPoint signals the end of loss [...]
//= RFC 5681 4.3 test
//# Finally, after all loss in the given window of segments has been successfully retransmitted, cwnd MUST be set [...]
#[test]
fn an_ack_of_all_that_was_in_flight_at_the_loss_ends_recovery() {
    let mut flow = Flow::reno(20);
    flow.wait(RTT).ack(0, &[(2, 20)]);
    assert_eq!(flow.phase(), Phase::Recovery);
    assert_eq!(flow.repair(), [1]);
    flow.fill();
    flow.wait(RTT).ack(20, &[]);
    assert_eq!(flow.phase(), Phase::Open);
    let congestion = &flow.recovery.congestion;
    assert!(congestion.cwnd <= congestion.ssthresh && !congestion.slow_start());
}

//= RFC 8985 7.2 test
//# Second, when there is no SRTT estimate available, the PTO SHOULD be 1 second.
//= RFC 8985 7.2 test
//# Finally, if the time at which an RTO would fire (here denoted as "TCP_RTO_expiration()") is sooner than the [...]
#[test]
fn a_probe_is_sent_after_a_second_without_a_round_trip_and_never_after_the_timeout() {
    let mut flow = Flow::with(|_, agreed| agreed.rtt = None);
    flow.send(2);
    assert_eq!(flow.recovery.deadline(), Some(flow.at() + Duration::from_secs(1)));
    let mut late = Flow::with(|settings, agreed| {
        settings.min_rto = Duration::from_millis(1);
        agreed.rtt = Some(Duration::from_millis(100));
    });
    late.send(1);
    let latest = late.at() + late.recovery.rto();
    assert!(late.recovery.deadline().is_some_and(|at| at <= latest));
}

//= RFC 6298 3 test
//# A TCP implementation MUST take at least one RTT measurement per RTT (unless that is not possible per [...]
#[test]
fn each_round_trip_is_measured() {
    let mut flow = Flow::new();
    for rtt in [RTT, 30, 50, 10] {
        flow.fill();
        assert_eq!(flow.wait(rtt).ack_all().rtt, Some(Duration::from_millis(rtt)));
    }
}

//= RFC 5681 3.1 test
//# When a TCP sender detects segment loss using the retransmission timer and the given segment has not yet [...]
#[test]
fn a_timeout_halves_the_threshold_once_for_each_segment() {
    let mut flow = Flow::reno(20);
    for _ in 0..3 {
        while !matches!(flow.fire(), Fired::TimedOut { .. }) {}
        flow.repair();
        assert_eq!(flow.recovery.congestion.ssthresh, 10 * MSS);
    }
}

//= RFC 6675 5.1 test
//# Further, a SACK TCP sender SHOULD utilize all SACK information made available during the loss recovery [...]
#[test]
fn what_was_sacked_before_a_timeout_is_not_sent_again() {
    let mut flow = Flow::with(|settings, _| (settings.probes, settings.frto) = (false, false));
    flow.fill();
    flow.wait(1).ack(0, &[(2, 3)]);
    while !matches!(flow.fire(), Fired::TimedOut { .. }) {}
    let mut sent = flow.repair();
    flow.wait(RTT).ack(3, &[]);
    sent.extend(flow.repair());
    assert!(sent.starts_with(&[1, 4]), "{sent:?}");
}

//= RFC 6675 5.1 test
//# If an RTO occurs during loss recovery as specified in this document, RecoveryPoint MUST be set to [...]
#[test]
fn a_timeout_ends_recovery_and_moves_the_recovery_point() {
    let mut flow = Flow::with(|settings, _| settings.probes = false);
    flow.fill();
    flow.wait(RTT).ack(0, &[(2, 10)]);
    assert_eq!((flow.phase(), flow.repair()), (Phase::Recovery, vec![1]));
    flow.send(2);
    flow.fire();
    assert_eq!((flow.phase(), flow.recovery.high_seq), (Phase::Loss, seq(12)));
}

//= RFC 8985 6.2 test
//# The sender SHOULD track a windowed min-filtered estimate of recent RTT measurements that can adapt when [...]
#[test]
fn the_shortest_round_trip_is_forgotten_after_minutes() {
    let mut flow = Flow::new();
    let mut shortest = Vec::new();
    for rtt in [RTT, 100, 100, 100, 100] {
        flow.fill();
        flow.wait(rtt).ack_all();
        shortest.push(flow.recovery.figures().min_rtt.as_millis());
        flow.wait(100_000);
    }
    assert_eq!(shortest[..2], [20, 20]);
    assert_eq!(shortest[4], 100);
}

//= RFC 8985 7.2 test
//# Third, when the FlightSize is one segment, the sender MAY inflate the PTO by TLP.max_ack_delay to [...]
#[test]
fn the_probe_of_a_single_segment_waits_for_a_delayed_ack() {
    let wait = |segments| {
        let mut flow = Flow::with(|settings, _| settings.min_rto = Duration::from_secs(1));
        flow.send(segments);
        flow.recovery.deadline().unwrap() - flow.at()
    };
    assert!(wait(2) < Duration::from_millis(3 * RTT));
    assert!(wait(1) >= wait(2) + Duration::from_millis(40), "{:?} {:?}", wait(1), wait(2));
}

//= RFC 6675 4 test
//# This routine traverses the sequence space from HighACK to HighData and MUST set the "pipe" variable to an [...]
#[test]
fn what_is_in_flight_is_neither_sacked_nor_lost() {
    let mut flow = Flow::reno(20);
    assert_eq!(flow.recovery.in_flight(), 20 * MSS);
    flow.wait(RTT).ack(2, &[]);
    assert_eq!(flow.recovery.in_flight(), 18 * MSS);
    // Segments 3 to 9 are lost, 10 to 19 have arrived, and 20 is under way.
    flow.wait(1).ack(2, &[(10, 19)]);
    assert_eq!(flow.recovery.in_flight(), MSS);
    let repaired = flow.repair().len() as u32;
    assert!(repaired > 0);
    assert_eq!(flow.recovery.in_flight(), (1 + repaired) * MSS, "a retransmission counts");
}

//= RFC 6675 5 test
//# (C) If cwnd - pipe >= 1 SMSS, the sender SHOULD transmit one or more segments as follows:
//= RFC 6675 5 test
//# (C.1) The scoreboard MUST be queried via NextSeg () for the sequence number range of the next segment to [...]
//= RFC 8985 9.3 test
//# A segment marked as lost by RACK-TLP MUST NOT be retransmitted until congestion control deems this [...]
#[test]
fn lost_segments_are_sent_in_order_and_as_the_window_allows() {
    let mut flow = Flow::reno(20);
    flow.wait(RTT).ack(0, &[(11, 20)]);
    assert_eq!(flow.phase(), Phase::Recovery);
    let mut repaired = Vec::new();
    for n in 1..=10 {
        repaired.extend(flow.repair());
        let lost = flow.recovery.board.segments(SegmentState::Lost);
        let room = flow.recovery.congestion.cwnd.saturating_sub(flow.recovery.in_flight());
        assert!(lost == 0 || room < MSS, "{lost} lost, room for {room} bytes");
        assert!(flow.recovery.in_flight() <= flow.recovery.congestion.cwnd.max(MSS));
        flow.wait(1).ack(n.min(repaired.len() as u32), &[(11, 20)]);
    }
    assert_eq!(repaired, (1..=10).collect::<Vec<_>>());
}

//= RFC 8985 4 test
//# The connection MUST use selective acknowledgment (SACK) options [RFC2018], and the sender MUST keep SACK [...]
#[test]
fn without_sack_there_is_no_probe_and_each_connection_has_its_own_scoreboard() {
    let mut without = Flow::with(|_, agreed| agreed.sack = false);
    without.send(2);
    let timeout = without.at() + without.recovery.rto();
    assert_eq!(without.recovery.deadline(), Some(timeout), "the retransmission timer alone");
    let (mut one, mut other) = (Flow::new(), Flow::new());
    one.fill();
    other.fill();
    one.wait(RTT).ack(0, &[(2, 10)]);
    assert_eq!((one.repair(), other.repair()), (vec![1], vec![]));
}

//= RFC 8985 4 test
//# For each data segment sent, the sender MUST store its most recent transmission time with a timestamp whose [...]
#[test]
fn the_time_of_the_last_transmission_is_kept_in_nanoseconds() {
    let mut flow = Flow::new();
    flow.fill();
    flow.wait(RTT).ack(0, &[(2, 10)]);
    let range = flow.recovery.next_retransmission().unwrap();
    let at = flow.at() + Duration::from_nanos(1);
    flow.recovery.resent(range, at);
    let times: Vec<Instant> = flow.recovery.board.iter().map(|sent| sent.at).collect();
    assert_eq!(times[0], at);
    assert!(times[1..].iter().all(|sent| *sent == Instant::from_millis(1_000)));
}

//= RFC 8985 7.1 test
//# Reset TLP.is_retrans and TLP.end_seq when initiating a connection, fast recovery, or RTO recovery.
#[test]
fn a_recovery_forgets_the_probe() {
    let probed = || {
        let mut flow = Flow::new();
        assert!(flow.recovery.tlp.is_idle());
        flow.fill();
        let Fired::Probe(last) = flow.fire() else { panic!("no probe") };
        let at = flow.at();
        flow.recovery.resent(last, at);
        assert!(flow.recovery.tlp.is_retransmission());
        flow
    };
    let mut fast = probed();
    fast.wait(RTT).ack(0, &[(2, 9)]);
    assert_eq!(fast.phase(), Phase::Recovery);
    assert!(fast.recovery.tlp.is_idle() && !fast.recovery.tlp.is_retransmission());
    let mut timeout = probed();
    while !matches!(timeout.fire(), Fired::TimedOut { .. }) {}
    assert!(timeout.recovery.tlp.is_idle() && !timeout.recovery.tlp.is_retransmission());
}
