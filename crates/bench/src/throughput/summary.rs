//! Turns measurements into a report.

use super::lines::{Line, Workload};
use super::place::{LineRun, Outcome, RunResult};
use super::relay::Losses;
use crate::arm::{Mode, Nic, Plane};
use crate::data::{
    Header, Kind, LineReport, Machine, PathReport, RateComparison, SkippedReport, ThroughputReport,
};
use crate::demand::{self, Usage};
use crate::stats::{self, RttUs};
use crate::{answer, notes};

const MIB: f64 = 1024.0 * 1024.0;

/// Summarises a run.
pub fn build(mut machine: Machine, workload: Workload, outcome: &Outcome) -> ThroughputReport {
    machine.idle_cpu_share = outcome.idle.idle_share();
    machine.rounds = outcome.stopped_after.unwrap_or(machine.rounds);
    machine.one_core = outcome.one_core;
    let mut arms: Vec<LineReport> =
        outcome.lines.iter().map(|run| line_report(run, outcome.idle)).collect();
    arms.sort_by(|a, b| b.per_second.total_cmp(&a.per_second));
    let skipped = outcome.skipped.iter();
    let skipped =
        skipped.map(|s| SkippedReport { name: s.name.to_owned(), reason: s.reason.clone() });
    let comparisons = comparisons(outcome, &arms);
    let mut report = ThroughputReport {
        header: Header::now(Kind::Throughput),
        notes: notes::of(&machine),
        answer: String::new(),
        path: outcome.losses.map(|Losses { loss, rtt }| PathReport {
            loss_percent: 100.0 * loss,
            rtt_ms: 1e3 * rtt.as_secs_f64(),
        }),
        machine,
        workload: format!("tcp-{}", workload.word()),
        arms,
        skipped: skipped.collect(),
        comparisons,
    };
    report.answer = answer::throughput(&report);
    report
}

fn rates(run: &LineRun) -> Vec<Option<f64>> {
    let unit = if run.line.workload == Workload::Crr { 1.0 } else { 8.0 };
    let rate =
        |result: &RunResult| unit * result.count as f64 / result.elapsed.as_secs_f64().max(1e-9);
    run.results.iter().map(|result| result.as_ref().map(rate)).collect()
}

fn line_report(run: &LineRun, idle: Usage) -> LineReport {
    let Line { arm, workload, .. } = run.line;
    let results = || run.results.iter().flatten();
    let mut usage = Usage::default();
    let (mut count, mut busy_polled) = (0, 0);
    for result in results() {
        usage.add(result.usage);
        count += result.count;
        busy_polled += result.busy_polled;
    }
    let is_stream = workload != Workload::Crr;
    // Lines of a lossy round run at the same time: their CPU time cannot be separated.
    let demand = (workload != Workload::Loss)
        .then(|| demand::service_demand_us(usage, idle, count))
        .flatten();
    let times: Vec<_> = results().filter_map(|result| result.times.as_ref()).collect();
    let rates: Vec<f64> = rates(run).into_iter().flatten().collect();
    let busy_polled = busy_polled as f64 / count.max(1) as f64;
    let reason = objection(&run.line, busy_polled);
    LineReport {
        name: arm.name.to_owned(),
        plane: arm.plane,
        nic: arm.nic,
        protocol: arm.protocol,
        mode: arm.mode,
        placement: arm.placement,
        per_second: stats::median(&rates),
        per_second_ci95: stats::ci95_of_median(&rates),
        unit: if is_stream { "bit/s".to_owned() } else { "connections/s".to_owned() },
        service_demand_us: demand.map(|us| if is_stream { us * MIB } else { us }),
        connection_us: (!times.is_empty()).then(|| RttUs::over_rounds(times.iter().copied())),
        busy_polled_packets: if is_stream { busy_polled * MIB } else { busy_polled },
        valid: reason.is_none(),
        reason,
    }
}

/// The kernel's connect and accept do not poll: of the packets of a connection, which are about ten at both ends, only
/// the answer is sure to come while a thread polls.
const POLLED_ENOUGH: f64 = 0.75;
/// A baseline with this many for each connection is no baseline.
const POLLED_TOO_MUCH: f64 = 0.5;

/// Why an arm's figures do not describe what its name says, by the packets busy polled for each connection.
fn objection(line: &Line, busy_polled: f64) -> Option<String> {
    match line.arm.mode {
        _ if line.workload != Workload::Crr => None,
        Mode::BusyPoll if busy_polled < POLLED_ENOUGH => Some(format!(
            "did not busy poll: {busy_polled:.2} packets a connection were found by it"
        )),
        Mode::Blocking if busy_polled > POLLED_TOO_MUCH => Some(format!(
            "not asleep: {busy_polled:.2} packets a connection were busy polled; is another program polling?"
        )),
        _ => None,
    }
}

