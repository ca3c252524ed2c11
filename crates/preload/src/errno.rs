//! The calling thread's `errno`: what the program sees of a failure, and must not see of our own work.

use libc::c_int;

pub fn get() -> c_int {
    // SAFETY: the location is the thread's own and always valid.
    unsafe { *libc::__errno_location() }
}

pub fn set(value: c_int) {
    // SAFETY: as in `get`.
    unsafe { *libc::__errno_location() = value };
}

/// Puts `errno` back at the end of its life: for work the program has not asked for.
pub struct Kept(c_int);

impl Kept {
    pub fn new() -> Self {
        Self(get())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        set(self.0);
    }
}
