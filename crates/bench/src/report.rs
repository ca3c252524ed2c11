//! The options of `busypoll report`, and its main function.

use std::io::Write;
use std::path::{Path, PathBuf};

use busypoll_policy::fit::Width;

use crate::beside;
use crate::chart::{self, Chart};
use crate::data::{self, Report};
use crate::error::Error;
use crate::foreign::{self, Test};
use crate::page;
use crate::side_by_side::{self, SideBySide};
use crate::text;

/// Show runs that `busypoll bench --json FILE` wrote, as text, as a page of HTML or as charts.
///
/// Several are put side by side, where they measured the same: from several adapters or machines, from before and after a
/// change. So are runs of other tools: what netperf (TCP_RR, UDP_RR, omni) and sockperf print, in a file. The page is one
/// file that needs no network: the sentence, charts, tables with intervals, the evidence, the machine, and how it was
/// measured.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  busypoll bench --json run.json
  busypoll report run.json --html run.html
  busypoll report before.json after.json --html change.html
  busypoll report run.json netperf-off.txt netperf-on.txt --svg both.svg")]
pub struct ReportArgs {
    /// Files that `busypoll bench --json FILE` wrote, or with the output of netperf or sockperf
    #[arg(value_name = "RUN.json", required = true)]
    pub runs: Vec<PathBuf>,
    /// Write a page of HTML; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write a chart, and further ones beside it
    #[arg(long, value_name = "FILE", conflicts_with = "html")]
    pub svg: Option<PathBuf>,
    /// Show all columns, also where the terminal is narrower than they are
    #[arg(long, conflicts_with_all = ["html", "svg"])]
    pub wide: bool,
}

/// More would make no page that a person reads.
const MOST: usize = 64;

/// What the files hold, by the names of the runs.
struct Runs {
    ours: Vec<(String, Report)>,
    foreign: Vec<(String, Vec<Test>)>,
}

/// Reads the runs and shows them.
///
/// # Errors
/// A message of one line that names the file which is no report, or cannot be written.
pub fn run_report(args: &ReportArgs, out: &mut impl Write) -> Result<(), Error> {
    if args.runs.len() > MOST {
        return Err(Error(format!("{} runs: at most {MOST} fit on a page", args.runs.len())));
    }
    let runs = read(&args.runs)?;
    let rows = beside::rows(&runs.ours, &runs.foreign);
    match (&args.html, &args.svg) {
        (Some(path), _) if path.as_os_str() == "-" => {
            out.write_all(page::page(&runs.ours, &rows).as_bytes())?;
        }
        (Some(path), _) => {
            data::write_text(path, &page::page(&runs.ours, &rows))?;
            writeln!(out, "page: {}", path.display())?;
        }
        (None, Some(path)) => write!(out, "{}", chart::write(path, &charts(&runs, &rows))?)?,
        (None, None) => {
            let width = Width::of_stdout(args.wide);
            write!(out, "{}", width.wrap(shown(&runs, &rows, width)))?;
        }
    }
    Ok(out.flush()?)
}

/// Each file's run: JSON of ours, or what another tool has printed.
fn read(paths: &[PathBuf]) -> Result<Runs, String> {
    let mut runs = Runs { ours: Vec::new(), foreign: Vec::new() };
    for (path, name) in paths.iter().zip(names(paths)) {
        data::read_as(path, |bytes| {
            match std::str::from_utf8(bytes) {
                Ok(text) if foreign::is_foreign(text) => {
                    runs.foreign.push((name, foreign::parse(text)?));
                }
                _ => runs.ours.push((name, data::parse(bytes)?)),
            }
            Ok(())
        })?;
    }
    Ok(runs)
}

fn charts(runs: &Runs, rows: &[beside::Row]) -> Vec<Chart> {
    let ours: Vec<(&str, &Report)> =
        runs.ours.iter().map(|(name, report)| (name.as_str(), report)).collect();
    let of_ours = match ours[..] {
        [(_, report)] => chart::of(report),
        _ => chart::compare(&ours),
    };
    chart::beside(rows).into_iter().chain(of_ours).collect()
}

fn shown(runs: &Runs, rows: &[beside::Row], width: Width) -> String {
    let Runs { ours, foreign } = runs;
    if let ([(_, report)], []) = (&ours[..], &foreign[..]) {
        return report.render(width);
    }
    let both: Vec<SideBySide> = side_by_side::of(ours);
    let all = ours.iter().map(|(name, report)| format!("== {name}\n{}\n", report.render(width)));
    let mut out: String =
        all.chain(both.iter().map(|both| text::side_by_side::text(both, width))).collect();
    if !rows.is_empty() {
        let mut notes: Vec<&str> =
            foreign.iter().flat_map(|(_, tests)| tests).filter_map(|test| test.note).collect();
        notes.dedup();
        out += &text::beside::text(rows, &notes, width);
    }
    out
}

/// The files' names without folder and ending, unless two are the same.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let short =
        |path: &Path| path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let all: Vec<String> = paths.iter().map(|path| short(path)).collect();
    let each = paths.iter().zip(&all);
    each.map(|(path, name)| match all.iter().filter(|other| *other == name).count() {
        1 => name.clone(),
        _ => path.display().to_string(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_named_after_their_files() {
        let of = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(of(&["a/before.json", "b/after.json"]), ["before", "after"]);
        assert_eq!(of(&["a/run.json", "b/run.json", "c.json"]), ["a/run.json", "b/run.json", "c"]);
    }
}
