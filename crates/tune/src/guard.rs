//! The process that rolls an apply back automatically: when it is not confirmed in time, or when the processes it
//! was made for have ended. It outlives the terminal, and uses the journal like any other command.
//!
//! It is started and has opened the pollers' pidfds before the first change is made, so from then
//! on the apply stays in force only if the guard is killed by SIGKILL; `status` reports that.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use busypoll_journal::{Error as JournalError, state_dir};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

use crate::cli::GuardArgs;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::record::{Apply, JournalState, Process};
use crate::status::{journal, leave_message, records};
use crate::undo::undo;

const READY: &str = "ready\n";
/// How long a guard that must act waits before it tries a locked journal again.
const BUSY: Duration = Duration::from_millis(100);

/// Starts the guard of apply `number` and waits until it is ready.
///
/// # Errors
/// [`Error::Guard`].
pub(crate) fn start(number: u32, within: Option<u64>, pollers: &[Process]) -> Result<Process> {
    let mut command = Command::new("/proc/self/exe");
    let maker = std::process::id().to_string();
    command.arg0("busypoll").args(["tune", "guard", &number.to_string(), "--maker", &maker]);
    if let Some(seconds) = within {
        command.args(["--within", &seconds.to_string()]);
    }
    for poller in pollers {
        command.args(["--poller", &poller.pid.to_string()]);
    }
    let state = state_dir()?;
    command.env("BUSYPOLL_STATE", state).current_dir("/");
    command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            // A session of its own: no hang-up when the terminal closes, no Ctrl-C.
            rustix::process::setsid().map(drop).map_err(io::Error::from)
        });
    }
    let mut child = command.spawn().map_err(Error::Guard)?;
    let mut word = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut word).map_err(Error::Guard)?;
    }
    let guard = Process::find(child.id());
    match guard {
        Some(guard) if word == READY => Ok(guard),
        _ => {
            let _ = child.kill();
            let _ = child.wait();
            Err(Error::Guard(io::Error::other("it ended at once")))
        }
    }
}

/// The guard process itself.
///
/// # Errors
/// An error that keeps the guard from starting, or from rolling back.
pub(crate) fn run(args: &GuardArgs) -> Result<()> {
    let pidfds = args.poller.iter().map(|pid| pidfd(*pid)).collect::<Result<Vec<_>>>()?;
    // Once the maker has ended the guard has another parent, and its PID may be reused.
    let is_parent =
        || rustix::process::getppid().map(Pid::as_raw_pid) == i32::try_from(args.maker).ok();
    let maker = pidfd(args.maker).ok().filter(|_| is_parent());
    let dir = state_dir()?;
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
        .map_err(|e| Error::io("watching the journal")(e.into()))?;
    use inotify::WatchFlags as W;
    inotify::add_watch(&changes, &dir, W::MODIFY | W::DELETE | W::CREATE | W::MOVED_TO)
        .map_err(|e| Error::io("watching the journal")(e.into()))?;
    let deadline = args.within.map(|s| now() + Duration::from_secs(s));
    // The last output to the process that started us; then its pipe is closed.
    let mut out = io::stdout();
    out.write_all(READY.as_bytes()).and_then(|()| out.flush()).map_err(Error::io("reporting"))?;
    let null = File::options().write(true).open("/dev/null").map_err(Error::io("/dev/null"))?;
    rustix::stdio::dup2_stdout(&null).map_err(|e| Error::io("reporting")(e.into()))?;

    let mut pollers: Vec<OwnedFd> = pidfds;
    let had_pollers = !pollers.is_empty();
    let mut began = false;
    let own = Process::find(std::process::id());
    loop {
        // Checked before the journal is read: a maker that has ended has written everything by now.
        let maker_lives = maker.as_ref().is_some_and(|fd| !has_ended(fd));
        let journal_state = JournalState::of(&records()?);
        let apply = guarded(&journal_state, args.number, own);
        began |= apply.is_some();
        let confirmed = apply.is_some_and(|a| a.confirmed);
        match apply {
            // Rolled back by the user.
            None if began => return Ok(()),
            None if !maker_lives => return leave_no_empty_journal(),
            Some(_) if confirmed && !had_pollers => return Ok(()),
            _ => {}
        }
        pollers.retain(|fd| !has_ended(fd));
        let left = deadline.filter(|_| !confirmed).map(|d| d.saturating_sub(now()));
        let over = left.is_some_and(|left| left.is_zero());
        let ended = had_pollers && pollers.is_empty();
        let due = apply.is_some() && (over || ended);
        let why = if ended { "because no poller is left" } else { "because it was not confirmed" };
        if due && roll_back(args.number, own, why)? {
            return Ok(());
        }
        let mut fds = vec![PollFd::new(&changes, PollFlags::IN)];
        fds.extend(pollers.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        if let (Some(maker), false) = (&maker, began) {
            fds.push(PollFd::from_borrowed_fd(maker.as_fd(), PollFlags::IN));
        }
        let wait = if due { Some(BUSY) } else { left.filter(|left| !left.is_zero()) };
        let wait = wait.and_then(|w| Timespec::try_from(w).ok());
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::io("waiting")(e.into())),
        }
        // The inotify events themselves do not matter; the journal is read again.
        let mut buffer = [0; 4096];
        while rustix::io::read(&changes, &mut buffer).is_ok_and(|n| n > 0) {}
    }
}

/// The apply of that number, if this guard belongs to it: each journal counts from 1 again.
fn guarded(journal_state: &JournalState, number: u32, own: Option<Process>) -> Option<&Apply> {
    journal_state.apply(number).filter(|apply| own.is_some() && apply.begin.guard == own)
}

/// Rolls the apply back; false if another process holds the journal.
fn roll_back(number: u32, own: Option<Process>, why: &str) -> Result<bool> {
    let journal = match journal() {
        Err(Error::Journal(JournalError::Locked { .. })) => return Ok(false),
        journal => journal?,
    };
    // It may have been confirmed just now.
    let journal_state = JournalState::of(journal.entries());
    let Some(apply) = guarded(&journal_state, number, own) else { return Ok(true) };
    if apply.confirmed && apply.begin.pollers.is_empty() {
        return Ok(true);
    }
    let what = format!("{} (apply {number}) was rolled back {why}", apply.begin.profile);
    let mut machine = Machine::open()?;
    let report = undo(&mut machine, journal, |n| n == number, false, &mut |_| ())?;
    let left = report.iter().filter(|p| !p.how.is_settled()).count();
    let left =
        if left > 0 { format!("; {left} settings could not be put back") } else { String::new() };
    // The rollback matters more than the message about it.
    let _ = leave_message(&format!("{what}{left}\n"));
    Ok(true)
}

/// A maker that ended before it began may have left an empty journal, which is removed.
fn leave_no_empty_journal() -> Result<()> {
    match journal() {
        Ok(journal) if journal.entries().is_empty() => Ok(journal.finish()?),
        _ => Ok(()),
    }
}

fn pidfd(pid: u32) -> Result<OwnedFd> {
    let pid_ = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let fd = pid_.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    fd.ok_or(Error::NoProcess(pid))
}

/// Whether the process behind a pidfd has ended.
fn has_ended(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0)
}

/// The time on a clock that continues during suspend.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}
