//! Examples: one rule of an RFC, or of Linux, per test. Segments are numbered from 1; the clock advances only when
//! told to.

use super::super::*;

#[path = "rules.rs"]
mod rules;

const MSS: u32 = 1_000;
const RTT: u64 = 20;
const BASE: Seq = Seq(u32::MAX - 20_000);

struct Flow {
    recovery: Recovery,
    now: u64,
    sent: u32,
    echo: Option<u64>,
    unsent: bool,
}

fn seq(segment: u32) -> Seq {
    BASE + segment * MSS
}

impl Flow {
    fn new() -> Flow {
        Flow::with(|_, _| {})
    }

    fn with(change: impl Fn(&mut Settings, &mut Agreed)) -> Flow {
        let mut settings = Settings::new(&Config::default(), &TcpOptions::default());
        let rtt = Some(Duration::from_millis(RTT));
        let mut agreed = Agreed { sack: true, rtt, ..Agreed::default() };
        change(&mut settings, &mut agreed);
        let now = Instant::from_millis(1_000);
        let recovery = Recovery::new(settings, agreed, MSS, BASE, now);
        Flow { recovery, now: 1_000, sent: 0, echo: None, unsent: true }
    }

    /// In congestion avoidance by Reno, with a window of so many segments, all of them in flight.
    fn reno(window: u32) -> Flow {
        let mut flow = Flow::with(|settings, _| settings.algorithm = Algorithm::NewReno);
        flow.recovery.congestion.cwnd = window * MSS;
        flow.recovery.congestion.ssthresh = window * MSS;
        assert_eq!(flow.fill(), window);
        flow
    }

    fn at(&self) -> Instant {
        Instant::from_millis(self.now)
    }

    fn wait(&mut self, ms: u64) -> &mut Flow {
        self.now += ms;
        self
    }

    fn send(&mut self, segments: u32) {
        for _ in 0..segments {
            self.sent += 1;
            let at = self.at();
            self.recovery.sent(seq(self.sent - 1)..seq(self.sent), at);
        }
    }

    /// Sends new data as long as there is room; returns how many segments.
    fn fill(&mut self) -> u32 {
        let before = self.sent;
        while self.recovery.has_room() {
            self.send(1);
        }
        self.sent - before
    }

    /// Retransmits what it may; returns which segments.
    fn repair(&mut self) -> Vec<u32> {
        let mut which = Vec::new();
        while let Some(range) = self.recovery.next_retransmission() {
            which.push((range.start - BASE) / MSS + 1);
            let at = self.at();
            self.recovery.resent(range, at);
        }
        which
    }

    /// The result of both, as letters: R for each retransmission, N for each new segment.
    fn go(&mut self) -> String {
        let retransmitted = self.repair().len();
        "R".repeat(retransmitted) + &"N".repeat(self.fill() as usize)
    }

    /// An ACK of everything up to and including segment `up_to`, with blocks of segments.
    fn ack(&mut self, up_to: u32, blocks: &[(u32, u32)]) -> Acked {
        self.ack_with(up_to, blocks, false)
    }

    fn ack_all(&mut self) -> Acked {
        self.ack(self.sent, &[])
    }

    fn ack_with(&mut self, up_to: u32, blocks: &[(u32, u32)], ece: bool) -> Acked {
        let mut sacks = Sacks::default();
        for &(first, last) in blocks {
            sacks.push(seq(first - 1)..seq(last));
        }
        let echoed = self.echo.map(Instant::from_millis);
        let (ack, unsent) = (seq(up_to), self.unsent);
        let event = AckEvent { ack, sacks: &sacks, echoed, ece, pure: true, unsent };
        let at = self.at();
        self.recovery.acked(&event, at)
    }

    /// Lets the next timer fire.
    fn fire(&mut self) -> Fired {
        let at = self.recovery.deadline().expect("a timer runs");
        self.now = at.nanos().div_ceil(1_000_000).max(self.now);
        self.recovery.timer(Instant::from_millis(self.now))
    }

    fn cwnd(&self) -> u32 {
        self.recovery.congestion.cwnd / MSS
    }

    fn phase(&self) -> Phase {
        self.recovery.phase
    }
}

// --- the window at the start, and when not used

