//! The packet memory of an AF_XDP socket: page aligned, zeroed, handed out in bounds-checked pieces.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

const PAGE: usize = 4096;

pub(super) struct Memory {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is owned and reached through `&mut self` only.
unsafe impl Send for Memory {}

impl Memory {
    /// `bytes` of memory; none if there is not so much.
    pub(super) fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(1), PAGE).ok()?;
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { base, layout })
    }

    /// All of it, for registration with the kernel.
    pub(super) fn area(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.base, self.layout.size())
    }

    /// A piece; none if it is not wholly inside.
    pub(super) fn piece(&mut self, at: u64, len: usize) -> Option<&mut [u8]> {
        let at = usize::try_from(at).ok()?;
        if at.checked_add(len)? > self.layout.size() {
            return None;
        }
        // SAFETY: inside the allocation. The kernel writes only to frames on the fill ring and reads
        // only from frames on the transmit ring; callers ask for neither.
        Some(unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(at), len) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout. The kernel pins the pages it still uses.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_stay_inside() {
        let mut memory = Memory::new(2 * PAGE).expect("8 KiB");
        assert_eq!(memory.area().addr().get() % PAGE, 0);
        memory.piece(PAGE as u64, PAGE).expect("the second page")[PAGE - 1] = 7;
        assert_eq!(memory.piece(2 * PAGE as u64 - 1, 1).map(|p| p[0]), Some(7));
        for (at, len) in [(0, 2 * PAGE + 1), (2 * PAGE as u64, 1), (u64::MAX, 1), (1, usize::MAX)] {
            assert!(memory.piece(at, len).is_none(), "{at} {len}");
        }
    }
}
