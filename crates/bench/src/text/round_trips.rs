//! The report as text: one table sorted by p50, the skipped arms, and one closing sentence.

use std::fmt::Write;

use busypoll_policy::fit::Width;
use comfy_table::Table;

use super::figures::{grouped, ratio_text, tail_text, us_text};
use super::table::{HIDDEN, TOO_FEW, plain};
use crate::arm::Between;
use crate::data::{ArmReport, Comparison, RoundTripReport, best_blocking};
use crate::limit;

const LEGEND: &str = "\
p50 to max: round trips in us. CPU us: service demand, CPU time of the whole machine per transaction.
x best blocking: p50 as a multiple of the best blocking arm's of the same protocol in the same table [95% interval].
busy-polled: share of packets; switches, irqs: per transaction, both ends.";

/// Columns that the median, its tail, its cost and its ratio can be read without.
const FIRST_TO_GO: [&str; 6] = ["max", "p99.9", "trans/s", "evidence", "CPU us", "p99"];

impl RoundTripReport {
    /// The whole report as text.
    pub fn render(&self, width: Width) -> String {
        render(self, width)
    }
}

fn render(report: &RoundTripReport, width: Width) -> String {
    let mut out = heading(report);
    let limit = report.limit.shared_memory_rtt_us.map(|us| {
        let mut row = vec![format!("({})", limit::NAME), us_text(us)];
        row.resize(8, String::new());
        row.push("the limit between these CPUs".to_owned());
        row
    });
    let is_local = report.between(Between::Processes).next().is_some();
    if !is_local || report.between(Between::Hosts).next().is_some() {
        let table = table(report, Between::Hosts, limit);
        let _ = writeln!(out, "{}\n", width.fit(table, &FIRST_TO_GO));
    }
    if is_local {
        let table = table(report, Between::Processes, None);
        let text = width.fit(table, &FIRST_TO_GO);
        let _ = writeln!(out, "Between two processes of this machine:\n\n{text}\n");
    }
    let _ = writeln!(out, "{LEGEND}");
    if report.arms.iter().any(|a| a.rtt_us.p99_9.is_none()) {
        let _ = writeln!(out, "{TOO_FEW}");
    }
    if report.arms.iter().any(|a| a.service_demand_us.is_none()) {
        let _ = writeln!(out, "{HIDDEN}");
    }
    one_way(report, width, &mut out);
    notes(report, &mut out);
    let _ = writeln!(out, "\n{}", report.answer);
    out
}

/// The arms with this kind of ends, below `first`.
fn table(report: &RoundTripReport, between: Between, first: Option<Vec<String>>) -> Table {
    let mut table = plain(&[
        "arm",
        "p50",
        "p99",
        "p99.9",
        "max",
        "trans/s",
        "CPU us",
        "x best blocking",
        "evidence",
    ]);
    table.add_rows(first);
    table.add_rows(report.between(between).map(|arm| arm_row(report, arm)));
    table
}

/// The other half of a FIX session's figures, in nanoseconds as engines' manuals give them.
fn one_way(report: &RoundTripReport, width: Width, out: &mut String) {
    let mut table = plain(&["arm", "min", "avg", "p50", "p99", "max", "round trip avg", "orders"]);
    let ns = |us: f64| grouped(us * 1e3);
    for arm in &report.arms {
        let Some(times) = &arm.one_way_us else { continue };
        table.add_row([
            arm.name.clone(),
            ns(times.min),
            ns(times.mean),
            ns(times.p50),
            times.p99.map_or("-".to_owned(), ns),
            ns(times.max),
            ns(arm.rtt_us.mean),
            grouped(arm.transactions as f64),
        ]);
    }
    if table.row_count() > 0 {
        let text = width.fit(table, &["p50", "round trip avg"]);
        let _ = writeln!(
            out,
            "\nAn order one way in ns, from before it is built until it is parsed:\n{text}"
        );
    }
}

fn heading(report: &RoundTripReport) -> String {
    let m = &report.machine;
    let cpus = match (&m.server, m.server_cpu) {
        (Some(server), _) => format!("client on CPU {}, server at {server}", m.client_cpu),
        (None, Some(server)) => format!("client on CPU {}, server on CPU {server}", m.client_cpu),
        (None, None) => format!("CPU {} alone", m.client_cpu),
    };
    let (req, resp) = report.arms.first().map_or((1, 1), |a| (a.request_bytes, a.response_bytes));
    format!(
        "{}, Linux {}{}; {cpus}; {req} B requests, {resp} B responses{}, {} rounds\n\n",
        m.cpu_model,
        m.kernel,
        if m.virtual_machine { " (virtual machine)" } else { "" },
        m.mtu_text(),
        m.rounds
    )
}

