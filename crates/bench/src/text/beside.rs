//! Other tools' tests and our arms as one table.

use std::fmt::Write;

use busypoll_policy::fit::Width;

use super::figures::{grouped, tail_text, us_text};
use super::table::plain;
use crate::beside::Row;

/// The note under such a table.
pub const LEGEND: &str = "Round trips in us; mean: one divided by the rate where a tool gives no more. CPU us: for each \
     transaction, of both machines together, or of the client's machine + the server's: on one machine these are the same \
     time twice. Nothing was interleaved, so the machine may have drifted between the runs.";

/// CPU time of both machines together, or of each.
pub fn demand(row: &Row) -> String {
    let all: Vec<String> = row.demand_us.iter().map(|us| us_text(*us)).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(" + ") }
}

/// The table, and the notes of the tests.
pub fn text(rows: &[Row], notes: &[&str], width: Width) -> String {
    let mut table =
        plain(&["transport and size", "run", "mean", "p50", "p99", "trans/s", "CPU us", "what"]);
    let mut last = String::new();
    for row in rows {
        let group = row.group();
        let shown = if group == last { String::new() } else { group.clone() };
        last = group;
        table.add_row([
            shown,
            row.run.clone(),
            tail_text(row.mean),
            tail_text(row.p50),
            tail_text(row.p99),
            row.per_second.map_or("-".to_owned(), grouped),
            demand(row),
            row.what.clone(),
        ]);
    }
    let mut out = format!(
        "== Beside other tools' runs\n{}\n\n{LEGEND}\n",
        width.fit(table, &["mean", "p99"])
    );
    for note in notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}
