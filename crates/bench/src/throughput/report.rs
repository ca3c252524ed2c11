//! The results, as text and as JSON.

use std::fmt::Write;

use busypoll_policy::fit::Width;
use comfy_table::CellAlignment;
use serde::Serialize;

use super::{Line, LineRun, Outcome, Workload};
use crate::arm::{Mode, Nic, Placement, Plane, Protocol};
use crate::demand::{self, Usage};
use crate::json::{Machine, SkippedReport};
use crate::stats::{self, RttUs};
use crate::table::{self, plain, tail_text, us_text};

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The machine and the settings.
    pub machine: Machine,
    /// `tcp-stream`, `tcp-crr` or `tcp-loss`.
    pub workload: String,
    /// Sorted by rate, the highest first.
    pub arms: Vec<LineReport>,
    /// What could not be measured.
    pub skipped: Vec<SkippedReport>,
    /// Ratios between arms of this run.
    pub comparisons: Vec<RateComparison>,
}

/// One measured arm.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LineReport {
    /// Its name.
    pub name: String,
    /// The stack.
    pub plane: Plane,
    /// The link.
    pub nic: Nic,
    /// Always TCP; the bare arm carries as many bytes per frame as TCP would.
    pub protocol: Protocol,
    /// How both ends wait.
    pub mode: Mode,
    /// The CPUs of the ends.
    pub placement: Placement,
    /// Bits of data, or connections, per second: the median over rounds.
    pub per_second: f64,
    /// `bit/s` or `connections/s`.
    pub unit: &'static str,
    /// Microseconds of CPU, whole machine, per MiB or per connection; null if other programs hide it.
    pub service_demand_us: Option<f64>,
    /// The duration of a connection; null for streams.
    pub connection_us: Option<RttUs>,
    /// Packets found by busy polling, both ends, per MiB or per connection.
    pub busy_polled_packets: f64,
    /// Whether it did what its name says. Always true for streams, as a receiver that always has data does not poll.
    pub valid: bool,
    /// The reason, if not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One arm's rate as a multiple of another's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RateComparison {
    /// The arm.
    pub arm: String,
    /// What it is compared with.
    pub baseline: String,
    /// Above 1: the arm is faster.
    pub rate_ratio: f64,
    /// 95 % confidence interval; null with a single round.
    pub ci95: Option<[f64; 2]>,
}

const MIB: f64 = 1024.0 * 1024.0;

/// Summarises a run.
pub fn build(mut machine: Machine, workload: Workload, outcome: &Outcome) -> Report {
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
    Report {
        machine,
        workload: format!("tcp-{}", workload.word()),
        arms,
        skipped: skipped.collect(),
        comparisons,
    }
}

fn rates(run: &LineRun) -> Vec<Option<f64>> {
    let unit = if run.line.workload == Workload::Crr { 1.0 } else { 8.0 };
    let rate = |result: &super::RunResult| {
        unit * result.count as f64 / result.elapsed.as_secs_f64().max(1e-9)
    };
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
        unit: if is_stream { "bit/s" } else { "connections/s" },
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

impl Report {
    /// The report as text.
    pub fn render(&self, width: Width) -> String {
        let m = &self.machine;
        let mut out = format!(
            "{}, Linux {}{}; {}, {} rounds\n\n",
            m.cpu_model,
            m.kernel,
            if m.virtual_machine { " (virtual machine)" } else { "" },
            self.workload,
            m.rounds
        );
        let is_stream = self.workload != "tcp-crr";
        let slow = self.workload == "tcp-loss";
        let (unit, of) = if slow { ("Mbit/s", 1e6) } else { ("Gbit/s", 1e9) };
        let mut columns = match is_stream {
            true => vec!["arm", unit, "CPU us/MiB", "polled/MiB"],
            false => vec!["arm", "conn/s", "CPU us/conn", "polled/conn"],
        };
        if !is_stream {
            columns.extend(["p50 us", "p99 us"]);
        }
        let mut table = plain(&columns);
        for arm in &self.arms {
            let rate = match is_stream {
                true => format!("{:.3}", arm.per_second / of),
                false => format!("{:.0}", arm.per_second),
            };
            let demand =
                arm.service_demand_us.map_or_else(|| "?".to_owned(), |us| format!("{us:.0}"));
            let polled = match is_stream {
                true => format!("{:.0}", arm.busy_polled_packets),
                false => format!("{:.1}", arm.busy_polled_packets),
            };
            let mut row = vec![arm.name.clone(), rate, demand, polled];
            if let Some(times) = &arm.connection_us {
                row.extend([us_text(times.p50), tail_text(times.p99)]);
            }
            table.add_row(row);
        }
        for i in 1..columns.len() {
            if let Some(column) = table.column_mut(i) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let first_to_go = ["polled/MiB", "polled/conn", "p99 us"];
        let _ = writeln!(out, "{}\n", width.fit(table, &first_to_go));
        let each = if is_stream { "MiB" } else { "connection" };
        let _ = writeln!(
            out,
            "CPU us: service demand, CPU time of the whole machine; polled: packets found by busy polling; both for each {each}."
        );
        if self.arms.iter().any(|arm| arm.service_demand_us.is_none()) {
            let _ = writeln!(out, "{}", table::HIDDEN);
        }
        for arm in &self.arms {
            if let Some(reason) = &arm.reason {
                let _ = writeln!(out, "INVALID {}: {reason}", arm.name);
            }
        }
        for s in &self.skipped {
            let _ = writeln!(out, "skipped: {}: {}", s.name, s.reason);
        }
        let mut title = "\nrates as multiples of other arms' [95% interval]:\n";
        for c in &self.comparisons {
            let interval = c.ci95.map_or(String::new(), |[lo, hi]| format!(" [{lo:.2}-{hi:.2}]"));
            let _ = writeln!(
                out,
                "{title}  {} = {:.2}{interval} x {}",
                c.arm, c.rate_ratio, c.baseline
            );
            title = "";
        }
        if let Some(note) = m.one_core.note() {
            let _ = writeln!(out, "\n{note}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LINES, RunResult};
    use super::*;
    use crate::report::tests::machine;
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
