//! The memory of a cable between two processes: a sealed memfd, mapped by both. For each direction it has two words,
//! the table of the addresses at which its receiver takes datagrams, the slots and the buffers of larger frames. The
//! other process may write any of it at any time.

use super::{
    Padded,
    ports::{ENTRIES, Entry},
    slots::{LINE, Slots},
};
use crate::{sync::AtomicU32, sys};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    ptr::{self, NonNull},
};

/// Pages are not larger than this where this runs.
const PAGE: usize = 4096;

/// What both ends must know of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// The largest IP packet.
    pub(super) mtu: u32,
    /// Frames of a ring, a power of two.
    pub(super) ring: u32,
}

/// The words of one direction.
#[repr(C)]
pub(super) struct Words {
    /// Written by the receiver: the frames before this position are taken.
    pub(super) consumed: Padded<AtomicU32>,
    /// The state of the receiver's interrupt line.
    pub(super) armed: Padded<AtomicU32>,
    /// Written by the receiver: see [`Ports`](super::Ports).
    pub(super) ports: [Entry; ENTRIES],
}

impl Shape {
    /// # Errors
    /// The ring size is no power of two, or a number is out of range.
    pub(super) fn checked(self) -> io::Result<Shape> {
        let invalid = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if !self.ring.is_power_of_two() || self.ring > super::MAX_RING {
            return invalid(super::WRONG_RING);
        }
        if !super::MTUS.contains(&(self.mtu as usize)) {
            return invalid(super::WRONG_MTU);
        }
        Ok(self)
    }

    /// The longest frame: with an Ethernet header and two VLAN tags.
    pub(super) fn frame(self) -> usize {
        self.mtu as usize + 14 + 8
    }

    fn stride(self) -> usize {
        self.frame().next_multiple_of(LINE)
    }

    /// Bytes of one direction.
    fn direction(self) -> usize {
        (size_of::<Words>() + Slots::size(self.ring, self.stride())).next_multiple_of(PAGE)
    }

    fn bytes(self) -> usize {
        2 * self.direction()
    }
}

/// The memory, mapped.
pub(super) struct Memory {
    start: NonNull<u8>,
    shape: Shape,
}

// SAFETY: a mapping belongs to no thread; who may touch which part is the rings' business.
unsafe impl Send for Memory {}
// SAFETY: as above; references into it are to atomics only.
unsafe impl Sync for Memory {}

impl Memory {
    /// New memory, zeroed, and the descriptor to give to the other process.
    pub(super) fn create(shape: Shape) -> io::Result<(Memory, OwnedFd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a C string.
        let file = sys::owned(unsafe { libc::memfd_create(c"busypoll-cable".as_ptr(), flags) })?;
        // SAFETY: plain system calls.
        let made = unsafe {
            libc::ftruncate(file.as_raw_fd(), shape.bytes() as libc::off_t) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) == 0
        };
        if !made {
            return Err(io::Error::last_os_error());
        }
        Ok((Memory::map(&file, shape)?, file))
    }

    /// The memory of another process.
    ///
    /// # Errors
    /// `InvalidData` if using it could end this process: it may shrink, has another size, or is of huge pages, of which
    /// there may be none left.
    pub(super) fn open(file: &OwnedFd, shape: Shape) -> io::Result<Memory> {
        // SAFETY: plain system calls; all zeros is a valid stat, and there is room for it.
        let (seals, small_pages) = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            let is_file = libc::fstat(file.as_raw_fd(), &raw mut stat) == 0;
            let small = is_file && stat.st_blksize == libc::sysconf(libc::_SC_PAGESIZE);
            (libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS), small)
        };
        let sealed = seals >= 0 && seals & SEALS == SEALS;
        if !sealed || !small_pages || sys::size_of_file(file.as_fd())? != shape.bytes() as u64 {
            let what = "cable: the other process gave memory that is not a cable's";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Memory::map(file, shape)
    }

    fn map(file: &OwnedFd, shape: Shape) -> io::Result<Memory> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (kind, fd) = (libc::MAP_SHARED, file.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice, of a file of that size, which cannot shrink.
        let start = unsafe { libc::mmap(ptr::null_mut(), shape.bytes(), access, kind, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::<u8>::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // A forked child must not use it. If this fails, the child merely keeps the mapping.
        // SAFETY: advice on our own mapping.
        unsafe { libc::madvise(start.as_ptr().cast(), shape.bytes(), libc::MADV_DONTFORK) };
        Ok(Memory { start, shape })
    }

    fn direction(&self, direction: usize) -> NonNull<u8> {
        // SAFETY: there are two directions, both inside the mapping.
        unsafe { self.start.add((direction & 1) * self.shape.direction()) }
    }

    #[inline]
    pub(super) fn words(&self, direction: usize) -> &Words {
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned, as directions begin at pages; any
        // bytes are valid atomics.
        unsafe { self.direction(direction).cast::<Words>().as_ref() }
    }

    /// The slots of a direction, and then its buffers.
    pub(super) fn slots(&self, direction: usize) -> NonNull<u8> {
        // SAFETY: inside the mapping.
        unsafe { self.direction(direction).add(size_of::<Words>()) }
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    /// From a buffer to the next.
    pub(super) fn stride(&self) -> usize {
        self.shape.stride()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this size, unmapped once; the rings hold this value while they use it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.shape.bytes()) };
    }
}

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering;

    const SHAPE: Shape = Shape { mtu: 1500, ring: 16 };

    #[test]
    fn both_mappings_are_the_same_memory() {
        let (ours, file) = Memory::create(SHAPE).unwrap();
        let theirs = Memory::open(&file, SHAPE).unwrap();
        ours.words(1).armed.0.store(7, Ordering::Relaxed);
        assert_eq!(theirs.words(1).armed.0.load(Ordering::Relaxed), 7);
        assert_eq!(theirs.words(0).armed.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn memory_that_could_end_this_process_is_refused() {
        let refused = |file: &OwnedFd, shape| match Memory::open(file, shape) {
            Ok(_) => panic!("it was taken"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::InvalidData),
        };
        let (_ours, file) = Memory::create(SHAPE).unwrap();
        // The other end says that it is larger.
        refused(&file, Shape { ring: 32, ..SHAPE });
        // It can shrink under us.
        // SAFETY: a C string; plain system calls.
        let open = unsafe {
            let fd = libc::memfd_create(c"open".as_ptr(), libc::MFD_ALLOW_SEALING);
            libc::ftruncate(fd, SHAPE.bytes() as libc::off_t);
            sys::owned(fd).unwrap()
        };
        refused(&open, SHAPE);
        // No memory at all.
        refused(&sys::eventfd().unwrap(), SHAPE);
    }
}
