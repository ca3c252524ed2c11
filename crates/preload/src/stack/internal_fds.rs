//! The descriptors that the library holds for itself: those of the rings, the eventfds, the companions that the stack
//! makes. They are above the numbers that a program uses, and a program that closes every descriptor does not close
//! them.
//!
//! The stack makes them by plain calls of the C library, which come to our hooks: a descriptor that is made inside is
//! the library's own.

use super::{copy, wait};
use crate::{
    inside::{Inside, cancel, is_inside},
    kernel, real,
    stack::FILES,
};
use libc::{c_int, c_long, c_void};
use std::{
    cell::Cell,
    sync::atomic::{AtomicI32, AtomicU32, Ordering},
};

/// The lowest number for own descriptors, where possible; 0: not computed yet.
static FLOOR: AtomicI32 = AtomicI32::new(0);

/// Above what select(2) can name, if the limit allows that, else in the highest quarter.
fn floor() -> c_int {
    let known = FLOOR.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid pointer for the answer.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let floor = match limit.rlim_cur {
        2048.. => 1024,
        few => c_int::try_from(few / 4 * 3).unwrap_or(768),
    };
    FLOOR.store(floor, Ordering::Relaxed);
    floor
}

/// `fd`, just made, becomes one of the library's own; returns its new number.
pub fn make_internal(fd: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    // SAFETY: our own descriptor, and so is the copy.
    let moved = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor() as usize) };
    let kept = if moved < 0 { fd } else { moved };
    if moved >= 0 {
        // SAFETY: not used elsewhere yet.
        unsafe { real::close(fd) };
    }
    FILES.set_internal(kept);
    kept
}

/// A duplicate of `fd` for the library itself.
pub fn duplicate(fd: c_int) -> c_int {
    // SAFETY: plain system calls, here and below.
    let copy = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor() as usize) };
    if copy < 0 {
        // SAFETY: as above.
        return make_internal(unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) });
    }
    FILES.set_internal(copy);
    copy
}

fn internal_if_inside(fd: c_int) -> c_int {
    if fd >= 0 && is_inside() { make_internal(fd) } else { fd }
}

local! {
    static WATCHED: Cell<bool> = Cell::new(false);
}

/// One more than the key whose destructor runs when a thread ends; 0: there is none.
static KEY: AtomicU32 = AtomicU32::new(0);

/// The values of this many keys are in the thread's own memory (`PTHREAD_KEY_2NDLEVEL_SIZE`); for more the C library
/// calls the program's allocator.
const KEYS_IN_THREAD: u32 = 32;

/// Called when the library is loaded, so that its key is among the first.
pub fn prepare() {
    let mut key = 0;
    // SAFETY: a function that lives as long as the library, which is never unloaded.
    let made = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) };
    if made == 0 && key < KEYS_IN_THREAD {
        KEY.store(key + 1, Ordering::Relaxed);
    }
}

/// The calling thread holds something that must be released when it ends.
#[inline]
pub fn watch_thread_end() {
    if !WATCHED.get() {
        watch();
    }
}

#[cold]
fn watch() {
    let Some(key) = KEY.load(Ordering::Relaxed).checked_sub(1) else { return };
    WATCHED.set(true);
    // SAFETY: a key of ours, one of the first; any value but null will do.
    unsafe { libc::pthread_setspecific(key, (&raw const KEY).cast()) };
}

/// Releases what the library holds for a thread. If the thread makes further calls, this runs once more.
extern "C" fn thread_ends(_: *mut c_void) {
    WATCHED.set(false);
    let inside = Inside::enter();
    cancel::unregister_sleeper();
    if inside.is_some() {
        wait::on_thread_exit();
        copy::on_thread_exit();
    }
}

/// The calling thread is about to sleep in the stack for the first time.
pub fn first_sleep() {
    watch_thread_end();
    // A thread is in the list until it ends, so its end must be noticed.
    if WATCHED.get() {
        cancel::register_sleeper();
    }
}

/// # Safety
/// That of eventfd(2).
pub unsafe fn eventfd(initial: u32, flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    internal_if_inside(unsafe { real::eventfd(initial, flags) })
}

/// # Safety
/// That of timerfd_create(2).
pub unsafe fn timerfd_create(clock: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    internal_if_inside(unsafe { real::timerfd_create(clock, flags) })
}

/// # Safety
/// That of epoll_create1(2).
pub unsafe fn epoll_create1_other(flags: c_int) -> c_int {
    if is_inside() {
        // SAFETY: the caller's contract.
        return make_internal(unsafe { real::epoll_create1(flags) });
    }
    // SAFETY: the caller's contract.
    unsafe { kernel::epoll_create1(flags) }
}

/// The commands of bpf(2), of those we use, that return a descriptor: map, program, link.
const BPF_MAKES: [usize; 3] = [0, 5, 28];

/// Handles the result of a call by number.
pub fn syscall_made(number: c_long, command: usize, result: c_long) -> c_long {
    match c_int::try_from(result) {
        Ok(fd) if number == libc::SYS_bpf && BPF_MAKES.contains(&command) => {
            internal_if_inside(fd).into()
        }
        _ => result,
    }
}
