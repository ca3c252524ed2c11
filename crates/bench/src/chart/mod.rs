//! Charts of reports, as SVG: for a document, or for a page that has them at two widths.

mod bars;
mod beside;
mod compare;
mod frame;
mod lines;
mod round_trips;
pub(crate) mod svg;
mod sweep;
mod throughput;
mod trace;

use bars::Bars;
use frame::Heading;
use lines::Lines;

use std::path::Path;

use crate::data::{self, Host, Machine, Report};
use crate::text::figures::{bytes_text, grouped};

pub use beside::beside;
pub use compare::compare;

/// The width of a chart in a document.
const ALONE: f64 = 860.0;
/// Of one in a page on a desk, with the margins that the page takes away.
pub const WIDE: f64 = 976.0;
/// The same on a telephone.
pub const NARROW: f64 = 390.0;

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// What a file of it has in its name beside the report's; nothing for the first of a report.
    pub word: &'static str,
    shape: Shape,
}

#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Bars(Bars),
    Lines(Lines),
}

impl Chart {
    fn bars(word: &'static str, bars: Bars) -> Option<Self> {
        (!bars.is_empty()).then_some(Self { word, shape: Shape::Bars(bars) })
    }

    fn lines(word: &'static str, lines: Lines) -> Option<Self> {
        (!lines.is_empty()).then_some(Self { word, shape: Shape::Lines(lines) })
    }

    fn heading(&self) -> &Heading {
        match &self.shape {
            Shape::Bars(bars) => &bars.heading,
            Shape::Lines(lines) => &lines.heading,
        }
    }

    /// What it shows.
    pub fn title(&self) -> &str {
        &self.heading().title
    }

    /// For a file: on white, with title and subtitle.
    pub fn alone(&self) -> String {
        self.svg(ALONE, true)
    }

    /// For a page, which has the title beside it.
    pub fn in_page(&self, width: f64) -> String {
        self.svg(width, false)
    }

    fn svg(&self, width: f64, alone: bool) -> String {
        match &self.shape {
            Shape::Bars(bars) => bars.svg(width, alone),
            Shape::Lines(lines) => lines.svg(width, alone),
        }
    }
}

/// The charts of a report; those without a figure are left out.
pub fn of(report: &Report) -> Vec<Chart> {
    match report {
        Report::RoundTrips(report) => round_trips::charts(report),
        Report::Sweep(report) => sweep::charts(report),
        Report::Throughput(report) => throughput::charts(report),
        Report::Stages(report) => throughput::stages(report),
        Report::Trace(report) => trace::charts(report),
    }
}

/// Writes the first chart to `path` and the others beside it; returns the lines that name the files.
///
/// # Errors
/// A message of one line that names the file.
pub fn write(path: &Path, charts: &[Chart]) -> Result<String, String> {
    let Some((first, others)) = charts.split_first() else {
        return Ok(format!("no chart in {}: no arm has a figure\n", path.display()));
    };
    data::write_text(path, &first.alone())?;
    let mut lines = format!("chart: {}\n", path.display());
    // Beside a pipe or a device there is no place for more.
    for chart in others.iter().filter(|_| path.is_file()) {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let file = path.with_file_name(format!("{stem}-{}.svg", chart.word));
        data::write_text(&file, &chart.alone())?;
        lines += &format!("chart: {}\n", file.display());
    }
    Ok(lines)
}

/// Machine, kernel, settings, date and commit.
fn subtitle(machine: &Machine, header: &crate::data::Header, settings: &str) -> String {
    about(&machine.host(), header, settings)
}

/// The same of a report without settings of a benchmark.
fn about(machine: &Host, header: &crate::data::Header, settings: &str) -> String {
    let day = header.time.get(..10).unwrap_or(&header.time);
    let vm = if machine.virtual_machine { " (virtual machine)" } else { "" };
    let cpus = grouped(machine.cpus_online as f64);
    let parts = [
        machine.cpu_model.clone(),
        format!("{cpus} CPUs{vm}"),
        format!("Linux {}", machine.kernel),
        settings.to_owned(),
        day.to_owned(),
        format!("busypoll\u{a0}{}\u{a0}({})", machine.busypoll, header.commit),
    ];
    // A line breaks after the point, not before it.
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\u{a0}\u{b7} ")
}

/// `1 B each way`, `64 B requests, 1 KiB responses`.
fn sizes(request: usize, response: usize) -> String {
    match request == response {
        true => format!("{} each way", bytes_text(request)),
        false => format!("{} requests, {} responses", bytes_text(request), bytes_text(response)),
    }
}
