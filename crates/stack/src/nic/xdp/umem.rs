//! The frames: one block of memory that both the kernel and we write. Owns the mapping and the bounds checks;
//! the rings decide which side may access a frame.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
};

/// `frames` frames of `frame_size` bytes, page aligned, zeroed.
pub(super) struct Umem {
    base: NonNull<u8>,
    bytes: usize,
    frame_size: usize,
}

// SAFETY: the mapping belongs to this value alone; its bytes are accessed through the unsafe methods
// below, whose callers hold the frame.
unsafe impl Send for Umem {}
// SAFETY: as above.
unsafe impl Sync for Umem {}

impl Umem {
    pub(super) fn new(frames: usize, frame_size: usize) -> io::Result<Umem> {
        Umem::map(frames * frame_size, frame_size, None)
    }

    /// `bytes` of frames in `memory`, from `offset` on, which other processes map as well.
    pub(super) fn shared(
        memory: BorrowedFd<'_>,
        offset: usize,
        bytes: usize,
        frame_size: usize,
    ) -> io::Result<Umem> {
        Umem::map(bytes, frame_size, Some((memory, offset)))
    }

    fn map(
        bytes: usize,
        frame_size: usize,
        of: Option<(BorrowedFd<'_>, usize)>,
    ) -> io::Result<Umem> {
        let (flags, fd, offset) = match of {
            Some((memory, offset)) => (libc::MAP_SHARED, memory.as_raw_fd(), offset),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, offset as libc::off_t)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // Otherwise a fork would make the pages that the kernel has pinned copy-on-write. If this fails, only that
        // protection is missing.
        // SAFETY: advice on our own mapping.
        unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_DONTFORK) };
        Ok(Umem { base, bytes, frame_size })
    }

    pub(super) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn frame_size(&self) -> usize {
        self.frame_size
    }

    /// The first byte of the frame that holds `address`.
    #[inline]
    pub(super) fn frame_of(&self, address: u64) -> u64 {
        address & !(self.frame_size as u64 - 1)
    }

    /// The `len` bytes at `address`; `None` if they are not all inside the block.
    ///
    /// # Safety
    /// The caller holds the frame: the kernel gave it to us, and no other thread writes it meanwhile.
    #[inline]
    pub(super) unsafe fn bytes_at(&self, address: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(address).ok()?;
        (start <= self.bytes && len <= self.bytes - start)
            // SAFETY: inside the mapping by the check; not written, by the caller's contract.
            .then(|| unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(start), len) })
    }

    /// As [`bytes_at`](Umem::bytes_at), to write to.
    ///
    /// # Safety
    /// The caller holds the frame: neither the kernel nor another thread accesses it meanwhile.
    #[inline]
    #[allow(clippy::mut_from_ref)] // frames are disjoint, and each has one holder
    pub(super) unsafe fn bytes_at_mut(&self, address: u64, len: usize) -> Option<&mut [u8]> {
        let start = usize::try_from(address).ok()?;
        (start <= self.bytes && len <= self.bytes - start)
            // SAFETY: inside the mapping by the check; exclusively the caller's, by its contract.
            .then(|| unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(start), len) })
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, unmapped once. The kernel keeps its own references to pages in use.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
