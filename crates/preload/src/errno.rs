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

/// `errno` before a call of the program's. A call that succeeds leaves it as it was, as a system call does: programs
/// look at it afterwards.
pub struct Kept {
    at: *mut c_int,
    value: c_int,
}

impl Kept {
    #[inline]
    pub fn new() -> Self {
        // SAFETY: as in `get`.
        let at = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        Self { at, value: unsafe { *at } }
    }

    #[inline]
    pub fn put_back(&self) {
        // SAFETY: the thread is the same: the value is not `Send`.
        unsafe { *self.at = self.value };
    }
}

/// Restores `errno` when dropped: for work that the program has not asked for.
pub struct Saved(Kept);

impl Saved {
    pub fn new() -> Self {
        Self(Kept::new())
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        self.0.put_back();
    }
}
