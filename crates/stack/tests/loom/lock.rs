//! The lock: one holder at a time, and no thread sleeps on a lock that is free.

use crate::{check, lock::Lock, sync::Arc};
use loom::thread;

/// Each of `threads` adds to the number, `times` over; loom reports a thread that sleeps for ever.
fn add(threads: u32, times: u32) {
    let number = Arc::new(Lock::new(0));
    let others: Vec<_> = (1..threads)
        .map(|_| {
            let number = number.clone();
            thread::spawn(move || (0..times).for_each(|_| *number.lock() += 1))
        })
        .collect();
    (0..times).for_each(|_| *number.lock() += 1);
    others.into_iter().for_each(|other| other.join().unwrap());
    assert_eq!(*number.lock(), threads * times);
}

#[test]
fn two_threads_take_a_lock_in_turn() {
    check(None, || add(2, 2));
}

#[test]
fn of_three_threads_none_is_left_asleep() {
    check(Some(3), || add(3, 1));
}
