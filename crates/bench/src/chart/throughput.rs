//! The charts of stream, crr and loss, and of stages.

use super::bars::{Bar, Bars, Part};
use super::frame::Heading;
use super::round_trips::{ink, planes};
use super::svg::Ink;
use super::{Chart, subtitle};
use crate::data::{LineReport, StagesReport, ThroughputReport};
use crate::text::figures::{grouped, time_text, us_text};

/// The title of a workload's chart.
pub(super) fn title(workload: &str) -> &'static str {
    match workload {
        "tcp-crr" => "Connections per second: connect, one request, close",
        "tcp-loss" => "Throughput of one TCP connection on a path that loses packets",
        _ => "Throughput of one TCP connection",
    }
}

/// What a rate is divided by, and the unit that it then has.
pub(super) fn scale(report: &ThroughputReport) -> (f64, &'static str) {
    let highest = report.arms.iter().map(|arm| arm.per_second).fold(0.0, f64::max);
    match report.arms.first().map(|arm| arm.unit.as_str()) {
        Some("bit/s") if highest >= 1e9 => (1e9, "Gbit/s"),
        Some("bit/s") => (1e6, "Mbit/s"),
        _ => (1.0, "connections/s"),
    }
}

/// A rate in the unit of its chart.
pub(super) fn rate_in(rate: f64, unit: &str) -> String {
    match unit {
        "connections/s" => format!("{}/s", grouped(rate)),
        unit => format!("{} {unit}", us_text(rate)),
    }
}

fn settings(report: &ThroughputReport) -> String {
    let path = report.path.map_or(String::new(), |path| {
        format!("{}% lost each way, {} ms round trip, ", path.loss_percent, path.rtt_ms)
    });
    format!("{path}{} rounds", report.machine.rounds)
}

pub(super) fn charts(report: &ThroughputReport) -> Vec<Chart> {
    let times = times(report);
    Chart::bars("", rates(report)).into_iter().chain(Chart::bars("times", times)).collect()
}

fn rates(report: &ThroughputReport) -> Bars {
    let (by, unit) = scale(report);
    let mut arms: Vec<&LineReport> = report.arms.iter().collect();
    arms.sort_by(|a, b| {
        a.valid.cmp(&b.valid).reverse().then(b.per_second.total_cmp(&a.per_second))
    });
    let bar = |arm: &LineReport| {
        let name = arm.name.clone();
        if let Some(reason) = &arm.reason {
            return Bar {
                name,
                figure: "invalid".into(),
                remark: reason.clone(),
                ..Bar::default()
            };
        }
        // Each line has one or two; the first is the most telling.
        let ratio = report.comparisons.iter().find(|c| c.arm == arm.name);
        Bar {
            name,
            parts: vec![Part { to: arm.per_second / by, ink: ink(arm.plane), light: false }],
            interval: arm.per_second_ci95.map(|ends| ends.map(|end| end / by)),
            figure: rate_in(arm.per_second / by, unit),
            remark: ratio
                .map_or(String::new(), |c| format!("{} x {}", us_text(c.rate_ratio), c.baseline)),
            ..Bar::default()
        }
    };
    Bars {
        heading: Heading {
            title: title(&report.workload).to_owned(),
            subtitle: subtitle(&report.machine, &report.header, &settings(report)),
            key: planes(report.arms.iter().map(|arm| arm.plane)),
        },
        unit: unit.to_owned(),
        bars: arms.into_iter().map(bar).collect(),
    }
}

/// How long a connection takes; nothing for streams.
fn times(report: &ThroughputReport) -> Bars {
    let mut arms: Vec<_> = report
        .arms
        .iter()
        .filter(|arm| arm.valid)
        .filter_map(|arm| Some((arm, arm.connection_us?)))
        .collect();
    arms.sort_by(|a, b| a.1.p50.total_cmp(&b.1.p50));
    let bar = |(arm, r): (&LineReport, crate::stats::RttUs)| {
        let ink = ink(arm.plane);
        let tail = r.p99.map(|to| Part { to, ink, light: true });
        Bar {
            name: arm.name.clone(),
            parts: [Part { to: r.p50, ink, light: false }].into_iter().chain(tail).collect(),
            figure: time_text(r.p50),
            remark: r.p99.map_or(String::new(), |us| format!("p99 {}", time_text(us))),
            ..Bar::default()
        }
    };
    Bars {
        heading: Heading {
            title: "Time of a connection: median, and to the 99th percentile".to_owned(),
            subtitle: subtitle(&report.machine, &report.header, &settings(report)),
            key: planes(report.arms.iter().map(|arm| arm.plane)),
        },
        unit: "\u{b5}s; solid to p50, light to p99".to_owned(),
        bars: arms.into_iter().map(bar).collect(),
    }
}

/// The stages of a receive, one after another.
pub(super) fn stages(report: &StagesReport) -> Vec<Chart> {
    const WORDS: [&str; 6] = ["ring", "wake-up", "napi", "inet", "socket", "return"];
    let nth = |stage: &str| WORDS.iter().position(|word| *word == stage).unwrap_or(WORDS.len());
    let mut arms: Vec<_> = report.arms.iter().collect();
    arms.sort_by(|a, b| a.total_us.total_cmp(&b.total_us));
    let bar = |arm: &crate::data::ArmStages| {
        let mut to = 0.0;
        let parts = arm.stages_us.iter().map(|stage| {
            to += stage.p50.max(0.0);
            Part { to, ink: Ink::Nth(nth(&stage.stage)), light: false }
        });
        Bar {
            name: arm.arm.clone(),
            parts: parts.collect(),
            figure: time_text(arm.total_us),
            ..Bar::default()
        }
    };
    let bars = Bars {
        heading: Heading {
            title: "Stages of a receive: from the sender's doorbell to the return of recv"
                .to_owned(),
            subtitle: subtitle(&report.machine, &report.header, ""),
            key: WORDS.iter().enumerate().map(|(i, word)| (Ink::Nth(i), *word)).collect(),
        },
        unit: "\u{b5}s, medians".to_owned(),
        bars: arms.into_iter().map(bar).collect(),
    };
    Chart::bars("", bars).into_iter().collect()
}
