//! All interleavings of the NAPI protocols, of lookups against changes, and of timed work, explored by loom. The
//! product's own files are compiled here a second time, over loom's atomics (`sync`) and over a kernel that blocks in
//! loom (`sys`).
//!
//! Not explored: timers (a timed sleep ends as soon as nothing is ready), and, where a model sets a bound, schedules
//! with more preemptions.

#![allow(dead_code, reason = "product files are compiled whole, models use a part of them")]

#[path = "loom/cable.rs"]
mod cable;
#[path = "../src/inet/deadline.rs"]
mod deadline;
#[path = "loom/handoff.rs"]
mod handoff;
#[path = "../src/inet/hash.rs"]
mod hash;
#[path = "loom/lookup.rs"]
mod lookup;
#[path = "loom/napi.rs"]
mod napi;
#[path = "loom/nic.rs"]
mod nic;
#[path = "../src/pool.rs"]
mod pool;
#[path = "../src/inet/rcu.rs"]
mod rcu;
#[path = "loom/sys.rs"]
mod sys;
#[path = "loom/table.rs"]
mod table;
#[path = "loom/tick.rs"]
mod tick;
#[path = "loom/waiter.rs"]
mod waiter;
#[path = "loom/word.rs"]
mod word;

/// `src/sync.rs` over loom.
mod sync {
    pub(crate) use loom::{
        cell::UnsafeCell,
        sync::{
            Arc, Mutex, MutexGuard,
            atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
        },
        thread::yield_now as spin_wait,
    };

    /// All threads want the same slot first.
    pub(crate) fn thread_number() -> usize {
        0
    }

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }
}

/// `src/time.rs` with a clock that stands still until a timed sleep ends.
mod time {
    pub use busypoll_stack::time::Instant;
    use std::{cell::Cell, time::Duration};

    // One model runs on one system thread, with all of loom's threads.
    std::thread_local!(static CLOCK: Cell<Instant> = const { Cell::new(Instant::ZERO) });

    pub(crate) fn now() -> Instant {
        CLOCK.get()
    }

    pub(crate) fn pass(span: Duration) {
        CLOCK.set(now() + span);
    }

    pub(crate) fn restart() {
        CLOCK.set(Instant::from_millis(1_000));
    }
}

/// Runs a model; `preemptions` limits how often a thread is preempted, `None`: no limit.
fn check(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 5_000;
    builder.check(move || {
        time::restart();
        model();
    });
}
