//! Threads that wait in the kernel's half of a set alone, by the kernel's own call, where no member lives yet. A thread
//! that is cancelled there does not come back to say that it waits no more: that is said as it ends. So it is of waits
//! that a signal's handler has jumped out of.

use super::set::Set;
use crate::stack::own;
use std::{cell::RefCell, mem::ManuallyDrop, sync::Arc};

/// Those of one thread, the innermost last: a signal's handler may wait, too.
struct Waits(RefCell<Vec<Arc<Set>>>);

local! {
    static WAITS: ManuallyDrop<Waits> = ManuallyDrop::new(Waits(RefCell::new(Vec::new())));
}

impl Waits {
    /// All from this place on are over.
    fn end(&self, place: usize) {
        let mut waits = self.0.borrow_mut();
        while waits.len() > place
            && let Some(set) = waits.pop()
        {
            set.has_waited_in_kernel();
        }
    }
}

/// The calling thread ends. Called inside.
pub fn leave_thread() {
    WAITS.with(|waits| {
        waits.end(0);
        drop(waits.0.take());
    });
}

/// The calling thread is about to wait; it has said so to the set. Where that is to be taken back, to be given to [`end`]:
/// `None` where the thread itself ends.
pub fn begin(set: &Arc<Set>) -> Option<usize> {
    own::mind_end();
    let known = WAITS.try_with(|waits| {
        let mut waits = waits.0.borrow_mut();
        waits.push(set.clone());
        waits.len() - 1
    });
    known.ok()
}

/// It has waited, and so have those whom it has interrupted.
pub fn end(set: &Set, place: Option<usize>) {
    match place {
        Some(place) => WAITS.try_with(|waits| waits.end(place)).unwrap_or_default(),
        None => set.has_waited_in_kernel(),
    }
}
