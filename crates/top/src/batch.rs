//! The figures as text and as JSON, for logs. Columns and fields are stable; new ones may be added.

use std::io::{self, Write};

use busypoll_policy::utc;
use serde::Serialize;

use crate::figures::Figures;
use crate::table::{self, Cell};
use crate::view::State;

/// A line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    figures: &'a Figures,
}

/// One reading in JSON, on one line.
pub(crate) fn json(out: &mut dyn Write, figures: &Figures) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Line { time: time(figures), figures })?;
    writeln!(out)
}

/// One reading as a table with all columns.
pub(crate) fn text(out: &mut dyn Write, state: &State, figures: &Figures) -> io::Result<()> {
    let machine = &figures.machine;
    let percent = |share: f64| Cell::Share(Some(share)).text();
    let rate = |count: u64| Cell::Rate(Some(count as f64 / figures.seconds)).text();
    writeln!(
        out,
        "{} {} CPUs: {} polled, {}% busy, {}% softirq; {} NET_RX/s; waits that found their CPU polled: {}; runs that polling \
         slowed: {}",
        time(figures),
        machine.cpus,
        machine.spinning,
        percent(machine.busy_share),
        percent(machine.softirq_share),
        machine.net_rx_softirqs.map_or("-".into(), rate),
        machine.refused,
        machine.harm,
    )?;
    for missing in &figures.not_seen {
        writeln!(out, "not seen: {}: {}", missing.what, missing.why)?;
    }
    let columns = state.view.columns();
    let all: Vec<usize> = (0..columns.len()).collect();
    writeln!(out, "{}", table::line(columns, &all, |at| columns[at].title.to_owned()))?;
    for row in state.view.sorted(figures, &state.filter, state.order(), state.is_reversed()) {
        writeln!(out, "{}", table::line(columns, &all, |at| row.cells[at].text()).trim_end())?;
    }
    writeln!(out)
}

fn time(figures: &Figures) -> String {
    utc(figures.time)
}
