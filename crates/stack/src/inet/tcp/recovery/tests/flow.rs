//! The performance of a flow over good and bad networks.

use super::{
    super::*,
    sim::{MSS, Net, Outcome, run},
};

const RTT: Duration = Duration::from_millis(20);

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn a_clean_path_is_filled() {
    for rtt in [1, 20, 100] {
        let net = Net { rtt: Duration::from_millis(rtt), ..Net::default() };
        let out = run(&net, seconds(30));
        // The wire's share without headers, and a slow start.
        let share = out.rate() / (12_500_000.0 * 1_448.0 / 1_514.0);
        assert!(share > if rtt < 50 { 0.97 } else { 0.75 }, "rtt {rtt}: {share}");
        assert_eq!((out.timeouts, out.probes), (0, 0), "rtt {rtt}");
    }
}

//= RFC 9438 4.3 test
//# If so, CUBIC is in the Reno-friendly region and _cwnd_ SHOULD be set to _W_est_ at each reception of a new ACK.
#[test]
fn the_rate_over_a_lossy_path_is_that_of_the_formula() {
    // In Reno's region the average window is sqrt(a (1+b) / (2 (1-b) p)) segments, with
    // a = 3 (1-b) / (1+b), b = 0.7; losses are random, which the formula does not know.
    let (a, b, p) = (9.0 / 17.0, 0.7, 0.01f64);
    let window = (a * (1.0 + b) / (2.0 * (1.0 - b) * p)).sqrt();
    let theory = window * f64::from(MSS) / RTT.as_secs_f64();
    let rates = (1..=10).map(|seed| {
        let net = Net { rtt: RTT, loss: 10_000, seed, ..Net::default() };
        let out = run(&net, seconds(30));
        assert_eq!(out.timeouts, 0, "seed {seed}");
        out.rate()
    });
    let mean = rates.sum::<f64>() / 10.0;
    println!("mean {mean} theory {theory}");
    assert!((mean / theory - 1.0).abs() < 0.2, "{mean} of {theory}");
}

/// Loses segments `from` to `to` of a transfer of 100; returns the outcome.
fn without(from: u64, to: u64, agreed: impl Fn(&mut Agreed)) -> Outcome {
    let mut net = Net { bytes: 100 * MSS, drop: (from..=to).collect(), ..Net::default() };
    agreed(&mut net.agreed);
    run(&net, seconds(60))
}

#[test]
fn a_single_loss_anywhere_needs_no_timeout() {
    for lost in 1..=100 {
        for timestamps in [true, false] {
            let out = without(lost, lost, |agreed| {
                agreed.timestamps = agreed.timestamps.filter(|_| timestamps)
            });
            assert_eq!((out.timeouts, out.resent), (0, 1), "segment {lost}");
            // A round trip to learn of the loss, one to repair it; the last ones need a probe, the very last after
            // the time in which the peer could have delayed its ACK.
            let most = match lost {
                ..95 => RTT * 3,
                95..100 => RTT * 5,
                _ => RTT * 5 + Duration::from_millis(200),
            };
            assert!(out.silence < most, "segment {lost}: {:?}", out.silence);
        }
    }
}

#[test]
fn a_burst_of_losses_needs_no_timeout() {
    for from in 1..=100 {
        for len in [2, 5, 9] {
            let to = (from + len - 1).min(100);
            let out = without(from, to, |_| {});
            assert_eq!(out.timeouts, 0, "{from}-{to}");
            assert_eq!(out.delivered, u64::from(100 * MSS), "{from}-{to}");
            assert!(out.resent <= len + 1, "{from}-{to}: {}", out.resent);
        }
    }
}

//= RFC 8985 7.2 test
//# First, the default PTO interval is 2*SRTT.
#[test]
fn a_lost_tail_is_found_by_a_probe_after_two_round_trips() {
    for first in [99, 97, 95, 92] {
        let out = without(first, 100, |_| {});
        // The probe after 2 RTT (queueing included), its ACK after 3, the repair of what it shows after 4.
        assert!(out.silence < RTT * 5, "{first}: {:?}", out.silence);
        assert_eq!((out.timeouts, out.probes), (0, 1), "{first}");
    }
}

//= RFC 5681 3.2 test
//# The TCP sender SHOULD use the "fast retransmit" algorithm to detect and repair loss, based on incoming [...]
#[test]
fn without_sack_a_single_loss_in_a_window_needs_no_timeout() {
    for lost in 1..=90 {
        let out = without(lost, lost, |agreed| agreed.sack = false);
        assert_eq!((out.timeouts, out.resent), (0, 1), "segment {lost}");
    }
    // A lost tail has only the timeout.
    assert_eq!(without(100, 100, |agreed| agreed.sack = false).timeouts, 1);
}

