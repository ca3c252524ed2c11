//! Throughput of whole connections over a simulated network: a grid of delay x loss x reordering x buffer, and flows
//! that share a bottleneck. The results are recorded in `tcp_netsim/`: `one_flow.txt`, `shared.txt` and
//! `transfers.txt`. A change that moves a figure shows there. After a change that is meant to move one, `NETSIM=write
//! cargo test -p busypoll-stack --test tcp_netsim` writes the files again; review the difference.

#[path = "tcp_netsim/net.rs"]
mod net;

use busypoll_stack::inet::tcp::{Algorithm, Config, Ecn, TcpOptions};
use net::{Net, Outcome, run};
use std::{fmt::Write, fs, path::Path, time::Duration};

/// 50 Mbit/s.
const RATE: u64 = 6_250_000;
/// A segment of 1,448 bytes of data, and the same on the wire.
const SHARE: f64 = 1_448.0 / (1_448.0 + 78.0);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn one(rtt: Duration) -> Net {
    Net {
        rate: RATE,
        buffer: 100_000,
        loss: 0,
        reorder: 0,
        mark: 0,
        ack_loss: 0,
        flows: vec![(rtt, Duration::ZERO)],
        config: Config { tcp_ecn: Ecn::Off, ..Config::default() },
        options: TcpOptions::default(),
        seed: 1,
        span: ms(15_000),
        count_from: Duration::ZERO,
        bytes: u64::MAX,
    }
}

/// The most bytes of data per second that the link can carry.
fn capacity() -> f64 {
    RATE as f64 * SHARE
}

fn rate(net: &Net, outcome: &Outcome) -> f64 {
    outcome.counted as f64 / (net.span - net.count_from).as_secs_f64()
}

/// Jain's fairness index: 1 if all flows get the same, 1/n if one flow gets everything.
fn fairness(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    sum * sum / (rates.len() as f64 * rates.iter().map(|r| r * r).sum::<f64>())
}

/// Several flows that begin a quarter of a second apart; counted after all have had time to settle.
fn shared(rtts: &[u64], buffer: u64) -> Net {
    let flows = rtts.iter().enumerate().map(|(i, &rtt)| (ms(rtt), ms(250) * i as u32)).collect();
    Net { flows, buffer, span: ms(30_000), count_from: ms(10_000), ..one(ms(1)) }
}

fn compare(section: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tcp_netsim").join(section);
    if std::env::var_os("NETSIM").is_some_and(|what| what == "write") {
        fs::write(&path, text).unwrap();
        return;
    }
    let pinned = fs::read_to_string(&path).unwrap_or_default();
    for (new, old) in text.lines().zip(pinned.lines().chain(std::iter::repeat(""))) {
        assert_eq!(new, old, "{} says otherwise; see tcp_netsim.rs", path.display());
    }
    assert_eq!(text.lines().count(), pinned.lines().count(), "{}", path.display());
}

#[test]
fn one_flow_transfers_as_recorded() {
    let mut text = String::from(
        "One flow for 15 s over 50 Mbit/s. Loss and reordering (held back for a quarter of the round trip) in percent\n\
         of packets; the buffer in kB. Throughput in MB/s of data and in percent of what the link carries;\n\
         segments sent again in percent of those sent; the longest time nothing reached the application; the\n\
         congestion window at the end, segments.\n\n\
         round trip    loss  reordered  buffer |   MB/s      %   again   silence    cwnd\n",
    );
    for rtt in [1, 10, 40, 160].map(ms) {
        for loss in [0, 100, 1_000, 5_000] {
            for reorder in [0, 2_000] {
                for buffer in [15_000, 250_000] {
                    let net = Net { loss, reorder, buffer, ..one(rtt) };
                    let out = run(&net)[0];
                    let rate = rate(&net, &out);
                    let again = 100.0 * f64::from(out.sent_again) / f64::from(out.segments.max(1));
                    writeln!(
                        text,
                        "{:>7} ms {:>7.1} {:>10.1} {:>7} | {:>6.2} {:>6.1} {:>7.2} {:>6} ms {:>7}",
                        rtt.as_millis(),
                        loss as f64 / 1_000.0,
                        reorder as f64 / 1_000.0,
                        buffer / 1_000,
                        rate / 1e6,
                        100.0 * rate / capacity(),
                        again,
                        out.silence.as_millis(),
                        out.cwnd,
                    )
                    .unwrap();
                    // No stall: in the worst case one timeout, or two in a row where one packet in 20 is lost.
                    let most = if loss < 5_000 { ms(300) } else { ms(1_000) };
                    assert!(out.silence < most + rtt * 4, "{net:?}\n{out:?}");
                }
            }
        }
    }
    compare("one_flow.txt", &text);
}

