//! Settings that a program inherits and that Rust's start-up changes before `main`: SIGPIPE, which it ignores, and
//! closed standard descriptors, which it opens as `/dev/null`. They are restored for the program that this process
//! executes.

use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

static SIGPIPE: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);

/// A bit for each descriptor that was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

const STANDARD: std::ops::Range<libc::c_int> = 0..3;

// SAFETY: the loader calls this before Rust's start-up, with arguments that it ignores.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_RUST: extern "C" fn() = {
    extern "C" fn remember() {
        // SAFETY: plain data, for which zeroes are valid, and calls that only read.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGPIPE, ptr::null(), &raw mut action);
            SIGPIPE.store(action.sa_sigaction, Ordering::Relaxed);
            for fd in STANDARD.filter(|&fd| libc::fcntl(fd, libc::F_GETFD) < 0) {
                CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
            }
        }
    }
    remember
};

/// Restores the settings, before an exec.
pub fn restore() {
    let closed = CLOSED.load(Ordering::Relaxed);
    // SAFETY: plain calls.
    unsafe {
        libc::signal(libc::SIGPIPE, SIGPIPE.load(Ordering::Relaxed));
        for fd in STANDARD.filter(|fd| closed & 1 << fd != 0) {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
}
