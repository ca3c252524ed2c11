//! The layout of a ring: slots side by side, then the buffers of larger frames. Used by cables within a process and
//! between two.

use crate::sync::{AtomicU32, Ordering};
use std::ptr::NonNull;

/// A slot's first bytes. The rest of the slot holds a small frame; a larger frame has its own buffer.
#[repr(C)]
pub(super) struct Descriptor {
    /// The frame's position plus one once the slot is full. The receiver polls only this.
    pub(super) sequence: AtomicU32,
    pub(super) len: u32,
}

pub(super) const PARTIAL: u32 = 1 << 31;
pub(super) const HEADER: usize = size_of::<Descriptor>();
pub(super) const LINE: usize = 64;
/// Bytes of a slot, and of the largest frame in it.
pub(super) const SLOT: usize = 2 * LINE;
pub(super) const SMALL: usize = SLOT - HEADER;

/// `count` slots, then `count` buffers of `stride` bytes.
pub(super) struct Slots {
    memory: NonNull<u8>,
    /// A power of two.
    pub(super) count: u32,
    stride: usize,
}

impl Slots {
    /// Bytes of memory that such a ring takes.
    pub(super) fn size(count: u32, stride: usize) -> usize {
        (SLOT + stride) * count as usize
    }

    /// # Safety
    /// As long as this is used, `memory` has [`size`](Slots::size) bytes of this count, a power of two, and this stride,
    /// and is aligned to [`LINE`].
    pub(super) unsafe fn new(memory: NonNull<u8>, count: u32, stride: usize) -> Slots {
        Slots { memory, count, stride }
    }

    #[inline]
    fn index(&self, position: u32) -> usize {
        (position & (self.count - 1)) as usize
    }

    #[inline]
    pub(super) fn slot(&self, position: u32) -> NonNull<Descriptor> {
        // SAFETY: the index is below `count`, so the slot lies inside the memory, whose alignment it has.
        unsafe { self.memory.add(self.index(position) * SLOT).cast() }
    }

    /// The place of the frame at `position`, whose slot is `slot`, with `len` bytes.
    #[inline]
    pub(super) fn frame(
        &self,
        position: u32,
        slot: NonNull<Descriptor>,
        len: usize,
    ) -> NonNull<u8> {
        if len <= SMALL {
            // SAFETY: the slot has `SMALL` bytes after its descriptor.
            return unsafe { slot.cast::<u8>().add(HEADER) };
        }
        let slots = self.count as usize * SLOT;
        // SAFETY: the index is below `count`, so the buffer lies inside the memory, after the slots.
        unsafe { self.memory.add(slots + self.index(position) * self.stride) }
    }

    /// The slot at `position`, if it is full.
    #[inline]
    pub(super) fn full_slot(&self, position: u32) -> Option<NonNull<Descriptor>> {
        let slot = self.slot(position);
        // SAFETY: the sequence is atomic, so it may be read at any time.
        let sequence = unsafe { &(*slot.as_ptr()).sequence };
        (sequence.load(Ordering::Acquire) == position.wrapping_add(1)).then_some(slot)
    }
}

/// Prefetches a full slot's second cache line, which would otherwise be fetched only after the headers in
/// the first are read. A TCP segment of one byte with timestamps reaches into it.
#[inline]
pub(super) fn fetch_second_line(slot: NonNull<Descriptor>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint: it changes no memory and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(slot.cast::<i8>().as_ptr().wrapping_add(LINE));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = slot;
}
