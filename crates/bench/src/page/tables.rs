//! The tables of a report.

use super::html::{Cell, Column, Html, Row, Table, columns};
use crate::data::{
    ArmReport, Report, RoundTripReport, StagesReport, SweepReport, ThroughputReport, best_blocking,
};
use crate::text::figures::{grouped, rate_text, tail_text, us_text, weight_text};

/// Figures, then evidence.
pub fn add(html: &mut Html, report: &Report) {
    match report {
        Report::RoundTrips(report) => round_trips(html, report),
        Report::Sweep(report) => sweep(html, report),
        Report::Throughput(report) => throughput(html, report),
        Report::Stages(report) => stages(html, report),
        Report::Trace(report) => super::trace::tables(html, report),
    }
}

fn round_trips(html: &mut Html, report: &RoundTripReport) {
    html.element("h3", "Figures");
    let titles =
        ["arm", "p50", "p90", "p99", "p99.9", "max", "a second", "CPU \u{b5}s", "x best blocking"];
    let mut table = Table { columns: columns(&titles), rows: Vec::new() };
    for arm in &report.arms {
        let r = &arm.rtt_us;
        let to_best = match best_blocking(&report.arms, arm) {
            Some(best) if best.name == arm.name => Cell::of("1 (baseline)"),
            Some(best) => report
                .comparison(&arm.name, &best.name)
                .map_or(Cell::of("-"), |c| Cell::with(c.p50_ratio, c.ci95, us_text)),
            None => Cell::of("-"),
        };
        table.rows.push(Row {
            cells: vec![
                Cell::of(&arm.name),
                Cell::with(r.p50, arm.p50_ci95, us_text),
                Cell::of(tail_text(r.p90)),
                Cell::of(tail_text(r.p99)),
                Cell::of(tail_text(r.p99_9)),
                Cell::of(us_text(r.max)),
                Cell::of(grouped(arm.transactions_per_second)),
                Cell::of(arm.service_demand_us.map_or("?".to_owned(), us_text)),
                to_best,
            ],
            invalid: !arm.valid,
        });
    }
    html.table(&table);
    html.legend(
        "Round trips in \u{b5}s; in brackets 95% intervals over rounds. CPU \u{b5}s: CPU time of the whole machine for \
         each transaction; ?: cannot be told apart from what other programs used. x best blocking: p50 as a multiple of \
         the best blocking arm's of the same protocol between the same kind of ends, paired by round.",
    );
    one_way(html, report);
    evidence(html, report.arms.iter().map(|arm| (None, arm)));
    let others: Vec<Row> = report
        .comparisons
        .iter()
        .filter(|c| {
            let arm = report.arms.iter().find(|a| a.name == c.arm);
            let best = arm.and_then(|a| best_blocking(&report.arms, a));
            best.is_none_or(|best| best.name != c.baseline)
        })
        .map(|c| Row {
            cells: vec![
                Cell::of(&c.arm),
                Cell::with(c.p50_ratio, c.ci95, us_text),
                Cell::of(&c.baseline),
            ],
            invalid: false,
        })
        .collect();
    if !others.is_empty() {
        html.element("h3", "p50 as a multiple of other arms'");
        let mut columns = columns(&["arm", "multiple"]);
        columns.push(Column { title: "of".to_owned(), words: true });
        html.table(&Table { columns, rows: others });
    }
}

/// A FIX session's orders one way.
fn one_way(html: &mut Html, report: &RoundTripReport) {
    let titles = ["arm", "min", "avg", "p50", "p99", "max", "orders"];
    let mut table = Table { columns: columns(&titles), rows: Vec::new() };
    let ns = |us: f64| Cell::of(grouped(us * 1e3));
    for arm in &report.arms {
        let Some(times) = &arm.one_way_us else { continue };
        let p99 = times.p99.map_or(Cell::of("-"), ns);
        let orders = Cell::of(grouped(arm.transactions as f64));
        let name = Cell::of(&arm.name);
        table.rows.push(Row {
            cells: vec![
                name,
                ns(times.min),
                ns(times.mean),
                ns(times.p50),
                p99,
                ns(times.max),
                orders,
            ],
            invalid: !arm.valid,
        });
    }
    if !table.rows.is_empty() {
        html.element("h3", "An order one way, in ns");
        html.table(&table);
        html.legend("From before the order is built until its receiver has parsed it.");
    }
}

