//! Counters that live in this process's own memory, or in memory that other processes read ([`crate::ledger`]).
//! Counting costs the same in both.

use std::{any::Any, fmt, ops::Deref, ptr::NonNull, sync::Arc};

/// A value of atomics, kept alive by the memory it lies in.
pub struct Published<T> {
    at: NonNull<T>,
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: `T` is only shared, which `Sync` allows, and the owner keeps it alive.
unsafe impl<T: Sync> Send for Published<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Published<T> {}

impl<T: Send + Sync + 'static> Published<T> {
    /// In memory of its own, which no other process reads.
    pub(crate) fn private(value: T) -> Self {
        let owner = Arc::new(value);
        Self { at: NonNull::from(&*owner), owner }
    }

    /// In the memory of `owner`.
    ///
    /// # Safety
    /// `at` is valid for reads as a shared `T` for as long as `owner` lives.
    pub(crate) unsafe fn within(at: NonNull<T>, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { at, owner }
    }
}

impl<T: Default + Send + Sync + 'static> Default for Published<T> {
    fn default() -> Self {
        Self::private(T::default())
    }
}

impl<T> Clone for Published<T> {
    fn clone(&self) -> Self {
        Self { at: self.at, owner: self.owner.clone() }
    }
}

impl<T> Deref for Published<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: valid for as long as the owner, which `self` holds.
        unsafe { self.at.as_ref() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Published<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
