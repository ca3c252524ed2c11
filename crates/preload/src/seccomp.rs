//! Whether the program has restricted its system calls (seccomp(2)). The library then makes none that the program has
//! not asked for: one too many kills it.

use std::sync::atomic::{AtomicBool, Ordering};

static CONFINED: AtomicBool = AtomicBool::new(false);

/// Sets it, and returns what it was.
pub fn set_confined(confined: bool) -> bool {
    CONFINED.swap(confined, Ordering::Relaxed)
}

/// Whether it has.
pub fn is_confined() -> bool {
    CONFINED.load(Ordering::Relaxed)
}
