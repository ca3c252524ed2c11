//! The options of `busypoll tune`, and its main function.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use busypoll_linux::topology::CpuList;
use busypoll_policy::{BUILD, say, units, utc};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::apply::{Request, apply, check, left_out, open};
use crate::error::{Error, Result};
use crate::export::{Export, ExportedFile, Format};
use crate::machine::Machine;
use crate::plan::{Options, Plan};
use crate::profile::Profile;
use crate::record::{JournalState, Process, Record};
use crate::status::{Status, journal};
use crate::undo::{PutBack, undo};
use crate::{guard, text};

/// Set up the system for busy polling, reversibly.
///
/// Every old value is written to a journal before it is changed; rollback restores all of them, also after a
/// crash. Only devices named with --dev are touched.
#[derive(Debug, Clone, Args)]
#[command(
    arg_required_else_help = false,
    after_help = "Profiles: busy-poll, lowest-latency, prefer-busy-poll, irq-suspend, or a file (./mine.toml)

Examples:
  busypoll tune plan busy-poll --dev eth1                    what would change, why, and at what cost
  busypoll tune apply busy-poll --dev eth1 --confirm 60s     rolled back in a minute unless confirmed
  busypoll tune confirm
  busypoll tune apply irq-suspend --dev eth1 --poller 4711   while process 4711 lives
  busypoll tune rollback"
)]
pub struct TuneArgs {
    #[command(subcommand)]
    command: TuneCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum TuneCommand {
    /// Show what a profile would change, line by line; changes nothing
    Plan(PlanArgs),
    /// Apply a profile: journal, write, read back
    Apply(ApplyArgs),
    /// Keep what was applied with --confirm
    Confirm,
    /// Show what is applied and whether it still has these values
    Status(Json),
    /// Restore everything to what it was before the first apply
    Rollback(RollbackArgs),
    /// Write a profile as files for other tools to install
    Export(ExportArgs),
    #[command(hide = true)]
    Guard(GuardArgs),
}

impl TuneCommand {
    /// Whether the command does more than print a report.
    fn changes(&self) -> bool {
        match self {
            Self::Apply(_) | Self::Confirm | Self::Rollback(_) => true,
            Self::Export(args) => args.dir.is_some() || args.ansible.is_some(),
            Self::Plan(_) | Self::Status(_) | Self::Guard(_) => false,
        }
    }
}

#[derive(Debug, Clone, Args)]
struct ProfileArgs {
    /// busy-poll, lowest-latency, prefer-busy-poll, irq-suspend, or a file of your own
    #[arg(value_name = "PROFILE")]
    profile: String,
    /// A device to tune; may be given several times
    #[arg(long, value_name = "IF")]
    dev: Vec<String>,
    /// The number of sockets that one poll or select waits for
    #[arg(long, value_name = "N", value_parser = units::number::<u32>)]
    sockets: Option<u32>,
    /// The CPUs the application runs on: interrupts are moved to CPUs near them
    #[arg(long, value_name = "LIST")]
    app_cpus: Option<CpuList>,
}

impl ProfileArgs {
    fn options(&self) -> Options {
        Options {
            devices: self.dev.clone(),
            sockets: self.sockets,
            app_cpus: self.app_cpus.clone(),
        }
    }
}

#[derive(Debug, Clone, Args)]
struct Json {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Args)]
struct PlanArgs {
    #[command(flatten)]
    which: ProfileArgs,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, Clone, Args)]
struct ApplyArgs {
    #[command(flatten)]
    which: ProfileArgs,
    /// Roll back after this time unless `busypoll tune confirm` comes first
    #[arg(long, value_name = "TIME", value_parser = confirm_time)]
    confirm: Option<Duration>,
    /// The process that polls, for which gro-flush-timeout is set: when it ends, everything is rolled back
    #[arg(long, value_name = "PID", value_parser = units::pid)]
    poller: Vec<u32>,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, Clone, Args)]
struct RollbackArgs {
    /// Drop settings that cannot be restored because their device is not here
    #[arg(long)]
    forget: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = true, id = "where", args = ["format", "dir", "ansible"])]
struct ExportArgs {
    #[command(flatten)]
    which: ProfileArgs,
    /// Print one format
    #[arg(long, value_enum, conflicts_with = "dir")]
    format: Option<Format>,
    /// Write all formats below this directory, each to its usual path
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write an Ansible role for groups of hosts, and a play with it, below this directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["format", "dir"])]
    ansible: Option<PathBuf>,
}

