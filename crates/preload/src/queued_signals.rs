//! Queued signals (signal(7), real-time signals) are handled in the order in which they came. A signal that is put off
//! is made pending again, behind those that have come meanwhile. So the kernel's queue gives the count, and this module
//! the order: when the kernel delivers any of them, the first in our queue is handled.
//!
//! Holds what was put off during one call, seldom more than one signal. Beyond [`MOST`] the order may be lost. Two
//! signals with the same value cannot be told apart.

use libc::{c_int, siginfo_t};
use std::cell::Cell;

/// The kernel's first real-time signal; the C library keeps some for itself.
const FIRST: c_int = 32;

const MOST: usize = 4;

/// The part of a `siginfo_t` that identifies a queued signal: its number, sender and value. Queued signals use no other
/// part.
type Info = [u64; 4];

/// `waiting`: the signals not yet handled, in the order they came. `again`: the signals that are pending in the kernel
/// again. Both have the same count, but not the same members once some are handled.
#[derive(Clone, Copy)]
struct Queue {
    waiting: [Info; MOST],
    again: [Info; MOST],
    count: usize,
}

const EMPTY: Queue = Queue { waiting: [[0; 4]; MOST], again: [[0; 4]; MOST], count: 0 };

local! {
    static QUEUE: Cell<Queue> = Cell::new(EMPTY);
    /// `QUEUE.count`, cheaper to read.
    static COUNT: Cell<usize> = Cell::new(0);
}

const _: () = assert!(size_of::<siginfo_t>() >= size_of::<Info>() && align_of::<siginfo_t>() >= 8);

fn info_of(info: &siginfo_t) -> Info {
    // SAFETY: plain data, long enough.
    unsafe { std::ptr::from_ref(info).cast::<Info>().read() }
}

/// `signal` has come, and is made pending again. Called by the handler, as [`next`] is.
pub(crate) fn put_off(signal: c_int, info: &siginfo_t) {
    if signal < FIRST {
        return;
    }
    let (mut queue, info) = (QUEUE.get(), info_of(info));
    let Queue { waiting, again, count } = &mut queue;
    // A signal that was put off before keeps its place.
    if *count < MOST && !again[..*count].contains(&info) {
        (waiting[*count], again[*count]) = (info, info);
        *count += 1;
        set(queue);
    }
}

/// `signal` has come and is to be handled now: replaces it by the first in our queue.
#[inline]
pub(crate) fn next(signal: c_int, info: &mut siginfo_t) {
    if COUNT.get() > 0 && signal >= FIRST {
        change(signal, info);
    }
}

#[cold]
fn change(signal: c_int, info: &mut siginfo_t) {
    let (mut queue, came) = (QUEUE.get(), info_of(info));
    let Queue { waiting, again, count } = &mut queue;
    let (waiting, again) = (&mut waiting[..*count], &mut again[..*count]);
    let Some(first) = waiting.iter().position(|info| info[0] as c_int == signal) else { return };
    let turn = waiting[first];
    waiting[first..].rotate_left(1);
    match again.iter().position(|info| *info == came) {
        Some(at) => {
            again[at..].rotate_left(1);
            *count -= 1;
        }
        None => {
            if let Some(last) = waiting.last_mut() {
                *last = came;
            }
        }
    }
    set(queue);
    // SAFETY: plain data of the same kind, long enough.
    unsafe { std::ptr::from_mut(info).cast::<Info>().write(turn) };
}

fn set(queue: Queue) {
    QUEUE.set(queue);
    COUNT.set(queue.count);
}

/// No signal is put off any more.
#[inline]
pub(crate) fn forget() {
    if COUNT.get() > 0 {
        set(EMPTY);
    }
}
