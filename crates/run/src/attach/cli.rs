//! `busypoll attach` and `busypoll detach`.

use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;

use busypoll_journal::state_dir;
use busypoll_policy::{Policy, say, units};

use super::error::AttachError;
use super::follow::Following;
use super::show;
use super::target::{Room, Target};
use super::undo::{Undone, undo};

/// Busy polling for processes that already run.
///
/// Their sockets and epoll instances are changed from outside, where the change can have an effect; what
/// stood is written down first, and `busypoll detach` puts it back. Needs no root for one's own processes.
#[derive(Clone, Debug, clap::Args)]
pub struct AttachArgs {
    /// The processes
    #[arg(required = true, value_name = "PID", value_parser = pid)]
    pids: Vec<u32>,
    /// Stay, and catch what they and their children open from now on
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
}

/// Puts back what `busypoll attach` has changed in processes.
///
/// Only where what it wrote still stands. Also of processes that have ended: what others have inherited
/// from them is put back there.
#[derive(Clone, Debug, clap::Args)]
pub struct DetachArgs {
    /// The processes
    #[arg(required = true, value_name = "PID", value_parser = pid)]
    pids: Vec<u32>,
}

fn pid(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(pid @ 1..) => Ok(pid),
        _ => Err(format!("'{text}' is no process number; `pgrep NAME` finds them")),
    }
}

/// Attaches, reports to `out`, and with `--follow` stays.
///
/// # Errors
/// One line for a mistake in the options or a process that cannot be attached to.
pub fn run_attach(args: &AttachArgs, out: &mut impl Write) -> Result<(), AttachError> {
    let mut policy = match &args.policy {
        Some(file) => Policy::read(file)?,
        None => Policy::default(),
    };
    if let Some(us) = args.busy_poll {
        policy.defaults.busy_poll = us;
    }
    let dir = state_dir()?;
    let mut room: Option<Room> = None;
    let mut targets = Vec::new();
    // Two searches may find the same one, whose journal has one writer.
    let mut pids = args.pids.clone();
    let mut known = HashSet::new();
    pids.retain(|pid| known.insert(*pid));
    let mut outcome = Several::of(pids.len());
    for pid in &pids {
        let attached = Target::open(*pid, &dir).and_then(|mut target| {
            let room = room.get_or_insert_with(|| Room::for_process(&policy, &target.process));
            let rows = target.pass(&policy, room)?;
            show::process(out, &target, &rows, args.json)?;
            Ok(target)
        });
        match attached {
            Ok(target) => targets.push(target),
            Err(error) => outcome.failed(error),
        }
    }
    out.flush()?;
    if let Some(room) = room.as_mut().filter(|_| args.follow) {
        Following::new(targets, &policy, &dir, args.json).run(out, room)?;
    }
    outcome.finish()
}

/// Detaches and reports to `out`.
///
/// # Errors
/// One line for a process of which nothing is known, or where something could not be put back.
pub fn run_detach(args: &DetachArgs, out: &mut impl Write) -> Result<(), AttachError> {
    let dir = state_dir()?;
    let mut outcome = Several::of(args.pids.len());
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
                "process {pid}: no changes to it are written down in {}; another user's are in his own",
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

/// Several processes, of which some may fail: the one's trouble is not the next one's.
struct Several {
    all: usize,
    failed: usize,
    last: Option<AttachError>,
}

impl Several {
    fn of(all: usize) -> Self {
        Several { all, failed: 0, last: None }
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
