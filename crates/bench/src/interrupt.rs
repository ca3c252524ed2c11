//! Ctrl-C. While rounds are measured the first one ends the measuring, and what is finished is reported; the second one,
//! and any other, ends the process at once. Nobody's call is interrupted for it: SIGINT is blocked, and a thread waits
//! for it.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use busypoll_policy::say;

use crate::units::show;

/// No round is finished: there is nothing to report.
const NOTHING: u64 = 0;
/// Reporting was asked for.
const ASKED: u64 = u64::MAX;
/// One of these two, or that a round is finished and how long what is measured may take, in nanoseconds.
static STATE: AtomicU64 = AtomicU64::new(NOTHING);

/// SIGINT is blocked in this thread and all that it starts.
pub struct Held(());

/// Blocks it, unless this process is to ignore it. To be called before there is a second thread, as that one would be
/// ended by it.
///
/// # Errors
/// The system's.
pub fn hold() -> io::Result<Option<Held>> {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: room for the answer, and nothing is changed.
    let asked = unsafe { libc::sigaction(libc::SIGINT, std::ptr::null(), now.as_mut_ptr()) };
    // SAFETY: written if the call succeeded.
    if asked != 0 || unsafe { now.assume_init() }.sa_sigaction == libc::SIG_IGN {
        return Ok(None);
    }
    mask(libc::SIG_BLOCK)?;
    Ok(Some(Held(())))
}

impl Held {
    /// Waits for it, in a thread of its own.
    ///
    /// # Errors
    /// No thread to be had.
    pub fn listen(&self) -> io::Result<()> {
        let listen = || {
            loop {
                let mut signal = 0;
                // SAFETY: a valid set, and room for the answer.
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

    /// Ends the process by the signal if it has come meanwhile: who has started it, a shell's loop, is to know.
    pub fn pass_on(self) {
        if is_asked() {
            end();
        }
    }
}

/// A round is finished; the measurements of the next one take so long at the most.
pub fn round_is_finished(longest: Duration) {
    let nanos = u64::try_from(longest.as_nanos()).unwrap_or(ASKED).clamp(NOTHING + 1, ASKED - 1);
    let set = |state| (state != ASKED).then_some(nanos);
    let _ = STATE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
}

/// Whether to measure no further.
pub fn is_asked() -> bool {
    STATE.load(Ordering::Relaxed) == ASKED
}

fn end() {
    // SAFETY: plain calls; the default action is to end.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    let _ = mask(libc::SIG_UNBLOCK);
    // SAFETY: a plain call.
    unsafe { libc::kill(libc::getpid(), libc::SIGINT) };
}

fn mask(how: libc::c_int) -> io::Result<()> {
    // SAFETY: a valid set; the former one is not wanted.
    match unsafe { libc::pthread_sigmask(how, &sigint(), std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn sigint() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call makes it a set, of which the second takes a valid signal.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        set.assume_init()
    }
}
