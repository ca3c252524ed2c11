//! The options of `busypoll trace`, and its main function.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use busypoll_bench::chart;
use busypoll_bench::data::{self, Report};
use busypoll_policy::fit::Width;
use busypoll_policy::units;

use crate::error::TraceError;
use crate::target::{self, Lives};
use crate::{report, watch};

/// Show where the time of a program's packets goes, stage by stage.
///
/// Each received packet from the interrupt or the poll that finds it to the return of the call that takes it, each sent one
/// from its system call to the driver; by socket, with the slowest and what held them up. Nothing is changed. Needs root, or
/// CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  busypoll trace $(pgrep -o redis-server)          for ten seconds, or until Ctrl-C
  busypoll trace --dev eth1 --for 2s               all packets of a device
  busypoll trace -- ./feed-handler                 a program, until it ends
  busypoll trace 1234 --json t.json && busypoll report t.json --html t.html")]
pub struct TraceArgs {
    /// The processes, with their children
    #[arg(value_name = "PID", value_parser = units::pid, required_unless_present_any = ["dev", "program"])]
    pub pids: Vec<u32>,
    /// All packets of this device
    #[arg(long, value_name = "IF", conflicts_with = "pids")]
    pub dev: Option<String>,
    /// For how long (2s, 500ms); SIGTERM ends a program that still runs then [default: 10s; of a program until it ends]
    #[arg(long = "for", value_name = "TIME", value_parser = trace_time)]
    pub time: Option<Duration>,
    /// Trace one of so many packets of each socket; more than 20,000 a second make it coarser
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub sample: u64,
    /// Write the report as JSON, for `busypoll report`; `-` is standard output, which then contains only that
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a chart of the stages, and one of the sends beside it
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// A program to start and to trace, with its arguments
    #[arg(last = true, value_name = "PROGRAM", conflicts_with_all = ["pids", "dev"])]
    pub program: Vec<OsString>,
}

/// Without packets there is nothing to report.
const NO_PACKET: u8 = 1;

fn trace_time(text: &str) -> Result<Duration, String> {
    let time = units::time(text)?;
    if time < Duration::from_millis(100) {
        return Err(format!("'{text}' is too short to trace packets in; give at least 100ms"));
    }
    Ok(time)
}

/// Traces and reports to `out`. Exit code 1: no packet was taken or sent.
///
/// # Errors
/// A message of one line for a missing right, process or device, and for a file that cannot be written.
pub fn run_trace(args: &TraceArgs, out: &mut impl Write) -> Result<ExitCode, TraceError> {
    let to_stdout = args.json.as_deref().is_some_and(|path| path.as_os_str() == "-");
    let json = args.json.as_ref().filter(|_| !to_stdout);
    for file in [json, args.svg.as_ref()].into_iter().flatten() {
        data::check(file).map_err(TraceError::File)?;
    }
    let mut traced = match (&args.dev, args.program.is_empty()) {
        (Some(name), _) => target::device(name)?,
        (None, false) => target::program(&args.program)?,
        (None, true) => target::processes(&args.pids)?,
    };
    let ends = matches!(traced.lives, Lives::Program(_));
    let time = args.time.or((!ends).then_some(Duration::from_secs(10)));
    let outcome = watch::watch(&mut traced, time, args.sample)?;
    let seen = outcome.seen;
    let report = report::build(
        &traced.name,
        outcome,
        &[traced.tracer.lacks(), &traced.stacks.unseen].concat(),
    );
    let report = Report::Trace(report);
    if let Some(path) = json {
        data::write(path, &report).map_err(TraceError::File)?;
    }
    let files =
        args.svg.as_ref().map_or(Ok(String::new()), |path| chart::write(path, &chart::of(&report)));
    let files = files.map_err(TraceError::File)?;
    match to_stdout {
        true => out.write_all(data::text(&report).map_err(TraceError::File)?.as_bytes())?,
        false => {
            let width = Width::of_stdout(false);
            write!(out, "{}", width.wrap(report.render(width) + &files))?;
        }
    }
    out.flush()?;
    Ok(if seen == 0 { ExitCode::from(NO_PACKET) } else { ExitCode::SUCCESS })
}
