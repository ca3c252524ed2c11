//! Runs without privileges: a server on loopback, mistakes reported in one line, arms skipped with a reason.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use busypoll_bench::arm::{self, ARMS};
use busypoll_bench::chart;
use busypoll_bench::cli::{BenchArgs, run_bench};
use busypoll_bench::cpus::Cpus;
use busypoll_bench::data::{Report, Sweep, SweepReport};
use busypoll_bench::remote::Remote;
use busypoll_bench::run::{Bench, Settings};
use busypoll_bench::serve::Server;
use busypoll_bench::sweep;
use busypoll_bench::units::{Size, UDP_MAX};
use busypoll_bench::workload::Load;
use busypoll_policy::fit::Width;
use clap::Parser;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    bench: BenchArgs,
}

/// The result of the command with these options.
fn bench(options: &[&str]) -> Result<(), String> {
    let words = std::iter::once(&"bench").chain(options);
    let command = Command::try_parse_from(words).map_err(|e| {
        let text = e.to_string();
        text.lines().next().unwrap_or_default().to_owned()
    })?;
    run_bench(&command.bench, &mut std::io::sink()).map_err(|e| e.to_string())
}

#[test]
fn mistakes_are_reported_in_one_line() {
    for (options, named) in [
        (&["--cpus", "0"][..], "'0' is not two CPU numbers"),
        (&["--cpus", "0,x"], "'0,x'"),
        (&["--cpus", "0,0"], "twice"),
        (&["--cpus", "0,8191"], "CPU 8191"),
        (&["--size", "0,1"], "size 0"),
        (&["--size", "65508,1"], "65508 bytes do not fit"),
        (&["--size", "9999999,1", "--arms", "*tcp*"], "9999999"),
        (&["--arms", "kernel-udp-blockin"], "did you mean 'kernel-udp-blocking'?"),
        (&["--duration", "10"], "--duration 10us is too short"),
        (&["--duration", "10 parsecs"], "unknown unit"),
        (&["--gap", "10s"], "--gap 10s"),
        (&["--rounds", "0"], "0"),
        (&["--sweep", "colour"], "colour"),
        (&["--sweep", "open", "--arms", "bare-*"], "neither connections nor sockets"),
    ] {
        let error = bench(options).expect_err("a mistake");
        assert!(error.contains(named), "{options:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{options:?}: {error}");
    }
}

#[test]
fn a_peer_that_never_answers_is_reported_in_one_line_within_seconds() {
    // A port that is not in use.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("loopback");
    let start = Instant::now();
    let error = bench(&["--host", &free.to_string()]).expect_err("no server there");
    assert!(error.contains("busypoll serve") && error.lines().count() == 1, "{error}");
    assert!(error.contains(&format!("TCP {} and the next", free.port())), "{error}");
    assert!(bench(&["--host", "not a host"]).is_err());
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_silent_port_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    let start = Instant::now();
    let error = bench(&["--host", &address.to_string()]).expect_err("no answer");
    assert!(error.contains("does not answer") && error.lines().count() == 1, "{error}");
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn another_service_at_the_port_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    let other = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().expect("a client");
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").expect("written");
    });
    let error = Remote::connect(&address.to_string()).err().expect("no server of ours");
    assert!(error.contains("does not speak"), "{error}");
    other.join().expect("no panic");
}

#[test]
fn a_server_answers_over_loopback_without_privileges() {
    let cpus = Cpus::choose(None).expect("a CPU");
    let server = Server::bind(([127, 0, 0, 1], 0).into(), cpus.client, None).expect("bound");
    let address = server.address().expect("bound");
    let served = std::thread::spawn(move || server.serve_one());
    let arms = arm::select("kernel-udp-blocking", &arm::between_machines()).expect("a known arm");
    let settings = Settings {
        size: Size { request: 64, response: 16 },
        rounds: 2,
        duration: Duration::from_millis(300),
        ..Settings::default()
    };
    let remote = Remote::connect(&address.to_string()).expect("a server");
    let bench = Bench::with_remote(cpus, remote, None);
    let outcome = bench.measure(&arms, &settings, "test").expect("a short run");
    assert!(outcome.skipped.is_empty(), "{:?}", outcome.skipped);
    assert!(outcome.arms[0].slots.iter().flatten().all(|s| s.tally.transactions > 0));
    drop(bench);
    served.join().expect("no panic").expect("served");
}

#[test]
fn the_cable_needs_no_privileges() {
    let cpus = Cpus::choose(None).expect("a CPU");
    let arms = arm::select("stack-cable-udp-interrupt-same-cpu", ARMS).expect("a known arm");
    let settings = Settings {
        size: Size { request: 1, response: 3000 },
        rounds: 2,
        duration: Duration::from_millis(300),
        ..Settings::default()
    };
    let outcome = Bench::new(cpus, &arms).measure(&arms, &settings, "test").expect("a short run");
    assert!(outcome.skipped.is_empty(), "{:?}", outcome.skipped);
    assert!(outcome.arms[0].slots.iter().flatten().all(|s| s.tally.transactions > 0));
}

