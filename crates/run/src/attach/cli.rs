//! `busypoll attach` and `busypoll detach`.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use busypoll_journal::state_dir;
use busypoll_policy::fit::Width;
use busypoll_policy::{Policy, say, units};

use super::error::AttachError;
use super::follow::Following;
use super::show;
use super::target::{SpinnerLimit, Target};
use super::undo::{Undone, undo};

/// Busy polling for processes that already run.
///
/// Sockets and epoll instances are changed from outside, where the change can have an effect. The settings before are
/// recorded first, and `busypoll detach` restores them. Root is not needed for your own processes.
#[derive(Clone, Debug, clap::Args)]
pub struct AttachArgs {
    /// The processes
    #[arg(required = true, value_name = "PID", value_parser = units::pid)]
    pids: Vec<u32>,
    /// Stay, and attach to what they and their children open from now on
    #[arg(long)]
    follow: bool,
    /// Which sockets, and how: a policy file
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// How long a wait polls before it sleeps (50us, 1ms; a bare number is microseconds) [default: 50us]
    #[arg(long, value_name = "TIME", value_parser = units::micros)]
    busy_poll: Option<u32>,
    /// Report in JSON, one line per process
    #[arg(long)]
    json: bool,
    /// All columns, also where the terminal is too narrow for them
    #[arg(long)]
    wide: bool,
}

/// Restores what `busypoll attach` has changed in processes.
///
/// Only settings that still have the value that attach wrote are restored. This works for processes that have ended,
/// too: what other processes have inherited from them is restored there.
#[derive(Clone, Debug, clap::Args)]
pub struct DetachArgs {
    /// The processes
    #[arg(required = true, value_name = "PID", value_parser = units::pid)]
    pids: Vec<u32>,
}

/// An output that never fails: the changes are made for every process, even if the report cannot be written. The first
/// error is kept.
struct LossyReport<'a, W> {
    out: &'a mut W,
    failed: Option<io::Error>,
}

impl<W: Write> Write for LossyReport<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.out.write(bytes).unwrap_or_else(|error| {
            self.failed.get_or_insert(error);
            bytes.len()
        }))
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Err(error) = self.out.flush() {
            self.failed.get_or_insert(error);
        }
        Ok(())
    }
}

fn with_report<W: Write>(
    out: &mut W,
    job: impl FnOnce(&mut LossyReport<'_, W>) -> Result<(), AttachError>,
) -> Result<ExitCode, AttachError> {
    let mut report = LossyReport { out, failed: None };
    job(&mut report)?;
    Ok(report.failed.map_or(ExitCode::SUCCESS, |error| {
        say(format_args!("{}; the work itself was done", AttachError::Output(error)));
        ExitCode::from(1)
    }))
}

/// Attaches, reports to `out`, and with `--follow` stays. Exit code 1: done, but the report could not be written.
///
/// # Errors
/// A message of one line for a mistake in the options or a process that cannot be attached to.
pub fn run_attach(args: &AttachArgs, out: &mut impl Write) -> Result<ExitCode, AttachError> {
    with_report(out, |out| attach(args, out))
}

/// Detaches and reports to `out`. Exit code 1: done, but the report could not be written.
///
/// # Errors
/// A message of one line for a process without recorded changes, or where a value could not be restored.
pub fn run_detach(args: &DetachArgs, out: &mut impl Write) -> Result<ExitCode, AttachError> {
    with_report(out, |out| detach(args, out))
}

fn attach(args: &AttachArgs, out: &mut impl Write) -> Result<(), AttachError> {
    let mut policy = match &args.policy {
        Some(file) => Policy::read(file)?,
        None => Policy::default(),
    };
    if let Some(us) = args.busy_poll {
        policy.defaults.busy_poll = us;
    }
    let dir = state_dir()?;
    let mut limit: Option<SpinnerLimit> = None;
    let mut targets = Vec::new();
    // A PID may be given twice, but its journal has one writer.
    let mut pids = args.pids.clone();
    let mut known = HashSet::new();
    pids.retain(|pid| known.insert(*pid));
    let mut outcome = Outcomes::of(pids.len());
    for pid in &pids {
        let attached = Target::open(*pid, &dir).and_then(|mut target| {
            let limit =
                limit.get_or_insert_with(|| SpinnerLimit::for_process(&policy, &target.process));
            let rows = target.scan(&policy, limit)?;
            show::process(out, &target, &rows, args.json, Width::of_stdout(args.wide))?;
            Ok(target)
        });
        match attached {
            Ok(target) => targets.push(target),
            Err(error) => outcome.failed(error),
        }
    }
    out.flush()?;
    if let Some(limit) = limit.as_mut().filter(|_| args.follow) {
        Following::new(targets, &policy, &dir, args.json).run(out, limit)?;
    }
    outcome.finish()
}

fn detach(args: &DetachArgs, out: &mut impl Write) -> Result<(), AttachError> {
    let dir = state_dir()?;
    let mut outcome = Outcomes::of(args.pids.len());
    for pid in &args.pids {
        let mut lines = Vec::new();
        let (mut back, mut left) = (0, 0);
        let undone = undo(*pid, &dir, |fd, undone| {
            let (word, what) = match undone {
                Undone::Back(what) => {
                    back += 1;
                    ("put back", what)
                }
                Undone::Left(why) => {
                    left += 1;
                    ("left", why)
                }
                Undone::Failed(why) => ("FAILED", why),
            };
            lines.push(format!("    fd {fd}: {word}: {what}"));
        });
        match &undone {
            Ok(false) => writeln!(
                out,
                "process {pid}: no changes to it are recorded in {}; another user's are in another directory",
                dir.display()
            )?,
            Err(_) if lines.is_empty() => {}
            _ => {
                writeln!(out, "process {pid}: {back} put back, {left} left alone")?;
                lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
            }
        }
        if let Err(error) = undone {
            outcome.failed(error);
        }
    }
    out.flush()?;
    outcome.finish()
}

/// Several processes: a failure of one does not stop the others.
struct Outcomes {
    all: usize,
    failed: usize,
    last: Option<AttachError>,
}

impl Outcomes {
    fn of(all: usize) -> Self {
        Outcomes { all, failed: 0, last: None }
    }

    fn failed(&mut self, error: AttachError) {
        self.failed += 1;
        if self.all > 1 {
            say(&error);
        }
        self.last = Some(error);
    }

    fn finish(self) -> Result<(), AttachError> {
        match self.last {
            None => Ok(()),
            Some(error) if self.all == 1 => Err(error),
            Some(_) => Err(AttachError::Some { failed: self.failed, all: self.all }),
        }
    }
}
