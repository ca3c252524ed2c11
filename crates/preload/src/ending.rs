//! Signals whose default action ends the process. The kernel ends it at once, and would still deliver what its own
//! sockets have to say; ours end with the process. So from when it has connections of ours a handler stands in place of
//! that default, lets [`stack::close_all`] deliver, and then has the kernel do what it would have done. The program sees
//! the default: in what sigaction(2) tells, and in how it ends. What is executed has the default again by itself.
//!
//! Not those that tell of a fault: there memory may be broken, and the peers are reset by the guard, as after SIGKILL.

use crate::{
    handler::Frame,
    inside::{self, FAULTS},
    kernel, real,
    signals::{self, SIGNALS},
    stack,
};
use libc::{c_int, c_void, siginfo_t};
use std::{
    mem, ptr,
    sync::atomic::{AtomicBool, Ordering},
};

/// Signals below the real-time ones whose default action ends the process, of those that tell of no fault; and SIGABRT,
/// by which abort(3) ends it.
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

/// If what is to deliver should hang, for whatever the signal has interrupted, the process ends all the same.
const LIMIT: libc::time_t = 4;

static ARMED: AtomicBool = AtomicBool::new(false);

fn ends(signal: c_int) -> bool {
    ENDS.contains(&signal) || (REAL_TIME..SIGNALS as c_int).contains(&signal)
}

/// Whether `action` is what stands in place of the default.
pub(crate) fn is_default(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_end as *const () as usize
}

/// What the kernel is given where a program asks for the default of `signal`.
pub(crate) fn default_of(signal: c_int) -> libc::sigaction {
    // SAFETY: plain data, all zero: the default.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    if ARMED.load(Ordering::Relaxed) && ends(signal) {
        action.sa_sigaction = on_end as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        // SAFETY: a set of our own.
        unsafe { libc::sigfillset(&raw mut action.sa_mask) };
        for fault in FAULTS {
            // SAFETY: as above.
            unsafe { libc::sigdelset(&raw mut action.sa_mask, fault) };
        }
    }
    action
}

/// From now on this process has connections that are to be delivered. The first of a namespace is spared by the default
/// of any signal, and a program that confines itself may be ended by a system call too many.
pub(crate) fn arm() {
    let first = std::process::id() == 1;
    if first || kernel::is_confined() || ARMED.swap(true, Ordering::Relaxed) {
        return;
    }
    let _alone = signals::alone();
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

/// What the kernel calls in place of the default action.
unsafe extern "C" fn on_end(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let inside = inside::is_inside();
    if inside && !FAULTS.contains(&signal) {
        // SAFETY: as the kernel gave them to us.
        if unsafe { inside::put_off(signal, info, context, true) } {
            return;
        }
    }
    limit();
    // Who aborts inside may hold what delivering needs.
    if !inside {
        Frame::new().run(|| inside::alone(stack::close_all));
    }
    // SAFETY: plain system calls on data of our own. The signal is blocked while it is handled, unless it was sent so
    // that it is not; it ends the process when it is let through.
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

/// Has the kernel end the process by itself in a while.
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
