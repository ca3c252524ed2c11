//! Short runs on real kernel objects: the limit, the kernel's arms and the bare AF_XDP echo in the lab,
//! and a bench against a server in the lab's other host.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use busypoll_bench::arm::{self, ARMS, Arm, Mode, Nic, Plane};
use busypoll_bench::chart;
use busypoll_bench::cpus::Cpus;
use busypoll_bench::data::{Machine, Report, RoundTripReport, SkippedReport, Sweep};
use busypoll_bench::remote::Remote;
use busypoll_bench::run::{Bench, Settings};
use busypoll_bench::serve::Server;
use busypoll_bench::throughput::{self, Losses, Workload};
use busypoll_bench::units::Size;
use busypoll_bench::workload::Load;
use busypoll_bench::{machine, stack, stages, summary, sweep};
use busypoll_lab::{Lab, needs_root};
use busypoll_policy::fit::Width;

fn settings(arms: usize, rounds: usize) -> Settings {
    Settings {
        // Longer than other load keeps the peer off its CPU.
        busy_poll: Duration::from_millis(20),
        rounds,
        duration: Duration::from_millis(60) * (arms * rounds + rounds) as u32,
        ..Settings::default()
    }
}

fn run(bench: &Bench, arms: &[Arm], settings: &Settings) -> RoundTripReport {
    let outcome = bench.measure(arms, settings, "test").expect("a short run");
    summary::build(machine::describe(bench, settings), settings, &outcome)
}

/// The result of `measure`; panics if it does not end in time.
fn in_time<T: Send + 'static>(measure: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, measured) = mpsc::channel();
    // After a timeout the receiver is gone, which the panic has reported.
    thread::spawn(move || drop(done.send(measure())));
    measured.recv_timeout(Duration::from_secs(60)).expect("it does not end")
}

/// The description of this machine, for a report of throughput.
fn machine(cpus: Cpus) -> Machine {
    machine::describe(&Bench::new(cpus, &[]), &settings(1, 1))
}

/// The two CPUs; skips the test if there is only one.
fn two_cpus() -> Option<Cpus> {
    let cpus = Cpus::choose(None).expect("at least one CPU");
    if cpus.server.is_none() {
        busypoll_lab::needs::skipped(module_path!(), "two CPUs");
    }
    cpus.server.is_some().then_some(cpus)
}

#[test]
fn the_kernel_arms_have_figures_and_evidence() {
    needs_root!();
    let Some(cpus) = two_cpus() else { return };
    let arms = arm::select("kernel-*", ARMS).expect("known arms");
    let bench = Bench::new(cpus, &arms);
    let report = run(&bench, &arms, &settings(arms.len(), 2));
    assert!(report.skipped.is_empty(), "{:?}", report.skipped);
    assert_eq!(report.arms.len(), arms.len());
    for arm in &report.arms {
        assert!(arm.transactions > 0, "{arm:?}");
        assert!(arm.rtt_us.min > 0.0 && arm.rtt_us.p50 <= arm.rtt_us.max, "{arm:?}");
        match arm.mode {
            // A blocking transaction has two sleeps, one per side; on a loaded machine some do not happen.
            Mode::Blocking => {
                assert!(arm.evidence.voluntary_switches * 2 > arm.transactions, "{arm:?}");
                assert!(arm.evidence.busy_polled_share < 0.05, "{arm:?}");
            }
            Mode::BusyPoll => {
                assert!(arm.evidence.busy_poll_rx_packets > 0, "{arm:?}");
                assert_ne!(arm.evidence.napi_id, 0, "{arm:?}");
            }
            _ => assert!(arm.evidence.voluntary_switches < arm.transactions, "{arm:?}"),
        }
    }
    let text = report.render(Width::ALL);
    assert!(arms.iter().all(|a| text.contains(a.name)), "{text}");
}

#[test]
fn a_busy_poll_too_short_for_the_gap_is_invalid() {
    needs_root!();
    let Some(cpus) = two_cpus() else { return };
    let arms = arm::select("kernel-udp-busy-poll", ARMS).expect("a known arm");
    let bench = Bench::new(cpus, &arms);
    let settings = Settings {
        load: Load::Closed { gap: Duration::from_millis(2) },
        busy_poll: Duration::from_micros(1),
        ..settings(4, 2)
    };
    let report = run(&bench, &arms, &settings);
    let arm = &report.arms[0];
    assert!(!arm.valid, "{arm:?}");
    assert!(arm.reason.as_ref().is_some_and(|r| r.contains("did not busy poll")), "{arm:?}");
    assert!(report.answer.contains("says nothing"), "{}", report.answer);
}

