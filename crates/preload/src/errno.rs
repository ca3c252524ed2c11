//! The calling thread's `errno`: the program sees it after a failed call, and must not see the library's own failures.

use libc::c_int;

pub fn get() -> c_int {
    // SAFETY: the location is the thread's own and always valid.
    unsafe { *libc::__errno_location() }
}

pub fn set(value: c_int) {
    // SAFETY: as in `get`.
    unsafe { *libc::__errno_location() = value };
}

/// Restores `errno` when dropped: for work that the program has not asked for.
pub struct Saved(c_int);

impl Saved {
    pub fn new() -> Self {
        Self(get())
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        set(self.0);
    }
}
