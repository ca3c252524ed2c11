//! The report as text: one table sorted by p50, the skipped arms, and one closing sentence.

use std::fmt::Write;

use busypoll_policy::fit::Width;
use comfy_table::{CellAlignment, Table, presets};

use crate::arm::{Mode, Placement, Plane};
use crate::chart::{Chart, Series};
use crate::demand::DISTURBED;
use crate::json::{ArmReport, Comparison, Report};
use crate::limit;
use crate::report::best_blocking;

const LEGEND: &str = "\
p50 to max: round trips in us. CPU us: service demand, CPU time of the whole machine per transaction.
x best blocking: p50 as a multiple of the best blocking arm's of the same protocol [95% interval].
busy-polled: share of packets; switches, irqs: per transaction, both ends.";

/// The note on a service demand that is not shown.
pub const HIDDEN: &str = "?: cannot be told apart from what other programs used.";

/// The note on a percentile that is not shown.
pub const TOO_FEW: &str = "p99, p99.9 -: a round has fewer than 100, 1,000 requests.";

/// Columns that the median, its tail, its cost and its ratio can be read without.
const FIRST_TO_GO: [&str; 6] = ["max", "p99.9", "trans/s", "evidence", "CPU us", "p99"];

/// The whole report as text.
pub fn render(report: &Report, width: Width) -> String {
    let mut out = heading(report);
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
    if let Some(us) = report.limit.shared_memory_rtt_us {
        let mut row = vec![format!("({})", limit::NAME), us_text(us)];
        row.resize(8, String::new());
        row.push("the limit between these CPUs".to_owned());
        table.add_row(row);
    }
    for arm in &report.arms {
        table.add_row(arm_row(report, arm));
    }
    let _ = writeln!(out, "{}\n\n{LEGEND}", width.fit(table, &FIRST_TO_GO));
    if report.arms.iter().any(|a| a.rtt_us.p99_9.is_none()) {
        let _ = writeln!(out, "{TOO_FEW}");
    }
    if report.arms.iter().any(|a| a.service_demand_us.is_none()) {
        let _ = writeln!(out, "{HIDDEN}");
    }
    notes(report, &mut out);
    let _ = writeln!(out, "\n{}", verdict(report));
    out
}

fn heading(report: &Report) -> String {
    let m = &report.machine;
    let cpus = match (&m.server, m.server_cpu) {
        (Some(server), _) => format!("client on CPU {}, server at {server}", m.client_cpu),
        (None, Some(server)) => format!("client on CPU {}, server on CPU {server}", m.client_cpu),
        (None, None) => format!("CPU {} alone", m.client_cpu),
    };
    let (req, resp) = report.arms.first().map_or((1, 1), |a| (a.request_bytes, a.response_bytes));
    format!(
        "{}, Linux {}{}; {cpus}; {req} B requests, {resp} B responses, {} rounds\n\n",
        m.cpu_model,
        m.kernel,
        if m.virtual_machine { " (virtual machine)" } else { "" },
        m.rounds
    )
}

fn arm_row(report: &Report, arm: &ArmReport) -> Vec<String> {
    let r = &arm.rtt_us;
    let ratio = ratio_to_best(report, arm);
    let evidence = match &arm.reason {
        Some(_) => format!("INVALID; {}", arm.evidence_summary),
        None => arm.evidence_summary.clone(),
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

fn ratio_to_best(report: &Report, arm: &ArmReport) -> String {
    match best_blocking(&report.arms, arm.protocol) {
        Some(best) if best.name == arm.name => "1 (baseline)".to_owned(),
        Some(best) => comparison(report, &arm.name, &best.name)
            .map_or("-".to_owned(), |c| ratio_text(c.p50_ratio, c.ci95)),
        None => "-".to_owned(),
    }
}

fn comparison<'a>(report: &'a Report, arm: &str, baseline: &str) -> Option<&'a Comparison> {
    report.comparisons.iter().find(|c| c.arm == arm && c.baseline == baseline)
}

/// A ratio and its interval.
pub fn ratio_text(ratio: f64, ci95: Option<[f64; 2]>) -> String {
    match ci95 {
        Some([lo, hi]) => format!("{ratio:.2} [{lo:.2}-{hi:.2}]"),
        None => format!("{ratio:.2}"),
    }
}

fn notes(report: &Report, out: &mut String) {
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
        arm.and_then(|a| best_blocking(&report.arms, a.protocol))
            .is_some_and(|b| b.name == c.baseline)
    };
    let mut title = "\np50 as a multiple of other arms':\n";
    for c in report.comparisons.iter().filter(|c| !best(c)) {
        let ratio = ratio_text(c.p50_ratio, c.ci95);
        let _ = writeln!(out, "{title}  {} = {ratio} x {}", c.arm, c.baseline);
        title = "";
    }
    let m = &report.machine;
    if m.share_core {
        let _ = writeln!(
            out,
            "note: CPUs {} and {} share a core; spinners slow each other down (choose with --cpus)",
            m.client_cpu,
            m.server_cpu.unwrap_or(m.client_cpu)
        );
    }
    if let Some(note) = m.one_core.note() {
        let _ = writeln!(out, "{note}");
    }
    if let Some(idle) = m.idle_cpu_share
        && 1.0 - idle > DISTURBED
    {
        let _ = writeln!(
            out,
            "note: other programs used {:.0}% of all CPUs: tails and CPU us are disturbed; repeat it on a quiet machine",
            (1.0 - idle) * 100.0
        );
    }
    if (2..6).contains(&m.rounds) {
        let _ = writeln!(out, "note: {} rounds are too few for a sound 95% interval", m.rounds);
    }
}