/// The baselines of each arm: for a stream of the stack its limit, the kernel with and without offloads, and
/// smoltcp; for connections the kernel's best placement.
fn comparisons(outcome: &Outcome, arms: &[LineReport]) -> Vec<RateComparison> {
    let median =
        |run: &LineRun| stats::median(&rates(run).into_iter().flatten().collect::<Vec<_>>());
    // Only valid arms: a ratio with an arm that did something else is meaningless.
    let is_valid =
        |run: &&LineRun| arms.iter().any(|arm| arm.name == run.line.arm.name && arm.valid);
    let lines: Vec<&LineRun> = outcome.lines.iter().filter(is_valid).collect();
    let best_kernel = lines
        .iter()
        .copied()
        .filter(|run| run.line.workload == Workload::Crr && run.line.arm.is_baseline())
        .max_by(|a, b| median(a).total_cmp(&median(b)));
    let mut all = Vec::new();
    for &run in lines.iter().filter(|run| run.line.arm.plane != Plane::Bare) {
        for &base in &lines {
            let held = match (run.line.workload, run.line.arm.plane) {
                (Workload::Crr, _) => best_kernel.is_some_and(|best| std::ptr::eq(best, base)),
                (Workload::Loss, Plane::Stack) => base.line.arm.plane == Plane::Kernel,
                (_, Plane::Stack) => {
                    let same_nic = base.line.arm.nic == run.line.arm.nic;
                    (base.line.arm.plane == Plane::Bare && same_nic)
                        || (base.line.arm.plane == Plane::Kernel && run.line.arm.nic == Nic::Xdp)
                }
                _ => false,
            };
            if !held || std::ptr::eq(run, base) {
                continue;
            }
            if let Some(ratio) = stats::ratio_of_rounds(&rates(run), &rates(base)) {
                all.push(RateComparison {
                    arm: run.line.arm.name.to_owned(),
                    baseline: base.line.arm.name.to_owned(),
                    rate_ratio: ratio.ratio,
                    ci95: ratio.ci95,
                });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::lines::LINES;
    use super::*;
    use crate::data::sample::machine;
    use busypoll_policy::fit::Width;
    use std::time::Duration;

    fn run(name: &str, counts: &[u64]) -> LineRun {
        let line = *LINES.iter().find(|l| l.arm.name == name).expect("in the table");
        let results = counts.iter().map(|&count| {
            Some(RunResult {
                count,
                elapsed: Duration::from_secs(1),
                usage: Usage { used: Duration::from_secs(2), capacity: Duration::from_secs(2) },
                busy_polled: if line.arm.mode == Mode::BusyPoll { 5 * count } else { 0 },
                times: None,
            })
        });
        LineRun { line, results: results.collect() }
    }

    #[test]
    fn streams_are_in_bits_and_compared_with_their_limit() {
        let outcome = Outcome {
            lines: vec![
                run("bare-xdp-stream", &[1_000_000_000; 3]),
                run("stack-xdp-tcp-stream", &[800_000_000; 3]),
                run("smoltcp-cable-tcp-stream", &[100; 3]),
            ],
            ..Outcome::default()
        };
        let report = build(machine(), Workload::Stream, &outcome);
        assert_eq!(report.arms[0].per_second, 8e9);
        assert_eq!(report.comparisons.len(), 1);
        assert!((report.comparisons[0].rate_ratio - 0.8).abs() < 1e-9);
        let text = report.render(Width::ALL);
        assert!(text.contains("= 0.80 [0.80-0.80] x bare-xdp-stream"), "{text}");
        assert!(text.contains("both for each MiB"), "{text}");
    }

    #[test]
    fn connections_are_compared_with_the_best_placement() {
        let outcome = Outcome {
            lines: vec![
                run("kernel-tcp-crr", &[10, 11, 12]),
                run("kernel-tcp-crr-same-cpu", &[20, 22, 24]),
                run("stack-xdp-tcp-crr", &[40, 44, 48]),
            ],
            ..Outcome::default()
        };
        let report = build(machine(), Workload::Crr, &outcome);
        let ours = report.comparisons.iter().find(|c| c.arm == "stack-xdp-tcp-crr");
        let ours = ours.expect("compared");
        assert_eq!((ours.baseline.as_str(), ours.rate_ratio), ("kernel-tcp-crr-same-cpu", 2.0));
    }
}
