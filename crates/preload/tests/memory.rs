//! The library's allocator as this program's own: every allocation of the tests and of the test runner uses it.

#[path = "../src/memory/mod.rs"]
#[allow(dead_code)] // the library asks whether memory is short
mod memory;

use std::{
    alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc},
    collections::VecDeque,
    sync::{Barrier, mpsc},
    thread,
};

fn random(seed: &mut u64) -> usize {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed as usize
}

/// A block filled with its mark.
struct Block(*mut u8, Layout, u8);

// SAFETY: memory may be freed by any thread.
unsafe impl Send for Block {}

impl Block {
    fn new(size: usize, align: usize, mark: u8) -> Block {
        let layout = Layout::from_size_align(size, align).unwrap();
        // SAFETY: the size is not zero.
        let start = unsafe { alloc(layout) };
        assert!(!start.is_null() && start.addr().is_multiple_of(align), "{layout:?} at {start:?}");
        // SAFETY: ours.
        unsafe { start.write_bytes(mark, size) };
        Block(start, layout, mark)
    }

    fn is_whole(&self, size: usize) -> bool {
        // SAFETY: ours, and written.
        unsafe { std::slice::from_raw_parts(self.0, size) }.iter().all(|byte| *byte == self.2)
    }

    fn resized(self, size: usize) -> Block {
        let (Block(start, layout, mark), kept) = (&self, size.min(self.1.size()));
        // SAFETY: as it was allocated.
        let start = unsafe { realloc(*start, *layout, size) };
        let block = Block(start, Layout::from_size_align(size, layout.align()).unwrap(), *mark);
        std::mem::forget(self);
        assert!(block.is_whole(kept), "{:?} lost its contents", block.1);
        // SAFETY: ours.
        unsafe { start.write_bytes(block.2, size) };
        block
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        assert!(self.is_whole(self.1.size()), "{:?} overlaps another block", self.1);
        // SAFETY: as it was allocated.
        unsafe { dealloc(self.0, self.1) };
    }
}

#[test]
fn blocks_have_the_requested_size_and_alignment_and_do_not_overlap() {
    let sizes = (1..2000).chain((2000..300_000).step_by(997)).chain([65_535, 65_536, 65_537]);
    let blocks: Vec<_> = sizes
        .flat_map(|size| [1, 16, 64, 4096].map(|align| Block::new(size, align, size as u8)))
        .collect();
    drop(blocks);
    drop(Block::new(100, 65_536, 1));
}

#[test]
fn realloc_keeps_the_contents() {
    let mut seed = 7;
    let mut block = Block::new(1, 1, 9);
    for _ in 0..2000 {
        block = block.resized(random(&mut seed) % 200_000 + 1);
    }
}

#[test]
fn alloc_zeroed_returns_zeroes() {
    for size in [1, 100, 5000, 70_000, 3 << 20] {
        for _ in 0..20 {
            drop(Block::new(size, 16, 0xff));
            let layout = Layout::from_size_align(size, 16).unwrap();
            // SAFETY: the size is not zero.
            let block = Block(unsafe { alloc_zeroed(layout) }, layout, 0);
            assert!(block.is_whole(size));
        }
    }
}

/// Threads that pass each other blocks, whose memory is reused all the time.
fn traffic(rounds: usize) {
    const THREADS: usize = 4;
    let (to, from): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel::<Block>()).unzip();
    let start = &Barrier::new(THREADS);
    thread::scope(|scope| {
        for (at, from) in from.into_iter().enumerate() {
            let to = to[(at + 1) % THREADS].clone();
            scope.spawn(move || {
                let mut seed = 77 + at as u64;
                let mut kept = VecDeque::new();
                start.wait();
                for _ in 0..rounds {
                    let size = 1 << (random(&mut seed) % 14);
                    let block = Block::new(size + random(&mut seed) % size, 8, seed as u8);
                    if random(&mut seed).is_multiple_of(2) {
                        let _ = to.send(block);
                    } else {
                        kept.push_back(block);
                    }
                    if kept.len() > 20 {
                        kept.pop_front();
                    }
                    from.try_iter().for_each(drop);
                }
            });
        }
        drop(to);
    });
}

#[test]
fn blocks_that_other_threads_free_are_reused() {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4
    };
    traffic(20_000);
    let before = resident();
    for _ in 0..10 {
        traffic(20_000);
    }
    // Other tests, and channels that fall behind, take some memory.
    assert!(resident() < before + (64 << 10), "{before} KiB, then {} KiB", resident());
}

#[test]
#[ignore = "a minute"]
fn blocks_that_other_threads_free_are_reused_for_a_minute() {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while std::time::Instant::now() < end {
        traffic(100_000);
    }
}

/// A child has the memory as it was at the fork, and none of the threads that used it.
#[test]
fn a_child_forked_during_traffic_can_allocate() {
    let stop = &std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 1..3 {
            scope.spawn(move || {
                let mut seed = seed;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    drop(Block::new(random(&mut seed) % 5000 + 1, 8, 3));
                }
            });
        }
        for round in 0..200 {
            // SAFETY: the child allocates, which is the point of the test, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let mut seed = round + 1;
                let blocks: Vec<_> =
                    (0..100).map(|_| Block::new(random(&mut seed) % 5000 + 1, 8, 5)).collect();
                let whole = blocks.iter().all(|block| block.is_whole(block.1.size()));
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!whole)) };
            }
            let mut status = 0;
            // SAFETY: our own child.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// In a child, as the limit is the process's.
#[test]
fn without_memory_of_the_kernel_the_reserve_and_then_larger_blocks_serve() {
    const RESERVE: usize = 8 << 20;
    // SAFETY: the child allocates, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        memory::prepare();
        let mut kept = Vec::with_capacity(2 * RESERVE / 1024);
        let larger: Vec<_> = (0..4000).map(|_| Block::new(2000, 8, 1)).collect();
        let (started, is_started) = mpsc::channel();
        let freed_later = thread::spawn(move || {
            let _ = started.send(());
            thread::sleep(std::time::Duration::from_millis(100));
            drop(larger);
        });
        // Until then it needs memory of its own.
        let _ = is_started.recv();
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid limit.
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const none) };
        let was_short = memory::is_short();
        let large = Block::new(3 << 20, 8, 2);
        // More than the reserve and the rest of the last chunk: the last ones wait for the thread above.
        kept.extend((0..(RESERVE + (3 << 19)) / 1024).map(|_| Block::new(1000, 8, 3)));
        let is_good = !was_short
            && memory::is_short()
            && large.is_whole(3 << 20)
            && kept.iter().all(|block| block.is_whole(1000))
            && freed_later.join().is_ok();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!is_good)) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}