#[test]
fn a_pause_of_the_path_is_no_loss() {
    // 400 ms without any packet: longer than the timeout. Nothing was lost, so nothing is given up.
    for (sack, timestamps) in [(true, true), (true, false), (false, true), (false, false)] {
        let pause = Some((seconds(2), Duration::from_millis(400)));
        let mut net = Net { pause, buffer: 1_000_000, bytes: 60_000_000, ..Net::default() };
        net.window = 500_000;
        net.agreed.sack = sack;
        net.agreed.timestamps = net.agreed.timestamps.filter(|_| timestamps);
        let out = run(&net, seconds(60));
        let before = out.windows.iter().rev().find(|(at, _)| *at < Instant::from_millis(12_000));
        let after = out.windows.iter().find(|(at, _)| *at > Instant::from_millis(12_600));
        let (before, after) = (before.unwrap().1, after.unwrap().1);
        println!(
            "sack {sack} timestamps {timestamps}: {before} {after} {} {}",
            out.timeouts, out.resent
        );
        assert!(out.timeouts >= 1 && out.resent < 10, "{sack} {timestamps}: {}", out.resent);
        assert!(after >= before, "sack {sack} timestamps {timestamps}: {before} {after}");
    }
}

#[test]
fn reordering_is_no_loss() {
    for rtt in [1, 20, 100] {
        let rtt = Duration::from_millis(rtt);
        let clean = run(&Net { rtt, ..Net::default() }, seconds(30));
        for reorder in [1_000, 20_000, 200_000] {
            let out = run(&Net { rtt, reorder, ..Net::default() }, seconds(30));
            println!(
                "{rtt:?} {reorder} {} {} resent {} drops {}",
                out.rate(),
                clean.rate(),
                out.resent,
                out.queue_drops
            );
            assert!(
                out.rate() > 0.9 * clean.rate(),
                "{rtt:?} {reorder}: {} {}",
                out.rate(),
                clean.rate()
            );
            assert_eq!(out.timeouts, 0);
        }
    }
}

#[test]
fn marks_shrink_the_window_once_a_round_trip_and_lose_nothing() {
    let mut net = Net { loss: 10_000, mark: true, ..Net::default() };
    net.agreed.ecn = true;
    let out = run(&net, seconds(30));
    assert_eq!((out.resent, out.timeouts), (0, 0));
    let lossy = run(&Net { mark: false, ..net.clone() }, seconds(30));
    println!("{} {}", out.rate(), lossy.rate());
    assert!((out.rate() / lossy.rate() - 1.0).abs() < 0.3, "{} {}", out.rate(), lossy.rate());
    net.agreed.ecn = false;
    let without_ecn = run(&net, seconds(30));
    assert!(
        without_ecn.rate() > 5.0 * out.rate(),
        "ECE counts only if agreed: {}",
        without_ecn.rate()
    );
}

#[test]
fn duplicated_segments_and_lost_acks_do_no_harm() {
    let clean = run(&Net::default(), seconds(20)).rate();
    let net = Net { duplicate: 50_000, ack_loss: 200_000, ..Net::default() };
    let out = run(&net, seconds(20));
    assert!(out.rate() > 0.95 * clean, "{} {clean}", out.rate());
    assert_eq!(out.timeouts, 0);
}

/// No stall anywhere: with SACK nothing waits longer than two timeouts in a row.
#[test]
fn grid() {
    for rtt in [0u64, 1, 20, 100] {
        for loss in [0, 100, 1_000, 10_000, 50_000] {
            for reorder in [0, 20_000] {
                for (sack, buffer) in [(true, 250_000), (true, 20_000), (false, 250_000)] {
                    let rtt = Duration::from_millis(rtt).max(Duration::from_micros(50));
                    let mut net = Net { rtt, loss, reorder, buffer, seed: 7, ..Net::default() };
                    net.agreed.sack = sack;
                    let out = run(&net, seconds(10));
                    println!(
                        "rtt {rtt:5?} loss {loss:5} reorder {reorder:5} buffer {buffer:6} sack {sack:5}: {:7.3} MB/s rto {} \
                         tlp {} resent {}/{} full {} silence {:?} cwnd {}",
                        out.rate() / 1e6,
                        out.timeouts,
                        out.probes,
                        out.resent,
                        out.segments,
                        out.queue_drops,
                        out.silence,
                        out.figures.cwnd / MSS
                    );
                    let most = if sack { 700 } else { 3_000 };
                    assert!(
                        out.silence < Duration::from_millis(most) + rtt * 4,
                        "{net:?} {:?}",
                        out.silence
                    );
                }
            }
        }
    }
}