fn arm_row(report: &RoundTripReport, arm: &ArmReport) -> Vec<String> {
    let r = &arm.rtt_us;
    let ratio = ratio_to_best(report, arm);
    let evidence = match &arm.reason {
        Some(_) => format!("INVALID; {}", arm.evidence_summary()),
        None => arm.evidence_summary(),
    };
    vec![
        arm.name.clone(),
        us_text(r.p50),
        tail_text(r.p99),
        tail_text(r.p99_9),
        us_text(r.max),
        format!("{:.0}", arm.transactions_per_second),
        demand_text(arm),
        ratio,
        evidence,
    ]
}

fn ratio_to_best(report: &RoundTripReport, arm: &ArmReport) -> String {
    match best_blocking(&report.arms, arm) {
        Some(best) if best.name == arm.name => "1 (baseline)".to_owned(),
        Some(best) => report
            .comparison(&arm.name, &best.name)
            .map_or("-".to_owned(), |c| ratio_text(c.p50_ratio, c.ci95)),
        None => "-".to_owned(),
    }
}

fn notes(report: &RoundTripReport, out: &mut String) {
    for arm in &report.arms {
        if let Some(reason) = &arm.reason {
            let _ = writeln!(out, "invalid: {}: {reason}", arm.name);
        }
    }
    // Arms skipped for the same reason share a line.
    let mut skipped: Vec<(&str, Vec<&str>)> = Vec::new();
    for s in &report.skipped {
        match skipped.iter_mut().find(|(reason, _)| *reason == s.reason) {
            Some((_, names)) => names.push(&s.name),
            None => skipped.push((&s.reason, vec![&s.name])),
        }
    }
    for (reason, names) in skipped {
        let _ = writeln!(out, "skipped: {}: {reason}", names.join(", "));
    }
    let best = |c: &Comparison| {
        let arm = report.arms.iter().find(|a| a.name == c.arm);
        arm.and_then(|a| best_blocking(&report.arms, a)).is_some_and(|b| b.name == c.baseline)
    };
    let mut title = "\np50 as a multiple of other arms':\n";
    for c in report.comparisons.iter().filter(|c| !best(c)) {
        let ratio = ratio_text(c.p50_ratio, c.ci95);
        let _ = writeln!(out, "{title}  {} = {ratio} x {}", c.arm, c.baseline);
        title = "";
    }
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
}

fn demand_text(arm: &ArmReport) -> String {
    arm.service_demand_us.map_or("?".to_owned(), us_text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sample::{local, sample};

    #[test]
    fn arms_between_processes_have_a_table_of_their_own() {
        let mut report = local();
        let names = |text: &str| -> Vec<String> {
            let first = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
            let is = |name: &String| name.contains("-") && name.starts_with(['(', 'k', 'l']);
            text.lines().map(first).filter(is).take(9).collect()
        };
        let alone = render(&report, Width::ALL);
        assert!(!alone.contains(limit::NAME), "{alone}");
        report.arms.extend(sample().arms);
        let both = render(&report, Width::ALL);
        let (hosts, processes) = both.split_once("Between two processes of this machine:").unwrap();
        assert!(names(hosts).iter().all(|name| !name.starts_with("local-")), "{both}");
        assert_eq!(names(processes)[..4], names(&alone)[..4], "{both}");
    }

    #[test]
    fn the_table_matches_the_expected_file() {
        let text: String =
            render(&sample(), Width::ALL).lines().map(|l| format!("{}\n", l.trim_end())).collect();
        assert_eq!(text, include_str!("round_trips.expected.txt"), "\n{text}");
    }

    #[test]
    fn at_80_columns_no_row_is_wider_and_the_essential_columns_are_there() {
        let width = Width(Some(80));
        let text = width.wrap(render(&sample(), width));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let header = text.lines().find(|line| line.starts_with(" arm")).unwrap();
        for title in ["p50", "p99", "CPU us", "x best blocking"] {
            assert!(header.contains(title), "{text}");
        }
    }

    #[test]
    fn no_cpu_is_named_for_a_server_on_another_machine() {
        let mut report = sample();
        let machine = &mut report.machine;
        (machine.server, machine.server_cpu) = (Some("192.0.2.7:7117".into()), None);
        let text = render(&report, Width::ALL);
        assert!(text.contains("; client on CPU 0, server at 192.0.2.7:7117; "), "{text}");
    }
}
