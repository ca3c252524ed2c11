//! Threads that wait in the kernel's half alone, from before a member came to life, and how they are called out.

use crate::{real, stack::own};
use libc::{c_int, epoll_event};
use std::{
    os::fd::{FromRawFd, OwnedFd},
    sync::atomic::Ordering,
};

use super::Set;

impl Set {
    /// The calling thread may wait by the kernel's own call, and says when it [has](Set::has_waited_in_kernel);
    /// false if a member lives.
    pub fn waits_in_kernel(&self) -> bool {
        self.in_kernel.fetch_add(1, Ordering::SeqCst);
        // It comes after us, and calls, or we see it.
        let waits = !self.is_mixed.load(Ordering::SeqCst);
        if !waits {
            self.has_waited_in_kernel();
        }
        waits
    }

    /// Whether a thread waits for it, or for a set around it: in the kernel's half, or, where a member lives, perhaps in
    /// ours.
    pub fn is_waited_for(&self) -> bool {
        self.is_mixed() || self.in_kernel.load(Ordering::SeqCst) > 0 || self.joined.is_waited_for()
    }

    /// It has; and if it was called out, the next one is.
    pub fn has_waited_in_kernel(&self) {
        let others = self.in_kernel.fetch_sub(1, Ordering::SeqCst) > 1;
        if others && self.is_mixed() {
            self.call_out();
        }
    }

    /// Ends the wait of a thread in the kernel's half. Edge-triggered: each call is for one of them.
    pub fn call_out(&self) {
        let Some(kernel) = self.kernel() else { return };
        if self.call.get().is_none() {
            // SAFETY: a plain system call.
            let made = own::keep(unsafe { real::eventfd(0, libc::EFD_NONBLOCK) });
            let mut event =
                epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: call() };
            // SAFETY: valid for the call. Without a descriptor it fails, and the thread waits on.
            if unsafe { real::epoll_ctl(kernel, libc::EPOLL_CTL_ADD, made, &raw mut event) } != 0 {
                return;
            }
            // SAFETY: made just now, and ours. Another thread's stays if it was first.
            let _ = self.call.set(unsafe { OwnedFd::from_raw_fd(made) });
        }
        let Some(call) = self.call.get() else { return };
        // It fails only when it is full of calls that nobody has heard.
        let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
    }
}

/// What a call out is known by among events: an address that is no one else's.
fn call() -> u64 {
    static CALL: u8 = 0;
    (&raw const CALL).addr() as u64
}

/// Takes a call out from among `events`; how many are left.
pub fn but_calls(events: &mut [epoll_event]) -> c_int {
    let mut left = events.len();
    if let Some(at) = events.iter().position(|event| event.u64 == call()) {
        left -= 1;
        events.swap(at, left);
    }
    c_int::try_from(left).unwrap_or(c_int::MAX)
}