#[test]
fn a_gap_separates_requests_and_is_not_in_the_round_trip() {
    let cpus = Cpus::choose(None).expect("a CPU");
    let arms = arm::select("stack-cable-udp-interrupt-same-cpu", ARMS).expect("a known arm");
    let gap = Duration::from_millis(10);
    let settings = Settings {
        load: Load::Closed { gap },
        rounds: 1,
        duration: Duration::from_millis(300),
        ..Settings::default()
    };
    let outcome = Bench::new(cpus, &arms).measure(&arms, &settings, "test").expect("a short run");
    let slot = outcome.arms[0].slots[0].as_ref().expect("a round");
    let most = slot.window.elapsed.as_nanos() / gap.as_nanos() + 1;
    assert!((2..=most).contains(&slot.tally.transactions.into()), "{most}: {:?}", slot.tally);
    // The gap is not part of the round trip.
    assert!(Duration::from_nanos(slot.rtts.min()) < gap, "{:?}", slot.rtts.min());
}

/// A short sweep over the cable's arms of that name; skips the test if there is only one CPU.
fn swept(sweep: Sweep, names: &str, points: u32) -> Option<SweepReport> {
    let cpus = Cpus::choose(None).expect("a CPU");
    if cpus.server.is_none() {
        busypoll_lab::needs::skipped(module_path!(), "two CPUs");
        return None;
    }
    let arms = arm::select(names, ARMS).expect("known arms");
    let settings = Settings {
        // Longer than other load keeps the peer off its CPU.
        busy_poll: Duration::from_millis(20),
        rounds: 1,
        duration: Duration::from_millis(150) * points,
        ..Settings::default()
    };
    let report = sweep::run(sweep, &Bench::new(cpus, &arms), &arms, &settings).expect("a sweep");
    assert_eq!((report.points.len(), &report.skipped[..]), (points as usize, &[][..]));
    for arm in report.points.iter().flat_map(|point| &point.arms) {
        assert!(arm.arm.transactions > 0, "{arm:?}");
    }
    assert!(!chart::of(&Report::Sweep(report.clone())).is_empty());
    Some(report)
}

#[test]
fn the_size_sweep_goes_to_64_kib_and_to_the_largest_datagram() {
    let names = "stack-cable-udp-busy-poll,stack-cable-tcp-busy-poll";
    let Some(report) = swept(Sweep::Size, names, 8) else { return };
    let point = report.points.last().expect("eight");
    assert_eq!((&point.label[..], point.value), ("64 KiB", Some(65_536.0)));
    for arm in point.arms.iter().map(|arm| &arm.arm) {
        let most = if arm.name.contains("udp") { UDP_MAX } else { 65_536 };
        assert_eq!((arm.request_bytes, arm.response_bytes), (most, most), "{arm:?}");
    }
    let text = report.render(Width::ALL);
    assert!(text.contains("64 KiB of UDP: 65507 B"), "{text}");
}

#[test]
fn coalescing_delays_interrupts() {
    let names = "stack-cable-udp-interrupt,stack-cable-udp-busy-poll";
    let Some(report) = swept(Sweep::Coalesce, names, 3) else { return };
    let labels: Vec<&str> = report.points.iter().map(|point| &point.label[..]).collect();
    assert_eq!(labels, ["0", "100", "adaptive"]);
    let arms = &report.points[1].arms;
    let asleep = arms.iter().find(|arm| arm.arm.name.contains("interrupt")).expect("an arm");
    // An interrupt comes 100 us late, one each way; a receiver that is late itself does not wait for its own.
    assert!(asleep.arm.rtt_us.p50 > 100.0, "{asleep:?}");
    assert!(report.render(Width::ALL).contains("adaptive"));
}

#[test]
fn ten_thousand_open_are_measured_and_compared_with_one() {
    let names = "stack-cable-udp-busy-poll,stack-cable-tcp-busy-poll";
    let Some(report) = swept(Sweep::Open, names, 4) else { return };
    let open =
        |point: usize, arm: usize| report.points[point].arms[arm].open.expect("this sweep's");
    for arm in 0..2 {
        assert_eq!(open(0, arm).idle_bytes, None);
        let each = open(3, arm).idle_bytes.and_then(|idle| idle.process).expect("/proc");
        // Other tests allocate and free memory meanwhile.
        assert!((64.0..8192.0).contains(&each), "{each}");
    }
    assert_eq!(report.points[3].label, "10,000");
    let both_valid = |arm: usize| [0, 3].iter().all(|&p| report.points[p].arms[arm].arm.valid);
    assert!((0..2).all(|arm| open(3, arm).p50_ratio.is_some() == both_valid(arm)), "{report:?}");
}

#[test]
fn with_one_cpu_the_other_arms_still_run() {
    let one = Cpus { server: None, ..Cpus::choose(None).expect("a CPU") };
    let arms = arm::select("kernel-udp-spin", ARMS).expect("a known arm");
    let settings =
        Settings { rounds: 1, duration: Duration::from_millis(100), ..Settings::default() };
    let outcome = Bench::new(one, &arms).measure(&arms, &settings, "test").expect("nothing to run");
    assert!(outcome.arms.is_empty() && outcome.limit.iter().all(Option::is_none));
    assert!(outcome.skipped[0].reason.contains("two CPUs"), "{:?}", outcome.skipped);
}