#[test]
fn the_bare_echo_answers_and_releases_the_queue() {
    needs_root!();
    let Some(cpus) = two_cpus() else { return };
    let arms = arm::select("bare-xdp-spin", ARMS).expect("a known arm");
    let bench = Bench::new(cpus, &arms);
    // Several rounds: each needs the queue that the one before has released.
    for bytes in [1, 1472] {
        let size = Size { request: bytes, response: bytes };
        let report = run(&bench, &arms, &Settings { size, ..settings(1, 3) });
        assert!(report.skipped.is_empty(), "{:?}", report.skipped);
        assert!(report.arms[0].valid && report.arms[0].transactions > 0, "{:?}", report.arms);
    }
    let size = Size { request: 1473, response: 1 };
    let report = run(&bench, &arms, &Settings { size, ..settings(1, 1) });
    assert!(report.skipped[0].reason.contains("1472"), "{:?}", report.skipped);
}

#[test]
fn the_stack_arms_have_figures_and_evidence() {
    needs_root!();
    let Some(cpus) = two_cpus() else { return };
    let arms = arm::select("stack-*", ARMS).expect("known arms");
    let bench = Bench::new(cpus, &arms);
    let settings = settings(arms.len(), 2);
    let report = run(&bench, &arms, &settings);
    assert!(report.skipped.is_empty(), "{:?}", report.skipped);
    for arm in &report.arms {
        assert!(arm.transactions > 0, "{arm:?}");
        let counts = arm.evidence.stack.expect("the stack's counters");
        match arm.mode {
            Mode::BusyPoll => {
                // If other load takes its CPU all the time, the watchdog gives the queue to the interrupt thread.
                let starved = arm.evidence.involuntary_switches > arm.transactions;
                assert!(counts.hits > 0 || starved, "{arm:?}");
                assert_ne!(arm.evidence.napi_id, 0, "{arm:?}");
            }
            _ => assert_eq!(counts.hits, 0, "{arm:?}"),
        }
    }
    let stages = stages::run(&bench, &arms, &settings).expect("stages");
    let staged = arms.iter().filter(|arm| stages::is_staged(arm)).count();
    assert_eq!((stages.arms.len(), stages.skipped.len()), (staged, arms.len() - staged));
    for arm in &stages.arms {
        assert!(arm.total_us > 0.0, "{arm:?}");
        let wake_up = arm.stages_us.iter().find(|s| s.stage == "wake-up").expect("a stage");
        assert_eq!(wake_up.p50 > 0.0, arm.mode == Mode::Interrupt, "{arm:?}");
    }
}

#[test]
fn the_open_loop_offers_its_rate() {
    needs_root!();
    let Some(cpus) = two_cpus() else { return };
    let arms = arm::select("kernel-udp-busy-poll,kernel-tcp-spin", ARMS).expect("known arms");
    let bench = Bench::new(cpus, &arms);
    let report = sweep::run(Sweep::Rate, &bench, &arms, &settings(8, 1)).expect("a short sweep");
    assert_eq!(report.points.len(), 7);
    assert!(report.skipped.iter().any(|s| s.name == "kernel-tcp-spin"), "{:?}", report.skipped);
    for point in &report.points {
        let arm = &point.arms[0].arm;
        assert!(arm.transactions + arm.evidence.lost > 0, "{point:?}");
    }
    assert!(!chart::of(&Report::Sweep(report.clone())).is_empty());
}

#[test]
#[ignore = "long: ten seconds"]
fn ten_thousand_open_do_not_affect_the_next_round() {
    needs_root!();
    let Some(cpus) = two_cpus() else { return };
    let arms = arm::select("kernel-*-busy-poll,stack-xdp-tcp-busy-poll", ARMS).expect("known arms");
    let bench = Bench::new(cpus, &arms);
    let settings = settings(4 * arms.len(), 2);
    let report = sweep::run(Sweep::Open, &bench, &arms, &settings).expect("a short sweep");
    // Ten thousand kernel connections need twenty thousand descriptors.
    let descriptors = |s: &SkippedReport| s.name.contains("kernel") && s.reason.contains("ulimit");
    assert!(report.skipped.iter().all(descriptors), "{:?}", report.skipped);
    for arm in &report.points[3].arms {
        assert!(arm.arm.transactions > 0, "{arm:?}");
        let idle = arm.open.and_then(|open| open.idle_bytes).expect("weighed");
        let (here, kernel) = (idle.process.expect("/proc"), idle.kernel.expect("root"));
        // A kernel socket takes some 3 KiB; of two ends in user space one has a kernel port.
        match arm.arm.nic {
            Nic::Veth => assert!(here < 512.0 && kernel > 1024.0, "{arm:?}"),
            _ => assert!(here > 512.0 && kernel > 512.0, "{arm:?}"),
        }
    }
}

