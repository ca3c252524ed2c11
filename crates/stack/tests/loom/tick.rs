//! Timed work that is laid down while other work is done. The product's file; whoever does the work goes back to
//! sleep until it says.

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
    /// One piece is due.
    fn new() -> Arc<Work> {
        let work = Work { deadline: Deadline::never(), due: Mutex::new(vec![NOW]) };
        assert!(work.deadline.set(NOW));
        Arc::new(work)
    }

    /// As `Inet::tick`: until when its caller sleeps.
    fn tick(&self) -> Option<Instant> {
        if self.deadline.begin(NOW) {
            lock(&self.due).retain(|at| *at > NOW);
            let next = lock(&self.due).iter().min().copied();
            self.deadline.end(next);
        }
        self.deadline.next()
    }

    /// Whether somebody was called.
    fn lay_down(&self, at: Instant) -> bool {
        lock(&self.due).push(at);
        self.deadline.set(at)
    }
}

#[test]
fn work_laid_down_beside_a_tick_is_known_to_its_sleep_or_calls() {
    check(None, || {
        let work = Work::new();
        let layers = [SOON, LATER].map(|at| {
            let work = work.clone();
            thread::spawn(move || work.lay_down(at))
        });
        let sleeps_until = work.tick();
        let called = layers.map(|layer| layer.join().unwrap());
        let in_time = sleeps_until.is_some_and(|until| until <= SOON);
        assert!(in_time || called[0], "{sleeps_until:?} {called:?}");
    });
}

#[test]
fn and_if_two_threads_tick() {
    check(Some(2), || {
        let work = Work::new();
        let (other, layer) = (work.clone(), work.clone());
        let other = thread::spawn(move || other.tick());
        let layer = thread::spawn(move || layer.lay_down(SOON));
        let sleep = [work.tick(), other.join().unwrap()];
        let in_time = sleep.iter().flatten().any(|until| *until <= SOON);
        assert!(layer.join().unwrap() || in_time, "{sleep:?}");
    });
}

#[test]
fn who_ticks_is_not_called_for_what_it_lays_down_itself() {
    check(None, || {
        let work = Work::new();
        assert!(work.deadline.begin(NOW));
        assert!(!work.lay_down(SOON));
        work.deadline.end(Some(LATER));
        assert_eq!(work.deadline.next(), Some(SOON));
        assert!(!work.lay_down(LATER) && work.lay_down(NOW));
    });
}
