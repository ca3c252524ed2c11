//! The library's own allocator. What a hook allocates never comes from the program's allocator, which a signal handler
//! may have interrupted, and which may call hooks itself.
//!
//! | size | source | on free |
//! |---|---|---|
//! | up to 64 KiB | a block of one of 44 classes, cut from chunks of 1 MiB | pushed on the free list of its class |
//! | above | a mapping of its own | unmapped |
//!
//! Takes no lock, makes no call but mmap, munmap and mremap, and needs no set-up. So it works before main and after it,
//! in a handler that has interrupted the allocator itself, and in a child of any kind of fork. Limited to 16,384
//! chunks. Blocks stay in their class: the process keeps, for each class, the most that was ever in use at once.
//!
//! When the kernel gives no more memory, a reserve of eight chunks, and of one large mapping, serves allocations that
//! cannot fail any more, and callers that can refuse work do so ([`is_short`]). When the reserve is used up,
//! a block is taken from a larger class; if no class has one, the thread waits for memory, as the kernel does where an
//! allocation cannot fail (`__GFP_NOFAIL`). A large allocation fails instead: what can grow beyond a block is reserved
//! first (`try_reserve`).

mod free_list;

use std::{
    alloc::{GlobalAlloc, Layout},
    ptr,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use busypoll_stack::memory_pressure::{self, Level};
use free_list::{FreeList, Links};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

mod sync {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

#[global_allocator]
static MEMORY: Memory = Memory;

/// The allocator.
struct Memory;

/// Block sizes and addresses are multiples of this.
const GRAIN: usize = 16;
/// A chunk's size and alignment.
const CHUNK: usize = 1 << 20;
const GRAINS: u64 = (CHUNK / GRAIN) as u64;
const CHUNKS: usize = 16_384;
const PAGE: usize = 4096;
/// The largest block.
const MOST: usize = 64 << 10;
const CLASSES: usize = 44;
/// Free lists of each class, so that threads seldom contend.
const SHARDS: usize = 4;
/// Blocks that are made together fill about this many bytes.
const BATCH: usize = 8 << 10;

/// The start of every chunk: its number.
struct Header(AtomicU32);

static TABLE: [AtomicPtr<Header>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

/// Where the next block is cut: the number of the chunk, and above it the first free grain; [`NOWHERE`] at first.
static CUT: AtomicU64 = AtomicU64::new(NOWHERE);
const NOWHERE: u64 = GRAINS << 32;

/// Chunks for when the kernel gives no memory.
static RESERVE: [AtomicPtr<u8>; 8] = [const { AtomicPtr::new(ptr::null_mut()) }; 8];

/// With fewer chunks left in the reserve, nothing is begun that needs memory.
const KEPT: usize = 4;

/// A mapping for one large allocation.
static LARGE_RESERVE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
const LARGE: usize = 4 << 20;

/// How often a thread looks for memory when there is none.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

#[repr(align(64))]
struct Shard([FreeList; CLASSES]);

static LISTS: [Shard; SHARDS] =
    [const { Shard([const { FreeList(AtomicU64::new(0)) }; CLASSES]) }; SHARDS];

/// Called when the library is loaded: maps the reserve.
pub(crate) fn prepare() {
    refill();
    memory_pressure::set_recheck(refill);
    #[cfg(debug_assertions)]
    failing::prepare();
}

/// Whether memory is scarce, so that callers should refuse what they can.
#[inline]
pub(crate) fn is_short() -> bool {
    memory_pressure::is(Level::Short)
}

/// Fills the reserve, if there is memory again; returns how scarce memory is then.
#[cold]
fn refill() -> Level {
    let fill = |slot: &AtomicPtr<u8>, len| {
        if !slot.load(Ordering::Relaxed).is_null() {
            return true;
        }
        let Some(chunk) = map_aligned(len, CHUNK) else { return false };
        if slot
            .compare_exchange(ptr::null_mut(), chunk, Ordering::Release, Ordering::Relaxed)
            .is_err()
        {
            unmap(chunk, len);
        }
        true
    };
    let full = RESERVE.iter().all(|slot| fill(slot, CHUNK)) && fill(&LARGE_RESERVE, LARGE);
    #[cfg(debug_assertions)]
    failing::count();
    #[cfg(debug_assertions)]
    let full = full && !failing::now();
    let left = || RESERVE.iter().filter(|slot| !slot.load(Ordering::Relaxed).is_null()).count();
    let level = match full {
        true => Level::Plenty,
        false if left() < KEPT => Level::Out,
        false => Level::Short,
    };
    memory_pressure::set(level);
    level
}

/// The class of blocks of at least `size` bytes at a multiple of `align`; `None`: too large for a block.
#[inline]
fn class_of(size: usize, align: usize) -> Option<usize> {
    if align > GRAIN {
        // Blocks whose size is a power of two are aligned to it.
        let size = size.max(align).next_power_of_two();
        return (size <= MOST && align <= PAGE).then(|| class(size));
    }
    (size <= MOST).then(|| class(size))
}

/// Steps of 16 bytes up to 128, then four classes to each power of two.
#[inline]
fn class(size: usize) -> usize {
    let last = size.max(1) - 1;
    if last < 128 {
        return last / GRAIN;
    }
    let doubling = last.ilog2() as usize;
    8 + (doubling - 7) * 4 + (last >> (doubling - 2) & 3)
}

/// The block size of a class.
#[inline]
fn size_of_class(class: usize) -> usize {
    match class.checked_sub(8) {
        None => (class + 1) * GRAIN,
        Some(above) => {
            let doubling = above / 4 + 7;
            (1 << doubling) + (above % 4 + 1) * (1 << (doubling - 2))
        }
    }
}

/// The address of a block, by its index: its chunk's number, and below it its first grain.
fn address(index: u32) -> *mut u8 {
    let chunk = TABLE[(index >> 16) as usize % CHUNKS].load(Ordering::Acquire);
    chunk.cast::<u8>().wrapping_add((index & 0xffff) as usize * GRAIN)
}

fn index(block: *mut u8) -> u32 {
    let within = block.addr() % CHUNK;
    let header = block.wrapping_sub(within).cast::<Header>();
    // SAFETY: every block is in a chunk, which begins with its header and is never unmapped.
    let chunk = unsafe { &*header }.0.load(Ordering::Relaxed);
    chunk << 16 | (within / GRAIN) as u32
}

/// The links are stored in the blocks themselves.
struct InBlocks;

impl Links for InBlocks {
    #[inline]
    fn link(&self, index: u32) -> &AtomicU32 {
        // SAFETY: indices come from `index`, so there is an aligned block, in memory that is never unmapped. If another
        // thread has taken the block meanwhile, it is only read, and the value is discarded.
        unsafe { AtomicU32::from_ptr(address(index).cast()) }
    }
}

/// The lists that the calling thread tries first. Threads' thread-local areas are an odd number of pages apart.
#[inline]
fn shard() -> usize {
    std::thread_local!(static HERE: u8 = const { 0 });
    HERE.try_with(|here| ptr::from_ref(here).addr()).unwrap_or(0) / PAGE % SHARDS
}

fn allocate(class: usize) -> *mut u8 {
    let mine = shard();
    for at in 0..SHARDS {
        if let Some(block) = LISTS[(mine + at) % SHARDS].0[class].pop(&InBlocks) {
            return address(block);
        }
    }
    make(class, mine).or_else(|| larger(class)).unwrap_or_else(|| wait(class))
}

/// A free block of a larger class. When it is freed it goes to this one.
#[cold]
fn larger(class: usize) -> Option<*mut u8> {
    let mut lists = (class + 1..CLASSES).flat_map(|of| LISTS.iter().map(move |shard| &shard.0[of]));
    lists.find_map(|list| list.pop(&InBlocks)).map(address)
}

/// Waits until there is a block: memory is out, and this allocation must not fail.
#[cold]
fn wait(class: usize) -> *mut u8 {
    loop {
        thread::sleep(RETRY_INTERVAL);
        let mine = LISTS.iter().find_map(|shard| shard.0[class].pop(&InBlocks)).map(address);
        let found = mine.or_else(|| make(class, shard())).or_else(|| larger(class));
        if let Some(block) = found {
            return block;
        }
    }
}

/// Cuts blocks of a class: one for the caller, the rest for the list.
#[cold]
fn make(class: usize, shard: usize) -> Option<*mut u8> {
    let size = size_of_class(class);
    let align = 1 << size.trailing_zeros();
    let many = (BATCH / size).max(1);
    let mut cuts =
        [many, 1].into_iter().filter_map(|count| Some((cut(size * count, align)?, count)));
    let (first, count) = cuts.next()?;
    let block = |at: usize| index(first.wrapping_add(at * size));
    for at in 1..count.saturating_sub(1) {
        InBlocks.link(block(at)).store(block(at + 1), Ordering::Relaxed);
    }
    if count > 1 {
        LISTS[shard].0[class].push(&InBlocks, block(1), block(count - 1));
    }
    Some(first)
}

/// Cuts `len` bytes at a multiple of `align`, from a new chunk if need be.
fn cut(len: usize, align: usize) -> Option<*mut u8> {
    let (len, align) = ((len / GRAIN) as u64, (align.min(PAGE) / GRAIN) as u64);
    let mut at = CUT.load(Ordering::Acquire);
    loop {
        let (chunk, grain) = (at & 0xffff_ffff, at >> 32);
        let first = grain.next_multiple_of(align);
        let new = if first + len <= GRAINS {
            (first + len) << 32 | chunk
        } else {
            // After the header.
            1 << 32 | u64::from(add_chunk()?)
        };
        match CUT.compare_exchange(at, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) if first + len <= GRAINS => {
                return Some(address((chunk as u32) << 16 | first as u32));
            }
            Ok(_) => at = new,
            Err(now) => {
                if first + len > GRAINS {
                    remove_chunk(new as u32);
                }
                at = now;
            }
        }
    }
}

/// Adds a chunk; returns its number.
fn add_chunk() -> Option<u32> {
    let chunk = map_aligned(CHUNK, CHUNK).or_else(reserved)?;
    let header = chunk.cast::<Header>();
    for (number, slot) in (0..).zip(&TABLE) {
        // SAFETY: just mapped, and not shared before it is in the table.
        unsafe { header.write(Header(AtomicU32::new(number))) };
        let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        if slot.load(Ordering::Relaxed).is_null()
            && slot.compare_exchange(ptr::null_mut(), header, done, failed).is_ok()
        {
            return Some(number);
        }
    }
    memory_pressure::set(Level::Out);
    unmap(chunk, CHUNK);
    None
}

/// Removes a chunk that lost the race to be used.
fn remove_chunk(number: u32) {
    if let Some(slot) = TABLE.get(number as usize) {
        unmap(slot.swap(ptr::null_mut(), Ordering::AcqRel).cast(), CHUNK);
    }
}

/// Takes a chunk of the reserve.
#[cold]
fn reserved() -> Option<*mut u8> {
    memory_pressure::set(Level::Short);
    let mut taken = RESERVE.iter().map(|slot| slot.swap(ptr::null_mut(), Ordering::AcqRel));
    taken.find(|chunk| !chunk.is_null())
}

fn map(len: usize) -> Option<*mut u8> {
    #[cfg(debug_assertions)]
    if failing::now() {
        return None;
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new private mapping.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) };
    start.ok().map(<*mut _>::cast)
}

fn unmap(start: *mut u8, len: usize) {
    // SAFETY: a mapping of ours that is not used any more. What the kernel refuses to unmap stays mapped.
    let _ = unsafe { munmap(start.cast(), len) };
}

/// A mapping at a multiple of `align`; both are whole pages.
fn map_aligned(len: usize, align: usize) -> Option<*mut u8> {
    let start = map(len)?;
    if start.addr().is_multiple_of(align) {
        return Some(start);
    }
    unmap(start, len);
    let start = map(len.checked_add(align)?)?;
    let before = start.addr().next_multiple_of(align) - start.addr();
    let aligned = start.wrapping_add(before);
    for (at, len) in [(start, before), (aligned.wrapping_add(len), align - before)] {
        if len > 0 {
            unmap(at, len);
        }
    }
    Some(aligned)
}

/// The length of the mapping for a large allocation.
fn pages(size: usize) -> usize {
    size.saturating_add(PAGE - 1) / PAGE * PAGE
}

/// A mapping; if the kernel gives none, a piece of a chunk, which can be unmapped like any mapping.
fn allocate_large(layout: Layout) -> *mut u8 {
    let len = pages(layout.size());
    let mapped = if layout.align() > PAGE { map_aligned(len, layout.align()) } else { map(len) };
    let from_chunk = || {
        memory_pressure::set(Level::Short);
        (layout.align() <= PAGE && len < CHUNK).then(|| cut(len, PAGE))?
    };
    let from_reserve = || {
        if layout.align() > CHUNK || len > LARGE {
            return None;
        }
        let taken = LARGE_RESERVE.swap(ptr::null_mut(), Ordering::Acquire);
        if !taken.is_null() && len < LARGE {
            unmap(taken.wrapping_add(len), LARGE - len);
        }
        (!taken.is_null()).then_some(taken)
    };
    mapped.or_else(from_chunk).or_else(from_reserve).unwrap_or(ptr::null_mut())
}

// SAFETY: blocks and mappings have the requested size and alignment, belong to the caller alone, and stay until freed.
// None of these unwinds.
unsafe impl GlobalAlloc for Memory {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        #[cfg(debug_assertions)]
        failing::count();
        match class_of(layout.size(), layout.align()) {
            Some(class) => allocate(class),
            None => allocate_large(layout),
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        let block = unsafe { self.alloc(layout) };
        // A mapping is zero, and so is a piece of a chunk that was cut for a large allocation: it was never written.
        if !block.is_null() && class_of(layout.size(), layout.align()).is_some() {
            // SAFETY: as large as requested.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(layout.size(), layout.align()) {
            Some(class) => {
                let block = index(block);
                LISTS[shard()].0[class].push(&InBlocks, block, block);
            }
            None => unmap(block, pages(layout.size())),
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (old, new) = (class_of(layout.size(), layout.align()), class_of(size, layout.align()));
        if old.is_some() && old == new {
            return block;
        }
        if old.is_none() && new.is_none() && layout.align() <= PAGE {
            let (old, new) = (pages(layout.size()), pages(size));
            // SAFETY: a mapping of ours that belongs to the caller alone.
            if let Ok(moved) = unsafe { mremap(block.cast(), old, new, MremapFlags::MAYMOVE) } {
                return moved.cast();
            }
        }
        // SAFETY: the caller's contract: `size` is not zero, and does not overflow when rounded up to the alignment.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                ptr::copy_nonoverlapping(block, new, size.min(layout.size()));
                self.dealloc(block, layout);
            }
            new
        }
    }
}

