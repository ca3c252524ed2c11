//! The one door to atomics and locks. The NAPI protocols name only this module, so that the tests can
//! compile the same files against loom (`tests/loom.rs`) and run every interleaving.

pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
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

/// A number of the calling thread, the same all its life. Threads count from 0; no other has it before 2^64 had one.
pub(crate) fn thread_number() -> usize {
    use std::{cell::Cell, sync::atomic::AtomicUsize};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Nothing to drop: the C library is asked for no destructor.
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) });
    let known = NUMBER.get();
    if known != usize::MAX {
        return known;
    }
    std::hint::cold_path();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

/// Takes a lock whose data is valid at every instant, so that a panic elsewhere does not matter.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
