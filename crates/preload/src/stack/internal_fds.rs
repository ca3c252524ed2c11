//! The descriptors that the library holds for itself: those of the rings, the eventfds, the companions that the stack
//! makes. They are above the numbers that a program uses, and a program that closes every descriptor does not close
//! them.
//!
//! The stack makes them by plain calls of the C library, which come to our hooks: a descriptor that is made inside is
//! the library's own.

use super::file::FILES;
use crate::{inside::is_inside, kernel, real};
use libc::{c_int, c_long};
use std::{
    os::fd::{FromRawFd, OwnedFd},
    sync::atomic::{AtomicI32, Ordering},
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

/// The same, closed when it is dropped; `None`: no descriptor is left.
pub fn copy_of(fd: c_int) -> Option<OwnedFd> {
    let copy = duplicate(fd);
    // SAFETY: just made, and ours.
    (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })
}

fn internal_if_inside(fd: c_int) -> c_int {
    if fd >= 0 && is_inside() { make_internal(fd) } else { fd }
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
