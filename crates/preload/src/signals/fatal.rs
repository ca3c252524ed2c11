//! Signals whose default action ends the process. The kernel ends the process at once and still delivers what its own
//! sockets have queued; our sockets end with the process. So once the process has connections of ours, a handler stands
//! in place of that default. It delivers, and then has the kernel carry out the default
//! action. The program sees the default, both in what sigaction(2) returns and in how it ends. execve(2) restores the
//! default by itself.
//!
//! Signals of a fault are left out: memory may be broken then, and the guard resets the peers, as after SIGKILL.

use super::SIGNALS;
use crate::{
    handler_frames::Frame,
    inside::{self, FAULTS},
    real, seccomp,
};
use libc::{c_int, c_void, siginfo_t};
use std::{mem, ptr, sync::OnceLock};

/// Signals below the real-time ones whose default action ends the process, without those of a fault; and SIGABRT, which
/// abort(3) raises.
const ENDS: [c_int; 16] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGABRT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGSTKFLT,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGPOLL,
    libc::SIGPWR,
];

/// The first real-time signal that the C library leaves to programs.
const REAL_TIME: c_int = 34;

/// In seconds. If delivery hangs because of what the signal has interrupted, the process still ends after this time.
const LIMIT: libc::time_t = 4;

/// Delivers what the process has queued; set: the handlers are installed.
static DELIVER: OnceLock<fn()> = OnceLock::new();

fn ends(signal: c_int) -> bool {
    ENDS.contains(&signal) || (REAL_TIME..SIGNALS as c_int).contains(&signal)
}

/// Whether `action` is our handler in place of the default.
pub(crate) fn is_default(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_end as *const () as usize
}

/// The action that the kernel gets when a program asks for the default of `signal`.
pub(crate) fn default_of(signal: c_int) -> libc::sigaction {
    // SAFETY: plain data, all zero: the default.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    if DELIVER.get().is_some() && ends(signal) {
        action.sa_sigaction = on_end as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        action.sa_mask = inside::all_but_faults();
    }
    action
}

/// From now on this process has connections, whose queued data `deliver` delivers. Not for the init process of a pid namespace, which no default
/// action ends, nor for a confined program, which a further system call might kill.
pub(crate) fn arm(deliver: fn()) {
    let first = std::process::id() == 1;
    if first || seccomp::is_confined() || DELIVER.set(deliver).is_err() {
        return;
    }
    let _lock = super::lock_changes();
    for signal in (1..SIGNALS as c_int).filter(|signal| ends(*signal)) {
        // SAFETY: plain data, valid for writes.
        unsafe {
            let mut is: libc::sigaction = mem::zeroed();
            if real::sigaction(signal, ptr::null(), &raw mut is) == 0
                && is.sa_sigaction == libc::SIG_DFL
            {
                let ours = default_of(signal);
                real::sigaction(signal, &raw const ours, ptr::null_mut());
            }
        }
    }
}

/// The handler that the kernel calls in place of the default action.
unsafe extern "C" fn on_end(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let inside = inside::is_inside();
    if inside && !FAULTS.contains(&signal) {
        // SAFETY: as the kernel gave them to us.
        if unsafe { inside::put_off(signal, info, context, true) } {
            return;
        }
    }
    limit();
    // A thread that aborts inside the library may hold locks that delivery needs.
    if let Some(deliver) = DELIVER.get().filter(|_| !inside) {
        Frame::new().run(|| inside::run_exclusively(deliver));
    }
    // SAFETY: plain system calls on data of our own. The signal is normally blocked while its handler runs; it ends the
    // process as soon as it is delivered.
    unsafe {
        let default: libc::sigaction = mem::zeroed();
        real::sigaction(signal, &raw const default, ptr::null_mut());
        let thread = libc::syscall(libc::SYS_gettid);
        libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal);
        let mut one: libc::sigset_t = mem::zeroed();
        libc::sigaddset(&raw mut one, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const one, ptr::null_mut());
    }
}

/// Has the kernel kill the process after [`LIMIT`] seconds.
fn limit() {
    // SAFETY: plain system calls on data of our own; zero is valid for all of it.
    unsafe {
        let mut event: libc::sigevent = mem::zeroed();
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = libc::SIGKILL;
        let mut timer: c_int = 0;
        let clock = libc::CLOCK_MONOTONIC;
        if libc::syscall(libc::SYS_timer_create, clock, &raw mut event, &raw mut timer) == 0 {
            let mut when: libc::itimerspec = mem::zeroed();
            when.it_value.tv_sec = LIMIT;
            let old = ptr::null_mut::<libc::itimerspec>();
            libc::syscall(libc::SYS_timer_settime, timer, 0, &raw const when, old);
        }
    }
}
