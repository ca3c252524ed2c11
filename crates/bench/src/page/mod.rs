//! Reports as one page of HTML that needs nothing else: no network, no script. It is for screens of any width, light and
//! dark, and for paper.

mod about;
mod html;
mod style;
mod tables;
mod trace;

use crate::beside;
use crate::chart::{self, Chart, NARROW, WIDE};
use crate::data::{Report, Sweep};
use crate::side_by_side::{self, SideBySide};
use crate::text::beside as of_others;
use crate::text::figures::{grouped, tail_text};
use html::{Cell, Column, Html, Row, Table};

/// The page of one run or of several, each under its name. `rows` are other tools' tests, and our arms beside them.
pub fn page(runs: &[(String, Report)], rows: &[beside::Row]) -> String {
    let mut names: Vec<&str> = runs.iter().map(|(name, _)| name.as_str()).collect();
    for row in rows {
        if !names.contains(&row.run.as_str()) {
            names.push(&row.run);
        }
    }
    let title = match runs {
        [(_, report)] if rows.is_empty() => title(report).to_owned(),
        _ => format!("{} runs side by side", names.len()),
    };
    let mut body = Html::default();
    body.0 += "<header>\n";
    body.element("h1", &title);
    match runs {
        [(name, report)] if rows.is_empty() => {
            body.element("p", &origin(name, report));
            body.0 += "</header>\n";
            run(&mut body, report);
        }
        _ => {
            body.element("p", &names.join(" \u{b7} "));
            body.0 += "</header>\n";
            others(&mut body, rows);
            several(&mut body, runs, rows.is_empty());
        }
    }
    body.0 += "<footer>";
    body.0 += &chart::svg::escape(&format!(
        "Made by busypoll {} from {}. Figures are those of the machine described here; others differ.",
        busypoll_policy::VERSION,
        names.join(", ")
    ));
    body.0 += "</footer>\n";
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n</html>\n",
        chart::svg::escape(&format!("{title} \u{b7} busypoll")),
        style::css(),
        body.0
    )
}

fn title(report: &Report) -> &'static str {
    match report {
        Report::RoundTrips(report) if report.workload.is_some() => "A FIX session",
        Report::RoundTrips(_) => "Round trips",
        Report::Sweep(report) => match report.sweep {
            Sweep::Size => "Round trips by message size",
            Sweep::Rate => "Latency by offered rate",
            Sweep::Coalesce => "Round trips by interrupt coalescing",
            Sweep::Open => "Many open connections and sockets",
        },
        Report::Throughput(report) => match report.workload.as_str() {
            "tcp-crr" => "Connections per second",
            "tcp-loss" => "TCP on a path that loses packets",
            _ => "TCP throughput",
        },
        Report::Stages(_) => "Stages of a receive",
        Report::Trace(_) => "Where the time of packets went",
    }
}

/// The file, the machine, the time, the program.
fn origin(name: &str, report: &Report) -> String {
    let (machine, header) = (report.host(), report.header());
    let time = header.time.replace('T', " ").replace('Z', " UTC");
    format!(
        "{name} \u{b7} {}, Linux {} \u{b7} {time} \u{b7} busypoll {} ({})",
        machine.cpu_model, machine.kernel, machine.busypoll, header.commit
    )
}

/// Other tools' tests, with our arms beside them.
fn others(body: &mut Html, rows: &[beside::Row]) {
    if rows.is_empty() {
        return;
    }
    chart::beside(rows).iter().for_each(|chart| figure(body, chart));
    body.element("h3", "Beside other tools' runs");
    let mut columns =
        html::columns(&["transport and size", "mean", "p50", "p99", "a second", "CPU \u{b5}s"]);
    columns.push(Column { title: "run".to_owned(), words: true });
    columns.push(Column { title: "what".to_owned(), words: true });
    let rows = rows.iter().map(|row| Row {
        cells: vec![
            Cell::of(row.group()),
            Cell::of(tail_text(row.mean)),
            Cell::of(tail_text(row.p50)),
            Cell::of(tail_text(row.p99)),
            Cell::of(row.per_second.map_or("-".to_owned(), grouped)),
            Cell::of(of_others::demand(row)),
            Cell::of(&row.run),
            Cell::of(&row.what),
        ],
        invalid: false,
    });
    body.table(&Table { columns, rows: rows.collect() });
    body.legend(of_others::LEGEND);
}

fn several(body: &mut Html, runs: &[(String, Report)], says_nothing_in_common: bool) {
    let both = side_by_side::of(runs);
    let named: Vec<(&str, &Report)> =
        runs.iter().map(|(name, report)| (name.as_str(), report)).collect();
    chart::compare(&named).iter().for_each(|chart| figure(body, chart));
    both.iter().for_each(|both| side_by_side(body, both));
    if both.is_empty() && says_nothing_in_common {
        body.element("p", "These runs have no arm in common.");
    }
    for (name, report) in runs {
        body.element("h2", &format!("{name}: {}", title(report)));
        body.element("p", &origin(name, report));
        run(body, report);
    }
}

/// A table with a column for each run.
fn side_by_side(body: &mut Html, both: &SideBySide) {
    body.element("h3", both.title);
    let mut columns = html::columns(&["arm"]);
    columns.extend(both.runs.iter().map(|name| Column { title: name.clone(), words: false }));
    columns.push(Column { title: "last / first".to_owned(), words: false });
    let rows = both.rows.iter().map(|(name, figures)| {
        let cells = figures.iter().map(|figure| match figure {
            Some((figure, interval)) => Cell::with(*figure, *interval, both.show),
            None => Cell::of("-"),
        });
        let mut row = Row { cells: vec![Cell::of(name)], invalid: false };
        row.cells.extend(cells);
        row.cells.push(Cell::of(side_by_side::change(figures)));
        row
    });
    body.table(&Table { columns, rows: rows.collect() });
    body.legend(
        "In brackets 95% intervals over rounds. The runs were not interleaved, so the machine may have drifted between \
         them: where the intervals overlap, the two are not told apart.",
    );
}

/// Everything about one run.
fn run(body: &mut Html, report: &Report) {
    body.0 += "<blockquote>\n";
    report.answer().lines().for_each(|line| body.element("p", line.trim()));
    body.0 += "</blockquote>\n";
    chart::of(report).iter().for_each(|chart| figure(body, chart));
    tables::add(body, report);
    body.list("Notes", report.notes());
    let skipped: Vec<String> =
        report.skipped().iter().map(|s| format!("{}: {}", s.name, s.reason)).collect();
    body.list("Not measured", &skipped);
    body.element("h3", "The machine");
    body.terms(&about::machine(report));
    body.list("How it was measured", &about::method(report));
    if let Some(command) = about::command(report) {
        body.0 += "<p>Measured again: <code>";
        body.0 += &chart::svg::escape(&command);
        body.0 += "</code></p>\n";
    }
}

/// A chart at both widths, of which the style shows one.
fn figure(body: &mut Html, chart: &Chart) {
    body.0 += "<figure>\n";
    body.element("figcaption", chart.title());
    for (class, width) in [("wide", WIDE), ("narrow", NARROW)] {
        body.0 += &format!("<div class=\"{class}\">\n{}</div>\n", chart.in_page(width));
    }
    body.0 += "</figure>\n";
}