#[test]
fn the_first_window_is_ten_segments_and_one_after_lost_syns() {
    assert_eq!(Flow::new().fill(), 10);
    assert_eq!(Flow::with(|_, agreed| agreed.retransmissions = 1).fill(), 10);
    assert_eq!(Flow::with(|_, agreed| agreed.retransmissions = 2).fill(), 1);
    let settings = Settings::new(&Config::default(), &TcpOptions::default());
    let of = |mss| Recovery::new(settings, Agreed::default(), mss, BASE, Instant::ZERO).room();
    assert_eq!((of(1_460), of(536), of(8_948), of(4_000)), (14_600, 5_360, 89_480, 40_000));
}

#[test]
fn slow_start_grows_by_what_is_delivered() {
    let mut flow = Flow::new();
    flow.fill();
    flow.wait(RTT).ack(4, &[]);
    assert_eq!((flow.cwnd(), flow.fill()), (14, 8));
}

#[test]
fn an_unused_window_does_not_grow() {
    let mut flow = Flow::new();
    for i in 1..50 {
        flow.send(1);
        flow.wait(RTT).ack(i, &[]);
    }
    assert_eq!(flow.cwnd(), 10);
    // Linux (tcp_is_cwnd_limited): in slow start, use of more than half is enough.
    flow.send(6);
    flow.wait(RTT).ack(55, &[]);
    assert_eq!(flow.cwnd(), 16);
}

#[test]
fn an_idle_window_halves_with_each_timeout_that_goes_by() {
    let mut flow = Flow::new();
    flow.recovery.congestion.cwnd = 100 * MSS;
    flow.send(1);
    flow.wait(RTT).ack(1, &[]);
    let rto = flow.recovery.rto().as_millis() as u64;
    let at = flow.wait(rto + 100).at();
    flow.recovery.idle_restart(at);
    assert_eq!(flow.cwnd(), 50);
    let at = flow.wait(3_600_000).at();
    flow.recovery.idle_restart(at);
    assert_eq!(flow.cwnd(), 10);
}

#[test]
fn a_short_pause_or_a_disabled_setting_keeps_the_window() {
    for (matters, pause) in [(true, 100), (false, 3_600_000)] {
        let mut flow = Flow::with(|settings, _| settings.slow_start_after_idle = matters);
        let congestion = &mut flow.recovery.congestion;
        (congestion.cwnd, congestion.ssthresh) = (100 * MSS, 50 * MSS);
        flow.send(1);
        flow.wait(RTT).ack(1, &[]);
        let at = flow.wait(pause).at();
        flow.recovery.idle_restart(at);
        let Congestion { cwnd, ssthresh, .. } = flow.recovery.congestion;
        assert_eq!((cwnd, ssthresh), (100 * MSS, 50 * MSS), "{pause} ms");
    }
}

//= RFC 9438 5.8 test
//# Per Section 4.2, it is required that _t_ in Figure 1 not include application-limited periods, such as idle [...]
#[test]
fn idle_time_does_not_move_cubics_curve() {
    // With the idle minute counted, the window would jump by half.
    let mut flow = Flow::new();
    flow.recovery.congestion.cwnd = 100 * MSS;
    flow.fill();
    flow.wait(RTT).ack(0, &[(2, 100)]);
    assert_eq!(flow.repair(), [1]);
    flow.wait(RTT).ack_all();
    for _ in 0..5 {
        flow.fill();
        flow.wait(RTT).ack_all();
    }
    let at = flow.wait(60_000).at();
    flow.recovery.idle_restart(at);
    assert_eq!(flow.cwnd(), 10);
    while flow.recovery.congestion.slow_start() {
        flow.fill();
        flow.wait(RTT).ack_all();
    }
    flow.fill();
    flow.wait(RTT).ack_all();
    let before = flow.recovery.congestion.ssthresh / MSS;
    assert!((before..before + 5).contains(&flow.cwnd()), "{} from {before}", flow.cwnd());
}

