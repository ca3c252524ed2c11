//! The lock that a packet takes: of a flow, and of a transmit ring. std's lock also records whether a thread panicked
//! while it held it, and so is a call; here the data is valid at every instant, and a free lock takes two instructions,
//! as its release. A contended one sleeps on a futex, as std's.
//!
//! Model-checked in `tests/loom.rs`.

use crate::{
    sync::{AtomicU32, LOOKS, Ordering, UnsafeCell},
    sys,
};
use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

const FREE: u32 = 0;
const LOCKED: u32 = 1;
/// Locked, and a thread may be asleep.
const CONTENDED: u32 = 2;

/// A lock, and what it guards.
pub(crate) struct Lock<T> {
    word: AtomicU32,
    data: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the lock reaches the data.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The lock is held until this is dropped.
pub(crate) struct Locked<'a, T> {
    lock: &'a Lock<T>,
    /// Shared by threads only if `T` may be.
    data: PhantomData<&'a mut T>,
}

impl<T> Lock<T> {
    pub(crate) fn new(data: T) -> Lock<T> {
        Lock { word: AtomicU32::new(FREE), data: UnsafeCell::new(data) }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        let free = self.word.compare_exchange(FREE, LOCKED, Ordering::Acquire, Ordering::Relaxed);
        if free.is_err() {
            self.wait();
        }
        Locked { lock: self, data: PhantomData }
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..LOOKS {
            if self.word.load(Ordering::Relaxed) != LOCKED {
                break;
            }
            std::hint::spin_loop();
        }
        // Whether others sleep is not known, so this thread wakes one when it releases the lock.
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            sys::futex_wait(&self.word, CONTENDED);
        }
    }

    #[inline(always)]
    fn unlock(&self) {
        if self.word.swap(FREE, Ordering::Release) == CONTENDED {
            sys::futex_wake(&self.word);
        }
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock, and the reference ends before `self`, which releases it.
        self.lock.data.with(|data| unsafe { &*data })
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`; `&mut self` makes it the only reference.
        self.lock.data.with_mut(|data| unsafe { &mut *data })
    }
}

impl<T> Drop for Locked<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.unlock();
    }
}
