//! Signals that reach a thread while it is inside the stack, and may hold one of its locks. Whoever owns the
//! process's handlers (the preload library) puts such a signal off until the thread has left, and says so
//! here, so that the thread stops waiting and leaves.
//!
//! In a program without such an owner a handler runs at once, and ends the thread's wait only if the thread sleeps
//! (`Interrupted`): user space is not told that a handler ran in the middle of a busy loop, nor just before a sleep.
//! A handler that is to end a wait in any case calls [`put_off`]; its thread calls [`settle`] when it is out of the
//! stack again.

use crate::napi::Waiter;
use std::cell::Cell;

thread_local!(static PUT_OFF: Cell<bool> = const { Cell::new(false) });

/// A signal of this thread was put off: what it waits for in the stack ends with `Interrupted`, at the latest
/// when it would sleep, until [`settle`]. May be called by a signal's handler, whatever the thread was doing.
pub fn put_off() {
    PUT_OFF.set(true);
    Waiter::wake_this_thread();
}

/// The thread has left, and its signals are being handled.
pub fn settle() {
    PUT_OFF.set(false);
}

/// Whether a signal of this thread was put off.
#[inline]
pub fn is_put_off() -> bool {
    PUT_OFF.get()
}