/// The options of the process that rolls back automatically.
#[derive(Debug, Clone, Args)]
pub(crate) struct GuardArgs {
    pub(crate) number: u32,
    #[arg(long)]
    pub(crate) maker: u32,
    #[arg(long)]
    pub(crate) within: Option<u64>,
    #[arg(long)]
    pub(crate) poller: Vec<u32>,
}

fn confirm_time(text: &str) -> Result<Duration, String> {
    let time = units::time(text)?;
    if time < Duration::from_secs(1) {
        return Err(format!("'{text}' is too short to confirm in; give at least 1s"));
    }
    // The journal stores whole seconds.
    if time.subsec_nanos() > 0 {
        let secs = time.as_secs();
        return Err(format!(
            "'{text}' is no whole number of seconds; give {secs}s or {}s",
            secs + 1
        ));
    }
    Ok(time)
}

/// The exit code if a setting was refused, was left over, or needs attention.
const NOT_ALL: u8 = 1;

/// Runs the command and prints the report to `to`. Exit code 0: all done; 1: a device refused a setting, a setting
/// could not be restored or needs attention, or all was done but the report could not be printed.
///
/// # Errors
/// A message of one line if nothing was done: exit code 2.
pub fn run_tune(args: &TuneArgs, to: &mut impl Write) -> Result<ExitCode> {
    let mut out = Vec::new();
    let done = run(&args.command, &mut out);
    // The report of what was done is printed even if the rest failed.
    match to.write_all(&out).and_then(|()| to.flush()) {
        Err(e) if done.is_ok() && args.command.changes() => {
            say(format_args!("{}; the work itself was done", print(e)));
            Ok(code(false))
        }
        Err(e) if done.is_ok() => Err(print(e)),
        _ => done,
    }
}

fn run(command: &TuneCommand, out: &mut Vec<u8>) -> Result<ExitCode> {
    match command {
        TuneCommand::Plan(args) => {
            let profile = Profile::find(&args.which.profile)?;
            let options = args.which.options();
            let devices = open(&options.devices)?;
            let plan = Plan::make(&mut Machine::open()?, &devices, &profile, &options)?;
            show(&args.json, &Headed::new("tune-plan", &plan), out, |out| text::plan(&plan, out))?;
            Ok(ExitCode::SUCCESS)
        }
        TuneCommand::Apply(args) => run_apply(args, out),
        TuneCommand::Confirm => confirm(out),
        TuneCommand::Status(json) => {
            let status = Status::read(&mut Machine::open()?)?;
            show(json, &Headed::new("tune-status", &status), out, |out| {
                text::status(&status, out)
            })?;
            if let (Some(last), false) = (&status.last, json.json) {
                say(last);
            }
            Ok(code(status.warnings.is_empty()))
        }
        TuneCommand::Rollback(args) => rollback(args, out),
        TuneCommand::Export(args) => export(args, out),
        TuneCommand::Guard(args) => guard::run(args).map(|()| ExitCode::SUCCESS),
    }
}

fn run_apply(args: &ApplyArgs, out: &mut Vec<u8>) -> Result<ExitCode> {
    let profile = Profile::find(&args.which.profile)?;
    let options = args.which.options();
    let pollers = args.poller.iter().map(|pid| Process::find(*pid).ok_or(Error::NoProcess(*pid)));
    let mut request = Request {
        profile: &profile,
        options: &options,
        guard: None,
        confirm_within: args.confirm.map(|d| d.as_secs()),
        pollers: pollers.collect::<Result<_>>()?,
    };
    let mut machine = Machine::open()?;
    let plan = check(&mut machine, &open(&options.devices)?, &request)?;
    let left_out = left_out(&plan, &plan);
    let mut applied = crate::Applied { number: None, plan, outcomes: Vec::new(), left_out };
    if !applied.plan.is_empty() {
        let journal = journal()?;
        crate::status::clear_message();
        if request.confirm_within.is_some() || !request.pollers.is_empty() {
            let number = JournalState::next_number(journal.entries());
            let guard = guard::start(number, request.confirm_within, &request.pollers)?;
            request.guard = Some(guard);
        }
        applied = apply(&mut machine, journal, &request, &mut |_| ())?;
    }
    show(&args.json, &Headed::new("tune-apply", &applied), out, |out| {
        text::applied(&applied, out)?;
        match args.confirm {
            Some(time) if applied.number.is_some() => writeln!(
                out,
                "Rolled back in {} unless `busypoll tune confirm` comes first.",
                units::show(time)
            ),
            _ => Ok(()),
        }
    })?;
    Ok(code(applied.refused() + applied.lost() == 0))
}

