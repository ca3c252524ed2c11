//! Objects that threads borrow for a short time. A thread never owns one, so a thread that ends needs no cleanup, and
//! its object serves the next thread. There are as many as were ever lent at once.
//!
//! A thread gets the object it had last, unless another thread has it. Lending takes no lock; to lend the same object
//! again costs one atomic exchange.

use std::{
    cell::{Cell, UnsafeCell},
    ops::{Deref, DerefMut},
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, Ordering},
    thread::LocalKey,
};

/// A pool. Its objects live as long as the process.
pub(crate) struct Pool<T: 'static> {
    newest: AtomicPtr<Node<T>>,
}

pub(crate) struct Node<T: 'static> {
    lent: AtomicBool,
    value: UnsafeCell<T>,
    older: *const Node<T>,
}

/// The object a thread had last. A cell without a destructor.
pub(crate) type Last<T> = Cell<*const Node<T>>;

/// A borrowed object. Dropping it returns it.
pub(crate) struct Lent<T: 'static>(&'static Node<T>);

// SAFETY: only the borrower reaches a value, whichever thread that is.
unsafe impl<T: Send> Sync for Pool<T> {}
// SAFETY: as above: it is as if the value itself were sent.
unsafe impl<T: Send> Send for Lent<T> {}
// SAFETY: as above: it is as if the value itself were shared.
unsafe impl<T: Sync> Sync for Lent<T> {}

impl<T> Pool<T> {
    pub(crate) const fn new() -> Pool<T> {
        Pool { newest: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Lends an object, made by `make` if all are lent.
    ///
    /// # Errors
    /// That of `make`.
    #[inline]
    pub(crate) fn lend<E>(
        &self,
        last: &'static LocalKey<Last<T>>,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Lent<T>, E> {
        // SAFETY: null, or a node; nodes are never freed.
        if let Some(lent) = unsafe { last.get().as_ref() }.and_then(lend) {
            return Ok(lent);
        }
        let lent = self.lend_any(make)?;
        last.set(lent.0);
        Ok(lent)
    }

    #[cold]
    fn lend_any<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<Lent<T>, E> {
        let mut node = self.newest.load(Ordering::Acquire).cast_const();
        // SAFETY: as above.
        while let Some(known) = unsafe { node.as_ref() } {
            if let Some(lent) = lend(known) {
                return Ok(lent);
            }
            node = known.older;
        }
        let value = UnsafeCell::new(make()?);
        let new = Box::leak(Box::new(Node { lent: AtomicBool::new(true), value, older: node }));
        let mut older = self.newest.load(Ordering::Relaxed);
        loop {
            new.older = older;
            let pushed =
                self.newest.compare_exchange_weak(older, new, Ordering::Release, Ordering::Relaxed);
            match pushed {
                Ok(_) => return Ok(Lent(new)),
                Err(now) => older = now,
            }
        }
    }

    /// In a child after fork(2): forgets all objects, which are the parent's.
    pub(crate) fn forget(&self, last: &'static LocalKey<Last<T>>) {
        self.newest.store(ptr::null_mut(), Ordering::Relaxed);
        last.set(ptr::null());
    }
}

#[inline]
fn lend<T>(node: &'static Node<T>) -> Option<Lent<T>> {
    let taken = node.lent.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
    taken.is_ok().then(|| Lent(node))
}

impl<T> Deref for Lent<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: it is lent to this borrower only.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Lent<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: it is lent to this borrower only, and `self` is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Lent<T> {
    #[inline]
    fn drop(&mut self) {
        self.0.lent.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{convert::Infallible, ptr, sync::Barrier, thread};

    type Number = Pool<u32>;
    thread_local!(static LAST: Last<u32> = const { Cell::new(ptr::null()) });

    fn lend(pool: &Number) -> Lent<u32> {
        pool.lend(&LAST, || Ok::<_, Infallible>(0)).unwrap()
    }

    fn count(pool: &Number) -> usize {
        let mut node = pool.newest.load(Ordering::Acquire).cast_const();
        let older = || {
            // SAFETY: nodes are never freed.
            let known = unsafe { node.as_ref() }?;
            node = known.older;
            Some(())
        };
        std::iter::from_fn(older).count()
    }

    #[test]
    fn the_object_of_an_ended_thread_serves_the_next_thread() {
        static POOL: Number = Pool::new();
        for round in 0..100 {
            thread::spawn(move || {
                let mut lent = lend(&POOL);
                assert_eq!(*lent, round);
                *lent += 1;
            })
            .join()
            .unwrap();
        }
        assert_eq!(count(&POOL), 1);
    }

    #[test]
    fn an_object_is_lent_to_one_borrower_at_a_time() {
        const THREADS: usize = 8;
        const ROUNDS: u32 = 10_000;
        static POOL: Number = Pool::new();
        let barrier = Barrier::new(THREADS);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..ROUNDS {
                        let (mut one, mut two) = (lend(&POOL), lend(&POOL));
                        (*one, *two) = (*one + 1, *two + 1);
                    }
                });
            }
        });
        assert!(count(&POOL) <= 2 * THREADS);
        let all: Vec<_> = (0..count(&POOL)).map(|_| lend(&POOL)).collect();
        let sum: u32 = all.iter().map(|lent| **lent).sum();
        assert_eq!(sum, 2 * ROUNDS * THREADS as u32);
    }
}
