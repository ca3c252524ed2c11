//! Where the time of packets went: a stacked bar for each flow, whose parts are the means of its stages.

use super::bars::{Bar, Bars, Part};
use super::frame::Heading;
use super::svg::Ink;
use super::{Chart, about};
use crate::data::{TraceFlow, TraceReport};
use crate::text::figures::{time_text, us_text};

/// More make no picture.
const MOST: usize = 12;
const RECEIVE: [&str; 7] = ["ring", "napi", "protocol", "queue", "wake-up", "scheduled", "return"];
const SEND: [&str; 3] = ["call", "qdisc", "driver"];

/// One of receives, one of sends.
pub(super) fn charts(report: &TraceReport) -> Vec<Chart> {
    let receives =
        stacked(report, "Where the time of received packets went", &report.receives, &RECEIVE);
    let sends = stacked(report, "Where the time of sent packets went", &report.sends, &SEND);
    [Chart::bars("", receives), Chart::bars("sends", sends)].into_iter().flatten().collect()
}

fn stacked(
    report: &TraceReport,
    title: &str,
    flows: &[TraceFlow],
    stages: &'static [&'static str],
) -> Bars {
    let nth = |stage: &str| stages.iter().position(|word| *word == stage).unwrap_or(stages.len());
    let bar = |flow: &TraceFlow| {
        let mut to = 0.0;
        let parts = flow.stages_us.iter().map(|stage| {
            to += stage.mean.max(0.0);
            Part { to, ink: Ink::Nth(nth(&stage.stage)), light: false }
        });
        let parts = parts.collect();
        Bar {
            group: Some(flow.name()),
            name: flow.owner(),
            parts,
            figure: time_text(flow.total_us.mean),
            remark: flow.total_us.p99.map_or(String::new(), |us| format!("p99 {}", us_text(us))),
            ..Bar::default()
        }
    };
    Bars {
        heading: Heading {
            title: title.to_owned(),
            subtitle: about(&report.machine, &report.header, &report.target),
            key: stages.iter().enumerate().map(|(i, word)| (Ink::Nth(i), *word)).collect(),
        },
        unit: "\u{b5}s, means".to_owned(),
        bars: flows.iter().take(MOST).map(bar).collect(),
    }
}
