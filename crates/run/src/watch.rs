//! A list that is printed again and again: redrawn on a terminal, as blocks with an empty line between them elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::stdout;

/// The terminal's cursor to the first column of the first line, and everything from there on erased.
const FROM_THE_TOP: &str = "\x1b[H\x1b[J";

/// Prints with `print`, and again after each `interval`. Returns when SIGINT or SIGTERM comes, or when nothing reads the
/// output any more.
///
/// # Errors
/// Of `print`.
pub(crate) fn repeat(
    interval: Duration,
    out: &mut dyn Write,
    mut print: impl FnMut(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let signals = ends();
    let terminal = io::stdout().is_terminal();
    for round in 0u64.. {
        // One write, so that a terminal does not flicker.
        let mut text = Vec::new();
        match (terminal, round) {
            (true, _) => text.extend_from_slice(FROM_THE_TOP.as_bytes()),
            (false, 0) => {}
            (false, _) => text.push(b'\n'),
        }
        print(&mut text)?;
        out.write_all(&text)?;
        out.flush()?;
        if is_over(&signals, interval) || has_no_reader() {
            break;
        }
    }
    Ok(())
}

/// Blocks the signals that end the watch, so that they come between two lists.
fn ends() -> libc::sigset_t {
    // SAFETY: plain calls on a set of our own; the thread is the command's only one.
    unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGINT);
        libc::sigaddset(&raw mut signals, libc::SIGTERM);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
        signals
    }
}

/// Waits for the time, and returns whether one of these signals has come.
fn is_over(signals: &libc::sigset_t, time: Duration) -> bool {
    let time = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: a set and a time; no information about the signal is wanted.
    unsafe { libc::sigtimedwait(signals, std::ptr::null_mut(), &raw const time) > 0 }
}

/// Whether standard output is a pipe or socket whose other end is closed: writing to it is no error of the command.
fn has_no_reader() -> bool {
    let mut fds = [PollFd::from_borrowed_fd(stdout(), PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(gone)
}
