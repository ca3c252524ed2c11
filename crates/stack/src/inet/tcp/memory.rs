//! The memory that the buffers of all connections share: how much is used, and when it is scarce.
//!
//! Buffers are made of chunks of one size. A freed chunk goes to the cache of its thread, so that the next one is at
//! hand without a lock, and warm in the CPU's cache. If one thread fills what another drains, their caches trade
//! through a depot, eight chunks at a time.

use crate::{
    memory_pressure::{self, Level},
    pool::{Last, Lent, Pool},
    sync::{AtomicU64, Mutex, Ordering},
};
use std::{cell::Cell, convert::Infallible, ptr};

/// Bytes in a chunk: four full segments and more, so that few of them lie across two chunks.
pub(super) const CHUNK: usize = 8192;

/// One piece of buffer memory.
pub(super) type Chunk = [u8; CHUNK];

/// How many chunks a thread caches, and how many it trades at a time.
const CACHED: usize = 16;
const TRADE: usize = CACHED / 2;
/// How many chunks the depot keeps: 2 MiB.
const DEPOT: usize = 256;

/// The limit on the memory of all connections of a host: Linux's `tcp_mem`, in bytes.
///
/// ```
/// use busypoll_stack::inet::tcp::{Config, memory::Memory};
/// let memory = Memory::new(Config::default().tcp_mem);
/// assert_eq!((memory.used(), memory.pressure(), memory.exhausted()), (0, false, false));
/// ```
#[derive(Debug)]
pub struct Memory {
    high: u64,
    used: Padded,
    /// 1 while there is pressure. Apart from `used`, which is written for every chunk.
    under_pressure: AtomicU64,
}

#[derive(Debug)]
#[repr(align(64))]
struct Padded(AtomicU64);

impl Memory {
    /// Memory of `bytes`, none of it used.
    pub fn new(bytes: u64) -> Memory {
        Memory { high: bytes, used: Padded(AtomicU64::new(0)), under_pressure: AtomicU64::new(0) }
    }

    /// Pressure begins here: at two thirds, as in Linux.
    fn pressure_at(&self) -> u64 {
        self.high / 3 * 2
    }

    /// Pressure ends below this: half.
    fn relief_at(&self) -> u64 {
        self.high / 2
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.0.load(Ordering::Relaxed)
    }

    /// Whether memory is scarce: buffers do not grow, and windows are kept small.
    #[inline]
    pub fn pressure(&self) -> bool {
        self.under_pressure.load(Ordering::Relaxed) != 0
    }

    /// Whether memory is used up: a connection gets what keeps it moving and no more, and out-of-order data may be
    /// dropped.
    #[inline]
    pub fn exhausted(&self) -> bool {
        self.pressure() && self.used() >= self.high || memory_pressure::is(Level::Short)
    }

    /// A chunk with undefined content. The caller has asked [`exhausted`](Memory::exhausted).
    #[inline]
    pub(super) fn take(&self) -> Box<Chunk> {
        let used = self.used.0.fetch_add(CHUNK as u64, Ordering::Relaxed) + CHUNK as u64;
        if used >= self.pressure_at() && !self.pressure() {
            self.under_pressure.store(1, Ordering::Relaxed);
        }
        thread_cache().take().unwrap_or_else(new)
    }

    /// Gives a chunk back.
    #[inline]
    pub(super) fn give(&self, chunk: Box<Chunk>) {
        let used = self.used.0.fetch_sub(CHUNK as u64, Ordering::Relaxed) - CHUNK as u64;
        if used < self.relief_at() && self.pressure() {
            self.under_pressure.store(0, Ordering::Relaxed);
        }
        thread_cache().give(chunk);
    }
}

fn new() -> Box<Chunk> {
    Box::new([0; CHUNK])
}

/// The caches of threads; the cache of a thread that has ended passes to another.
static THREAD_CACHES: Pool<ThreadCache> = Pool::new();

thread_local!(static LAST: Last<ThreadCache> = const { Cell::new(ptr::null()) });

#[inline]
fn thread_cache() -> Lent<ThreadCache> {
    let Ok(thread_cache) =
        THREAD_CACHES.lend(&LAST, || Ok::<_, Infallible>(ThreadCache(Vec::new())));
    thread_cache
}

/// The depot, for threads that fill what other threads drain.
static DEPOT_CHUNKS: Mutex<Vec<Box<Chunk>>> = Mutex::new(Vec::new());

struct ThreadCache(Vec<Box<Chunk>>);

impl ThreadCache {
    #[inline]
    fn take(&mut self) -> Option<Box<Chunk>> {
        self.0.pop().or_else(|| self.fetch())
    }

    #[inline]
    fn give(&mut self, chunk: Box<Chunk>) {
        if self.0.len() >= CACHED {
            self.deposit();
        }
        self.0.push(chunk);
    }

    /// Does not wait for the depot's lock: the allocator is there too.
    #[cold]
    fn fetch(&mut self) -> Option<Box<Chunk>> {
        let mut depot = DEPOT_CHUNKS.try_lock().ok()?;
        let from = depot.len().saturating_sub(TRADE);
        self.0.extend(depot.drain(from..));
        drop(depot);
        self.0.pop()
    }

    #[cold]
    fn deposit(&mut self) {
        let extra = self.0.drain(..TRADE);
        if let Ok(mut depot) = DEPOT_CHUNKS.try_lock() {
            let room = DEPOT.saturating_sub(depot.len());
            depot.extend(extra.take(room));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_begins_at_its_bound_and_ends_below_the_lower_one() {
        let chunk = CHUNK as u64;
        let memory = Memory::new(6 * chunk);
        let mut taken = Vec::new();
        for (pressure, exhausted) in
            [(false, false); 3].into_iter().chain([(true, false), (true, false), (true, true)])
        {
            taken.push(memory.take());
            assert_eq!((memory.pressure(), memory.exhausted()), (pressure, exhausted));
        }
        for pressure in [true, true, true, false, false, false] {
            memory.give(taken.pop().unwrap());
            assert_eq!(memory.pressure(), pressure, "{} chunks left", taken.len());
        }
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn chunks_go_from_the_thread_that_drains_to_the_thread_that_fills() {
        let memory = Memory::new(1 << 30);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..20 {
            let filled: Vec<_> = (0..64).map(|_| memory.take()).collect();
            seen.extend(filled.iter().map(|chunk| chunk.as_ptr() as usize));
            std::thread::scope(|scope| {
                scope.spawn(|| filled.into_iter().for_each(|chunk| memory.give(chunk)));
            });
        }
        // The allocator might reuse addresses even without the depot, so only the count is certain.
        assert_eq!(memory.used(), 0);
        assert!(DEPOT_CHUNKS.lock().unwrap().len() <= DEPOT);
        assert!(seen.len() >= 64);
    }
}
