//! Other tools' tests and our arms as bars, those of a transport and size together.

use super::Chart;
use super::bars::{Bar, Bars, Part};
use super::frame::Heading;
use super::svg::Ink;
use crate::beside::Row;
use crate::text::figures::time_text;

/// The chart, if a row has a figure.
pub fn beside(rows: &[Row]) -> Option<Chart> {
    let mut runs: Vec<&str> = Vec::new();
    for row in rows {
        if !runs.contains(&row.run.as_str()) {
            runs.push(&row.run);
        }
    }
    let mut last = String::new();
    let mut bars = Vec::new();
    for row in rows {
        let Some(us) = row.typical() else { continue };
        let ink = Ink::Nth(runs.iter().position(|run| *run == row.run).unwrap_or(0));
        let tail = row.p99.filter(|p99| *p99 > us).map(|to| Part { to, ink, light: true });
        let group = row.group();
        bars.push(Bar {
            group: (group != last).then(|| group.clone()),
            name: format!("{}: {}", row.run, row.what),
            parts: [Part { to: us, ink, light: false }].into_iter().chain(tail).collect(),
            figure: time_text(us),
            remark: match (row.p50, row.p99) {
                (None, _) => "mean".to_owned(),
                (_, Some(p99)) => format!("p99 {}", time_text(p99)),
                _ => String::new(),
            },
            ..Bar::default()
        });
        last = group;
    }
    let heading = Heading {
        title: "Round trip, other tools' runs and ours".to_owned(),
        ..Heading::default()
    };
    let unit = "\u{b5}s; solid to the median, or the mean where a tool gives no more, light to p99"
        .to_owned();
    Chart::bars("beside", Bars { heading, unit, bars })
}