#[test]
fn a_burst_recorded_at_once_equals_segments_recorded_one_by_one() {
    for before in [0, 1, 2, 5] {
        let (mut one_by_one, mut at_once) = (Flow::new(), Flow::new());
        for flow in [&mut one_by_one, &mut at_once] {
            flow.send(before);
            flow.wait(3);
        }
        one_by_one.send(4);
        at_once.recovery.sent(seq(before)..seq(before + 4), at_once.at());
        let of = |flow: &mut Flow| (flow.recovery.figures(), flow.recovery.deadline());
        assert_eq!(of(&mut at_once), of(&mut one_by_one), "{before}");
        assert_eq!(at_once.recovery.room(), one_by_one.recovery.room());
    }
}

// --- round trips and the timeout

//= RFC 6298 2 test
//# (2.1) Until a round-trip time (RTT) measurement has been made for a segment sent between the sender and [...]
//= RFC 6298 5 test
//# the RTO MUST be re-initialized to 3 seconds when data transmission begins (i.e., after the three-way [...]
//= RFC 6298 2 test
//# (2.2) When the first RTT measurement R is made, the host MUST set SRTT <- R RTTVAR <- R/2 RTO <- SRTT + max [...]
#[test]
fn the_timeout_is_the_round_trip_and_at_least_200_ms() {
    let mut flow = Flow::new();
    assert_eq!(flow.recovery.rto(), Duration::from_millis(220));
    for i in 1..200 {
        flow.send(1);
        flow.wait(RTT).ack(i, &[]);
    }
    assert_eq!(flow.recovery.rto(), Duration::from_millis(220));
    // 1 s if nothing is known; 3 s after a lost SYN.
    let of = |retransmissions| {
        Flow::with(|_, agreed| (agreed.rtt, agreed.retransmissions) = (None, retransmissions))
    };
    assert_eq!(of(0).recovery.rto(), Duration::from_secs(1));
    assert_eq!(of(1).recovery.rto(), Duration::from_secs(3));
    // And no less than the setting.
    let quick = Flow::with(|settings, agreed| {
        settings.min_rto = Duration::from_millis(1);
        agreed.rtt = Some(Duration::from_micros(100));
    });
    assert_eq!(quick.recovery.rto(), Duration::from_micros(1_100));
}

//= RFC 6298 2 test
//# SRTT <- (1 - alpha) * SRTT + alpha * R'
#[test]
fn the_timeout_follows_a_longer_round_trip() {
    let mut flow = Flow::new();
    for i in 1..100 {
        flow.send(1);
        flow.wait(300).ack(i, &[]);
    }
    let rto = flow.recovery.rto().as_millis();
    assert!((495..520).contains(&rto), "{rto}");
}

//= RFC 6298 3 test
//# TCP MUST use Karn's algorithm [KP87] for taking RTT samples. That is, RTT samples MUST NOT be made using [...]
//= RFC 6298 5 test
//# Note that after retransmitting, once a new RTT measurement is obtained (which can only happen when new data [...]
#[test]
fn retransmissions_give_samples_only_with_timestamps() {
    for stamps in [false, true] {
        let mut flow = Flow::with(|_, agreed| {
            agreed.timestamps = Some(Duration::from_millis(1)).filter(|_| stamps);
        });
        flow.send(1);
        assert!(matches!(flow.fire(), Fired::Probe(_)));
        let at = flow.at();
        flow.recovery.resent(seq(0)..seq(1), at);
        assert_eq!(flow.fire(), Fired::TimedOut { times: 1 });
        assert_eq!(flow.repair(), [1]);
        assert_eq!(flow.recovery.figures().backoff, 1);
        flow.echo = Some(flow.now).filter(|_| stamps);
        let acked = flow.wait(30).ack(1, &[]);
        let expected = stamps.then(|| Duration::from_millis(30));
        assert_eq!(acked.rtt, expected);
        // The backoff stays until there is a sample.
        assert_eq!(flow.recovery.figures().backoff, u32::from(!stamps));
    }
}

//= RFC 6298 5 test
//# (5.5) The host MUST set RTO <- RTO * 2 ("back off the timer"). The maximum value discussed in (2.5) above [...]
//= RFC 6298 2 test
//# (2.5) A maximum value MAY be placed on RTO provided it is at least 60 seconds.
#[test]
fn timeouts_double_up_to_the_longest() {
    let mut flow = Flow::with(|settings, _| settings.probes = false);
    flow.send(1);
    let mut waits = Vec::new();
    for times in 1..=12 {
        let before = flow.now;
        assert_eq!(flow.fire(), Fired::TimedOut { times });
        flow.repair();
        waits.push(flow.now - before);
    }
    let expected: Vec<u64> = (0..12).map(|i| (220 << i).min(120_000)).collect();
    assert_eq!(waits, expected);
}

