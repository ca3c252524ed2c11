//! The charts of round trips: a bar for each arm, and lines over percentiles.

use super::bars::{Bar, Bars, Part};
use super::frame::Heading;
use super::lines::{Lines, Series};
use super::svg::Ink;
use super::{Chart, sizes, subtitle};
use crate::arm::{Between, Plane, Protocol};
use crate::data::{ArmReport, RoundTripReport, best_blocking};
use crate::limit;
use crate::text::figures::{time_text, us_text};

/// The colour of a plane.
pub(super) fn ink(plane: Plane) -> Ink {
    match plane {
        Plane::Kernel => Ink::Kernel,
        Plane::Stack => Ink::Stack,
        Plane::Bare => Ink::Bare,
    }
}

/// The planes of some arms, for a key.
pub(super) fn planes(arms: impl Iterator<Item = Plane> + Clone) -> Vec<(Ink, &'static str)> {
    [(Plane::Kernel, "kernel plane"), (Plane::Stack, "stack plane"), (Plane::Bare, "no stack")]
        .into_iter()
        .filter(|(plane, _)| arms.clone().any(|one| one == *plane))
        .map(|(plane, word)| (ink(plane), word))
        .collect()
}

pub(super) fn charts(report: &RoundTripReport) -> Vec<Chart> {
    let (hosts, processes) = (Between::Hosts, Between::Processes);
    let percentiles = [
        (hosts, Protocol::Udp, "udp-percentiles"),
        (hosts, Protocol::Tcp, "tcp-percentiles"),
        (processes, Protocol::Udp, "local-udp-percentiles"),
        (processes, Protocol::Tcp, "local-tcp-percentiles"),
    ];
    let percentiles = percentiles
        .into_iter()
        .filter_map(|(between, p, word)| Chart::lines(word, lines(report, between, p)));
    // The first of a report has no word.
    let has_hosts = report.between(hosts).next().is_some();
    let local = if has_hosts { "local" } else { "" };
    let bars = [(hosts, ""), (processes, local)]
        .into_iter()
        .filter(|(between, _)| report.between(*between).next().is_some())
        .filter_map(|(between, word)| Chart::bars(word, bars(report, between)));
    bars.chain(percentiles).collect()
}

fn settings(report: &RoundTripReport) -> String {
    let sizes = report.arms.first().map(|a| sizes(a.request_bytes, a.response_bytes));
    format!("{}, {} rounds", sizes.unwrap_or_default(), report.machine.rounds)
}

fn bars(report: &RoundTripReport, between: Between) -> Bars {
    let mut arms: Vec<&ArmReport> = report.between(between).collect();
    arms.sort_by(|a, b| {
        (!a.valid, a.rtt_us.p50)
            .partial_cmp(&(!b.valid, b.rtt_us.p50))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    // Between processes an arm is the limit.
    let limit = report.limit.shared_memory_rtt_us.filter(|_| between == Between::Hosts);
    let limit = limit.map(|us| Bar {
        name: limit::NAME.to_owned(),
        parts: vec![Part { to: us, ink: Ink::Limit, light: false }],
        figure: time_text(us),
        remark: "the limit between these CPUs".to_owned(),
        ..Bar::default()
    });
    Bars {
        heading: Heading {
            title: format!("Round trip{}: median, and to the 99th percentile", ends(between)),
            subtitle: subtitle(&report.machine, &report.header, &settings(report)),
            key: planes(report.between(between).map(|arm| arm.plane)),
        },
        unit: "\u{b5}s; solid to p50, light to p99".to_owned(),
        bars: limit.into_iter().chain(arms.into_iter().map(|arm| bar(report, arm))).collect(),
    }
}

fn bar(report: &RoundTripReport, arm: &ArmReport) -> Bar {
    let name = arm.name.clone();
    if let Some(reason) = &arm.reason {
        let figure = "invalid".to_owned();
        return Bar { name, figure, remark: reason.clone(), ..Bar::default() };
    }
    let (ink, r) = (ink(arm.plane), &arm.rtt_us);
    let tail = r.p99.map(|to| Part { to, ink, light: true });
    let ratio = match best_blocking(&report.arms, arm) {
        Some(best) if best.name == arm.name => Some(format!("best blocking {}", arm.protocol)),
        Some(best) => {
            report.comparison(&arm.name, &best.name).map(|c| format!("{} x", us_text(c.p50_ratio)))
        }
        None => None,
    };
    let p99 = r.p99.map(|us| format!("p99 {}", time_text(us)));
    Bar {
        name,
        parts: [Part { to: r.p50, ink, light: false }].into_iter().chain(tail).collect(),
        interval: arm.p50_ci95,
        figure: time_text(r.p50),
        remark: p99.into_iter().chain(ratio).collect::<Vec<_>>().join(" \u{b7} "),
        group: None,
    }
}

fn ends(between: Between) -> &'static str {
    match between {
        Between::Hosts => "",
        Between::Processes => " between two processes",
    }
}

fn lines(report: &RoundTripReport, between: Between, protocol: Protocol) -> Lines {
    let arms = report.between(between).filter(|a| a.valid && a.protocol == protocol);
    let series = arms.map(|arm| {
        let r = &arm.rtt_us;
        let values = vec![Some(r.p50), r.p90, r.p99, r.p99_9, r.p99_99, Some(r.max)];
        Series { name: arm.name.clone(), values }
    });
    Lines {
        heading: Heading {
            title: format!(
                "Round trip{} by percentile, {}",
                ends(between),
                protocol.word().to_uppercase()
            ),
            subtitle: subtitle(&report.machine, &report.header, &settings(report)),
            key: Vec::new(),
        },
        x_label: "percentile".to_owned(),
        y_label: "\u{b5}s".to_owned(),
        points: ["50", "90", "99", "99.9", "99.99", "max"].map(str::to_owned).to_vec(),
        series: series.collect(),
    }
}
