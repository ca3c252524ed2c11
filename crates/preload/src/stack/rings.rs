//! io_uring. A ring works on the kernel's socket, and the companion of a connection of ours is not connected. So new
//! sockets of a process that has a ring stay with the kernel. libuv works without io_uring, and is refused it, as in
//! containers.
//!
//! Rings are noticed when they are made by liburing's functions or by `syscall`. Those that the program makes by system
//! calls of its own are noticed if they exist when it first listens or has its first socket activated.

use super::{common::for_each_fd, not_accelerated};
use crate::{config, errno, inside::Inside, real, report::Once};
use libc::{c_int, c_long, c_uint, c_void};
use rustix::fs::readlink;
use std::{
    ffi::CStr,
    sync::atomic::{AtomicBool, Ordering},
};

static REFUSED: Once = Once::new();
static LEFT: Once = Once::new();
static ENDS: Once = Once::new();

/// The program has a ring.
static USED: AtomicBool = AtomicBool::new(false);

/// Rings have been searched for.
static SEARCHED: AtomicBool = AtomicBool::new(false);

const WHY: &str = "the program uses io_uring, which does not reach the stack plane";

/// Whether sockets that would be activated stay with the kernel, as the program may use them in a ring. With `--strict`
/// the program ends.
pub fn keep_sockets() -> bool {
    if !SEARCHED.swap(true, Ordering::Relaxed) && !USED.load(Ordering::Relaxed) && has_ring() {
        is_made();
    }
    let used = USED.load(Ordering::Relaxed);
    if used && config::get().is_some_and(|config| config.launch.strict) {
        not_accelerated::report(&ENDS, format_args!("{WHY}"), "");
    }
    used
}

/// The program makes a ring. It may never use one for sockets, so with `--strict` it ends only when a socket would be
/// activated.
fn is_made() {
    let Some(config) = config::get().filter(|config| config.is_stack()) else { return };
    if !USED.swap(true, Ordering::Relaxed) && !config.launch.strict {
        LEFT.report(format_args!("{WHY}; sockets that it uses from now on stay with the kernel"));
    }
}

/// Whether a descriptor is a ring.
fn has_ring() -> bool {
    let mut found = false;
    for_each_fd(|fd| {
        let link = readlink(format!("/proc/self/fd/{fd}"), Vec::new());
        found |= link.is_ok_and(|link| link.as_bytes() == b"anon_inode:[io_uring]");
    });
    found
}

/// io_uring_setup(2) by `syscall`; `None`: the kernel serves it.
pub fn setup() -> Option<c_long> {
    if !config::get().is_some_and(config::Config::is_stack) {
        return None;
    }
    if !has_libuv() {
        is_made();
        return None;
    }
    REFUSED.report(format_args!(
        "io_uring does not reach the stack plane, so libuv is refused it (ENOSYS) and waits by epoll"
    ));
    errno::set(libc::ENOSYS);
    Some(-1)
}

/// Whether libuv is in the process: in the executable, as in node, or in a library, as in uvloop.
fn has_libuv() -> bool {
    /// # Safety
    /// As the loader calls it.
    unsafe extern "C" fn is_it(
        object: *mut libc::dl_phdr_info,
        _: libc::size_t,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's struct; the name is a C string or null.
        let name = unsafe { (*object).dlpi_name };
        // SAFETY: as above.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes());
        let is_it = name
            .is_some_and(|name| name.windows(6).any(|part| part == b"uvloop" || part == b"libuv."));
        if is_it {
            // SAFETY: `found` is our own, below.
            unsafe { *found.cast::<bool>() = true };
        }
        is_it.into()
    }
    let Some(_inside) = Inside::enter() else { return false };
    let mut found = false;
    // SAFETY: plain look-ups; the closure's argument outlives the call.
    unsafe {
        if !libc::dlsym(libc::RTLD_DEFAULT, c"uv_loop_init".as_ptr()).is_null() {
            return true;
        }
        libc::dl_iterate_phdr(Some(is_it), (&raw mut found).cast());
    }
    found
}

/// # Safety
/// That of io_uring_queue_init(3).
pub unsafe fn queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
    is_made();
    // SAFETY: the caller's contract.
    unsafe { real::io_uring_queue_init(entries, ring, flags) }
}

/// # Safety
/// That of io_uring_queue_init_params(3).
pub unsafe fn queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void) -> c_int {
    is_made();
    // SAFETY: the caller's contract.
    unsafe { real::io_uring_queue_init_params(entries, ring, params) }
}

/// # Safety
/// That of io_uring_queue_init_mem(3).
pub unsafe fn queue_init_mem(
    entries: c_uint,
    ring: *mut c_void,
    params: *mut c_void,
    memory: *mut c_void,
    size: usize,
) -> c_int {
    is_made();
    // SAFETY: the caller's contract.
    unsafe { real::io_uring_queue_init_mem(entries, ring, params, memory, size) }
}
