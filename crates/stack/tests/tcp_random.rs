//! Random steps of a TCP connection, its peer, time and an off-path sender: the same in every run. `tcp_walk` has the
//! steps and the invariants; `fuzz/run connection` continues from here.

mod tcp_walk;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicIsize, Ordering},
};

/// Counts the bytes in use: memory that `Memory` does not count must be limited too.
struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: all calls go to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// xorshift64*.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
    };
    (0..len).map(next).collect()
}

#[test]
fn random_steps_break_no_invariant_and_leak_no_memory() {
    let before = LIVE.load(Ordering::Relaxed);
    let (mut states, mut read, mut acked, mut sent_again) = (Vec::new(), 0, 0, 0);
    for seed in 0..1500 {
        let steps = bytes(seed, 100 + (seed as usize % 8) * 300);
        let result = std::panic::catch_unwind(|| tcp_walk::walk(&steps));
        let Ok(seen) = result else { panic!("seed {seed}") };
        for state in seen.states {
            if !states.contains(&state) {
                states.push(state);
            }
        }
        read += seen.read;
        acked += seen.acked;
        sent_again += seen.sent_again;
        // Only the chunks that a thread keeps for the next connection may stay.
        let kept = LIVE.load(Ordering::Relaxed) - before;
        assert!(kept < 4 << 20, "seed {seed}: {kept} bytes");
    }
    // Otherwise nothing was tested.
    println!("{states:?}, {read} bytes read, {acked} acknowledged, {sent_again} sent again");
    assert!(states.len() == 10 && read > 1_000_000 && acked > 1_000_000 && sent_again > 100);
}
