//! The ownership word: one owner at a time, disable is final, no refusal is lost.

use crate::{
    check,
    napi::word::{Refused, Word},
    sync::{Arc, AtomicU32, Ordering, UnsafeCell, spin_wait},
};
use loom::thread;

struct Queue {
    word: Word,
    /// The data that the word guards; loom reports two concurrent accesses.
    taken: UnsafeCell<u32>,
    ring: AtomicU32,
}

// SAFETY: `taken` is accessed only by the owner, which the models prove.
unsafe impl Sync for Queue {}
// SAFETY: not bound to a thread.
unsafe impl Send for Queue {}

impl Queue {
    fn enabled() -> Arc<Queue> {
        let word = Word::new();
        word.enable();
        Arc::new(Queue { word, taken: UnsafeCell::new(0), ring: AtomicU32::new(0) })
    }

    /// One pass; the caller owns the queue.
    fn take(&self) {
        let found = self.ring.swap(0, Ordering::Relaxed);
        // SAFETY: the caller owns the queue.
        self.taken.with_mut(|taken| unsafe { *taken += found });
    }

    fn taken(&self) -> u32 {
        // SAFETY: every other thread has ended.
        self.taken.with(|taken| unsafe { *taken })
    }
}

#[test]
fn one_owner_at_a_time_and_no_yield_mark_outlives_it() {
    check(Some(3), || {
        let queue = Queue::enabled();
        let poll = |queue: Arc<Queue>| {
            move || {
                if queue.word.lock_poll().is_ok() {
                    queue.take();
                    queue.word.unlock();
                }
            }
        };
        let pollers = [(); 2].map(|()| thread::spawn(poll(queue.clone())));
        if queue.word.lock_napi().is_ok() {
            queue.take();
            queue.word.unlock();
        }
        pollers.into_iter().for_each(|poller| poller.join().unwrap());
        // A mark left on the idle word would show in the next release.
        queue.word.lock_poll().unwrap();
        let released = queue.word.unlock();
        assert!(!released.napi_yield && !released.poll_yield, "stale: {released:?}");
    });
}

#[test]
fn disabled_means_no_owner_until_enabled() {
    check(None, || {
        let queue = Queue::enabled();
        let poller = {
            let queue = queue.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    if queue.word.lock_poll().is_ok() {
                        queue.take();
                        queue.word.unlock();
                    }
                }
            })
        };
        while !queue.word.disable() {
            spin_wait();
        }
        // The word is disabled: access without ownership is safe.
        queue.take();
        assert_eq!(queue.word.lock_napi(), Err(Refused::Disabled));
        queue.take();
        queue.word.enable();
        poller.join().unwrap();
        queue.word.lock_napi().unwrap();
        let released = queue.word.unlock();
        assert!(!released.napi_yield && !released.poll_yield, "stale: {released:?}");
    });
}

#[test]
fn no_new_owner_comes_while_disable_waits_for_the_old_one() {
    check(None, || {
        let queue = Queue::enabled();
        let asked = Arc::new(AtomicU32::new(0));
        let poller = {
            let (queue, asked) = (queue.clone(), asked.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let too_late = asked.load(Ordering::Acquire) == 1;
                    if queue.word.lock_poll().is_ok() {
                        assert!(!too_late);
                        queue.word.unlock();
                    }
                }
            })
        };
        let _ = queue.word.disable();
        asked.store(1, Ordering::Release);
        poller.join().unwrap();
        assert!(queue.word.disable());
    });
}

/// The word alone ensures that no packet is left: the owner polls again if the release reports a refusal. (A `Context`
/// works differently: its refused interrupt thread watches the queue, which `handoff.rs` models.)
#[test]
fn a_refused_interrupt_is_served_by_the_owner() {
    check(None, || {
        let queue = Queue::enabled();
        let poller = {
            let queue = queue.clone();
            thread::spawn(move || {
                if queue.word.lock_poll().is_ok() {
                    queue.take();
                    if queue.word.unlock().napi_yield && queue.word.lock_poll().is_ok() {
                        queue.take();
                        queue.word.unlock();
                    }
                }
            })
        };
        // A packet comes, then its interrupt.
        queue.ring.fetch_add(1, Ordering::Relaxed);
        if queue.word.lock_napi().is_ok() {
            queue.take();
            queue.word.unlock();
        }
        poller.join().unwrap();
        assert_eq!(queue.taken(), 1, "the packet is still on the ring");
    });
}

#[test]
fn a_release_reports_exactly_the_refused_sides() {
    check(None, || {
        let queue = Queue::enabled();
        queue.word.lock_poll().unwrap();
        let napi = {
            let queue = queue.clone();
            thread::spawn(move || {
                let refused = queue.word.lock_napi().is_err();
                if !refused {
                    queue.word.unlock();
                }
                refused
            })
        };
        let poller = {
            let queue = queue.clone();
            thread::spawn(move || {
                let refused = queue.word.lock_poll().is_err();
                let reported = if refused { false } else { queue.word.unlock().napi_yield };
                (refused, reported)
            })
        };
        let released = queue.word.unlock();
        let napi_refused = napi.join().unwrap();
        let (_, reported) = poller.join().unwrap();
        assert_eq!(released.napi_yield || reported, napi_refused);
    });
}