#[test]
fn a_bench_runs_against_a_server_on_another_host() {
    needs_root!();
    let cpus = Cpus::choose(None).expect("a CPU");
    let lab = Lab::builder().build().expect("a lab");
    let cpu = cpus.server.unwrap_or(cpus.client);
    let address = std::net::SocketAddr::from((lab.server.ipv4(), 7117));
    let device = Some(lab.server.interface());
    let server = lab.server.enter(|| Server::bind(address, cpu, device)).expect("entered");
    let server = server.expect("bound");
    std::thread::scope(|scope| {
        let served = scope.spawn(|| {
            lab.server.enter(|| (server.serve_one(), server.serve_one())).expect("entered")
        });
        let arms = arm::between_machines();
        let report = lab.client.enter(|| {
            let remote = Remote::connect(&lab.server.ipv4().to_string()).expect("a server");
            let host = stack::on_device(lab.client.interface(), cpus.client).expect("AF_XDP");
            run(&Bench::with_remote(cpus, remote, Some(host)), &arms, &settings(arms.len(), 2))
        });
        let report = report.expect("entered");
        assert!(report.skipped.is_empty(), "{:?}", report.skipped);
        assert_eq!(report.arms.len(), 10);
        for arm in &report.arms {
            assert!(arm.transactions > 0, "{arm:?}");
            match arm.plane {
                Plane::Kernel => assert_eq!(arm.nic, Nic::Device),
                _ => assert!(
                    arm.evidence.stack.is_some_and(|s| s.hits + s.interrupts > 0),
                    "{arm:?}"
                ),
            }
        }
        // A bench that disconnects frees the server for the next one.
        lab.client.enter(|| drop(std::net::TcpStream::connect(address))).expect("entered");
        let (first, second) = served.join().expect("no panic");
        assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    });
}

#[test]
fn streams_connections_and_losses_have_figures() {
    needs_root!();
    let Some(cpus) = two_cpus() else { return };
    let losses = Losses { loss: 0.01, rtt: Duration::from_millis(5) };
    let busy_poll = Duration::from_micros(50);
    for workload in [Workload::Stream, Workload::Crr, Workload::Loss] {
        let lines = throughput::select(workload, None).expect("lines");
        let time = (Duration::from_millis(200) * lines.len() as u32, 1);
        let outcome = throughput::measure(&lines, cpus, (busy_poll, losses), time, 1500)
            .expect("a short run");
        let report = throughput::build(machine(cpus), workload, &outcome);
        assert!(report.skipped.is_empty(), "{:?}", report.skipped);
        assert_eq!(report.arms.len(), lines.len());
        assert!(report.arms.iter().all(|arm| arm.per_second > 0.0), "{:?}", report.arms);
    }
}

#[test]
fn a_line_that_loses_everything_ends_with_the_reason() {
    needs_root!();
    let Some(cpus) = two_cpus() else { return };
    let losses = Losses { loss: 1.0, rtt: Duration::from_millis(5) };
    let lines = throughput::select(Workload::Loss, None).expect("lines");
    let time = (Duration::from_millis(400), 2);
    let outcome =
        in_time(move || throughput::measure(&lines, cpus, (Duration::ZERO, losses), time, 1500));
    let outcome = outcome.expect("a short run");
    let report = throughput::build(machine(cpus), Workload::Loss, &outcome);
    assert!(report.arms.is_empty(), "{:?}", report.arms);
    assert_eq!(report.skipped.len(), 2);
    for skipped in &report.skipped {
        assert_eq!(skipped.reason, "no connection in 2.2s, so much was lost");
    }
}

#[test]
fn an_end_whose_peer_never_comes_also_ends() {
    needs_root!();
    let Some(cpus) = two_cpus() else { return };
    // No client can run on this CPU.
    let cpus = Cpus { client: 8191, share_core: true, ..cpus };
    let losses = Losses { loss: 0.0, rtt: Duration::from_millis(5) };
    for workload in [Workload::Stream, Workload::Crr] {
        let lines = throughput::select(workload, None).expect("lines");
        let count = lines.len();
        let time = (Duration::from_millis(60) * (count as u32 + 1), 1);
        let measure =
            move || throughput::measure(&lines, cpus, (Duration::ZERO, losses), time, 1500);
        let outcome = in_time(measure).expect("a short run");
        let report = throughput::build(machine(cpus), workload, &outcome);
        assert_eq!((report.arms.len(), report.skipped.len()), (0, count));
        for skipped in &report.skipped {
            assert!(skipped.reason.contains("CPU 8191"), "{skipped:?}");
        }
    }
}
