//! The four rings a socket shares with the kernel (include/uapi/linux/if_xdp.h; net/xdp/xsk_queue.h).
//! Owns the mapping of one ring, its indexes and the two memory orderings; knows nothing of frames.
//!
//! A ring has a single producer and a single consumer: one side is the kernel, the other is the one
//! [`Producer`] or [`Consumer`] made from the mapping. Indexes run freely and are masked on access.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

/// One mapped ring of `T`.
pub(super) struct Ring<T> {
    base: NonNull<u8>,
    bytes: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
}

// SAFETY: the pointers lead into a mapping that this value owns; shared fields are atomics, and entries
// are accessed only through a `Producer` or `Consumer`.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above: through `&Ring` only the atomics are reachable.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps the ring of `size` entries that `fd` has at `page_offset`.
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        size: u32,
        page_offset: i64,
        offsets: &libc::xdp_ring_offset,
    ) -> io::Result<Arc<Ring<T>>> {
        debug_assert!(size.is_power_of_two());
        let bytes = offsets.desc as usize + size as usize * size_of::<T>();
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                page_offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // A forked child must not use the ring. If this fails, the child merely keeps the mapping.
        // SAFETY: advice on our own mapping.
        unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_DONTFORK) };
        // SAFETY: the kernel's offsets lie inside the mapping and are aligned for their types.
        let (producer, consumer, flags, entries) = unsafe {
            (
                base.add(offsets.producer as usize).cast(),
                base.add(offsets.consumer as usize).cast(),
                base.add(offsets.flags as usize).cast(),
                base.add(offsets.desc as usize).cast(),
            )
        };
        Ok(Arc::new(Ring { base, bytes, producer, consumer, flags, entries, mask: size - 1 }))
    }
}

impl<T> Ring<T> {
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: points into the live mapping, aligned, only ever accessed as an atomic.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as `producer`.
        unsafe { self.consumer.as_ref() }
    }

    /// The index that the producing side has reached.
    pub(super) fn produced(&self) -> u32 {
        self.producer().load(Ordering::Acquire)
    }

    /// The index that the consuming side has reached.
    pub(super) fn consumed(&self) -> u32 {
        self.consumer().load(Ordering::Acquire)
    }

    /// Whether every produced entry was consumed. Any thread may call it.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.producer().load(Ordering::Acquire) == self.consumer().load(Ordering::Acquire)
    }

    /// The kernel wants a system call before it looks at this ring again (XDP_RING_NEED_WAKEUP).
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        // SAFETY: as `producer`.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring whose side of ours several processes have in turn, each under the lock of [`frames`](super::frames): so the
/// indexes are in the mapping alone.
impl<T: Copy> Ring<T> {
    /// Reads an entry between the two indexes.
    pub(super) fn read_at(&self, at: u32) -> T {
        // SAFETY: masked, so inside the ring; written before the producer's index passed it.
        unsafe { self.entries.add((at & self.mask) as usize).read() }
    }

    /// Writes an entry that [`publish_to`](Ring::publish_to) will show.
    pub(super) fn write_at(&self, at: u32, entry: T) {
        // SAFETY: masked, so inside the ring; the caller has the producing side, and the kernel does not read beyond
        // the producer's index.
        unsafe { self.entries.add((at & self.mask) as usize).write(entry) };
    }

    /// Shows the consuming side all entries before `at`.
    pub(super) fn publish_to(&self, at: u32) {
        self.producer().store(at, Ordering::Release);
    }

    /// Returns all entries before `at` to the producing side.
    pub(super) fn release_to(&self, at: u32) {
        self.consumer().store(at, Ordering::Release);
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, unmapped once; no borrow of it is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Our side of a ring the kernel consumes (TX, fill).
pub(super) struct Producer<T> {
    ring: Arc<Ring<T>>,
    next: u32,
    _entries: PhantomData<T>,
}

impl<T: Copy> Producer<T> {
    /// The producing side of `ring`; make one only.
    pub(super) fn new(ring: Arc<Ring<T>>) -> Producer<T> {
        let next = ring.producer().load(Ordering::Relaxed);
        Producer { ring, next, _entries: PhantomData }
    }

    /// Writes the next entry; the kernel sees it after [`submit`](Producer::submit). The caller makes sure
    /// that there is room: never more entries outstanding than the ring holds.
    #[inline]
    pub(super) fn write(&mut self, entry: T) {
        let index = (self.next & self.ring.mask) as usize;
        // SAFETY: masked, so inside the ring; the slot is the producer's until the producer index passes it.
        unsafe { self.ring.entries.add(index).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the kernel everything written.
    #[inline]
    pub(super) fn submit(&self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Entries the kernel has not consumed yet, unsubmitted ones among them.
    #[inline]
    pub(super) fn outstanding(&self) -> u32 {
        self.next.wrapping_sub(self.ring.consumer().load(Ordering::Acquire))
    }

    /// See [`Ring::needs_wakeup`].
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// Our side of a ring the kernel fills (RX, completion).
pub(super) struct Consumer<T> {
    ring: Arc<Ring<T>>,
    next: u32,
    known: u32,
}

impl<T: Copy> Consumer<T> {
    /// The consuming side of `ring`; make one only.
    pub(super) fn new(ring: Arc<Ring<T>>) -> Consumer<T> {
        let next = ring.consumer().load(Ordering::Relaxed);
        Consumer { ring, next, known: next }
    }

    /// How many entries can be read, up to `most`. Reads the kernel's index only if the cached value is not
    /// enough, because its cache line belongs to another CPU.
    #[inline]
    pub(super) fn available(&mut self, most: u32) -> u32 {
        if self.known.wrapping_sub(self.next) < most {
            self.known = self.ring.producer().load(Ordering::Acquire);
        }
        self.known.wrapping_sub(self.next).min(most)
    }

    /// Reads the next entry, one of those that `available` returned.
    #[inline]
    pub(super) fn read(&mut self) -> T {
        debug_assert_ne!(self.next, self.known);
        let index = (self.next & self.ring.mask) as usize;
        // SAFETY: masked, so inside the ring; the kernel wrote the entry before the index that `available`
        // acquired, and leaves it alone until `release`.
        let entry = unsafe { self.ring.entries.add(index).read() };
        self.next = self.next.wrapping_add(1);
        entry
    }

    /// Returns the slots of all entries read to the kernel.
    #[inline]
    pub(super) fn release(&self) {
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}
