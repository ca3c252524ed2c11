//! The descriptors the library holds for itself: those of the rings, the eventfds, the kernel's half of sockets. They
//! stand above the numbers a program uses, and a program that closes whatever it finds does not close them.
//!
//! The stack makes them by plain calls of the C library, which come here: what is made inside is the library's own.

use crate::{
    cancel, fds,
    inside::{Inside, is_inside},
    kernel, real,
};
use libc::{c_int, c_long};
use std::sync::atomic::{AtomicI32, Ordering};

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

/// A thread that sleeps in the stack, which is known until it ends.
struct Thread;

thread_local!(static THREAD: Thread = const { Thread });

impl Drop for Thread {
    fn drop(&mut self) {
        let _inside = Inside::enter();
        cancel::leave();
    }
}

/// The calling thread is about to sleep in the stack for the first time.
pub fn first_sleep() {
    // Known from now on, that is later than what it is to end, and so ended before it.
    let _ = THREAD.try_with(|_| cancel::enlist());
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
