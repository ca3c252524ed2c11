//! Signals that reach a thread while it is inside the stack, and may hold one of its locks. Whoever owns the
//! process's handlers (the preload library) puts such a signal off until the thread has left, and says so
//! here, so that the thread stops waiting and leaves. Likewise a thread that another one cancels is called off.
//!
//! In a program without such an owner a handler runs at once, and ends the thread's wait only if the thread sleeps
//! (`Interrupted`): user space is not told that a handler ran in the middle of a busy loop, nor just before a sleep.
//! A handler that is to end a wait in any case calls [`put_off`]; its thread calls [`settle`] when it is out of the
//! stack again.

use crate::{
    napi::{Waiter, wait},
    sys,
};
use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicI32, Ordering},
};

thread_local! {
    static PUT_OFF: Cell<bool> = const { Cell::new(false) };
    static CALLED_OFF: AtomicBool = const { AtomicBool::new(false) };
}

/// A signal of this thread was put off: what it waits for in the stack ends with `Interrupted`, at the latest
/// when it would sleep, until [`settle`]. May be called by a signal's handler, whatever the thread was doing.
pub fn put_off() {
    PUT_OFF.set(true);
    Waiter::wake_this_thread();
}

/// Has `hook` called by each thread that is about to sleep in the stack for the first time. The first hook given stays.
pub fn on_first_sleep(hook: fn()) {
    wait::on_first_sleep(hook);
}

/// The thread has left, and its signals are being handled.
pub fn settle() {
    PUT_OFF.set(false);
}

/// Whether a signal of this thread was put off, or it was called off.
#[inline]
pub fn is_put_off() -> bool {
    PUT_OFF.get() || is_called_off()
}

/// Whether [`Caller::call_off`] was called for this thread.
#[inline]
pub fn is_called_off() -> bool {
    // After the waiter's event was told: who calls off sees that, or we see this.
    CALLED_OFF.with(|called_off| called_off.load(Ordering::SeqCst))
}

/// The same, and it no longer is.
pub fn take_called_off() -> bool {
    CALLED_OFF.with(|called_off| called_off.swap(false, Ordering::Relaxed))
}

/// By which other threads call one off what it waits for.
#[derive(Debug)]
pub struct Caller {
    called_off: *const AtomicBool,
    event: *const AtomicI32,
}

// SAFETY: atomics of a thread, which who calls it off knows to be there.
unsafe impl Send for Caller {}

impl Caller {
    /// Of the calling thread.
    pub fn of_this_thread() -> Caller {
        let called_off = CALLED_OFF.with(std::ptr::from_ref);
        Caller { called_off, event: Waiter::event_of_this_thread() }
    }

    /// As if a signal of the thread had been put off, until it says [`take_called_off`].
    ///
    /// # Safety
    /// The thread has not ended.
    pub unsafe fn call_off(&self) {
        // SAFETY: the thread is there, and so are they.
        let (called_off, event) = unsafe { (&*self.called_off, &*self.event) };
        called_off.store(true, Ordering::SeqCst);
        // Whether it sleeps or is about to: it finds itself woken, and looks.
        if let event @ 0.. = event.load(Ordering::SeqCst) {
            sys::signal(event);
        }
    }
}
