//! The events of both halves of a set, and waiting for them.

use super::{EpollSet, split_off_wakeup};
use crate::{
    real, spin_policy,
    stack::{common::checked, thread_end},
};
use busypoll_stack::{EpollEvent, napi::KernelFds};
use libc::{c_int, epoll_event};
use std::{cell::Cell, io, mem::ManuallyDrop, sync::atomic::Ordering};

/// How many waits in a row may begin without asking the kernel: under load our half may have an event after each.
const KERNEL_SKIPS: u32 = 8;

local! {
    /// The memory of one wait is reused by the next.
    static FOUND: Cell<ManuallyDrop<Vec<EpollEvent>>> = Cell::new(ManuallyDrop::new(Vec::new()));
    static KERNEL_FDS: Cell<ManuallyDrop<KernelFds>> = Cell::new(ManuallyDrop::new(KernelFds::none()));
}

/// The calling thread ends: frees its memory.
pub fn on_thread_exit() {
    drop(ManuallyDrop::into_inner(FOUND.replace(ManuallyDrop::new(Vec::new()))));
    drop(ManuallyDrop::into_inner(KERNEL_FDS.replace(ManuallyDrop::new(KernelFds::none()))));
}

impl EpollSet {
    /// Writes pending events to `out`, without waiting.
    ///
    /// # Errors
    /// As epoll_wait(2).
    pub fn take_events(&self, epoll: c_int, out: &mut [epoll_event]) -> io::Result<usize> {
        self.nested_notify.deliver();
        if !self.has_kernel_members.load(Ordering::Acquire) {
            return Ok(self.take_ours(out));
        }
        let kernels_first = self.kernel_first.load(Ordering::Relaxed);
        let mut found = 0;
        for kernels in [kernels_first, !kernels_first] {
            let room = out.get_mut(found..).unwrap_or_default();
            if !room.is_empty() {
                found +=
                    if kernels { self.take_kernels(epoll, room)? } else { self.take_ours(room) };
            }
        }
        if found == out.len() {
            self.kernel_first.store(!kernels_first, Ordering::Relaxed);
        }
        Ok(found)
    }

    /// [`take_events`](EpollSet::take_events) at the beginning of a wait: if our half has none and the wait begins with a
    /// sleep, the kernel is not asked, as the sleep asks it.
    ///
    /// # Errors
    /// As epoll_wait(2).
    pub fn take_events_before_wait(
        &self,
        epoll: c_int,
        out: &mut [epoll_event],
    ) -> io::Result<usize> {
        if self.has_kernel_members.load(Ordering::Acquire)
            && !self.ours.is_ready()
            && self.kernel_skips.load(Ordering::Relaxed) < KERNEL_SKIPS
            && (self.ours.sleeps_at_once() || spin_policy::is_quiet())
        {
            self.kernel_skips.fetch_add(1, Ordering::Relaxed);
            self.nested_notify.deliver();
            return Ok(0);
        }
        self.take_events(epoll, out)
    }

    /// [`take_events`](EpollSet::take_events) after a wait: asks the kernel only if our half has none, as the waits begin
    /// by taking both, but for a few.
    ///
    /// # Errors
    /// As epoll_wait(2).
    pub fn take_events_after_wait(
        &self,
        epoll: c_int,
        out: &mut [epoll_event],
    ) -> io::Result<usize> {
        self.nested_notify.deliver();
        match self.take_ours(out) {
            0 => self.take_events(epoll, out),
            found => Ok(found),
        }
    }

    fn take_kernels(&self, epoll: c_int, out: &mut [epoll_event]) -> io::Result<usize> {
        self.kernel_skips.store(0, Ordering::Relaxed);
        let room = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: room for `room` events.
        let found = checked(unsafe { real::epoll_wait(epoll, out.as_mut_ptr(), room, 0) })?;
        let found = out.get_mut(..usize::try_from(found).unwrap_or(0)).unwrap_or_default();
        let left = usize::try_from(split_off_wakeup(found)).unwrap_or(0);
        // The wakeup was for another thread, which found nothing and sleeps again.
        if left < found.len() && self.kernel_waiters.load(Ordering::SeqCst) > 0 {
            self.wake_kernel_waiter();
        }
        Ok(left)
    }

    fn take_ours(&self, out: &mut [epoll_event]) -> usize {
        let mut found = ManuallyDrop::into_inner(FOUND.replace(ManuallyDrop::new(Vec::new())));
        found.clear();
        self.ours.take_events(&mut found, out.len());
        for (to, event) in out.iter_mut().zip(&found) {
            *to = epoll_event { events: event.events.0, u64: event.data };
        }
        let count = found.len().min(out.len());
        thread_end::watch_thread_end();
        drop(ManuallyDrop::into_inner(FOUND.replace(ManuallyDrop::new(found))));
        count
    }

    /// Waits until there may be an event to take, or the timeout.
    ///
    /// # Errors
    /// `Interrupted`; no descriptor left.
    pub fn wait(&self, epoll: c_int, timeout: Option<std::time::Duration>) -> io::Result<()> {
        let nothing = ManuallyDrop::new(KernelFds::none());
        let mut kernel_fds = ManuallyDrop::into_inner(KERNEL_FDS.replace(nothing));
        kernel_fds.clear();
        let epoch = self.ours.epoch();
        self.add_kernel_fds(epoll, &mut kernel_fds);
        let result = self.ours.wait_since(epoch, timeout, &mut kernel_fds);
        // A child would have the set's descriptor by it.
        kernel_fds.clear();
        thread_end::watch_thread_end();
        drop(ManuallyDrop::into_inner(KERNEL_FDS.replace(ManuallyDrop::new(kernel_fds))));
        result.map(drop)
    }

    /// Adds to `kernel_fds` the descriptors that report events of the kernel's half; `epoll` is one of the program's.
    fn add_kernel_fds(&self, epoll: c_int, kernel_fds: &mut KernelFds) {
        if self.has_kernel_members.load(Ordering::Acquire) {
            match self.kernel.get() {
                Some(kernel) => kernel_fds.push_kept(kernel),
                None => kernel_fds.push(epoll, libc::POLLIN),
            }
        }
        self.add_nested_notify(kernel_fds);
    }

    fn add_nested_notify(&self, kernel_fds: &mut KernelFds) {
        if let Some(nested_notify) = self.nested_notify.fd() {
            kernel_fds.push(nested_notify, libc::POLLIN);
        }
    }

    /// As [`add_kernel_fds`](EpollSet::add_kernel_fds), by our own descriptor, for a thread that does not look again
    /// when the kernel's half gets its first member.
    pub fn add_own_kernel_fds(&self, kernel_fds: &mut KernelFds) {
        if let Some(kernel) = self.kernel() {
            kernel_fds.push(kernel, libc::POLLIN);
            self.add_nested_notify(kernel_fds);
        }
    }
}
