//! Timed work that is added while other work is done. The deadline is the product's file. The thread that does the work
//! then sleeps until the deadline it got.

use crate::{
    check,
    deadline::Deadline,
    sync::{Arc, Mutex, lock},
    time::Instant,
};
use loom::thread;

const NOW: Instant = Instant::from_millis(10);
const SOON: Instant = Instant::from_millis(20);
const LATER: Instant = Instant::from_millis(30);

struct Work {
    deadline: Deadline,
    due: Mutex<Vec<Instant>>,
}

impl Work {
    /// One item is due.
    fn new() -> Arc<Work> {
        let work = Work { deadline: Deadline::never(), due: Mutex::new(vec![NOW]) };
        assert!(work.deadline.set(NOW));
        Arc::new(work)
    }

    /// As `Inet::tick`: returns until when its caller sleeps.
    fn tick(&self) -> Option<Instant> {
        if self.deadline.begin(NOW) {
            lock(&self.due).retain(|at| *at > NOW);
            let next = lock(&self.due).iter().min().copied();
            self.deadline.end(next);
        }
        self.deadline.next()
    }

    /// Adds an item. True if the sleeping thread must be kicked.
    fn add(&self, at: Instant) -> bool {
        lock(&self.due).push(at);
        self.deadline.set(at)
    }
}

#[test]
#[ignore = "long: half a minute of interleavings"]
fn work_added_during_a_tick_shortens_its_sleep_or_kicks() {
    check(None, || {
        let work = Work::new();
        let adders = [SOON, LATER].map(|at| {
            let work = work.clone();
            thread::spawn(move || work.add(at))
        });
        let sleeps_until = work.tick();
        let called = adders.map(|adder| adder.join().unwrap());
        let in_time = sleeps_until.is_some_and(|until| until <= SOON);
        assert!(in_time || called[0], "{sleeps_until:?} {called:?}");
    });
}

#[test]
fn work_added_while_two_threads_tick_shortens_a_sleep_or_kicks() {
    check(Some(2), || {
        let work = Work::new();
        let (other, adder) = (work.clone(), work.clone());
        let other = thread::spawn(move || other.tick());
        let adder = thread::spawn(move || adder.add(SOON));
        let sleep = [work.tick(), other.join().unwrap()];
        let in_time = sleep.iter().flatten().any(|until| *until <= SOON);
        assert!(adder.join().unwrap() || in_time, "{sleep:?}");
    });
}

#[test]
fn a_tick_that_adds_work_itself_gets_no_kick() {
    check(None, || {
        let work = Work::new();
        assert!(work.deadline.begin(NOW));
        assert!(!work.add(SOON));
        work.deadline.end(Some(LATER));
        assert_eq!(work.deadline.next(), Some(SOON));
        assert!(!work.add(LATER) && work.add(NOW));
    });
}