/// In `one_flow.txt` a path of 160 ms and 250 kB with reordering carries 38% of its capacity. The reason is PAWS, see
/// COMPLIANCE.md; loss recovery tolerates the reordering.
#[test]
fn without_timestamps_reordering_costs_a_long_path_little() {
    let mut net = Net { reorder: 2_000, buffer: 250_000, ..one(ms(160)) };
    net.config.tcp_timestamps = false;
    let share = rate(&net, &run(&net)[0]) / capacity();
    assert!(share > 0.8, "{share}");
}

#[test]
fn flows_share_a_bottleneck_as_recorded() {
    let mut text = String::from(
        "Flows that share 50 Mbit/s for 30 s, counted from 10 s on. The buffer in kB; throughput of all in percent of\n\
         what the link carries; fairness by Jain's index (1: all get the same); the least and the most a flow\n\
         got, in percent of its share; the longest time one of them got nothing.\n\n\
         round trips, ms                  buffer  what          |      %  fairness  least   most   silence\n",
    );
    let mixes: &[(&[u64], &str)] = &[
        (&[20, 20], "cubic"),
        (&[20, 20], "reno"),
        (&[20, 20], "ecn"),
        (&[1; 4], "cubic"),
        (&[20; 4], "cubic"),
        (&[20; 4], "1% loss"),
        (&[20; 4], "acks lost"),
        (&[20; 4], "reordered"),
        (&[20; 16], "cubic"),
        (&[10, 20, 40, 80], "cubic"),
        (&[100; 4], "cubic"),
    ];
    for &(rtts, what) in mixes {
        for buffer in [30_000, 125_000, 500_000] {
            let mut net = shared(rtts, buffer);
            match what {
                "reno" => net.config.tcp_congestion_control = Algorithm::NewReno,
                "ecn" => (net.config.tcp_ecn, net.mark) = (Ecn::On, 300),
                "1% loss" => net.loss = 1_000,
                "acks lost" => net.ack_loss = 20_000,
                "reordered" => net.reorder = 2_000,
                _ => {}
            }
            let outcomes = run(&net);
            let rates: Vec<f64> = outcomes.iter().map(|out| rate(&net, out)).collect();
            let sum: f64 = rates.iter().sum();
            let share = |rate: f64| 100.0 * rate * rates.len() as f64 / sum;
            let least = share(rates.iter().copied().fold(f64::MAX, f64::min));
            let most = share(rates.iter().copied().fold(0.0, f64::max));
            let silence = outcomes.iter().map(|out| out.silence).max().unwrap_or_default();
            let list: Vec<String> = rtts.iter().map(u64::to_string).collect();
            let list = match rtts {
                [first, .., last] if rtts.len() > 4 && first == last => {
                    format!("{} x {first}", rtts.len())
                }
                _ => list.join(", "),
            };
            writeln!(
                text,
                "{list:<30} {:>8}  {what:<13} | {:>6.1} {:>9.3} {least:>6.0} {most:>6.0} {:>6} ms",
                buffer / 1_000,
                100.0 * sum / capacity(),
                fairness(&rates),
                silence.as_millis(),
            )
            .unwrap();
            // No flow starves, no flow stalls.
            let same = rtts.iter().all(|rtt| rtt == &rtts[0]);
            assert!(least > if same { 30.0 } else { 5.0 }, "{list} {what} {buffer}: {rates:?}");
            assert!(silence < ms(2_500), "{list} {what} {buffer}: {silence:?}");
        }
    }
    compare("shared.txt", &text);
}

#[test]
fn many_short_transfers_take_about_as_many_round_trips_as_slow_start_needs() {
    let mut text = String::from(
        "A transfer over 50 Mbit/s and 20 ms, from the first SYN until the last byte was read: median and worst of\n\
         100 seeds, ms.\n\n     bytes    loss | median   worst\n",
    );
    for bytes in [1_000, 14_000, 100_000, 1_000_000] {
        for loss in [0, 1_000, 5_000] {
            let mut times: Vec<u128> = (1..=100)
                .map(|seed| {
                    let net = Net { bytes, loss, seed, span: ms(60_000), ..one(ms(20)) };
                    let out = run(&net)[0];
                    out.done.unwrap_or_else(|| panic!("{net:?}")).as_millis()
                })
                .collect();
            times.sort_unstable();
            let (median, worst) = (times[50], times[99]);
            writeln!(text, "{bytes:>10} {:>7.1} | {median:>6} {worst:>7}", loss as f64 / 1_000.0)
                .unwrap();
            // Two lost SYNs take 3 s; nothing else takes longer.
            assert!(worst < 5_000, "{bytes} {loss}: {worst}");
        }
    }
    compare("transfers.txt", &text);
}