/// One sentence: the gain by busy polling in this run, and its cost.
pub fn verdict(report: &Report) -> String {
    let polling = report.arms.iter().filter(|a| a.mode == Mode::BusyPoll);
    let Some((arm, best, c)) = polling
        .clone()
        .filter(|a| a.valid && (a.plane == Plane::Kernel || a.nic == crate::arm::Nic::Xdp))
        .filter_map(|arm| {
            let best = best_blocking(&report.arms, arm.protocol)?;
            Some((arm, best, comparison(report, &arm.name, &best.name)?))
        })
        .min_by(|a, b| a.2.p50_ratio.total_cmp(&b.2.p50_ratio))
    else {
        let why = polling.clone().find_map(|a| a.reason.as_deref());
        return match why {
            Some(why) => format!("This run says nothing about busy polling: its arms {why}."),
            None => "This run says nothing about busy polling: it needs a busy-poll arm and a \
                     blocking arm of the same protocol."
                .to_owned(),
        };
    };
    let gain = match c.ci95 {
        Some([lo, hi]) if lo <= 1.0 && hi >= 1.0 => {
            "no gain that this run can tell from noise".to_owned()
        }
        _ if c.p50_ratio < 1.0 => format!("{:.1} times sooner", 1.0 / c.p50_ratio),
        _ => format!("{:.1} times later: it harms here", c.p50_ratio),
    };
    let cost = match (arm.service_demand_us, best.service_demand_us) {
        (Some(polling), Some(asleep)) => format!(
            "it costs {} us of CPU per transaction instead of {}",
            us_text(polling),
            us_text(asleep)
        ),
        _ => "what it costs was hidden by other programs' use of the CPUs".to_owned(),
    };
    // The best blocking arm often has both ends on one CPU, which client and server on two machines cannot have.
    let apart = report.arms.iter().find(|a| {
        a.valid
            && (a.plane, a.mode, a.placement)
                == (Plane::Kernel, Mode::Blocking, Placement::SeparateCpus)
            && a.protocol == arm.protocol
            && a.name != best.name
    });
    let apart = apart.map_or(String::new(), |a| {
        format!(" ({} us with a CPU for each end)", us_text(a.rtt_us.p50))
    });
    format!(
        "Busy polling ({}) answers in {} us at the median where the best blocking arm ({}) takes {} us{apart}: \
         {gain}; {cost}, and every waiting thread keeps its CPU busy also while nothing arrives.",
        arm.name,
        us_text(arm.rtt_us.p50),
        best.name,
        us_text(best.rtt_us.p50),
    )
}

fn demand_text(arm: &ArmReport) -> String {
    arm.service_demand_us.map_or("?".to_owned(), us_text)
}

/// The report as a chart: each valid arm's round trips from the median to the maximum.
pub fn chart(report: &Report) -> Chart {
    let valid = report.arms.iter().filter(|a| a.valid);
    let series = valid.map(|a| {
        let r = &a.rtt_us;
        let values = [Some(r.p50), r.p90, r.p99, r.p99_9, r.p99_99, Some(r.max)];
        Series { name: a.name.clone(), values: values.to_vec() }
    });
    Chart {
        title: "Round trips by percentile".to_owned(),
        x_label: "percentile".to_owned(),
        y_label: "us".to_owned(),
        points: ["50", "90", "99", "99.9", "99.99", "max"].map(str::to_owned).to_vec(),
        series: series.collect(),
    }
}

/// Microseconds with three significant digits at most.
pub fn us_text(us: f64) -> String {
    match us {
        x if x < 10.0 => format!("{x:.2}"),
        x if x < 100.0 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    }
}

/// A percentile, or `-` if a round has too few requests for it.
pub fn tail_text(us: Option<f64>) -> String {
    us.map_or("-".to_owned(), us_text)
}

/// A table without frames: first and last columns left-aligned, figures right-aligned.
pub fn plain(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    let last = header.len() - 1;
    for (i, column) in table.column_iter_mut().enumerate() {
        if i > 0 && i < last {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn the_table_matches_the_expected_file() {
        let text: String =
            render(&sample(), Width::ALL).lines().map(|l| format!("{}\n", l.trim_end())).collect();
        assert_eq!(text, include_str!("table.expected.txt"), "\n{text}");
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

    #[test]
    fn the_verdict_claims_only_what_was_measured() {
        let mut report = sample();
        report.comparisons[0].ci95 = Some([0.9, 1.1]);
        assert!(verdict(&report).contains("noise"), "{}", verdict(&report));
        report.comparisons[0] =
            Comparison { p50_ratio: 1.8, ci95: Some([1.7, 1.9]), ..report.comparisons[0].clone() };
        assert!(verdict(&report).contains("harms"), "{}", verdict(&report));
        report.arms.retain(|a| !a.valid);
        assert!(verdict(&report).contains("says nothing"), "{}", verdict(&report));
        assert!(verdict(&report).contains("slept"), "{}", verdict(&report));
        report.arms.clear();
        assert!(verdict(&report).contains("says nothing"), "{}", verdict(&report));
    }

    #[test]
    fn figures_keep_three_digits() {
        for (us, text) in [(0.098, "0.10"), (7.234, "7.23"), (12.04, "12.0"), (1234.5, "1234")] {
            assert_eq!(us_text(us), text);
        }
    }
}
