//! The options of `busypoll report`, and its main function.

use std::io::Write;
use std::path::{Path, PathBuf};

use busypoll_policy::fit::Width;

use crate::data::{self, Report};
use crate::error::Error;
use crate::page;
use crate::side_by_side::{self, SideBySide};
use crate::text::side_by_side as table;

/// Show runs that `busypoll bench --json FILE` wrote, as text or as a page of HTML.
///
/// Several are put side by side, where they measured the same: from several adapters or machines, from before and after a
/// change. The page is one file that needs no network: the sentence, charts, tables with intervals, the evidence, the
/// machine, and how it was measured.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  busypoll bench --json run.json
  busypoll report run.json --html run.html
  busypoll report before.json after.json --html change.html")]
pub struct ReportArgs {
    /// Files that `busypoll bench --json FILE` wrote
    #[arg(value_name = "RUN.json", required = true)]
    pub runs: Vec<PathBuf>,
    /// Write a page of HTML; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Show all columns, also where the terminal is narrower than they are
    #[arg(long, conflicts_with = "html")]
    pub wide: bool,
}

/// More would make no page that a person reads.
const MOST: usize = 64;

/// Reads the runs and shows them.
///
/// # Errors
/// One line that names the file which is no report, or cannot be written.
pub fn run_report(args: &ReportArgs, out: &mut impl Write) -> Result<(), Error> {
    if args.runs.len() > MOST {
        return Err(Error(format!("{} runs: at most {MOST} fit on a page", args.runs.len())));
    }
    let names = names(&args.runs);
    let reports = args.runs.iter().map(|path| data::read(path));
    let reports: Vec<Report> = reports.collect::<Result<_, _>>()?;
    let runs: Vec<(String, Report)> = names.into_iter().zip(reports).collect();
    match &args.html {
        Some(path) if path.as_os_str() == "-" => out.write_all(page::page(&runs).as_bytes())?,
        Some(path) => {
            data::write_text(path, &page::page(&runs))?;
            writeln!(out, "page: {}", path.display())?;
        }
        None => {
            let width = Width::of_stdout(args.wide);
            write!(out, "{}", width.wrap(text(&runs, width)))?;
        }
    }
    Ok(out.flush()?)
}

fn text(runs: &[(String, Report)], width: Width) -> String {
    if let [(_, report)] = runs {
        return report.render(width);
    }
    let both: Vec<SideBySide> = side_by_side::of(runs);
    let all = runs.iter().map(|(name, report)| format!("== {name}\n{}\n", report.render(width)));
    all.chain(both.iter().map(|both| table::text(both, width))).collect()
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
