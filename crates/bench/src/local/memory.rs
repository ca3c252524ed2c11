//! The limit between two processes: for each direction room for one message in memory that both map, and a number that
//! says which message it holds. Both ends spin on that number. No stack can be faster. A message of up to 120 bytes lies
//! in the cache lines of its number.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::clock::Clock;
use crate::units::Size;
use crate::workload::{Endpoint, RECEIVE_TIMEOUT};

/// x86 fetches cache lines in pairs.
const LINES: usize = 128;
const WORD: usize = size_of::<u64>();
/// Reading the clock takes as long as several looks at the memory.
const LOOKS: u32 = 1 << 10;

/// The bytes of a direction whose messages have `len`.
const fn room(len: usize) -> usize {
    (WORD + len).next_multiple_of(LINES)
}

fn bytes(size: Size) -> usize {
    room(size.request) + room(size.response)
}

/// Memory for both directions, for each of the processes.
pub(super) fn file(size: Size) -> Result<(OwnedFd, OwnedFd), String> {
    let make = || -> io::Result<_> {
        let file = rustix::fs::memfd_create("busypoll-bench", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, bytes(size) as u64)?;
        let theirs = file.try_clone()?;
        Ok((file, theirs))
    };
    make().map_err(|e| format!("memory for two processes: {e}"))
}

/// One end.
pub(super) struct Memory<'a> {
    words: Words,
    sends: Direction,
    receives: Direction,
    clock: &'a Clock,
}

/// One direction, as one end has it.
struct Direction {
    /// The word with the number; the message follows.
    at: usize,
    len: usize,
    /// Of the last message sent or received.
    number: u64,
}

impl<'a> Memory<'a> {
    pub(super) fn client(file: &OwnedFd, size: Size, clock: &'a Clock) -> Result<Self, String> {
        let [sends, receives] = Self::directions(size);
        Self::new(file, size, sends, receives, clock)
    }

    pub(super) fn server(file: &OwnedFd, size: Size, clock: &'a Clock) -> Result<Self, String> {
        let [receives, sends] = Self::directions(size);
        Self::new(file, size, sends, receives, clock)
    }

    fn directions(size: Size) -> [Direction; 2] {
        let direction = |at, len| Direction { at: at / WORD, len, number: 0 };
        [direction(0, size.request), direction(room(size.request), size.response)]
    }

    fn new(
        file: &OwnedFd,
        size: Size,
        sends: Direction,
        receives: Direction,
        clock: &'a Clock,
    ) -> Result<Self, String> {
        let words = Words::map(file, bytes(size)).map_err(|e| format!("mmap: {e}"))?;
        Ok(Self { words, sends, receives, clock })
    }

    /// The words of the message of a direction.
    fn message<'w>(words: &'w Words, of: &Direction) -> impl Iterator<Item = &'w AtomicU64> {
        words.all().iter().skip(of.at + 1)
    }
}

impl Endpoint for Memory<'_> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if message.len() != self.sends.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, bytes) in Self::message(&self.words, &self.sends).zip(message.chunks(WORD)) {
            let mut word = [0; WORD];
            word[..bytes.len()].copy_from_slice(bytes);
            to.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
        self.sends.number += 1;
        self.words.all()[self.sends.at].store(self.sends.number, Ordering::Release);
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut give_up = None;
        let mut looks = 0u32;
        loop {
            if let Some(n) = self.try_recv(buffer)? {
                return Ok(Some(n));
            }
            std::hint::spin_loop();
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                let now = self.clock.now();
                let end = now + self.clock.ticks(RECEIVE_TIMEOUT);
                if now > *give_up.get_or_insert(end) {
                    return Ok(None);
                }
            }
        }
    }

    fn try_recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let number = self.words.all()[self.receives.at].load(Ordering::Acquire);
        if number == self.receives.number {
            return Ok(None);
        }
        self.receives.number = number;
        let len = self.receives.len.min(buffer.len());
        let words = Self::message(&self.words, &self.receives);
        for (from, bytes) in words.zip(buffer[..len].chunks_mut(WORD)) {
            let word = from.load(Ordering::Relaxed).to_ne_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
        Ok(Some(len))
    }
}

/// Memory that two processes share, as atomics, as either may write at any time.
struct Words {
    base: NonNull<AtomicU64>,
    len: usize,
    _owns: PhantomData<[AtomicU64]>,
}

impl Words {
    fn map(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap(ptr::null_mut(), bytes, access, flags, file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len: bytes / WORD, _owns: PhantomData })
    }

    #[inline]
    fn all(&self) -> &[AtomicU64] {
        // SAFETY: mapped with this length for as long as this value lives, aligned to a page; any bits are valid, and
        // the memory is accessed by atomics alone.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: mapped with this length; `all` borrows from this value.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len * WORD) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_size_arrive_whole_and_once() {
        for (request, response) in [(1, 1), (7, 120), (8, 121), (65_536, 3)] {
            let size = Size { request, response };
            let (one, other) = file(size).expect("memory");
            let clock = Clock::default();
            let mut client = Memory::client(&one, size, &clock).expect("mapped");
            let mut server = Memory::server(&other, size, &clock).expect("mapped");
            let pattern =
                |len: usize, add: usize| -> Vec<u8> { (0..len).map(|i| (i + add) as u8).collect() };
            for add in 0..3 {
                let (ask, answer) = (pattern(request, add), pattern(response, add + 1));
                let mut buffer = vec![0; request.max(response)];
                client.send(&ask).expect("sent");
                assert_eq!(server.recv(&mut buffer).expect("mapped"), Some(request));
                assert_eq!(buffer[..request], ask[..]);
                assert_eq!(server.try_recv(&mut buffer).expect("mapped"), None);
                server.send(&answer).expect("sent");
                assert_eq!(client.recv(&mut buffer).expect("mapped"), Some(response));
                assert_eq!(buffer[..response], answer[..]);
            }
            assert_eq!(client.recv(&mut [0]).expect("mapped"), None, "no message comes");
        }
    }
}
