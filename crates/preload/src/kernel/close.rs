//! Closing and duplicating descriptors: the state of a descriptor goes with it. The program cannot close the library's
//! own descriptors; to it they are not open.

use libc::c_int;

use super::fd_state::{self, FdState, Kind};
use crate::{errno, real};

/// # Safety
/// That of close(2).
pub unsafe fn close(fd: c_int) -> c_int {
    match fd_state::get(fd).kind() {
        Kind::Internal => {
            errno::set(libc::EBADF);
            return -1;
        }
        Kind::Unknown => {}
        // Before the close: another thread may get the number as soon as it is free.
        _ => fd_state::forget(fd),
    }
    // SAFETY: the caller's contract.
    unsafe { real::close(fd) }
}

/// # Safety
/// That of close_range(2).
pub unsafe fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    let only_on_exec = flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0;
    let mut from = first;
    let mut at = first;
    while !only_on_exec && let Some((fd, kind)) = fd_state::next_known(at, last) {
        let number = fd.cast_unsigned();
        if kind == Kind::Internal {
            // SAFETY: a part of the range that the caller gave.
            if number > from && unsafe { real::close_range(from, number - 1, flags) } != 0 {
                return -1;
            }
            from = number + 1;
        } else {
            fd_state::forget(fd);
        }
        at = number + 1;
    }
    if from > last && first <= last {
        return 0;
    }
    // SAFETY: the rest of the range that the caller gave.
    unsafe { real::close_range(from, last, flags) }
}

/// # Safety
/// That of dup(2).
pub unsafe fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's contract.
    duplicated(fd, unsafe { real::dup(fd) })
}

/// # Safety
/// That of dup2(2).
pub unsafe fn dup2(fd: c_int, to: c_int) -> c_int {
    // A call that fails leaves `to` unchanged. If `to` was the library's own, its user notices by the generation.
    // SAFETY: the caller's contract.
    let new = unsafe { real::dup2(fd, to) };
    if fd == to { new } else { duplicated(fd, new) }
}

/// # Safety
/// That of dup3(2).
pub unsafe fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    duplicated(fd, unsafe { real::dup3(fd, to, flags) })
}

/// # Safety
/// That of fcntl(2), with one argument of a machine word.
pub unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's contract.
    let result = unsafe { real::fcntl(fd, command, argument) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, result),
        libc::F_SETFL if result == 0 && fd_state::get(fd).kind() == Kind::Socket => {
            let nonblocking = argument as c_int & libc::O_NONBLOCK != 0;
            fd_state::mark(fd, FdState::NONBLOCKING, nonblocking);
            result
        }
        _ => result,
    }
}

fn duplicated(from: c_int, to: c_int) -> c_int {
    if to >= 0 {
        fd_state::copy(from, to);
    }
    to
}
