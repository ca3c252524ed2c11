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
/// The models of `frames`.
#[path = "loom/frames.rs"]
mod frame_models;
#[path = "../src/nic/xdp/frames.rs"]
mod frames;
#[path = "loom/handoff.rs"]
mod handoff;
#[path = "../src/inet/hash.rs"]
mod hash;
#[path = "../src/lock.rs"]
mod lock;
/// The model of `lock`.
#[path = "loom/lock.rs"]
mod lock_model;
#[path = "loom/lookup.rs"]
mod lookup;
#[path = "loom/napi.rs"]
mod napi;
#[path = "loom/nic.rs"]
mod nic;
#[path = "../src/inet/tcp/ownership.rs"]
mod ownership;
/// The models of `ownership`.
#[path = "loom/ownership.rs"]
mod ownership_models;
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
#[path = "../src/inet/tcp/waited.rs"]
mod waited;
/// The models of `waited`.
#[path = "loom/waited.rs"]
mod waited_models;
#[path = "loom/waiter.rs"]
mod waiter;
mod wire {
    pub(crate) use busypoll_stack::wire::Data;
}
#[path = "loom/word.rs"]
mod word;

/// `src/sync.rs` over loom.
mod sync {
    pub(crate) use loom::{
        cell::UnsafeCell,
        sync::{
            Arc, Mutex, MutexGuard,
            atomic::{AtomicPtr, Ordering, fence},
        },
        thread::yield_now as spin_wait,
    };
    use std::{cell::Cell, ops::Deref, panic};

    pub(crate) const LOOKS: u32 = 1;

    loom::thread_local! {
        /// How many stores the thread may still make: it is a process that ends before the next one.
        static LEFT: Cell<Option<u32>> = Cell::new(None);
    }

    /// What ends such a process.
    struct Ended;

    /// Runs a process that ends before any further store after that many, if it makes so many.
    pub(crate) fn ends_after(stores: u32, process: impl FnOnce()) {
        LEFT.with(|left| left.set(Some(stores)));
        let ended = panic::catch_unwind(panic::AssertUnwindSafe(process));
        LEFT.with(|left| left.set(None));
        if let Err(cause) = ended
            && !cause.is::<Ended>()
        {
            panic::resume_unwind(cause);
        }
    }

    /// A step before which such a process may end.
    pub(crate) fn step() {
        let _ = LEFT.try_with(|left| match left.get() {
            Some(0) => panic::resume_unwind(Box::new(Ended)),
            Some(more) => left.set(Some(more - 1)),
            None => {}
        });
    }

    /// Loom's atomic, whose stores are steps of a process that may end.
    macro_rules! atomic {
        ($name:ident, $of:ty) => {
            #[derive(Debug, Default)]
            pub(crate) struct $name(loom::sync::atomic::$name);

            impl $name {
                pub(crate) fn new(value: $of) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                pub(crate) fn store(&self, value: $of, order: Ordering) {
                    step();
                    self.0.store(value, order);
                }

                pub(crate) fn swap(&self, value: $of, order: Ordering) -> $of {
                    step();
                    self.0.swap(value, order)
                }

                pub(crate) fn fetch_or(&self, value: $of, order: Ordering) -> $of {
                    step();
                    self.0.fetch_or(value, order)
                }

                pub(crate) fn compare_exchange(
                    &self,
                    from: $of,
                    to: $of,
                    done: Ordering,
                    failed: Ordering,
                ) -> Result<$of, $of> {
                    step();
                    self.0.compare_exchange(from, to, done, failed)
                }
            }

            impl Deref for $name {
                type Target = loom::sync::atomic::$name;

                fn deref(&self) -> &Self::Target {
                    &self.0
                }
            }
        };
    }

    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);

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
