//! io_uring: a ring does to a socket's number what the kernel knows of it, which of a connection of ours is nothing. So
//! sockets of a process that has a ring are the kernel's from then on. libuv, which can do without, gets none: that is
//! what it does in containers, too.
//!
//! Seen are rings made by liburing's functions and by `syscall`.

use super::host;
use crate::{config, errno, inside::Inside, real, say::Once};
use libc::{c_int, c_long, c_uint, c_void};
use std::{
    ffi::CStr,
    sync::atomic::{AtomicBool, Ordering},
};

static REFUSED: Once = Once::new();
static LEFT: Once = Once::new();
static ENDS: Once = Once::new();

/// The program has a ring.
static USED: AtomicBool = AtomicBool::new(false);

const WHY: &str = "the program uses io_uring, which does not reach the stack plane";

/// Whether sockets that would come to life are the kernel's, as the program may use them by a ring. With `--strict` the
/// program ends.
pub fn keep_sockets() -> bool {
    let used = USED.load(Ordering::Relaxed);
    if used && config::get().is_some_and(|config| config.launch.strict) {
        host::goes_without(&ENDS, format_args!("{WHY}"), "");
    }
    used
}

/// The program makes a ring. That it has no use for sockets is not known: with `--strict` it ends when it has.
fn is_made() {
    let Some(config) = config::get().filter(|config| config.is_stack()) else { return };
    if !USED.swap(true, Ordering::Relaxed) && !config.launch.strict {
        LEFT.say(format_args!("{WHY}; what sockets it uses from now on are the kernel's"));
    }
}

/// io_uring_setup(2) by `syscall`; `None`: it is the kernel's to answer.
pub fn setup() -> Option<c_long> {
    if !config::get().is_some_and(config::Config::is_stack) {
        return None;
    }
    if !has_libuv() {
        is_made();
        return None;
    }
    REFUSED.say(format_args!(
        "libuv gets no io_uring (ENOSYS), which does not reach the stack plane: it waits by epoll alone"
    ));
    errno::set(libc::ENOSYS);
    Some(-1)
}

/// Whether libuv is in the process: in the program, as node has it, or in a library, as uvloop has it.
fn has_libuv() -> bool {
    /// # Safety
    /// As the loader calls it.
    unsafe extern "C" fn is_it(
        object: *mut libc::dl_phdr_info,
        _: libc::size_t,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's, whose name is a C string or null.
        let name = unsafe { (*object).dlpi_name };
        // SAFETY: as above.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes());
        let is_it = name
            .is_some_and(|name| name.windows(6).any(|part| part == b"uvloop" || part == b"libuv."));
        if is_it {
            // SAFETY: `found` is the caller's.
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
