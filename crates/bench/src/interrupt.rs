//! Ctrl-C. While rounds are measured the first one ends the measurement, and finished rounds are reported; the second
//! one, and any at another time, ends the process at once. No system call is interrupted for it: SIGINT is blocked,
//! and a thread waits for it.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use busypoll_policy::say;

use crate::units::show;

/// No round is finished, so there is nothing to report.
const NOTHING: u64 = 0;
/// Ctrl-C has asked for the report.
const ASKED: u64 = u64::MAX;
/// One of these two, or, once a round is finished, the longest time until the report, in nanoseconds.
static STATE: AtomicU64 = AtomicU64::new(NOTHING);

/// Proof that SIGINT is blocked in this thread and all that it starts.
pub struct SigintBlocked(());

/// Blocks SIGINT, unless this process ignores it. Must be called before there is a second thread, as the signal would
/// end the process through that one.
///
/// # Errors
/// The system call's.
pub fn block() -> io::Result<Option<SigintBlocked>> {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: `now` has room for the result, and nothing is changed.
    let asked = unsafe { libc::sigaction(libc::SIGINT, std::ptr::null(), now.as_mut_ptr()) };
    // SAFETY: written if the call succeeded.
    if asked != 0 || unsafe { now.assume_init() }.sa_sigaction == libc::SIG_IGN {
        return Ok(None);
    }
    mask(libc::SIG_BLOCK)?;
    Ok(Some(SigintBlocked(())))
}

impl SigintBlocked {
    /// Starts a thread that waits for SIGINT.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn listen(&self) -> io::Result<()> {
        let listen = || {
            loop {
                let mut signal = 0;
                // SAFETY: a valid set, and room for the result.
                if unsafe { libc::sigwait(&sigint(), &raw mut signal) } != 0 {
                    return;
                }
                let asked = |state| (state != NOTHING && state != ASKED).then_some(ASKED);
                match STATE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, asked) {
                    Ok(longest) => say(format_args!(
                        "Ctrl-C: what is finished is reported within {}; once more ends it at once",
                        show(Duration::from_nanos(longest))
                    )),
                    Err(_) => end(),
                }
            }
        };
        thread::Builder::new().name("interrupts".into()).spawn(listen).map(drop)
    }

    /// If SIGINT has come, ends the process by that signal, so that its parent, such as a shell's loop, learns of it.
    pub fn end_if_interrupted(self) {
        if is_asked() {
            end();
        }
    }
}

/// Reports a finished round; the measurements of the next one take at most `longest`.
pub fn round_is_finished(longest: Duration) {
    let nanos = u64::try_from(longest.as_nanos()).unwrap_or(ASKED).clamp(NOTHING + 1, ASKED - 1);
    let set = |state| (state != ASKED).then_some(nanos);
    let _ = STATE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
}

/// Whether to stop measuring.
pub fn is_asked() -> bool {
    STATE.load(Ordering::Relaxed) == ASKED
}

fn end() {
    // SAFETY: a plain call; the default action ends the process.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    let _ = mask(libc::SIG_UNBLOCK);
    // SAFETY: a plain call.
    unsafe { libc::kill(libc::getpid(), libc::SIGINT) };
}

fn mask(how: libc::c_int) -> io::Result<()> {
    // SAFETY: a valid set; the old mask is not requested.
    match unsafe { libc::pthread_sigmask(how, &sigint(), std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn sigint() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call initialises the set, to which the second adds a valid signal.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        set.assume_init()
    }
}
