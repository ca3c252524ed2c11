//! Several runs side by side: a group of bars for each arm, a bar for each run.

use super::bars::{Bar, Bars, Part};
use super::frame::Heading;
use super::lines::{Lines, Series};
use super::svg::Ink;
use super::{Chart, sweep, throughput};
use crate::data::{Report, RoundTripReport, SweepReport, ThroughputReport};
use crate::text::figures::time_text;

/// Runs of one kind by name.
type Runs<'a, R> = Vec<(&'a str, &'a R)>;

/// The charts of runs that measured the same, each under its name.
pub fn compare(runs: &[(&str, &Report)]) -> Vec<Chart> {
    let trips = runs.iter().filter_map(|(name, run)| match run {
        Report::RoundTrips(report) => Some((*name, report)),
        _ => None,
    });
    let mut charts: Vec<Chart> =
        Chart::bars("compared", round_trips(&trips.collect())).into_iter().collect();
    for workload in ["tcp-stream", "tcp-crr", "tcp-loss"] {
        let same = runs.iter().filter_map(|(name, run)| match run {
            Report::Throughput(report) if report.workload == workload => Some((*name, report)),
            _ => None,
        });
        charts.extend(Chart::bars("compared", rates(&same.collect())));
    }
    for question in [
        crate::data::Sweep::Size,
        crate::data::Sweep::Rate,
        crate::data::Sweep::Coalesce,
        crate::data::Sweep::Open,
    ] {
        let same = runs.iter().filter_map(|(name, run)| match run {
            Report::Sweep(report) if report.sweep == question => Some((*name, report)),
            _ => None,
        });
        charts.extend(sweeps(&same.collect()));
    }
    charts
}

/// Bars of the arms that more than one run has, those of an arm together.
fn grouped<'a, R>(
    runs: &Runs<'a, R>,
    arms: impl Fn(&'a R) -> Vec<&'a str>,
    bar: impl Fn(&'a R, &str) -> Option<Bar>,
) -> Vec<Bar> {
    let mut names: Vec<&str> = Vec::new();
    for name in runs.iter().flat_map(|(_, run)| arms(run)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut bars = Vec::new();
    for name in names {
        let mut of_arm: Vec<Bar> = Vec::new();
        for (nth, (run_name, run)) in runs.iter().enumerate() {
            let Some(mut bar) = bar(run, name) else { continue };
            bar.name = (*run_name).to_owned();
            bar.parts.iter_mut().for_each(|part| part.ink = Ink::Nth(nth));
            bar.group = of_arm.is_empty().then(|| name.to_owned());
            of_arm.push(bar);
        }
        if of_arm.len() > 1 {
            bars.extend(of_arm);
        }
    }
    bars
}

fn round_trips(runs: &Runs<'_, RoundTripReport>) -> Bars {
    let bar = |run: &RoundTripReport, name: &str| {
        let arm = run.arms.iter().find(|arm| arm.name == name && arm.valid)?;
        let (ink, r) = (Ink::Text, &arm.rtt_us);
        let tail = r.p99.map(|to| Part { to, ink, light: true });
        Some(Bar {
            parts: [Part { to: r.p50, ink, light: false }].into_iter().chain(tail).collect(),
            interval: arm.p50_ci95,
            figure: time_text(r.p50),
            remark: r.p99.map_or(String::new(), |us| format!("p99 {}", time_text(us))),
            ..Bar::default()
        })
    };
    Bars {
        heading: Heading {
            title: "Round trip, side by side: median, and to the 99th percentile".to_owned(),
            ..Heading::default()
        },
        unit: "\u{b5}s; solid to p50, light to p99".to_owned(),
        bars: grouped(runs, |run| run.arms.iter().map(|a| a.name.as_str()).collect(), bar),
    }
}

fn rates(runs: &Runs<'_, ThroughputReport>) -> Bars {
    let scales = runs.iter().map(|(_, run)| throughput::scale(run));
    let (by, unit) = scales.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((1.0, ""));
    let bar = |run: &ThroughputReport, name: &str| {
        let arm = run.arms.iter().find(|arm| arm.name == name && arm.valid)?;
        Some(Bar {
            parts: vec![Part { to: arm.per_second / by, ink: Ink::Text, light: false }],
            interval: arm.per_second_ci95.map(|ends| ends.map(|end| end / by)),
            figure: throughput::rate_in(arm.per_second / by, unit),
            ..Bar::default()
        })
    };
    let title = runs.first().map_or("", |(_, run)| throughput::title(&run.workload));
    Bars {
        heading: Heading { title: format!("{title}, side by side"), ..Heading::default() },
        unit: unit.to_owned(),
        bars: grouped(runs, |run| run.arms.iter().map(|a| a.name.as_str()).collect(), bar),
    }
}

/// A chart for each arm that more than one run has.
fn sweeps(runs: &Runs<'_, SweepReport>) -> Vec<Chart> {
    let Some((_, first)) = runs.first() else { return Vec::new() };
    let charts = sweep::names(first).into_iter().filter_map(|name| {
        let series: Vec<Series> = runs
            .iter()
            .map(|(run, report)| Series {
                name: (*run).to_owned(),
                values: sweep::values(report, name, |arm| Some(arm.arm.rtt_us.p50)),
            })
            .filter(|series| series.values.iter().any(Option::is_some))
            .collect();
        let (title, x_label) = sweep::words(first.sweep);
        let lines = Lines {
            heading: Heading {
                title: format!("{title}, side by side: {name}"),
                ..Heading::default()
            },
            x_label: x_label.to_owned(),
            y_label: "median, \u{b5}s".to_owned(),
            points: first.points.iter().map(|p| p.label.clone()).collect(),
            series,
        };
        if lines.series.len() > 1 { Chart::lines("compared", lines) } else { None }
    });
    charts.collect()
}
