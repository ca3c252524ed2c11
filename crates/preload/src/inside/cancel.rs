//! pthread_cancel(3). A thread that is [`inside`](super) may hold locks and state that unwinding does not
//! release. So it is not cancelled there: its sleep in the stack is ended, and it is cancelled when it leaves.
//!
//! Costs one load as long as the process has cancelled no thread.

use super::Inside;
use crate::real;
use busypoll_stack::signal::{self, CancelHandle};
use libc::{c_int, clockid_t, pthread_t};
use std::{
    cell::Cell,
    ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// pthread.h.
const PTHREAD_CANCEL_ENABLE: c_int = 0;
const PTHREAD_CANCEL_DISABLE: c_int = 1;

// pthread_testcancel(3) unwinds the thread it ends. A build with panic=abort has nothing to unwind here.
#[cfg(panic = "unwind")]
unsafe extern "C-unwind" {
    fn pthread_testcancel();
}
#[cfg(not(panic = "unwind"))]
unsafe extern "C" {
    fn pthread_testcancel();
}
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Whether any thread was ever cancelled. Cancellation is not disabled for a thread that was inside before that. The
/// stack makes no call that is a cancellation point while it holds a lock (its sys.rs).
static USED: AtomicBool = AtomicBool::new(false);

/// The threads that have slept in the stack, and the last threads that were cancelled before they slept there. The
/// latter are stored by their CPU clock id: most never sleep there, and a pthread_t is reused after its thread has
/// ended.
#[derive(Default)]
pub struct Threads {
    sleepers: Vec<(pthread_t, CancelHandle)>,
    early: Vec<clockid_t>,
}

static THREADS: Mutex<Threads> = Mutex::new(Threads { sleepers: Vec::new(), early: Vec::new() });

/// How many of the latter are remembered.
const EARLY: usize = 64;

local! {
    /// The program's cancel state, while the thread is inside and cancellation is disabled.
    static PROGRAM_STATE: Cell<Option<c_int>> = Cell::new(None);
}

/// The list; held across a fork, so that the child finds it free.
pub fn threads() -> MutexGuard<'static, Threads> {
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Threads {
    /// In a child after fork(2), which has one thread.
    pub fn in_child(&mut self) {
        // SAFETY: a plain call.
        let this = unsafe { libc::pthread_self() };
        self.sleepers.retain(|(thread, _)| *thread == this);
        self.early.clear();
    }
}

/// The calling thread is about to sleep in the stack for the first time. Called inside.
pub fn register_sleeper() {
    // SAFETY: a plain call.
    let this = unsafe { libc::pthread_self() };
    let mut threads = threads();
    if threads.sleepers.iter().any(|(thread, _)| *thread == this) {
        return;
    }
    let caller = CancelHandle::of_this_thread();
    let clock = clock(this);
    if let Some(at) = threads.early.iter().position(|early| Some(*early) == clock) {
        threads.early.swap_remove(at);
        // SAFETY: it is this thread.
        unsafe { caller.cancel() };
    }
    threads.sleepers.push((this, caller));
}

/// The calling thread ends.
pub fn unregister_sleeper() {
    // SAFETY: a plain call.
    let this = unsafe { libc::pthread_self() };
    threads().sleepers.retain(|(thread, _)| *thread != this);
}

/// # Safety
/// That of pthread_cancel(3).
pub unsafe fn pthread_cancel(thread: pthread_t) -> c_int {
    USED.store(true, Ordering::Relaxed);
    // SAFETY: the caller's contract.
    let result = unsafe { real::pthread_cancel(thread) };
    if result == 0
        && let Some(_inside) = Inside::enter()
    {
        let mut threads = threads();
        match threads.sleepers.iter().find(|(sleeper, _)| *sleeper == thread) {
            // SAFETY: the thread leaves the list, which is locked here, before it ends.
            Some((_, caller)) => unsafe { caller.cancel() },
            None => {
                if threads.early.len() == EARLY {
                    threads.early.remove(0);
                }
                threads.early.extend(clock(thread));
            }
        }
    }
    result
}

/// The CPU clock id of a thread, which is not soon reused; `None` if the thread has ended.
fn clock(thread: pthread_t) -> Option<clockid_t> {
    let mut clock = 0;
    // SAFETY: a valid pointer. pthread_cancel(3) as well requires that the thread is not joined yet.
    let result = unsafe { libc::pthread_getcpuclockid(thread, &raw mut clock) };
    (result == 0).then_some(clock)
}

/// The thread enters the library: cancellation is disabled from now on.
#[inline]
pub fn disable() {
    if USED.load(Ordering::Relaxed) {
        PROGRAM_STATE.set(Some(set_state(PTHREAD_CANCEL_DISABLE)));
    }
}

/// The thread leaves, or a signal handler is about to run: restores the program's cancel state.
#[inline]
pub fn restore() {
    if USED.load(Ordering::Relaxed)
        && let Some(before) = PROGRAM_STATE.take()
    {
        set_state(before);
    }
}

/// The thread has left, and ends here if it was cancelled meanwhile.
#[inline]
pub fn test_cancel() {
    if USED.load(Ordering::Relaxed) {
        signal::take_cancelled();
        // SAFETY: no lock is held.
        unsafe { pthread_testcancel() };
    }
}

/// Whether the thread, which is inside, must leave because it was cancelled. If the program has cancellation disabled,
/// the thread waits on.
pub fn is_pending() -> bool {
    if !signal::is_cancelled() {
        return false;
    }
    let state = PROGRAM_STATE.get().unwrap_or_else(|| {
        let state = set_state(PTHREAD_CANCEL_DISABLE);
        PROGRAM_STATE.set(Some(state));
        state
    });
    state == PTHREAD_CANCEL_ENABLE || !signal::take_cancelled()
}

fn set_state(state: c_int) -> c_int {
    let mut before = state;
    // SAFETY: a valid pointer for the old state. glibc takes null as well, other C libraries do not.
    unsafe { pthread_setcancelstate(state, ptr::from_mut(&mut before)) };
    before
}