// --- fast retransmit, PRR

/// RFC 6937 section 3, first figure (RFC 9937 keeps it): 20 segments in flight, the first is lost, Reno halves. Each
/// second ACK of the others sends one.
//= RFC 8985 9.3 test
//# The Proportional Rate Reduction (PRR) algorithm [RFC6937] is RECOMMENDED for the specific congestion control [...]
#[test]
fn prr_halves_the_flight_evenly_over_one_round_trip() {
    let mut flow = Flow::reno(20);
    flow.wait(RTT);
    let sent: Vec<String> = (2..=20)
        .map(|i| {
            flow.wait(1).ack(0, &[(2, i)]);
            flow.go()
        })
        .collect();
    let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
    assert_eq!(sent[..3], ["N", "N", "R"]);
    assert_eq!(sent[3..18].concat().len(), 7);
    assert!(sent[3..18].chunks(2).all(|pair| pair.concat().len() <= 1), "{sent:?}");
    // RFC 9937 section 1: "as close as possible to the slow start threshold".
    assert_eq!(flow.recovery.in_flight(), 10 * MSS);
    flow.wait(RTT).ack_all();
    assert_eq!((flow.cwnd(), flow.phase()), (11, Phase::Open));
    assert_eq!(flow.recovery.congestion.ssthresh, 10 * MSS);
}

/// RFC 6937 section 3, second figure: 15 of 20 are lost, so that the flight falls below the new threshold at once;
/// then two are sent per delivered one, while recovery makes good progress.
#[test]
fn prr_after_a_burst_of_losses_grows_back_as_in_slow_start() {
    let mut flow = Flow::reno(20);
    flow.wait(RTT);
    let mut sent = Vec::new();
    for i in 17..=20 {
        flow.wait(1).ack(0, &[(17, i)]);
        sent.push(flow.go());
    }
    // The first two extend the window (limited transmit), the third shows the loss.
    assert_eq!(sent, ["N", "N", "R", "R"]);
    flow.wait(RTT);
    // In good progress each ACK sends two, until the flight is at the threshold.
    flow.ack(1, &[(17, 22)]);
    assert_eq!(flow.go(), "RRRR");
    assert!(flow.recovery.in_flight() <= 10 * MSS);
}

//= RFC 5681 3.2 test
//# On the first and second duplicate ACKs received at a sender, a TCP SHOULD send a segment of previously [...]
//= RFC 5681 3.2 test
//# The TCP sender SHOULD use the "fast retransmit" algorithm to detect and repair loss, based on incoming [...]
//= RFC 5681 3.2 test
//# The lost segment starting at SND.UNA MUST be retransmitted
//= RFC 5681 3.2 test
//# When the third duplicate ACK is received, a TCP MUST set ssthresh to no more than the value given in equation (4).
#[test]
fn duplicates_without_sack_first_let_new_data_go_then_repair() {
    let mut flow = Flow::with(|settings, agreed| {
        (settings.algorithm, agreed.sack) = (Algorithm::NewReno, false);
    });
    flow.fill();
    flow.wait(RTT);
    // One new segment for each of the first two duplicates; the third repairs.
    let sent: Vec<String> = (0..9)
        .map(|_| {
            flow.ack(0, &[]);
            flow.go()
        })
        .collect();
    let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
    assert_eq!(sent[..3], ["N", "N", "R"]);
    assert_eq!(flow.phase(), Phase::Recovery);
    // RFC 6582: a partial ACK repairs the next hole; one above `recover` ends it.
    flow.wait(RTT).ack(4, &[]);
    assert_eq!(flow.repair(), [5]);
    // At `recover` itself (two were sent before the third duplicate) the phase continues, as later duplicates would
    // look like a loss.
    flow.wait(RTT).ack(12, &[]);
    assert_eq!(flow.phase(), Phase::Recovery);
    for _ in 0..3 {
        flow.ack(12, &[]);
    }
    assert_eq!(flow.repair(), [0u32; 0]);
    flow.send(1);
    flow.wait(RTT).ack_all();
    assert_eq!((flow.phase(), flow.cwnd()), (Phase::Open, 5));
}

