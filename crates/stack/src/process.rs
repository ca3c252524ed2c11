//! What happens to the stack in a child after fork(2). For a library that puts the stack into a program that does not
//! know of it.

use crate::{
    inet::{CONTEXTS, Input},
    ledger,
    napi::{Waiter, WatchdogLock},
    socket::per_cpu_spinner,
    thread,
};

/// Held during fork(2): keeps other threads from starting or ending the process-wide watchdog.
#[must_use]
pub struct Fork(WatchdogLock<Input>);

impl std::fmt::Debug for Fork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fork")
    }
}

/// To be called before fork(2). No thread may build or drop a [`Host`](crate::Host) until the result is dropped, or is
/// used in the child. In the parent, drop it after fork(2).
pub fn before_fork() -> Fork {
    Fork(CONTEXTS.hold_watchdog())
}

impl Fork {
    /// In the child: forgets the parent's state, so that the child may build hosts of its own. The child must neither
    /// use nor drop the parent's hosts and their sockets: their threads do not exist in the child, and their rings
    /// are the parent's.
    pub fn in_child(self) {
        self.0.forget();
        thread::forget_starting();
        Waiter::forget_all();
        per_cpu_spinner::clear();
        ledger::forget_thread();
    }
}
