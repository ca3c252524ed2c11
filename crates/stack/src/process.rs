//! What becomes of us in a child after fork(2). For those who put the stack into a program
//! that knows nothing of it.

use crate::{
    napi::{Waiter, WatchdogLock},
    socket::crowd,
};

/// Made before fork(2), it keeps other threads from starting or ending what belongs to the whole process.
#[must_use]
pub struct Fork(WatchdogLock);

impl std::fmt::Debug for Fork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fork")
    }
}

/// Before fork(2). No thread may be building or dropping a [`Host`](crate::Host) meanwhile. In the parent, drop what
/// this returns afterwards.
pub fn before_fork() -> Fork {
    Fork(WatchdogLock::hold())
}

impl Fork {
    /// In the child: forgets what belongs to the parent, so that the child may build hosts of its own. Those of the
    /// parent, and their sockets, are not to be touched there, not even dropped: their threads are not there, and
    /// their rings are the parent's.
    pub fn in_child(self) {
        self.0.forget();
        Waiter::forget_all();
        crowd::forget_all();
    }
}
