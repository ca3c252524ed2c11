//! pthread_cancel(3). A thread that is [`inside`](crate::inside) may hold locks, and Rust's frames hold more than an
//! unwinding gives back: so it is not cancelled there, but called off what it waits for, and ends as it leaves.
//!
//! Costs nothing but a load as long as the process has cancelled nobody.

use crate::{inside::Inside, real};
use busypoll_stack::signal::{self, Caller};
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

// What ends a thread unwinds it; a build that does not unwind has nothing on its frames to say about that.
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

/// Whether anybody was ever cancelled. Who was inside before that is not held; what the stack calls while it holds
/// something is no point at which a thread is cancelled (its sys.rs).
static USED: AtomicBool = AtomicBool::new(false);

/// Threads as they come to sleep in the stack, and the last that were cancelled before that. Those are known by their
/// clocks: most never come to sleep there, and another thread has the name of one that has ended.
#[derive(Default)]
pub struct Known {
    sleepers: Vec<(pthread_t, Caller)>,
    early: Vec<clockid_t>,
}

static KNOWN: Mutex<Known> = Mutex::new(Known { sleepers: Vec::new(), early: Vec::new() });

/// How many of the latter are remembered.
const EARLY: usize = 64;

local! {
    /// What the program has for cancellation, while the thread is inside.
    static BEFORE: Cell<Option<c_int>> = Cell::new(None);
}

/// The list; held across a fork, so that the child finds it free.
pub fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    /// In a child after fork(2), which has one thread.
    pub fn in_child(&mut self) {
        // SAFETY: a plain call.
        let this = unsafe { libc::pthread_self() };
        self.sleepers.retain(|(thread, _)| *thread == this);
        self.early.clear();
    }
}

/// The calling thread is about to sleep in the stack for the first time. Called inside.
pub fn enlist() {
    // SAFETY: a plain call.
    let this = unsafe { libc::pthread_self() };
    let mut known = known();
    if known.sleepers.iter().any(|(thread, _)| *thread == this) {
        return;
    }
    let caller = Caller::of_this_thread();
    let clock = clock(this);
    if let Some(at) = known.early.iter().position(|early| Some(*early) == clock) {
        known.early.swap_remove(at);
        // SAFETY: it is this thread.
        unsafe { caller.call_off() };
    }
    known.sleepers.push((this, caller));
}

/// The calling thread ends.
pub fn leave() {
    // SAFETY: a plain call.
    let this = unsafe { libc::pthread_self() };
    known().sleepers.retain(|(thread, _)| *thread != this);
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
        let mut known = known();
        match known.sleepers.iter().find(|(sleeper, _)| *sleeper == thread) {
            // SAFETY: it leaves the list, which is held here, before it ends.
            Some((_, caller)) => unsafe { caller.call_off() },
            None => {
                if known.early.len() == EARLY {
                    known.early.remove(0);
                }
                known.early.extend(clock(thread));
            }
        }
    }
    result
}

/// The clock of a thread, which no other has had lately; `None` if it has ended.
fn clock(thread: pthread_t) -> Option<clockid_t> {
    let mut clock = 0;
    // SAFETY: a valid place; that the thread is not joined yet is what pthread_cancel(3) asks as well.
    let told = unsafe { libc::pthread_getcpuclockid(thread, &raw mut clock) };
    (told == 0).then_some(clock)
}

/// The thread enters: from now on it is not cancelled.
#[inline]
pub fn hold() {
    if USED.load(Ordering::Relaxed) {
        BEFORE.set(Some(set_state(PTHREAD_CANCEL_DISABLE)));
    }
}

/// It leaves, or a signal's handler runs: it is as the program has it.
#[inline]
pub fn let_go() {
    if USED.load(Ordering::Relaxed)
        && let Some(before) = BEFORE.take()
    {
        set_state(before);
    }
}

/// It has left, and ends if it was cancelled meanwhile.
#[inline]
pub fn test() {
    if USED.load(Ordering::Relaxed) {
        signal::take_called_off();
        // SAFETY: nothing is held that would have to be given back.
        unsafe { pthread_testcancel() };
    }
}

/// Whether the thread, which is inside, is to leave, to end. If the program will not have it cancelled, it waits on.
pub fn is_due() -> bool {
    if !signal::is_called_off() {
        return false;
    }
    let state = BEFORE.get().unwrap_or_else(|| {
        let state = set_state(PTHREAD_CANCEL_DISABLE);
        BEFORE.set(Some(state));
        state
    });
    state == PTHREAD_CANCEL_ENABLE || !signal::take_called_off()
}

fn set_state(state: c_int) -> c_int {
    let mut before = state;
    // SAFETY: a valid place for the answer. The C library's takes null as well, others' do not.
    unsafe { pthread_setcancelstate(state, ptr::from_mut(&mut before)) };
    before
}
