//! stdio streams: fclose(3) closes the descriptor of a stream past our hooks, and that may be a socket of ours.

use super::file::FILES;
use crate::{inside::Inside, real};
use libc::{FILE, c_char, c_int};

/// Closes the socket of ours that `stream` uses, if any: its number is about to be reused.
///
/// # Safety
/// `stream` is null or open.
unsafe fn close_socket_of(stream: *mut FILE) {
    if FILES.end() == 0 || stream.is_null() {
        return;
    }
    // SAFETY: open, by the caller's contract.
    let fd = unsafe { libc::fileno(stream) };
    // The file is removed here, and the number freed after that: no other thread can have it before.
    if FILES.get(fd).is_some()
        && let Some(_inside) = Inside::enter()
    {
        FILES.clear(fd);
    }
}

/// # Safety
/// That of fclose(3).
pub unsafe fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: the caller's contract, here and below.
    unsafe {
        close_socket_of(stream);
        real::fclose(stream)
    }
}

/// # Safety
/// That of freopen(3).
pub unsafe fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    // SAFETY: the caller's contract, here and below.
    unsafe {
        close_socket_of(stream);
        real::freopen(path, mode, stream)
    }
}

/// # Safety
/// That of freopen64(3).
pub unsafe fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    // SAFETY: the caller's contract, here and below.
    unsafe {
        close_socket_of(stream);
        real::freopen64(path, mode, stream)
    }
}
