//! Memory shared with the kernel, and the four rings of an AF_XDP socket in it. One thread uses one end of
//! a ring, the kernel the other.
//!
//! Separate from the driver in busypoll-stack on purpose: a flaw there cannot raise the
//! limit that the stack is compared with. Copy mode only, one descriptor at a time.
//!
//! Documentation/networking/af_xdp.rst, net/xdp/xsk_queue.h.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::net::xdp::XdpRingOffset;

/// Pages of our own, unmapped when dropped.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

    /// `len` zeroed bytes.
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, Self::ACCESS, flags) }?;
        Self::own(base.cast(), len)
    }

    /// Maps `len` bytes of `fd` at `offset`.
    fn shared(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap(ptr::null_mut(), len, Self::ACCESS, flags, fd, offset) }?;
        Self::own(base.cast(), len)
    }

    fn own(base: *mut u8, len: usize) -> io::Result<Self> {
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// The address, for the kernel.
    pub(super) fn address(&self) -> u64 {
        self.base.addr().get() as u64
    }

    /// A piece; none if it is not entirely inside. Only for frames that are on no ring.
    pub(super) fn piece(&mut self, at: u64, len: usize) -> Option<&mut [u8]> {
        let at = usize::try_from(at).ok()?;
        if at.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: inside the mapping, borrowed under `&mut self`. The kernel writes only to frames on
        // the fill ring and reads only those on the transmit ring.
        Some(unsafe { std::slice::from_raw_parts_mut(self.base.add(at).as_ptr(), len) })
    }

    /// A pointer to `count` of `T` at `offset`.
    fn at<T>(&self, offset: u64, count: usize) -> io::Result<NonNull<T>> {
        let end = (count * size_of::<T>()) as u64 + offset;
        if end > self.len as u64 || !offset.is_multiple_of(align_of::<T>() as u64) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: just checked to lie inside the mapping.
        Ok(unsafe { self.base.add(offset as usize) }.cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and all pointers into it belong to its owner. The kernel keeps its own
        // reference to what it still uses.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The common part of both kinds of ring: entries, and two indices that run on and wrap.
struct Ring<T> {
    entries: NonNull<T>,
    size: u32,
    ours: NonNull<AtomicU32>,
    theirs: NonNull<AtomicU32>,
    /// Our index; only we write it.
    next: u32,
    /// The kernel's index as last read: its cache line is not touched unless needed.
    seen: u32,
    _memory: Mapping,
}

impl<T: Copy> Ring<T> {
    fn map(
        fd: BorrowedFd<'_>,
        page: u64,
        size: u32,
        at: &XdpRingOffset,
        [ours, theirs]: [u64; 2],
    ) -> io::Result<Self> {
        assert!(size.is_power_of_two());
        let len = at.desc as usize + size as usize * size_of::<T>();
        let memory = Mapping::shared(fd, page, len)?;
        Ok(Self {
            entries: memory.at(at.desc, size as usize)?,
            size,
            ours: memory.at(ours, 1)?,
            theirs: memory.at(theirs, 1)?,
            next: 0,
            seen: 0,
            _memory: memory,
        })
    }

    fn refresh(&mut self) {
        // SAFETY: inside the mapping, aligned, and touched by both sides as an atomic.
        self.seen = unsafe { self.theirs.as_ref() }.load(Ordering::Acquire);
    }

    fn entry(&self) -> NonNull<T> {
        // SAFETY: the size is a power of two, so the masked index is below it.
        unsafe { self.entries.add((self.next & (self.size - 1)) as usize) }
    }

    fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
        // SAFETY: inside the mapping, aligned, and touched by both sides as an atomic.
        unsafe { self.ours.as_ref() }.store(self.next, Ordering::Release);
    }
}

/// A fill or a transmit ring.
pub(super) struct ToKernel<T>(Ring<T>);

impl<T: Copy> ToKernel<T> {
    /// The ring of `size` entries that `fd` shares at `page`.
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        page: u64,
        size: u32,
        at: &XdpRingOffset,
    ) -> io::Result<Self> {
        Ring::map(fd, page, size, at, [at.producer, at.consumer]).map(Self)
    }

    /// Adds `entry`; false if the ring is full.
    pub(super) fn push(&mut self, entry: T) -> bool {
        let ring = &mut self.0;
        if ring.next.wrapping_sub(ring.seen) == ring.size {
            ring.refresh();
            if ring.next.wrapping_sub(ring.seen) == ring.size {
                return false;
            }
        }
        // SAFETY: the kernel is done with this entry and reads it only after `advance`.
        unsafe { ring.entry().write(entry) };
        ring.advance();
        true
    }
}

/// A receive or a completion ring.
pub(super) struct FromKernel<T>(Ring<T>);

impl<T: Copy> FromKernel<T> {
    /// The ring of `size` entries that `fd` shares at `page`.
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        page: u64,
        size: u32,
        at: &XdpRingOffset,
    ) -> io::Result<Self> {
        Ring::map(fd, page, size, at, [at.consumer, at.producer]).map(Self)
    }

    /// Takes the oldest entry; none if there is none.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        let ring = &mut self.0;
        if ring.next == ring.seen {
            ring.refresh();
            if ring.next == ring.seen {
                return None;
            }
        }
        // SAFETY: the kernel has written this entry and does not touch it until `advance`.
        let entry = unsafe { ring.entry().read() };
        ring.advance();
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const SIZE: u32 = 4;
    const PAGE: usize = 4096;

    #[test]
    fn pieces_stay_inside() {
        let mut memory = Mapping::anonymous(2 * PAGE).expect("8 KiB");
        memory.piece(PAGE as u64, PAGE).expect("the second page")[PAGE - 1] = 7;
        assert_eq!(memory.piece(2 * PAGE as u64 - 1, 1).map(|p| p[0]), Some(7));
        for (at, len) in [(0, 2 * PAGE + 1), (2 * PAGE as u64, 1), (u64::MAX, 1), (1, usize::MAX)] {
            assert!(memory.piece(at, len).is_none(), "{at} {len}");
        }
    }

    /// Both ends of one ring, over a memory file instead of a socket; indices start near the wrap.
    #[test]
    fn a_ring_keeps_order_and_bounds_when_its_index_wraps() {
        let file =
            rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&file, PAGE as u64).expect("a page");
        let at = XdpRingOffset { producer: 0, consumer: 64, desc: 128, flags: None };
        let mut to = ToKernel::<u64>::map(file.as_fd(), 0, SIZE, &at).expect("mapped");
        let mut from = FromKernel::<u64>::map(file.as_fd(), 0, SIZE, &at).expect("mapped");
        assert_eq!(from.pop(), None);
        let start = u32::MAX - 5;
        for ring in [&mut to.0, &mut from.0] {
            (ring.next, ring.seen) = (start, start);
            // SAFETY: inside the mapping, and no other thread is there.
            unsafe { ring.ours.as_ref() }.store(start, Ordering::Release);
        }
        let (mut sent, mut received) = (0, 0);
        for burst in [1, SIZE, 2, SIZE, SIZE, 3] {
            for _ in 0..burst {
                assert!(to.push(sent), "full at {sent}");
                sent += 1;
            }
            if burst == SIZE {
                assert!(!to.push(99), "room for more than {SIZE}");
            }
            while let Some(entry) = from.pop() {
                assert_eq!(entry, received);
                received += 1;
            }
            assert_eq!(received, sent);
        }
    }

    #[test]
    fn a_ring_outside_its_memory_is_refused() {
        let memory = Mapping::anonymous(PAGE).expect("a page");
        assert!(memory.at::<u32>(PAGE as u64 - 4, 1).is_ok());
        assert!(memory.at::<u32>(PAGE as u64 - 4, 2).is_err());
        assert!(memory.at::<u32>(2, 1).is_err());
    }
}
