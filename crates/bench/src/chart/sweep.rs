//! The charts of a sweep: p50 over its points, and what else its question asks for.

use super::bars::{Bar, Bars, Part};
use super::frame::Heading;
use super::lines::{Lines, Series};
use super::round_trips::{ink, planes};
use super::{Chart, sizes, subtitle};
use crate::data::{PointArm, Sweep, SweepReport};
use crate::text::figures::weight_text;

/// The arms of a sweep, each once, in their order.
pub(super) fn names(report: &SweepReport) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for PointArm { arm, .. } in report.points.iter().flat_map(|point| &point.arms) {
        if !names.contains(&arm.name.as_str()) {
            names.push(&arm.name);
        }
    }
    names
}

/// A figure of an arm at each point; none where it is not valid.
pub(super) fn values(
    report: &SweepReport,
    name: &str,
    figure: fn(&PointArm) -> Option<f64>,
) -> Vec<Option<f64>> {
    let at = |point: &crate::data::Point| {
        point.arms.iter().find(|a| a.arm.name == name && a.arm.valid).and_then(figure)
    };
    report.points.iter().map(at).collect()
}

/// What is swept, and the axis.
pub(super) fn words(sweep: Sweep) -> (&'static str, &'static str) {
    match sweep {
        Sweep::Size => ("Round trip by message size", "bytes each way"),
        Sweep::Rate => {
            ("Latency from the intended send time, by offered rate", "requests per second")
        }
        Sweep::Coalesce => ("Round trip by interrupt coalescing", "rx-usecs"),
        Sweep::Open => ("Round trip on the last one opened", "connections or sockets open"),
    }
}

pub(super) fn charts(report: &SweepReport) -> Vec<Chart> {
    let (title, _) = words(report.sweep);
    let p50 = lines(report, title, "median, \u{b5}s", |arm| Some(arm.arm.rtt_us.p50));
    let more = match report.sweep {
        Sweep::Rate => {
            let title = "CPU time of the server for each request, by offered rate";
            Chart::lines("cpu", lines(report, title, "\u{b5}s", |arm| arm.server_cpu_us))
        }
        Sweep::Open => Chart::bars("memory", memory(report)),
        Sweep::Size | Sweep::Coalesce => None,
    };
    Chart::lines("", p50).into_iter().chain(more).collect()
}

fn settings(report: &SweepReport) -> String {
    let arm = report.points.first().and_then(|point| point.arms.first());
    let arm = arm.filter(|_| report.sweep != Sweep::Size);
    let sizes = arm.map_or(String::new(), |PointArm { arm, .. }| {
        sizes(arm.request_bytes, arm.response_bytes) + ", "
    });
    format!("{sizes}{} rounds", report.machine.rounds)
}

fn lines(
    report: &SweepReport,
    title: &str,
    y_label: &str,
    figure: fn(&PointArm) -> Option<f64>,
) -> Lines {
    let series = names(report)
        .into_iter()
        .map(|name| Series { name: name.to_owned(), values: values(report, name, figure) });
    Lines {
        heading: Heading {
            title: title.to_owned(),
            subtitle: subtitle(&report.machine, &report.header, &settings(report)),
            key: Vec::new(),
        },
        x_label: words(report.sweep).1.to_owned(),
        y_label: y_label.to_owned(),
        points: report.points.iter().map(|p| p.label.clone()).collect(),
        series: series.collect(),
    }
}

/// The memory of an idle one, with the most that an arm had open.
fn memory(report: &SweepReport) -> Bars {
    let mut bars: Vec<(f64, Bar)> = Vec::new();
    for name in names(report) {
        let measured = report.points.iter().rev().find_map(|point| {
            let arm = point.arms.iter().find(|a| a.arm.name == name && a.arm.valid)?;
            Some((&point.label, arm.arm.plane, arm.open?.idle_bytes?))
        });
        let Some((label, plane, weight)) = measured else { continue };
        let kib = |bytes: Option<f64>| bytes.map_or(0.0, |bytes| bytes.max(0.0) / 1024.0);
        let (process, kernel) = (kib(weight.process), kib(weight.kernel));
        let ink = ink(plane);
        let both = Part { to: process + kernel, ink, light: true };
        bars.push((
            process + kernel,
            Bar {
                name: name.to_owned(),
                parts: [Part { to: process, ink, light: false }]
                    .into_iter()
                    .chain((kernel > 0.0).then_some(both))
                    .collect(),
                figure: weight_text(weight.process),
                remark: match weight.kernel {
                    Some(kernel) => {
                        format!("+ {} in the kernel \u{b7} {label} open", weight_text(Some(kernel)))
                    }
                    None => format!("kernel's not known \u{b7} {label} open"),
                },
                ..Bar::default()
            },
        ));
    }
    bars.sort_by(|a, b| a.0.total_cmp(&b.0));
    let arms = report.points.iter().flat_map(|point| &point.arms);
    Bars {
        heading: Heading {
            title: "Memory of an idle connection's end, or socket".to_owned(),
            subtitle: subtitle(&report.machine, &report.header, &settings(report)),
            key: planes(arms.map(|arm| arm.arm.plane)),
        },
        unit: "KiB; solid in the process, light in the kernel".to_owned(),
        bars: bars.into_iter().map(|(_, bar)| bar).collect(),
    }
}
