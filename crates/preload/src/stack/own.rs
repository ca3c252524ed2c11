//! The descriptors the library holds for itself: those of the rings, the eventfds, the kernel's half of sockets. They
//! stand above the numbers a program uses, and a program that closes whatever it finds does not close them.
//!
//! The stack makes them by plain calls of the C library, which come here: what is made inside is the library's own.

use super::{copy, wait};
use crate::{
    cancel, fds,
    inside::{Inside, is_inside},
    kernel, real,
};
use libc::{c_int, c_long, c_void};
use std::{
    cell::Cell,
    sync::atomic::{AtomicI32, AtomicU32, Ordering},
};

/// Own descriptors are not below this, if that can be had; 0: not known yet.
static FLOOR: AtomicI32 = AtomicI32::new(0);

/// Above what select(2) can name, if the limit allows that, else in the highest quarter.
fn floor() -> c_int {
    let known = FLOOR.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for the answer.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let floor = match limit.rlim_cur {
        2048.. => 1024,
        few => c_int::try_from(few / 4 * 3).unwrap_or(768),
    };
    FLOOR.store(floor, Ordering::Relaxed);
    floor
}

/// `fd`, which was made just now, is the library's own: its number from now on.
pub fn keep(fd: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    // SAFETY: our own descriptor; the copy is, too.
    let moved = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor() as usize) };
    let kept = if moved < 0 { fd } else { moved };
    if moved >= 0 {
        // SAFETY: nobody else has it yet.
        unsafe { real::close(fd) };
    }
    fds::set_own(kept);
    kept
}

fn kept_if_inside(fd: c_int) -> c_int {
    if fd >= 0 && is_inside() { keep(fd) } else { fd }
}

local! {
    static MINDED: Cell<bool> = Cell::new(false);
}

/// The key whose destructor hears of a thread's end, and one more than its number; 0: there is none yet.
static KEY: AtomicU32 = AtomicU32::new(0);

/// As many keys stand in the thread itself (`PTHREAD_KEY_2NDLEVEL_SIZE`); for others the C library takes memory of the
/// program's allocator.
const KEYS_AT_HAND: u32 = 32;

/// To be called when the library is loaded, so that its key is among the first.
pub fn prepare() {
    let mut key = 0;
    // SAFETY: a function that lives as long as the library, which is never unloaded.
    let made = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) };
    if made == 0 && key < KEYS_AT_HAND {
        KEY.store(key + 1, Ordering::Relaxed);
    }
}

/// The calling thread has something that is to be given back at its end.
#[inline]
pub fn mind_end() {
    if !MINDED.get() {
        mind();
    }
}

#[cold]
fn mind() {
    let Some(key) = KEY.load(Ordering::Relaxed).checked_sub(1) else { return };
    MINDED.set(true);
    // SAFETY: a key of ours, one of those at hand; any value but null will do.
    unsafe { libc::pthread_setspecific(key, (&raw const KEY).cast()) };
}

/// Lets go of what a thread has of us. What the thread does after this has it called once more.
extern "C" fn thread_ends(_: *mut c_void) {
    MINDED.set(false);
    let inside = Inside::enter();
    cancel::leave();
    if inside.is_some() {
        wait::leave_thread();
        copy::leave_thread();
    }
}

/// The calling thread is about to sleep in the stack for the first time.
pub fn first_sleep() {
    mind_end();
    // It is known until it ends, which must be heard of.
    if MINDED.get() {
        cancel::enlist();
    }
}

/// # Safety
/// That of eventfd(2).
pub unsafe fn eventfd(initial: u32, flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    kept_if_inside(unsafe { real::eventfd(initial, flags) })
}

/// # Safety
/// That of timerfd_create(2).
pub unsafe fn timerfd_create(clock: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    kept_if_inside(unsafe { real::timerfd_create(clock, flags) })
}

/// # Safety
/// That of epoll_create1(2).
pub unsafe fn epoll_create1_other(flags: c_int) -> c_int {
    if is_inside() {
        // SAFETY: the caller's contract.
        return keep(unsafe { real::epoll_create1(flags) });
    }
    // SAFETY: the caller's contract.
    unsafe { kernel::epoll_create1(flags) }
}

/// The commands of bpf(2) that return a descriptor, of those we use: map, program, link.
const BPF_MAKES: [usize; 3] = [0, 5, 28];

/// What `syscall` returned, for a call by number.
pub fn syscall_made(number: c_long, command: usize, result: c_long) -> c_long {
    match c_int::try_from(result) {
        Ok(fd) if number == libc::SYS_bpf && BPF_MAKES.contains(&command) => {
            kept_if_inside(fd).into()
        }
        _ => result,
    }
}