//= RFC 6298 5 test
//# (5.3) When an ACK is received that acknowledges new data, restart the retransmission timer so that it will [...]
#[test]
fn without_sack_the_ack_that_ends_recovery_restarts_the_timeout() {
    // RFC 6582 section 3.2 step 3 leaves it running for partial ACKs alone.
    let mut flow = Flow::with(|settings, agreed| {
        (settings.algorithm, agreed.sack) = (Algorithm::NewReno, false);
        agreed.rtt = Some(Duration::from_millis(60));
    });
    flow.fill();
    // The first five are lost; the others, and the two of limited transmit, give seven duplicates.
    for wait in [60, 0, 0, 0, 0, 60, 0] {
        flow.wait(wait).ack(0, &[]);
        flow.go();
    }
    assert_eq!((flow.phase(), flow.recovery.high_seq), (Phase::Recovery, seq(12)));
    let mut deadlines = Vec::new();
    for i in 1..=4 {
        flow.wait(30).ack(i, &[]);
        flow.go();
        deadlines.push(flow.recovery.deadline());
    }
    assert!(deadlines.iter().all(|at| *at == deadlines[0]), "{deadlines:?}");
    flow.send(1);
    flow.wait(30).ack(12, &[]);
    let deadline = flow.at() + flow.recovery.rto();
    assert_eq!((flow.recovery.deadline(), flow.phase()), (Some(deadline), Phase::Recovery));
}

// --- RACK and TLP

/// RFC 8985, example 1: of three segments the first and the last are lost.
#[test]
fn a_lost_tail_is_found_by_what_was_sent_after_it() {
    let mut flow = Flow::new();
    flow.send(3);
    flow.wait(RTT).ack(0, &[(2, 2)]);
    // Below three duplicates, the first gets a quarter of the round trip to arrive.
    assert_eq!(flow.repair(), [0u32; 0]);
    assert_eq!(flow.fire(), Fired::Retransmit);
    assert_eq!((flow.repair(), flow.now - 1_000), (vec![1], RTT + RTT / 4));
    flow.wait(RTT).ack(2, &[]);
    // The first was retransmitted after the third was sent: the third is lost too.
    assert_eq!(flow.repair(), [3]);
    flow.wait(RTT).ack(3, &[]);
    assert_eq!(flow.phase(), Phase::Open);
}

/// RFC 8985, example 2: a retransmission is lost.
//= RFC 8985 6.2 test
//# For each segment that has not been SACKed, RACK considers that segment lost if another segment that was sent [...]
#[test]
fn a_lost_retransmission_is_found_by_what_was_sent_after_it() {
    let mut flow = Flow::new();
    flow.send(10);
    flow.wait(RTT).ack(0, &[(2, 10)]);
    assert_eq!(flow.repair(), [1]);
    flow.wait(1).send(2);
    flow.wait(RTT).ack(0, &[(2, 12)]);
    assert_eq!(flow.repair(), [1]);
    assert_eq!(flow.recovery.figures().total_retrans, 2);
    flow.wait(RTT).ack(12, &[]);
    assert_eq!((flow.phase(), flow.recovery.timeouts), (Phase::Open, 0));
}

/// RFC 8985, example 3: the first two arrive after the third, within a quarter of a round trip.
//= RFC 8985 3.3.2 test
//# Otherwise, the reordering window SHOULD start from a small fraction of the round-trip time or zero if no [...]
#[test]
fn a_little_reordering_repairs_nothing() {
    let mut flow = Flow::new();
    flow.send(3);
    flow.wait(RTT).ack(0, &[(3, 3)]);
    flow.wait(2).ack(0, &[(1, 1), (3, 3)]);
    flow.wait(2).ack(3, &[]);
    assert_eq!(flow.recovery.figures().total_retrans, 0);
    assert!(flow.recovery.rack.reorderings > 0);
    // From now on RACK waits even with three duplicates.
    flow.send(8);
    flow.wait(RTT).ack(3, &[(5, 11)]);
    assert_eq!(flow.repair(), [0u32; 0]);
    assert_eq!(flow.fire(), Fired::Retransmit);
    assert_eq!(flow.repair(), [4]);
}

