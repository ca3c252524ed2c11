//! The frames of a queue that two processes share. Each process is a thread that may end before any of its stores, and
//! the guard then collects what it had, while the other goes on. No frame is lost, and none is in two places.

use crate::{
    check,
    frames::{Completion, Control, Fill},
    sync::{AtomicU32, Ordering, ends_after},
};
use loom::{sync::Arc, thread};

const RING: usize = 8;

/// A ring of the kernel's.
struct Ring {
    producer: AtomicU32,
    consumer: AtomicU32,
    entries: [AtomicU32; RING],
}

impl Ring {
    /// With these entries.
    fn of(entries: &[u32]) -> Ring {
        let entry = |at| AtomicU32::new(entries.get(at).copied().unwrap_or(0));
        Ring {
            producer: AtomicU32::new(entries.len() as u32),
            consumer: AtomicU32::new(0),
            entries: std::array::from_fn(entry),
        }
    }

    fn entry(&self, at: u32) -> &AtomicU32 {
        &self.entries[at as usize % RING]
    }

    /// What is on it.
    fn content(&self) -> Vec<u32> {
        let (from, to) =
            (self.consumer.load(Ordering::Acquire), self.producer.load(Ordering::Acquire));
        (from..to).map(|at| self.entry(at).load(Ordering::Relaxed)).collect()
    }
}

impl Fill for Ring {
    fn producer(&self) -> u32 {
        self.producer.load(Ordering::Relaxed)
    }

    fn write(&self, at: u32, frame: u32) {
        self.entry(at).store(frame, Ordering::Relaxed);
    }

    fn publish(&self, producer: u32) {
        self.producer.store(producer, Ordering::Release);
    }
}

impl Completion for Ring {
    fn producer(&self) -> u32 {
        self.producer.load(Ordering::Acquire)
    }

    fn consumer(&self) -> u32 {
        self.consumer.load(Ordering::Relaxed)
    }

    fn read(&self, at: u32) -> u32 {
        self.entry(at).load(Ordering::Relaxed)
    }

    fn release(&self, consumer: u32) {
        self.consumer.store(consumer, Ordering::Release);
    }
}

type Shared = Control<2, 2, 1, 2>;

/// Two frames of each slot: 0 and 1, 2 and 3.
fn owner(frame: u32) -> Option<(usize, usize)> {
    Some((frame as usize / 2, frame as usize % 2))
}

struct Queue {
    control: Shared,
    fill: Ring,
    completion: Ring,
    /// The RX rings.
    rx: [Ring; 2],
}

impl Queue {
    /// A pass of a process: it takes the frames off its RX ring, and returns them to the fill ring if it can.
    fn pass(&self, slot: usize) {
        let rx = &self.rx[slot];
        let came = rx.content();
        for (held, frame) in came.iter().enumerate() {
            self.control.hold(slot, held, *frame);
        }
        self.control.set_held(slot, came.len());
        rx.consumer.store(came.len() as u32, Ordering::Release);
        self.refill(slot);
    }

    fn refill(&self, slot: usize) {
        if !self.control.refill(slot, &self.fill) {
            thread::yield_now();
            self.control.refill(slot, &self.fill);
        }
    }

    /// The guard collects the receive frames of an ended process.
    fn collect(&self, slot: usize) -> Vec<u32> {
        let mut had = self.rx[slot].content();
        self.control.release_locks(slot, &self.fill, &self.completion, owner);
        self.control.take_held(slot, |frame| had.push(frame));
        had.sort_unstable();
        had.dedup();
        had
    }
}

#[test]
fn no_receive_frame_is_lost_or_doubled_wherever_a_process_ends() {
    for steps in 0..16 {
        check(Some(3), move || {
            let queue = Arc::new(Queue {
                control: Shared::new(),
                fill: Ring::of(&[]),
                completion: Ring::of(&[]),
                rx: [Ring::of(&[0, 1]), Ring::of(&[2, 3])],
            });
            let other = {
                let queue = queue.clone();
                thread::spawn(move || queue.pass(1))
            };
            ends_after(steps, || queue.pass(0));
            let mut all = queue.collect(0);
            other.join().unwrap();
            // Nothing keeps the other from returning its frames now.
            queue.refill(1);
            all.extend(queue.fill.content());
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3], "ended after {steps} stores");
        });
    }
}

#[test]
fn frames_that_the_guard_gives_come_into_circulation_once() {
    for steps in 0..18 {
        check(Some(3), move || {
            let queue = Queue {
                control: Shared::new(),
                fill: Ring::of(&[]),
                completion: Ring::of(&[]),
                rx: [Ring::of(&[]), Ring::of(&[])],
            };
            queue.control.give(0, [0, 1].into_iter());
            ends_after(steps, || {
                while queue.control.take_given(0) {
                    queue.refill(0);
                }
            });
            let mut all = queue.collect(0);
            all.extend(queue.fill.content());
            all.sort_unstable();
            assert_eq!(all, [0, 1], "ended after {steps} stores");
        });
    }
}

#[test]
fn each_transmit_frame_returns_to_its_process_once() {
    for steps in 0..14 {
        check(Some(3), move || {
            let queue = Arc::new(Queue {
                control: Shared::new(),
                fill: Ring::of(&[]),
                completion: Ring::of(&[2, 0, 3, 1]),
                rx: [Ring::of(&[]), Ring::of(&[])],
            });
            let clean = |queue: &Queue| {
                let mut own = Vec::new();
                queue.control.clean(1, &queue.completion, owner, |bit| own.push(bit));
                own
            };
            let other = {
                let queue = queue.clone();
                thread::spawn(move || clean(&queue))
            };
            let mut ended = 0;
            ends_after(steps, || {
                queue.control.clean(0, &queue.completion, owner, |_| ended += 1);
            });
            queue.collect(0);
            let mut own = other.join().unwrap();
            own.extend(clean(&queue));
            own.sort_unstable();
            assert_eq!(own, [0, 1], "ended after {steps} stores");
            // The next process of the slot begins with all its frames free, whatever is marked.
            assert!(queue.control.clean(0, &queue.completion, owner, |_| {}));
            let mut late = 0;
            assert!(queue.control.clean(0, &queue.completion, owner, |_| late += 1));
            assert_eq!(late, 0);
        });
    }
}