/// For tests, in debug builds only: `BUSYPOLL_TEST_SHORT=N:M` makes memory short from allocation number N on, for M
/// allocations (1 if not given).
#[cfg(debug_assertions)]
mod failing {
    use super::{AtomicU64, Level, Ordering, memory_pressure};

    static MADE: AtomicU64 = AtomicU64::new(0);
    static FROM: AtomicU64 = AtomicU64::new(u64::MAX);
    static TO: AtomicU64 = AtomicU64::new(u64::MAX);

    pub(super) fn prepare() {
        // SAFETY: the name is a C string, and at load time no other thread changes the environment.
        let text = unsafe {
            let text = libc::getenv(c"BUSYPOLL_TEST_SHORT".as_ptr());
            if text.is_null() {
                return;
            }
            std::ffi::CStr::from_ptr(text)
        };
        let text = text.to_str().unwrap_or_default();
        let (from, many) = text.split_once(':').unwrap_or((text, "1"));
        if let (Ok(from), Ok(many)) = (from.parse::<u64>(), many.parse::<u64>()) {
            let from = MADE.load(Ordering::Relaxed) + from;
            TO.store(from + many, Ordering::Relaxed);
            FROM.store(from, Ordering::Relaxed);
        }
    }

    pub(super) fn count() {
        MADE.fetch_add(1, Ordering::Relaxed);
        if now() {
            memory_pressure::set(Level::Short);
        }
    }

    pub(super) fn now() -> bool {
        let made = MADE.load(Ordering::Relaxed);
        FROM.load(Ordering::Relaxed) <= made && made < TO.load(Ordering::Relaxed)
    }
}
