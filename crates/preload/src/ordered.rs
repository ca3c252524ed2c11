//! Signals that are queued (signal(7), real-time signals) are handled in the order in which they came. One that is put off
//! is made pending again, behind those that have come meanwhile: the kernel's queue then says how many there are, and what
//! stands here which comes first. As each is delivered it takes its place at the end, and the first is handled.
//!
//! Holds what was put off during one call, which is seldom more than one: of further ones the order may be lost. One that
//! was sent with the same value twice is like the other.

use libc::{c_int, siginfo_t};
use std::cell::Cell;

/// The first of the real-time signals of the kernel's; the C library keeps some for itself.
const FIRST: c_int = 32;

const MOST: usize = 4;

/// What tells one signal from another: its number, and whence and wherewith it came. The rest of a `siginfo_t` is not used
/// for those that are queued.
type Info = [u64; 4];

/// Which wait for their turn, from the first to come, and which the kernel has again: as many, but not the same once some
/// are handled.
#[derive(Clone, Copy)]
struct Queue {
    waiting: [Info; MOST],
    again: [Info; MOST],
    count: usize,
}

const EMPTY: Queue = Queue { waiting: [[0; 4]; MOST], again: [[0; 4]; MOST], count: 0 };

local! {
    static QUEUE: Cell<Queue> = Cell::new(EMPTY);
    /// Its count.
    static COUNT: Cell<usize> = Cell::new(0);
}

const _: () = assert!(size_of::<siginfo_t>() >= size_of::<Info>() && align_of::<siginfo_t>() >= 8);

fn info_of(info: &siginfo_t) -> Info {
    // SAFETY: plain data, long enough.
    unsafe { std::ptr::from_ref(info).cast::<Info>().read() }
}

/// `signal` has come, and is made pending again. Called in its handler, as the next.
pub(crate) fn put_off(signal: c_int, info: &siginfo_t) {
    if signal < FIRST {
        return;
    }
    let (mut queue, info) = (QUEUE.get(), info_of(info));
    let Queue { waiting, again, count } = &mut queue;
    // One that was put off before has its place.
    if *count < MOST && !again[..*count].contains(&info) {
        (waiting[*count], again[*count]) = (info, info);
        *count += 1;
        set(queue);
    }
}

/// `signal` has come and is to be handled now: becomes the one whose turn it is.
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

/// None is put off any more.
#[inline]
pub(crate) fn forget() {
    if COUNT.get() > 0 {
        set(EMPTY);
    }
}