fn confirm(out: &mut Vec<u8>) -> Result<ExitCode> {
    let mut journal = journal()?;
    let journal_state = JournalState::of(journal.entries());
    let open = journal_state
        .applies
        .iter()
        .filter(|a| a.begin.confirm_within.is_some() && !a.confirmed && a.complete);
    let confirmed: Vec<Record> = open.map(|a| Record::Confirmed { apply: a.begin.apply }).collect();
    if confirmed.is_empty() {
        let last = crate::status::last().map_or(String::new(), |last| format!(": {last}"));
        return Err(Error::NothingToConfirm(last));
    }
    journal.append(&confirmed)?;
    writeln!(out, "Confirmed; `busypoll tune rollback` still restores everything.")
        .map_err(print)?;
    Ok(ExitCode::SUCCESS)
}

fn rollback(args: &RollbackArgs, out: &mut Vec<u8>) -> Result<ExitCode> {
    let journal = journal()?;
    let mut machine = Machine::open()?;
    let report = undo(&mut machine, journal, |_| true, args.forget, &mut |_| ())?;
    crate::status::clear_message();
    let settled = |p: &PutBack| p.how.is_settled() || args.forget && p.how.is_absent();
    let done = report.iter().all(settled);
    show(&args.json, &report, out, |out| text::put_back(&report, args.forget && done, out))?;
    Ok(code(done))
}

fn export(args: &ExportArgs, out: &mut Vec<u8>) -> Result<ExitCode> {
    let profile = Profile::find(&args.which.profile)?;
    let options = args.which.options();
    let export = Export::make(&mut Machine::open()?, &open(&options.devices)?, &profile, &options);
    if let Some(format) = args.format {
        let files = export.files(format)?;
        for file in &files {
            if files.len() > 1 {
                writeln!(out, "# {}", file.path).map_err(print)?;
            }
            out.extend_from_slice(file.text.as_bytes());
        }
    }
    if let Some(dir) = &args.dir {
        let formats = Format::value_variants().iter();
        let files: Vec<_> =
            formats.filter_map(|format| export.files(*format).ok()).flatten().collect();
        if files.is_empty() {
            export.files(Format::Sysctl)?;
        }
        write_below(dir, files, &export, out)?;
    }
    if let Some(dir) = &args.ansible {
        write_below(dir, export.role()?, &export, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes exported files below a directory, and lists them and what they leave out.
fn write_below(
    dir: &Path,
    files: Vec<ExportedFile>,
    export: &Export,
    out: &mut Vec<u8>,
) -> Result<()> {
    for file in files {
        let path = dir.join(file.path.trim_start_matches('/'));
        let written = path.parent().map_or(Ok(()), fs::create_dir_all);
        written
            .and_then(|()| fs::write(&path, &file.text))
            .map_err(Error::io(format!("writing {}", path.display())))?;
        writeln!(out, "{}", path.display()).map_err(print)?;
    }
    for (key, why) in &export.left_out {
        writeln!(out, "left out: {key}: {why}").map_err(print)?;
    }
    Ok(())
}

/// A report with the fields that all of them begin with; docs/json/NAME.schema.json has the others.
#[derive(Serialize)]
struct Headed<'a, T> {
    schema: &'static str,
    schema_version: u32,
    time: String,
    commit: &'static str,
    #[serde(flatten)]
    report: &'a T,
}

impl<'a, T> Headed<'a, T> {
    fn new(schema: &'static str, report: &'a T) -> Self {
        let time = utc(SystemTime::now());
        Self { schema, schema_version: 1, time, commit: BUILD, report }
    }
}

fn show(
    json: &Json,
    value: &impl Serialize,
    out: &mut Vec<u8>,
    text: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
) -> Result<()> {
    if json.json {
        serde_json::to_writer_pretty(&mut *out, value).map_err(|e| print(e.into()))?;
        out.push(b'\n');
        return Ok(());
    }
    text(out).map_err(print)
}

fn print(e: io::Error) -> Error {
    Error::io("printing the report")(e)
}

fn code(fine: bool) -> ExitCode {
    if fine { ExitCode::SUCCESS } else { ExitCode::from(NOT_ALL) }
}