/// The counters that show what an arm did; `at` is the point of a sweep.
fn evidence<'a>(
    html: &mut Html,
    arms: impl Iterator<Item = (Option<&'a str>, &'a ArmReport)> + Clone,
) {
    html.element("h3", "Evidence: did each arm do what its name says?");
    let swept = arms.clone().any(|(at, _)| at.is_some());
    let mut titles = vec!["arm"];
    titles.extend(swept.then_some("at"));
    titles.extend([
        "polled",
        "packets",
        "sleeps",
        "preempted",
        "irqs",
        "softirqs",
        "lost",
        "hits",
        "misses",
    ]);
    let mut table = Table { columns: columns(&titles), rows: Vec::new() };
    let mut reasons = Vec::new();
    for (at, arm) in arms {
        let e = &arm.evidence;
        let each = |count: u64| Cell::of(us_text(count as f64 / arm.transactions.max(1) as f64));
        let mut cells = vec![Cell::of(&arm.name)];
        cells.extend(at.map(Cell::of));
        cells.extend([
            Cell::of(format!("{:.0}%", e.busy_polled_share * 100.0)),
            Cell::of(grouped(e.busy_poll_rx_packets as f64)),
            each(e.voluntary_switches),
            each(e.involuntary_switches),
            each(e.interrupts),
            each(e.net_rx_softirqs),
            Cell::of(grouped(e.lost as f64)),
            e.stack.map_or(Cell::of(""), |s| Cell::of(grouped(s.hits as f64))),
            e.stack.map_or(Cell::of(""), |s| Cell::of(grouped(s.misses as f64))),
        ]);
        table.rows.push(Row { cells, invalid: !arm.valid });
        if let Some(reason) = &arm.reason {
            let at = at.map_or(String::new(), |at| format!(" at {at}"));
            reasons.push(format!("{}{at}: {reason}", arm.name));
        }
    }
    html.table(&table);
    html.legend(
        "polled: share of the packets that both ends received. packets: those that the kernel's counter \
         BusyPollRxPackets has, both hosts. sleeps, preempted, irqs and NET_RX softirqs: for each transaction, both \
         ends. hits, misses: packets found by a socket's own poll, and polls of an empty queue, on the stack plane.",
    );
    html.list("Invalid, and compared with nothing", &reasons);
}

fn sweep(html: &mut Html, report: &SweepReport) {
    html.element("h3", "Figures");
    let open = report.sweep == crate::data::Sweep::Open;
    let last: &[&str] = match open {
        true => &["x one", "idle one", "in the kernel"],
        false => &["a second", "lost", "server CPU \u{b5}s"],
    };
    let titles = [&["arm", "at", "p50", "p99", "p99.9"], last, &["CPU \u{b5}s"]].concat();
    let mut table = Table { columns: columns(&titles), rows: Vec::new() };
    let all = || report.points.iter().flat_map(|p| p.arms.iter().map(move |arm| (p, arm)));
    for (point, of) in all() {
        let (arm, r) = (&of.arm, &of.arm.rtt_us);
        let demand = |us: Option<f64>| Cell::of(us.map_or("?".to_owned(), us_text));
        let mut cells = vec![
            Cell::of(&arm.name),
            Cell::of(&point.label),
            Cell::with(r.p50, arm.p50_ci95, us_text),
            Cell::of(tail_text(r.p99)),
            Cell::of(tail_text(r.p99_9)),
        ];
        match &of.open {
            Some(cost) if open => cells.extend([
                cost.p50_ratio.map_or(Cell::of("-"), |x| Cell::with(x, cost.ci95, us_text)),
                Cell::of(cost.idle_bytes.map_or(String::new(), |w| weight_text(w.process))),
                Cell::of(cost.idle_bytes.map_or(String::new(), |w| weight_text(w.kernel))),
            ]),
            _ => {
                let offered = (arm.transactions as f64 + arm.evidence.lost as f64).max(1.0);
                cells.extend([
                    Cell::of(grouped(arm.transactions_per_second)),
                    Cell::of(format!("{:.1}%", 100.0 * arm.evidence.lost as f64 / offered)),
                    demand(of.server_cpu_us),
                ]);
            }
        }
        cells.push(demand(arm.service_demand_us));
        table.rows.push(Row { cells, invalid: !arm.valid });
    }
    html.table(&table);
    html.legend(
        match open {
            true => {
                "Times in \u{b5}s; in brackets 95% intervals over rounds. x one: p50 as a multiple of that with one open. \
                 idle one: what this process grew by for each; in the kernel: what the kernel's objects grew by, other \
                 programs' included. CPU \u{b5}s: CPU time of the whole machine for each transaction."
            }
            false => {
                "Times in \u{b5}s; in brackets 95% intervals over rounds. CPU \u{b5}s: CPU time of the whole machine for \
                 each transaction; server CPU \u{b5}s: on the server's CPU alone; ?: hidden by other programs."
            }
        },
    );
    evidence(html, all().map(|(point, of)| (Some(point.label.as_str()), &of.arm)));
}

