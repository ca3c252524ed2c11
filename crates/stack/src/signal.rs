//! Signals that reach a thread while it is inside the stack, where it may hold a lock. The preload library, which owns
//! the process's handlers, defers such a signal until the thread has left the stack. It reports that here, so that the
//! thread stops waiting and leaves. A thread that another one cancels (pthread_cancel) ends its wait the same way.
//!
//! In a program without the preload library a handler runs at once, and ends the thread's wait only if the thread
//! sleeps (`Interrupted`). User space cannot see that a handler ran in the middle of a busy loop, or just before a
//! sleep. A handler that must end the wait in any case calls [`note_deferred_signal`]; its thread calls
//! [`clear_deferred`] once it is out of the stack.

use crate::{
    napi::{Waiter, wait},
    sys,
};
use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicI32, Ordering},
};

thread_local! {
    static DEFERRED: Cell<bool> = const { Cell::new(false) };
    static CANCELLED: AtomicBool = const { AtomicBool::new(false) };
}

/// A signal of this thread was deferred. Until [`clear_deferred`], its waits in the stack end with `Interrupted`, at
/// the latest when they would sleep. A signal handler may call it at any time.
pub fn note_deferred_signal() {
    DEFERRED.set(true);
    Waiter::wake_this_thread();
}

/// Each thread calls `hook` before it sleeps in the stack for the first time. The first hook given stays.
#[doc(hidden)]
pub fn on_first_sleep(hook: fn()) {
    wait::on_first_sleep(hook);
}

/// The thread has left the stack, and its deferred signals are being handled.
pub fn clear_deferred() {
    DEFERRED.set(false);
}

/// Whether a signal of this thread was deferred, or the thread was cancelled.
#[inline]
pub fn has_deferred_signal() -> bool {
    DEFERRED.get() || is_cancelled()
}

/// Whether [`CancelHandle::cancel`] was called for this thread.
#[inline]
#[doc(hidden)]
pub fn is_cancelled() -> bool {
    // Read after the waiter's event was published: either the cancelling thread sees the event, or we see its flag.
    CANCELLED.with(|cancelled| cancelled.load(Ordering::SeqCst))
}

/// The same; clears the flag.
#[doc(hidden)]
pub fn take_cancelled() -> bool {
    CANCELLED.with(|cancelled| cancelled.swap(false, Ordering::Relaxed))
}

/// A handle by which other threads end a thread's wait.
#[doc(hidden)]
#[derive(Debug)]
pub struct CancelHandle {
    cancelled: *const AtomicBool,
    event: *const AtomicI32,
}

// SAFETY: atomics of a thread that has not ended, by the contract of `cancel`.
unsafe impl Send for CancelHandle {}

impl CancelHandle {
    /// The calling thread's.
    pub fn of_this_thread() -> CancelHandle {
        let cancelled = CANCELLED.with(std::ptr::from_ref);
        CancelHandle { cancelled, event: Waiter::event_of_this_thread() }
    }

    /// Ends the thread's waits, as a deferred signal does, until the thread calls [`take_cancelled`].
    ///
    /// # Safety
    /// The thread has not ended.
    pub unsafe fn cancel(&self) {
        // SAFETY: the thread has not ended, so its atomics exist.
        let (cancelled, event) = unsafe { (&*self.cancelled, &*self.event) };
        cancelled.store(true, Ordering::SeqCst);
        // Whether it sleeps or is about to: it wakes, and looks at the flag.
        if let event @ 0.. = event.load(Ordering::SeqCst) {
            sys::signal(event);
        }
    }
}
