//! The tables of a trace: stages of each flow, how packets were found, the slowest.

use super::html::{Cell, Column, Html, Row, Table, columns};
use crate::data::{TraceFlow, TraceReport, TraceStage};
use crate::text::figures::{grouped, tail_text, time_text, us_text};

/// More make no page that a person reads.
const MOST: usize = 12;

pub(super) fn tables(html: &mut Html, report: &TraceReport) {
    flows(html, "Received packets", &report.receives);
    flows(html, "Sent packets", &report.sends);
    html.legend(
        "ring: from the interrupt, or the sending on this machine, to the pass that finds the packet; napi: until the driver \
         has handed it up; protocol: until it has reached its socket; queue: there, while no thread was on its way to take \
         it; wake-up: until the thread is on a CPU's run queue; scheduled: until it has the CPU; return: from taking the \
         packet to the end of the system call. call: from the system call to the device's queue; qdisc: until the driver is \
         called; driver: until it has returned. A packet that did not pass a stage counts as 0 there.",
    );
    slowest(html, report);
}

fn flows(html: &mut Html, title: &str, flows: &[TraceFlow]) {
    if flows.is_empty() {
        return;
    }
    html.element("h3", title);
    for flow in flows.iter().take(MOST) {
        let found =
            flow.found.map_or(String::new(), |found| format!(", found by {}", found.words()));
        let packets = grouped(flow.packets as f64);
        html.element("p", &format!("{}, {}: {packets} packets{found}", flow.name(), flow.owner()));
        let titles =
            ["stage", "mean \u{b5}s", "p50 \u{b5}s", "p99 \u{b5}s", "p99.9 \u{b5}s", "max \u{b5}s"];
        let row = |stage: &TraceStage| Row {
            cells: vec![
                Cell::of(&stage.stage),
                Cell::of(us_text(stage.mean)),
                Cell::of(us_text(stage.p50)),
                Cell::of(tail_text(stage.p99)),
                Cell::of(tail_text(stage.p99_9)),
                Cell::of(us_text(stage.max)),
            ],
            invalid: false,
        };
        let rows = flow.stages_us.iter().chain([&flow.total_us]).map(row).collect();
        html.table(&Table { columns: columns(&titles), rows });
    }
}

fn slowest(html: &mut Html, report: &TraceReport) {
    if report.slowest.is_empty() {
        return;
    }
    html.element("h3", "The slowest");
    let mut columns = columns(&["time"]);
    for title in ["direction", "socket", "what happened"] {
        columns.push(Column { title: title.to_owned(), words: true });
    }
    let row = |slow: &crate::data::SlowPacket| Row {
        cells: vec![
            Cell::of(time_text(slow.total_us)),
            Cell::of(&slow.direction),
            Cell::of(&slow.socket),
            Cell::of(&slow.story),
        ],
        invalid: false,
    };
    html.table(&Table { columns, rows: report.slowest.iter().map(row).collect() });
}