//= RFC 8985 7.3 test
//# If both conditions are met, then the sender SHOULD transmit a previously unsent data segment, if one exists [...]
//= RFC 8985 7.2 test
//# The sender SHOULD start or restart a loss probe PTO timer after transmitting new data (that was not itself a [...]
#[test]
fn a_probe_is_new_data_if_there_is_any_and_needs_no_room() {
    let mut flow = Flow::new();
    flow.fill();
    assert_eq!(flow.fire(), Fired::Probe(seq(9)..seq(10)));
    assert_eq!(flow.now - 1_000, 2 * RTT + 2);
    flow.send(1);
    assert_eq!(flow.recovery.room(), 0);
    // One probe at a time (section 7.3); then the timeout.
    assert_eq!(flow.fire(), Fired::TimedOut { times: 1 });
}

//= RFC 8985 7.3 test
//# After attempting to send a loss probe, regardless of whether a loss probe was sent, the sender MUST re-arm [...]
#[test]
fn a_sender_that_keeps_sending_still_times_out() {
    // Each segment schedules a probe; all but the first would be a second one, and are not sent.
    let mut flow = Flow::new();
    let mut probes = 0;
    for i in 1..=8 {
        flow.send(1);
        let next = 1_000 + i * 100;
        while flow.recovery.deadline().is_some_and(|at| at <= Instant::from_millis(next)) {
            match flow.fire() {
                Fired::Probe(range) => {
                    probes += 1;
                    let at = flow.at();
                    flow.recovery.resent(range, at);
                }
                Fired::TimedOut { times } => {
                    // The probe after 142 ms was the last to restart the timeout.
                    assert_eq!((times, probes, flow.now), (1, 1, 1_000 + 142 + 220));
                    return;
                }
                _ => {}
            }
        }
        flow.now = next;
    }
    panic!("no timeout by {}", flow.now);
}

#[test]
fn data_sent_while_a_probe_is_outstanding_gets_a_probe_after_its_answer() {
    let mut flow = Flow::new();
    flow.send(2);
    let Fired::Probe(range) = flow.fire() else { panic!("no probe") };
    let at = flow.at();
    flow.recovery.resent(range, at);
    flow.ack_all();
    flow.send(3);
    // The DSACK shows that both copies of the probe arrived.
    flow.wait(RTT).ack(2, &[(2, 2)]);
    assert_eq!(flow.fire(), Fired::Probe(seq(4)..seq(5)));
}

//= RFC 8985 7.4.2 test
//# If the TLP sender does not receive such an indication, then it MUST assume that the original data segment, [...]
//= RFC 8985 7.4.2 test
//# The sender then SHOULD invoke a congestion control response equivalent to a fast recovery.
#[test]
fn a_probe_that_repaired_a_loss_reduces_the_window() {
    let mut flow = Flow::reno(10);
    flow.wait(RTT).ack(9, &[]);
    assert!(matches!(flow.fire(), Fired::Probe(_)));
    let at = flow.at();
    flow.recovery.resent(seq(9)..seq(10), at);
    flow.wait(RTT).ack(10, &[]);
    let cwnd = flow.cwnd();
    assert!(
        cwnd >= 10,
        "whether the probe or the original is acknowledged is not known yet: {cwnd}"
    );
    // Neither DSACK nor duplicate came, and the next is acknowledged: the original was lost.
    flow.send(1);
    flow.wait(RTT).ack(11, &[]);
    assert_eq!(flow.cwnd(), 5);
}

//= RFC 8985 7.4.2 test
//# The sender considers the TLP episode to be done and records that fact by setting TLP.end_seq to None.
#[test]
fn a_needless_probe_does_not_reduce_the_window() {
    for dsack in [true, false] {
        let mut flow = Flow::reno(10);
        flow.wait(RTT).ack(9, &[]);
        assert!(matches!(flow.fire(), Fired::Probe(_)));
        let at = flow.at();
        flow.recovery.resent(seq(9)..seq(10), at);
        flow.wait(RTT).ack(10, &[]);
        // Both copies arrived: a DSACK reports it, or a second, bare ACK.
        let duplicate: &[(u32, u32)] = if dsack { &[(10, 10)] } else { &[] };
        flow.ack(10, duplicate);
        flow.send(1);
        flow.wait(RTT).ack(11, &[]);
        assert!(flow.cwnd() >= 10, "dsack {dsack}: {}", flow.cwnd());
    }
}