fn throughput(html: &mut Html, report: &ThroughputReport) {
    html.element("h3", "Figures");
    let of_connections = report.arms.iter().any(|arm| arm.connection_us.is_some());
    let each =
        if report.workload == "tcp-crr" { "CPU \u{b5}s/connection" } else { "CPU \u{b5}s/MiB" };
    let polled = if report.workload == "tcp-crr" { "polled/connection" } else { "polled/MiB" };
    let times: &[&str] = if of_connections { &["p50 \u{b5}s", "p99 \u{b5}s"] } else { &[] };
    let rate = if report.workload == "tcp-crr" { "a second" } else { "rate" };
    let titles = [&["arm", rate, each, polled], times].concat();
    let mut table = Table { columns: columns(&titles), rows: Vec::new() };
    let show: fn(f64) -> String = match report.workload.as_str() {
        "tcp-crr" => grouped,
        _ => |x| rate_text(x, "bit/s"),
    };
    for arm in &report.arms {
        let mut cells = vec![
            Cell::of(&arm.name),
            Cell::with(arm.per_second, arm.per_second_ci95, show),
            Cell::of(arm.service_demand_us.map_or("?".to_owned(), us_text)),
            Cell::of(us_text(arm.busy_polled_packets)),
        ];
        if of_connections {
            cells.extend([
                Cell::of(tail_text(arm.connection_us.map(|r| r.p50))),
                Cell::of(tail_text(arm.connection_us.and_then(|r| r.p99))),
            ]);
        }
        table.rows.push(Row { cells, invalid: !arm.valid });
    }
    html.table(&table);
    html.legend(
        "CPU \u{b5}s: CPU time of the whole machine; ?: cannot be told apart from what other programs used. polled: \
         packets that busy polling found, both ends: the evidence that an arm did what its name says.",
    );
    let reasons: Vec<String> = report
        .arms
        .iter()
        .filter_map(|arm| Some(format!("{}: {}", arm.name, arm.reason.as_ref()?)))
        .collect();
    html.list("Invalid, and compared with nothing", &reasons);
    if !report.comparisons.is_empty() {
        html.element("h3", "Rates as multiples of other arms'");
        let mut columns = columns(&["arm", "multiple"]);
        columns.push(Column { title: "of".to_owned(), words: true });
        let rows = report.comparisons.iter().map(|c| Row {
            cells: vec![
                Cell::of(&c.arm),
                Cell::with(c.rate_ratio, c.ci95, us_text),
                Cell::of(&c.baseline),
            ],
            invalid: false,
        });
        html.table(&Table { columns, rows: rows.collect() });
    }
}

fn stages(html: &mut Html, report: &StagesReport) {
    html.element("h3", "Figures");
    let mut columns = columns(&["arm"]);
    columns.push(Column { title: "stage".to_owned(), words: true });
    columns.extend(self::columns(&["p50 \u{b5}s", "p99 \u{b5}s"]));
    let mut table = Table { columns, rows: Vec::new() };
    for arm in &report.arms {
        for stage in &arm.stages_us {
            table.rows.push(Row {
                cells: vec![
                    Cell::of(&arm.arm),
                    Cell::of(&stage.stage),
                    Cell::of(us_text(stage.p50)),
                    Cell::of(us_text(stage.p99)),
                ],
                invalid: false,
            });
        }
    }
    html.table(&table);
    html.legend(
        &format!(
            "ring: on the ring until a spinning pass begins; wake-up: the same with the receiver asleep, interrupt \
             included; napi: pass to frame handed up; inet: until its socket is found; socket: until it is there; return: \
             until recv has returned. A time stamp costs {:.0} ns.",
            report.clock_overhead_ns
        ),
    );
}
