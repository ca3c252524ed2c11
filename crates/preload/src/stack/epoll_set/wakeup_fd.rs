//! Threads that wait only in the kernel's half, since before a member was activated, and how their waits are ended.

use crate::real;
use libc::{c_int, epoll_event};
use std::{
    os::fd::{FromRawFd, OwnedFd},
    sync::atomic::Ordering,
};

use super::EpollSet;

impl EpollSet {
    /// Counts the calling thread as waiting by the kernel's own call, until
    /// [`end_kernel_wait`](EpollSet::end_kernel_wait). False if a member is active.
    pub fn begin_kernel_wait(&self) -> bool {
        self.set_waited_for();
        self.kernel_waiters.fetch_add(1, Ordering::SeqCst);
        // The activating thread sees our count and ends the wait, or we see `is_mixed`.
        let waits = !self.is_mixed.load(Ordering::SeqCst);
        if !waits {
            self.end_kernel_wait();
        }
        waits
    }

    /// A thread is about to wait for it.
    pub fn set_waited_for(&self) {
        if !self.has_been_waited_for.load(Ordering::Relaxed) {
            self.has_been_waited_for.store(true, Ordering::SeqCst);
        }
    }

    /// Whether a thread waits on it, or on a set around it, or has done so: between two waits it handles events.
    pub fn is_waited_for(&self) -> bool {
        self.is_mixed()
            || self.has_been_waited_for.load(Ordering::SeqCst)
            || self.memberships.is_waited_for()
    }

    /// The thread has waited. If its wait was ended because of an activation, ends the next thread's wait.
    pub fn end_kernel_wait(&self) {
        let others = self.kernel_waiters.fetch_sub(1, Ordering::SeqCst) > 1;
        if others && self.is_mixed() {
            self.wake_kernel_waiter();
        }
    }

    /// Ends the wait of one thread in the kernel's half. The eventfd is edge-triggered, so each write wakes one thread.
    pub fn wake_kernel_waiter(&self) {
        let Some(kernel) = self.kernel() else { return };
        if self.wakeup.get().is_none() {
            // By the hook, which makes it one of the library's own descriptors.
            // SAFETY: a plain system call.
            let made = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK) };
            let mut event =
                epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: wakeup_tag() };
            // SAFETY: valid for the call. Without a descriptor it fails, and the thread waits on.
            if unsafe { real::epoll_ctl(kernel, libc::EPOLL_CTL_ADD, made, &raw mut event) } != 0 {
                return;
            }
            // SAFETY: just made, and ours. If another thread was first, its descriptor stays.
            let _ = self.wakeup.set(unsafe { OwnedFd::from_raw_fd(made) });
        }
        let Some(wakeup) = self.wakeup.get() else { return };
        // It fails only when the counter is full, and then threads are woken already.
        let _ = rustix::io::write(wakeup, &1_u64.to_ne_bytes());
    }
}

/// The event data of the wakeup eventfd: an address that nothing else has.
fn wakeup_tag() -> u64 {
    static TAG: u8 = 0;
    (&raw const TAG).addr() as u64
}

/// Moves a wakeup event to the end of `events`; returns how many others there are.
pub fn split_off_wakeup(events: &mut [epoll_event]) -> c_int {
    let mut left = events.len();
    if let Some(at) = events.iter().position(|event| event.u64 == wakeup_tag()) {
        left -= 1;
        events.swap(at, left);
    }
    c_int::try_from(left).unwrap_or(c_int::MAX)
}