// --- timeouts, and their undo

//= RFC 8985 6.3 test
//# Upon RTO timer expiration, RACK marks the first outstanding segment as lost (since it was sent an RTO ago); [...]
//= RFC 5681 3.1 test
//# Furthermore, upon a timeout (as specified in [RFC2988]) cwnd MUST be set to no more than the loss window, [...]
#[test]
fn a_timeout_marks_all_older_than_a_round_trip_as_lost_and_starts_with_one_segment() {
    let mut flow = Flow::with(|settings, _| settings.probes = false);
    flow.fill();
    flow.fire();
    assert_eq!((flow.phase(), flow.repair()), (Phase::Loss, vec![1]));
    let figures = flow.recovery.figures();
    assert_eq!((figures.lost, figures.retrans, figures.ssthresh), (10, 1, 7 * MSS));
    // Acknowledged one by one, the others follow as in slow start.
    flow.unsent = false;
    flow.wait(RTT).ack(1, &[]);
    assert_eq!(flow.repair(), [2, 3]);
    flow.wait(RTT).ack(3, &[]);
    assert_eq!(flow.repair(), [4, 5, 6, 7]);
    flow.wait(RTT).ack(10, &[]);
    assert_eq!(flow.phase(), Phase::Open);
}

/// RFC 5682 section 3.1: after a timeout two new segments are sent; if the originals are then acknowledged, the
/// timeout was spurious and everything is restored.
#[test]
fn a_spurious_timeout_is_undone() {
    for (sack, frto) in [(true, true), (false, true), (true, false)] {
        let mut flow = Flow::with(|settings, agreed| {
            (settings.probes, settings.frto, agreed.sack) = (false, frto, sack);
        });
        flow.fill();
        flow.fire();
        assert_eq!(flow.repair(), [1]);
        flow.wait(1).ack(1, &[]);
        if !frto {
            assert_eq!(flow.repair(), [2, 3]);
            continue;
        }
        assert_eq!((flow.repair(), flow.fill()), (vec![], 2), "sack {sack}");
        flow.wait(1).ack(3, &[]);
        assert_eq!((flow.phase(), flow.repair()), (Phase::Open, vec![]), "sack {sack}");
        assert!(flow.cwnd() >= 10 && flow.recovery.congestion.ssthresh == u32::MAX);
    }
}

/// It may be the retransmission that the receiver was waiting for.
#[test]
fn without_sack_an_ack_of_the_retransmission_shows_no_original() {
    let mut flow = Flow::with(|settings, agreed| (settings.probes, agreed.sack) = (false, false));
    flow.fill();
    flow.fire();
    assert_eq!(flow.repair(), [1]);
    flow.wait(1).ack(5, &[]);
    assert_eq!(flow.phase(), Phase::Loss);
}

#[test]
fn a_real_timeout_is_not_undone() {
    let mut flow = Flow::with(|settings, _| settings.probes = false);
    flow.fill();
    flow.fire();
    flow.repair();
    // Only the first had arrived; the new segments arrive out of order.
    flow.wait(RTT).ack(1, &[]);
    flow.fill();
    flow.wait(RTT).ack(1, &[(11, 12)]);
    assert_eq!(flow.phase(), Phase::Loss);
    assert!(!flow.repair().is_empty());
}

/// RFC 3522: the ACK echoes a timestamp older than the first retransmission.
#[test]
fn timestamps_show_that_the_original_was_late() {
    let mut flow = Flow::with(|_, agreed| agreed.timestamps = Some(Duration::from_millis(1)));
    flow.fill();
    flow.echo = Some(1_000);
    flow.wait(RTT).ack(0, &[(2, 10)]);
    assert_eq!((flow.repair(), flow.phase()), (vec![1], Phase::Recovery));
    assert!(flow.cwnd() < 10);
    flow.wait(2).ack(10, &[]);
    assert_eq!(flow.phase(), Phase::Open);
    assert!(flow.cwnd() >= 10 && flow.recovery.congestion.ssthresh == u32::MAX);
}

