//! Atomics and locks. The NAPI protocols import them only from here, so that the tests can compile the same
//! files against loom (`tests/loom.rs`) and run every interleaving.

pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
};

/// A cell with loom's interface: each access goes through a closure.
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

/// How often a thread looks at a lock that is held before it sleeps: most are held for less than a microsecond.
pub(crate) const LOOKS: u32 = 100;

/// One round of a wait that takes a few instructions, unless the other thread was descheduled.
pub(crate) fn spin_wait() {
    std::thread::yield_now();
}

/// The calling thread's number, the same for its whole life. Numbers count from 0 and are reused only after 2^64
/// threads.
pub(crate) fn thread_number() -> usize {
    use std::{cell::Cell, sync::atomic::AtomicUsize};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Nothing to drop, so no destructor is registered with the C library.
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

/// Takes a lock. Its data is valid at every instant, so poisoning by a panic is ignored.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
