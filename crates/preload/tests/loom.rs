//! Every interleaving of the list of free blocks, by loom, up to a stated number of preemptions.

#[path = "../src/memory/free_list.rs"]
mod free_list;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

use free_list::{FreeList, Links};
use loom::{model::Builder, sync::Arc, thread};
use sync::{AtomicU32, AtomicU64, Ordering};

/// The blocks of a model, and whether each is taken.
struct Blocks {
    list: FreeList,
    links: [AtomicU32; 4],
    taken: [AtomicU32; 4],
}

impl Links for Blocks {
    fn link(&self, index: u32) -> &AtomicU32 {
        &self.links[index as usize]
    }
}

impl Blocks {
    fn new(free: u32) -> Arc<Blocks> {
        let blocks = Blocks {
            list: FreeList(AtomicU64::new(0)),
            links: std::array::from_fn(|_| AtomicU32::new(0)),
            taken: std::array::from_fn(|_| AtomicU32::new(1)),
        };
        (1..=free).for_each(|block| blocks.give(block));
        Arc::new(blocks)
    }

    /// Takes a block, checks that no other thread has it, and overwrites its link as an owner may.
    fn take(&self) -> Option<u32> {
        let block = self.list.pop(self)?;
        assert_eq!(self.taken[block as usize].swap(1, Ordering::Relaxed), 0, "taken twice");
        self.links[block as usize].store(3, Ordering::Relaxed);
        Some(block)
    }

    fn give(&self, block: u32) {
        self.taken[block as usize].store(0, Ordering::Relaxed);
        self.list.push(self, block, block);
    }

    fn count(&self) -> usize {
        std::iter::from_fn(|| self.take()).count()
    }
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(model);
}

#[test]
fn no_block_is_lost_or_taken_twice() {
    explore(|| {
        let blocks = Blocks::new(2);
        let other = blocks.clone();
        let thread = thread::spawn(move || {
            let (one, two) = (other.take(), other.take());
            one.into_iter().chain(two).for_each(|block| other.give(block));
        });
        if let Some(block) = blocks.take() {
            blocks.give(block);
        }
        thread.join().unwrap();
        assert_eq!(blocks.count(), 2);
    });
}

/// While one thread is about to take the first block, another takes the first two and returns the first (ABA).
#[test]
fn a_returned_block_does_not_bring_back_its_old_successor() {
    explore(|| {
        let blocks = Blocks::new(3);
        let other = blocks.clone();
        let thread = thread::spawn(move || {
            let (one, two) = (other.take(), other.take());
            one.into_iter().for_each(|block| other.give(block));
            two
        });
        let mine = blocks.take();
        let theirs = thread.join().unwrap();
        let held = usize::from(mine.is_some()) + usize::from(theirs.is_some());
        assert_eq!(blocks.count() + held, 3);
    });
}

#[test]
fn a_batch_of_blocks_is_pushed_at_once() {
    explore(|| {
        let blocks = Blocks::new(1);
        let other = blocks.clone();
        let thread = thread::spawn(move || {
            (2..4).for_each(|block| other.taken[block].store(0, Ordering::Relaxed));
            other.links[2].store(3, Ordering::Relaxed);
            other.list.push(&*other, 2, 3);
        });
        let mine = [blocks.take(), blocks.take()].into_iter().flatten().count();
        thread.join().unwrap();
        assert_eq!(blocks.count() + mine, 3);
    });
}