/// RFC 3708: all retransmitted data arrived twice.
#[test]
fn dsacks_show_that_nothing_was_lost() {
    let mut late = Flow::new();
    late.fill();
    late.wait(RTT).ack(0, &[(2, 10)]);
    assert_eq!(late.repair(), [1]);
    late.send(1);
    // The original arrives, then the retransmission, whose DSACK arrives before the end of recovery.
    late.wait(2).ack(10, &[]);
    late.wait(RTT).ack(10, &[(1, 1)]);
    assert_eq!(late.phase(), Phase::Open);
    assert!(late.cwnd() >= 10, "{}", late.cwnd());
    assert_eq!(late.recovery.figures().dsack_dups, 1);
}

#[test]
fn sacks_of_a_receiver_that_reneges_are_cleared() {
    let mut flow = Flow::new();
    flow.fill();
    flow.wait(RTT).ack(0, &[(2, 10)]);
    assert_eq!(flow.repair(), [1]);
    // The receiver takes the first and has dropped the others: the next was SACKed but is expected.
    flow.wait(RTT).ack(1, &[]);
    let before = flow.now;
    assert!(matches!(flow.fire(), Fired::TimedOut { .. }));
    assert!(flow.now - before <= RTT);
    assert_eq!(flow.recovery.figures().sacked, 0);
    assert_eq!(flow.repair(), [2]);
}

// --- ECN, path MTU

#[test]
fn congestion_marks_shrink_the_window_once_per_window_of_data() {
    let mut flow = Flow::with(|_, agreed| agreed.ecn = true);
    flow.fill();
    flow.wait(RTT).ack_with(1, &[], true);
    assert!(flow.recovery.take_cwr() && !flow.recovery.take_cwr());
    for i in 2..=10 {
        flow.ack_with(i, &[], true);
        flow.fill();
    }
    assert!(!flow.recovery.take_cwr());
    assert_eq!((flow.phase(), flow.recovery.congestion.ssthresh), (Phase::Cwr, 7 * MSS));
    flow.wait(RTT).ack_all();
    assert_eq!(flow.phase(), Phase::Open);
    flow.fill();
    flow.ack_with(flow.sent, &[], true);
    assert!(flow.recovery.take_cwr());
}

#[test]
fn a_smaller_mss_retransmits_large_segments_and_keeps_the_window() {
    let mut flow = Flow::new();
    flow.fill();
    let at = flow.at();
    let cwnd = flow.recovery.congestion.cwnd;
    flow.recovery.set_mss(MSS, at);
    assert_eq!(flow.phase(), Phase::Open);
    flow.recovery.set_mss(600, at);
    assert_eq!(flow.phase(), Phase::Loss);
    let mut ranges = Vec::new();
    while let Some(range) = flow.recovery.next_retransmission() {
        assert!(range.end - range.start <= 600);
        ranges.push(range.end - range.start);
        flow.recovery.resent(range, at);
    }
    assert_eq!(ranges.iter().sum::<u32>(), 10 * MSS);
    assert_eq!(flow.recovery.congestion.cwnd, cwnd);
    flow.wait(RTT).ack(10, &[]);
    assert_eq!(flow.phase(), Phase::Open);
}

// --- names, and invalid input

#[test]
fn algorithms_have_the_names_of_linux() {
    assert_eq!(Algorithm::named("cubic"), Some(Algorithm::Cubic));
    assert_eq!(Algorithm::named("reno"), Some(Algorithm::NewReno));
    assert_eq!(Algorithm::named("bbr"), None);
}

#[test]
fn invalid_sack_blocks_are_ignored() {
    let mut flow = Flow::new();
    flow.fill();
    flow.wait(RTT);
    // Beyond what was sent, reversed, from below the ACK to above it.
    for block in [(9, 12), (5, 3), (2_000_000, 2_000_001)] {
        flow.ack(0, &[(2, 2), block]);
    }
    assert_eq!(flow.recovery.figures().sacked, 1);
    assert_eq!(flow.recovery.dsack_dups, 0);
}

#[test]
fn idle_memory_is_small() {
    let mut flow = Flow::new();
    flow.recovery.congestion.cwnd = 4_000 * MSS;
    flow.fill();
    flow.wait(RTT).ack(4_000, &[]);
    let size = size_of::<Recovery>();
    assert!(size <= 672, "{size}");
}
