//! Threads that wait only in the kernel's half of a set, by the kernel's own call, while no member is active. A thread
//! that is cancelled there does not return to end its wait, so the wait is ended with the thread. The same holds for a
//! wait that a signal handler has left by longjmp.

use crate::stack::{file::Ref, thread_end};
use std::{cell::RefCell, mem::ManuallyDrop};

/// The sets of the waits of one thread, the innermost last: a signal handler may wait as well.
struct Waits(RefCell<Vec<Ref>>);

local! {
    static WAITS: ManuallyDrop<Waits> = ManuallyDrop::new(Waits(RefCell::new(Vec::new())));
}

impl Waits {
    /// Ends all waits from this index on. Returns the set of the outermost.
    fn end(&self, index: usize) -> Option<Ref> {
        let mut outermost = None;
        let mut waits = self.0.borrow_mut();
        while waits.len() > index
            && let Some(file) = waits.pop()
        {
            file.set().into_iter().for_each(|set| set.end_kernel_wait());
            outermost = Some(file);
        }
        outermost
    }
}

/// The calling thread ends. Called inside.
pub fn on_thread_exit() {
    WAITS.with(|waits| {
        drop(waits.end(0));
        drop(waits.0.take());
    });
}

/// The calling thread is about to wait; the set has counted it. Returns the index for [`end`].
pub fn begin(set: Ref) -> usize {
    thread_end::watch_thread_end();
    WAITS.with(|waits| {
        let mut waits = waits.0.borrow_mut();
        waits.push(set);
        waits.len() - 1
    })
}

/// The wait is over, and so are the waits that it has interrupted. Returns its set; `None` only if the thread's end has
/// ended it before.
pub fn end(index: usize) -> Option<Ref> {
    WAITS.with(|waits| waits.end(index))
}
