//! The report of an attach: a table for people, JSON for programs.

use std::io::{self, Write};

use busypoll_policy::fit::Width;
use busypoll_policy::terminal;
use comfy_table::{ColumnConstraint, Table, presets};
use serde::Serialize;

use super::row::Row;
use super::target::Target;

/// The report on one process.
#[derive(Serialize)]
struct Report<'a> {
    pid: u32,
    program: String,
    threads: usize,
    /// Its sockets are on the stack plane and are left unchanged.
    stack_plane: bool,
    rows: &'a [Row],
}

impl<'a> Report<'a> {
    fn of(target: &Target, rows: &'a [Row]) -> Self {
        Report {
            pid: target.process.pid(),
            program: target.program.executable.display().to_string(),
            threads: target.waits.threads,
            stack_plane: target.on_stack_plane,
            rows,
        }
    }
}

/// Reports everything about one process.
pub(super) fn process(
    out: &mut impl Write,
    target: &Target,
    rows: &[Row],
    json: bool,
    width: Width,
) -> io::Result<()> {
    let report = Report::of(target, rows);
    if json {
        return line(out, &report);
    }
    let Report { pid, program, stack_plane, .. } = report;
    let waits = &target.waits;
    let count = |waiters: &std::collections::HashMap<i32, usize>| waiters.values().sum::<usize>();
    let mut ways = Vec::new();
    for (threads, way) in [
        (count(&waits.epoll), "in epoll_wait"),
        (count(&waits.receive), "reading"),
        (waits.poll.values().copied().max().unwrap_or(0), "in poll or select"),
        (waits.running, "running"),
        (waits.unknown, "unknown"),
    ] {
        if threads > 0 {
            ways.push(format!("{threads} {way}"));
        }
    }
    let ways = if ways.is_empty() { String::new() } else { format!(" ({})", ways.join(", ")) };
    let threads = if waits.threads == 1 { "thread" } else { "threads" };
    if stack_plane {
        return writeln!(
            out,
            "process {pid}, {program}: its sockets are in the stack plane, which polls for them; left alone \
             (`busypoll ss` lists them)"
        );
    }
    writeln!(out, "process {pid}, {program}: {} {threads}{ways}\n", waits.threads)?;
    if rows.is_empty() {
        return writeln!(out, "It has no socket and no epoll instance.");
    }
    writeln!(out, "{}", table_text(rows, width))?;
    let changed = rows.iter().filter(|row| row.changed).count();
    let of = rows.len();
    match changed {
        0 if target.has_changes() => {
            writeln!(
                out,
                "\nNothing of {of} changed now. `busypoll detach {pid}` undoes earlier changes."
            )
        }
        0 => writeln!(out, "\nNothing of {of} changed."),
        n => writeln!(
            out,
            "\n{n} of {of} changed. `busypoll detach {pid}` restores the settings from before."
        ),
    }
}

/// Reports what is new in a followed process, one line each.
pub(super) fn changes(
    out: &mut impl Write,
    target: &Target,
    rows: &[Row],
    json: bool,
) -> io::Result<()> {
    if json {
        return line(out, &Report::of(target, rows));
    }
    let pid = target.process.pid();
    for row in rows {
        let state =
            if row.changed { format!("{} -> {}", row.was, row.now) } else { row.now.to_string() };
        let why = if row.why.is_empty() { String::new() } else { format!("  {}", row.why) };
        writeln!(out, "{pid}  fd {}  {}  {}  {state}{why}", row.fd, row.what, ends(row))?;
    }
    out.flush()
}

fn line(out: &mut impl Write, report: &Report<'_>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, report).map_err(io::Error::from)?;
    writeln!(out)?;
    out.flush()
}

/// The table. On a terminal the reason has lines of its own, as it is longer than what else a row says.
fn table_text(rows: &[Row], width: Width) -> String {
    let Some(columns) = width.0 else { return table(rows).trim_fmt() };
    let mut narrow = table(rows);
    if let Some(reason) = narrow.column_mut(REASON) {
        reason.set_constraint(ColumnConstraint::Hidden);
    }
    let text = width.fit(narrow, &["queue", "was"]);
    let mut lines = text.lines();
    let mut text: String = lines.next().map(|header| format!("{header}\n")).unwrap_or_default();
    let mut rows = rows.iter();
    for line in lines {
        text += &format!("{line}\n");
        if let Some(row) = rows.next().filter(|row| !row.why.is_empty()) {
            text += &terminal::wrap(&format!("      {}\n", row.why), columns);
        }
    }
    text.trim_end().to_owned()
}

/// The column of the reason.
const REASON: usize = 6;

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["fd", "what", "where", "queue", "was", "now", ""]);
    for row in rows {
        let also: String = row.also.iter().map(|fd| format!(", {fd}")).collect();
        table.add_row([
            format!("{}{also}", row.fd),
            row.what.clone(),
            ends(row),
            queue(row),
            row.was.to_string(),
            if row.changed { row.now.to_string() } else { "same".to_owned() },
            row.why.clone(),
        ]);
    }
    table
}

/// The addresses, or how many files an epoll instance watches.
fn ends(row: &Row) -> String {
    let waiting = match row.waiting_threads {
        0 => String::new(),
        1 => ", 1 thread waits".to_owned(),
        n => format!(", {n} threads wait"),
    };
    if let Some(watches) = &row.watches {
        let count = watches.len();
        let things = if count == 1 { "thing" } else { "things" };
        return format!("watches {count} {things}{waiting}");
    }
    match (&row.local, &row.peer) {
        (None, None) => String::new(),
        (Some(local), None) => format!("{local}{waiting}"),
        (local, Some(peer)) => {
            format!("{} to {peer}{waiting}", local.as_deref().unwrap_or("?"))
        }
    }
}

fn queue(row: &Row) -> String {
    match (row.napi_id, &row.device) {
        (None, _) => "-".to_owned(),
        (Some(id), Some(device)) => format!("{id} {device}"),
        (Some(id), None) => format!("{id} ?"),
    }
}
