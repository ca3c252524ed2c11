//! The memory that the processes of an interface share, queue by queue: the frames, and what [`frames`](super::frames)
//! keeps of them. Owns its layout: how many processes there may be, and how many frames each has.

use super::{
    frames::{Completion, Control, Fill},
    ring::Ring,
    umem::Umem,
};
use crate::sys;
use std::{
    io,
    ops::Deref,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
};

/// The most processes on an interface.
pub(super) const SLOTS: usize = 8;
/// The RX ring and the transmit frames of the first process, as of one that has an interface for itself, and those of
/// each other process.
const FIRST: usize = 1024;
const OTHER: usize = 256;
/// The most receive frames that a process has taken off its RX ring and not yet returned.
pub(super) const HELD: usize = 64;
/// Receive frames that come into circulation with the first process: as many as it can keep from the others.
pub(super) const SHARE: usize = FIRST + HELD;
const RX_FRAMES: usize = SHARE + (SLOTS - 1) * (OTHER + HELD);
const FRAMES: usize = RX_FRAMES + FIRST + (SLOTS - 1) * OTHER;
/// Entries of the fill and of the completion ring: room for all frames.
pub(super) const RING: u32 = 4096;

pub(super) type QueueControl = Control<SLOTS, HELD, { FIRST / 64 }, SHARE>;

const _: () = assert!(RX_FRAMES <= RING as usize);
const _: () = assert!(FRAMES - RX_FRAMES <= RING as usize);

/// Entries of the RX and of the TX ring of a slot.
pub(super) fn ring_size(slot: usize) -> usize {
    if slot == 0 { FIRST } else { OTHER }
}

/// Receive frames that come into circulation with the process of a slot.
pub(super) fn share(slot: usize) -> usize {
    ring_size(slot) + HELD
}

/// The numbers of all receive frames.
pub(super) fn rx_frames() -> impl Iterator<Item = u32> {
    0..RX_FRAMES as u32
}

/// The number of the first transmit frame of a slot.
pub(super) fn first_tx(slot: usize) -> u32 {
    let before = if slot == 0 { 0 } else { FIRST + (slot - 1) * OTHER };
    (RX_FRAMES + before) as u32
}

/// The slot of a transmit frame, and its place there.
pub(super) fn owner_of(frame: u32) -> Option<(usize, usize)> {
    let at = (frame as usize).checked_sub(RX_FRAMES).filter(|at| *at < FRAMES - RX_FRAMES)?;
    Some(match at.checked_sub(FIRST) {
        None => (0, at),
        Some(at) => (1 + at / OTHER, at % OTHER),
    })
}

/// How many bytes the frames of a queue take, and what is kept of them.
fn sizes(frame: usize) -> (usize, usize) {
    (FRAMES * frame, size_of::<QueueControl>().next_multiple_of(4096))
}

/// Memory for all queues, zeroed.
pub(super) fn make_memory(queues: u32, frame: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a C string.
    let memory = sys::owned(unsafe { libc::memfd_create(c"busypoll-frames".as_ptr(), flags) })?;
    let (frames, control) = sizes(frame);
    let bytes = (frames + control) * queues as usize;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: plain system calls.
    let made = unsafe {
        libc::ftruncate(memory.as_raw_fd(), bytes as libc::off_t) == 0
            && libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0
    };
    if made { Ok(memory) } else { Err(io::Error::last_os_error()) }
}

/// What is kept of the frames of a queue, mapped.
pub(super) struct SharedControl {
    control: NonNull<QueueControl>,
}

// SAFETY: it consists of atomics, and is mapped for as long as this value lives.
unsafe impl Send for SharedControl {}
// SAFETY: as above.
unsafe impl Sync for SharedControl {}

impl Deref for SharedControl {
    type Target = QueueControl;

    #[inline]
    fn deref(&self) -> &QueueControl {
        // SAFETY: mapped whole and aligned to pages; any bytes are a valid value of atomics.
        unsafe { self.control.as_ref() }
    }
}

impl Drop for SharedControl {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, unmapped once.
        unsafe { libc::munmap(self.control.as_ptr().cast(), size_of::<QueueControl>()) };
    }
}

/// Maps the frames of a queue, and what is kept of them.
pub(super) fn map(
    memory: BorrowedFd<'_>,
    queue: u32,
    frame: usize,
) -> io::Result<(Umem, Arc<SharedControl>)> {
    let (frames, control) = sizes(frame);
    let offset = (frames + control) * queue as usize;
    // A mapping beyond the end of the memory would end the process when it is used.
    if sys::size_of_file(memory)? < (offset + frames + control) as u64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let umem = Umem::shared(memory, offset, frames, frame)?;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<QueueControl>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            memory.as_raw_fd(),
            (offset + frames) as libc::off_t,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let control = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
    // A forked child must not use it. If this fails, the child merely keeps the mapping.
    // SAFETY: advice on our own mapping.
    unsafe { libc::madvise(base, size_of::<QueueControl>(), libc::MADV_DONTFORK) };
    Ok((umem, Arc::new(SharedControl { control })))
}

/// A fill or completion ring, with frames by number.
pub(super) struct ByNumber<'a> {
    ring: &'a Ring<u64>,
    size: FrameSize,
}

impl<'a> ByNumber<'a> {
    pub(super) fn new(ring: &'a Ring<u64>, size: FrameSize) -> ByNumber<'a> {
        ByNumber { ring, size }
    }
}

/// The size of a frame, a power of two: by it, addresses become numbers without a division.
#[derive(Clone, Copy)]
pub(super) struct FrameSize(u32);

impl FrameSize {
    pub(super) fn new(bytes: usize) -> FrameSize {
        debug_assert!(bytes.is_power_of_two());
        FrameSize(bytes.trailing_zeros())
    }

    #[inline]
    pub(super) fn number(self, address: u64) -> u32 {
        (address >> self.0) as u32
    }

    #[inline]
    pub(super) fn address(self, number: u32) -> u64 {
        u64::from(number) << self.0
    }
}

impl Fill for ByNumber<'_> {
    fn producer(&self) -> u32 {
        self.ring.produced()
    }

    fn write(&self, at: u32, frame: u32) {
        self.ring.write_at(at, self.size.address(frame));
    }

    fn publish(&self, producer: u32) {
        self.ring.publish_to(producer);
    }
}

impl Completion for ByNumber<'_> {
    fn producer(&self) -> u32 {
        self.ring.produced()
    }

    fn consumer(&self) -> u32 {
        self.ring.consumed()
    }

    fn read(&self, at: u32) -> u32 {
        self.size.number(self.ring.read_at(at))
    }

    fn release(&self, consumer: u32) {
        self.ring.release_to(consumer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transmit_frame_has_one_owner() {
        let mut next = RX_FRAMES as u32;
        for slot in 0..SLOTS {
            assert_eq!(first_tx(slot), next);
            for place in 0..ring_size(slot) {
                assert_eq!(owner_of(next), Some((slot, place)));
                next += 1;
            }
        }
        assert_eq!(next as usize, FRAMES);
        assert_eq!((owner_of(next), owner_of(RX_FRAMES as u32 - 1)), (None, None));
    }

    #[test]
    fn no_process_can_keep_frames_of_the_others_share() {
        let shares: usize = (0..SLOTS).map(share).sum();
        assert_eq!(shares, RX_FRAMES);
        assert!((0..SLOTS).all(|slot| ring_size(slot).is_power_of_two()));
    }
}
