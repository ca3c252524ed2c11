//! The one door to atomics and locks. The NAPI protocols name only this module, so that the tests can
//! compile the same files against loom (`tests/loom.rs`) and run every interleaving.

pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

/// A cell whose every access is marked, as loom's is.
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// One turn of a wait that lasts a handful of instructions, unless the other thread was descheduled.
pub(crate) fn spin_wait() {
    std::thread::yield_now();
}

/// Takes a lock whose data is valid at every instant, so that a panic elsewhere does not matter.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
