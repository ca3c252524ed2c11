//! A report for tests.

use super::*;
use crate::arm::{Between, Mode, Nic, Placement, Plane, Protocol};
use crate::evidence::Evidence;
use crate::siblings::OneCore;
use crate::stats::RttUs;

pub(crate) fn machine() -> Machine {
    Machine {
        busypoll: "0.1.0".into(),
        kernel: "6.18.0".into(),
        cpu_model: "Test CPU".into(),
        cpus_online: 2,
        virtual_machine: true,
        client_cpu: 0,
        server: None,
        server_cpu: Some(1),
        share_core: false,
        one_core: OneCore::default(),
        clock_overhead_ns: 9.7,
        idle_cpu_share: Some(0.996),
        rounds: 8,
        duration_s: 40.0,
        gap_us: 0.0,
        busy_poll_us: 50.0,
        mtu: None,
    }
}

/// A report of arms between two processes alone.
pub(crate) fn local() -> RoundTripReport {
    let mut report = sample();
    let arm = |name: &str, plane, nic, protocol, p50: f64| {
        let like = report.arms[0].clone();
        let mode = if plane == Plane::Kernel { Mode::Blocking } else { Mode::BusyPoll };
        let rtt_us = RttUs { p50, ..like.rtt_us };
        let between = Between::Processes;
        ArmReport { name: name.into(), between, plane, nic, protocol, mode, rtt_us, ..like }
    };
    use {Plane::*, Protocol::*};
    report.arms = vec![
        arm("local-memory-spin", Bare, Nic::Memory, Udp, 0.2),
        arm("local-cable-tcp-busy-poll", Stack, Nic::Cable, Tcp, 0.5),
        arm("local-unix-stream-blocking", Kernel, Nic::Unix, Tcp, 8.0),
        arm("local-loopback-tcp-blocking", Kernel, Nic::Loopback, Tcp, 10.0),
    ];
    let [_, cable, _, loopback] = &report.arms[..] else { unreachable!() };
    let (arm, baseline) = (cable.name.clone(), loopback.name.clone());
    report.comparisons = vec![Comparison { arm, baseline, p50_ratio: 0.05, ci95: None }];
    report.skipped.clear();
    report.answer = crate::answer::round_trips(&report);
    report
}

/// A report with an example of everything.
pub(crate) fn sample() -> RoundTripReport {
    let arm = |name: &str, mode, placement, p50: f64, demand, valid: bool| ArmReport {
        name: name.into(),
        between: Between::Hosts,
        plane: Plane::Kernel,
        nic: Nic::Veth,
        protocol: Protocol::Udp,
        mode,
        placement,
        request_bytes: 1,
        response_bytes: 1,
        transactions: 100_000,
        rtt_us: RttUs {
            min: p50 * 0.9,
            p50,
            p90: Some(p50 * 1.1),
            p99: Some(p50 * 1.5),
            p99_9: Some(p50 * 3.0),
            p99_99: Some(p50 * 10.0),
            max: p50 * 100.0,
            mean: p50 * 1.02,
        },
        one_way_us: None,
        p50_ci95: Some([p50 * 0.97, p50 * 1.03]),
        transactions_per_second: 1e6 / p50,
        service_demand_us: Some(demand),
        evidence: Evidence { interrupts: 1000, ..Evidence::default() },
        valid,
        reason: (!valid).then(|| "did not busy poll: it slept".to_owned()),
    };
    use {Mode::*, Placement::*};
    let mut report = RoundTripReport {
        workload: None,
        header: Header::now(Kind::RoundTrips),
        machine: machine(),
        limit: Limit { shared_memory_rtt_us: Some(0.098) },
        arms: vec![
            arm("kernel-udp-busy-poll", BusyPoll, SeparateCpus, 7.2, 14.4, true),
            arm("kernel-udp-blocking-same-cpu", Blocking, SameCpu, 12.0, 12.1, true),
            arm("kernel-udp-blocking", Blocking, SeparateCpus, 40.0, 30.0, true),
            arm("kernel-tcp-busy-poll", BusyPoll, SeparateCpus, 41.0, 31.0, false),
        ],
        skipped: vec![SkippedReport {
            name: "bare-xdp-spin".into(),
            reason: "needs CAP_NET_RAW: run as root".into(),
        }],
        comparisons: vec![
            Comparison {
                arm: "kernel-udp-busy-poll".into(),
                baseline: "kernel-udp-blocking-same-cpu".into(),
                p50_ratio: 0.6,
                ci95: Some([0.55, 0.65]),
            },
            Comparison {
                arm: "kernel-udp-blocking".into(),
                baseline: "kernel-udp-blocking-same-cpu".into(),
                p50_ratio: 3.33,
                ci95: Some([3.2, 3.5]),
            },
            Comparison {
                arm: "kernel-udp-busy-poll".into(),
                baseline: "shared-memory".into(),
                p50_ratio: 73.5,
                ci95: None,
            },
        ],
        notes: Vec::new(),
        answer: String::new(),
    };
    report.answer = crate::answer::round_trips(&report);
    report
}
