//! The one door to atomics and locks. The NAPI protocols name only this module, so that the tests can
//! compile the same files against loom (`tests/loom.rs`) and run every interleaving.

pub(crate) use std::{
    cell::UnsafeCell,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{self, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};

/// Takes a lock whose data is valid at every instant, so that a panic elsewhere does not matter.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
