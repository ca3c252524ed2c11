//! The stack's own threads. They take no signals, which are for the application's threads; and a library that
//! stands between an application and its C library is told of each, so that it lets it alone.

use std::{
    io,
    sync::OnceLock,
    thread::{Builder, JoinHandle},
};

static ON_START: OnceLock<fn()> = OnceLock::new();

/// Has `hook` called first by each thread that the stack starts from now on. The first hook given stays.
pub fn on_start(hook: fn()) {
    let _ = ON_START.set(hook);
}

/// Starts a thread of the stack's own.
pub(crate) fn spawn(
    name: impl Into<String>,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let before = block_signals();
    let thread = Builder::new().name(name.into()).spawn(move || {
        if let Some(hook) = ON_START.get() {
            hook();
        }
        run();
    });
    // SAFETY: a mask that was this thread's.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    thread
}

/// Blocks all signals of the calling thread, as a thread inherits it; the mask before.
fn block_signals() -> libc::sigset_t {
    // SAFETY: sets are plain data, both valid for the calls.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}
