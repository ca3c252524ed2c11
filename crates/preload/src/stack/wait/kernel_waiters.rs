//! Threads that wait only in the kernel's half of a set, by the kernel's own call, while no member is active. A thread
//! that is cancelled there does not return to end its wait, so the wait is ended with the thread. The same holds for a
//! wait that a signal handler has left by longjmp.

use crate::stack::{epoll_set::EpollSet, thread_end};
use std::{cell::RefCell, mem::ManuallyDrop, sync::Arc};

/// The waits of one thread, the innermost last: a signal handler may wait as well.
struct Waits(RefCell<Vec<Arc<EpollSet>>>);

local! {
    static WAITS: ManuallyDrop<Waits> = ManuallyDrop::new(Waits(RefCell::new(Vec::new())));
}

impl Waits {
    /// Ends all waits from this index on.
    fn end(&self, index: usize) {
        let mut waits = self.0.borrow_mut();
        while waits.len() > index
            && let Some(set) = waits.pop()
        {
            set.end_kernel_wait();
        }
    }
}

/// The calling thread ends. Called inside.
pub fn on_thread_exit() {
    WAITS.with(|waits| {
        waits.end(0);
        drop(waits.0.take());
    });
}

/// The calling thread is about to wait; the set has counted it. Returns the index for [`end`], `None` if the thread is
/// ending.
pub fn begin(set: &Arc<EpollSet>) -> Option<usize> {
    thread_end::watch_thread_end();
    let known = WAITS.try_with(|waits| {
        let mut waits = waits.0.borrow_mut();
        waits.push(set.clone());
        waits.len() - 1
    });
    known.ok()
}

/// The wait is over, and so are the waits that it has interrupted.
pub fn end(set: &EpollSet, index: Option<usize>) {
    match index {
        Some(index) => WAITS.try_with(|waits| waits.end(index)).unwrap_or_default(),
        None => set.end_kernel_wait(),
    }
}
