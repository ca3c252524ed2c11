//! Functions that read or write a descriptor by system calls of their own, past the hooks: stdio (fdopen(3),
//! dprintf(3), and standard input, output and error), aio(7), libaio. The kernel serves these calls, so a socket that
//! they use becomes the kernel's: a connection is handed over.
//!
//! A stream that reads and writes by our hooks (fopencookie(3)) would stay on our stack, but it has no fileno(3) and no
//! wide characters, and standard output cannot be replaced by one.

use super::{
    activation::{self, deactivate},
    file::{FILES, Live, Ref},
    foreign, handover_parent, not_accelerated,
    unsupported_options::{STANDARD, UnsupportedOption, used},
};
use crate::{
    errno,
    inside::Inside,
    real,
    report::{Once, OncePer},
};
use libc::{FILE, c_char, c_int, c_long, c_void, sockaddr, socklen_t};
use std::net::SocketAddr;

const FDOPEN: UnsupportedOption = used("by fdopen(3)");
const DPRINTF: UnsupportedOption = used("by dprintf(3)");
const AIO: UnsupportedOption = used("by aio(7)");
const LIBAIO: UnsupportedOption = used("by io_submit(2)");
const EXECUTED: UnsupportedOption = used("by a program that this one executes");

static HANDED_OVER: OncePer<8> = OncePer::new();

static LOST: Once = Once::new();

/// `file`, at `fd`, is used in this way: it is the kernel's from now on.
fn leave_to_kernel(file: &Ref, fd: c_int, how: UnsupportedOption) {
    if file.is_kernel_owned() || matches!(file.live(), Some(Live::Listener(_))) {
        return;
    }
    let _errno = errno::Saved::new();
    if let Some(_inside) = Inside::enter() {
        leave_to_kernel_inside(file, fd, how);
    }
}

/// As [`leave_to_kernel`], inside the library.
fn leave_to_kernel_inside(file: &Ref, fd: c_int, how: UnsupportedOption) {
    // A connection of the parent's is handed over by this.
    if !file.is_ours() {
        file.set_kernel_owned();
        return;
    }
    let is_replaced = match file.live() {
        // A listener transfers no data.
        Some(Live::Listener(_)) => false,
        None => {
            if file.backlog() < 0 {
                file.require(how);
            }
            false
        }
        Some(Live::Udp(_)) => activation::require(file, fd, how),
        Some(Live::Stream(stream)) if stream.is_unconnected() => {
            deactivate(file).require(how);
            true
        }
        Some(Live::Stream(stream)) => {
            let handed = match stream.connecting_to() {
                Some(remote) => connect_again(file, fd, remote),
                None => handover_parent::hand_over(file, fd, None).is_ok(),
            };
            match handed {
                true => not_accelerated::report(
                    HANDED_OVER.of(how.what),
                    format_args!("{}", how.reason_for("connection")),
                    "it is handed over to the kernel",
                ),
                // The new program may never use it.
                false if how == EXECUTED => {}
                false => LOST.report(format_args!(
                    "{}: a connection that is over, or that the guard cannot hand over to the kernel, is used {}: its \
                     calls fail",
                    not_accelerated::device(),
                    how.what
                )),
            }
            handed
        }
    };
    // Another file has taken its place at the descriptors that it had.
    if is_replaced {
        file.set_kernel_owned();
    }
}

/// A connection in SYN_SENT has nothing to hand over: the kernel connects instead.
fn connect_again(file: &Ref, fd: c_int, remote: SocketAddr) -> bool {
    deactivate(file).set_kernel_owned();
    // SAFETY: plain system calls, here and below.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    let set = |flags: c_int| {
        // SAFETY: as above.
        unsafe { real::fcntl(fd, libc::F_SETFL, flags as usize) };
    };
    set(flags | libc::O_NONBLOCK);
    let (name, len) = super::address::laid_out(remote, file.domain);
    // SAFETY: a valid address of that length.
    let connected =
        unsafe { real::connect(fd, (&raw const name).cast::<sockaddr>(), len as socklen_t) };
    let connects = connected == 0 || errno::get() == libc::EINPROGRESS;
    set(flags);
    connects
}

/// `fd` is a new descriptor of `file`.
pub fn check_standard(fd: c_int, file: &Ref) {
    if is_standard(fd) {
        leave_to_kernel(file, fd, STANDARD);
    }
}

/// A connection was accepted at `fd`. Called inside.
pub fn check_accepted(fd: c_int, file: &Ref) {
    if is_standard(fd) {
        leave_to_kernel_inside(file, fd, STANDARD);
    }
}

fn is_standard(fd: c_int) -> bool {
    (0..=2).contains(&fd)
}

/// `file`, at `fd`, stays open over an exec of this process. Called inside.
pub fn check_executed(fd: c_int, file: &Ref) {
    leave_to_kernel_inside(file, fd, EXECUTED);
}

/// # Safety
/// That of posix_spawn_file_actions_adddup2(3).
pub unsafe fn add_dup2(file: Ref, actions: *mut c_void, fd: c_int, to: c_int) -> c_int {
    // SAFETY: the caller's contract.
    let added = unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, to) };
    if added == 0 {
        if let Some(Live::Listener(_)) = file.live()
            && let Some(_inside) = Inside::enter()
        {
            foreign::share_listener(fd);
        }
        leave_to_kernel(&file, fd, EXECUTED);
    }
    added
}

/// # Safety
/// That of fdopen(3).
pub unsafe fn fdopen(file: Ref, fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's contract.
    let stream = unsafe { real::fdopen(fd, mode) };
    if !stream.is_null() {
        leave_to_kernel(&file, fd, FDOPEN);
    }
    stream
}

/// # Safety
/// That of vdprintf(3); `arguments` is its `va_list`, which is passed as a pointer.
pub unsafe fn vdprintf(
    file: Ref,
    fd: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    leave_to_kernel(&file, fd, DPRINTF);
    // SAFETY: the caller's contract.
    unsafe { real::vdprintf(fd, format, arguments) }
}

/// # Safety
/// As [`vdprintf`], with the flag of `-D_FORTIFY_SOURCE`.
pub unsafe fn vdprintf_chk(
    file: Ref,
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    leave_to_kernel(&file, fd, DPRINTF);
    // SAFETY: the caller's contract.
    unsafe { real::__vdprintf_chk(fd, flag, format, arguments) }
}

/// dprintf(3) writes to `fd`.
pub fn before_dprintf(fd: c_int) {
    if let Some(file) = FILES.get(fd) {
        leave_to_kernel(&file, fd, DPRINTF);
    }
}

/// A descriptor in a request, at an offset.
///
/// # Safety
/// `request` is null or valid.
unsafe fn before_request(request: *const c_void, offset: usize, how: UnsupportedOption) {
    if FILES.end() == 0 || request.is_null() {
        return;
    }
    // SAFETY: the caller's contract.
    let fd = unsafe { request.byte_add(offset).cast::<c_int>().read_unaligned() };
    if let Some(file) = FILES.get(fd) {
        leave_to_kernel(&file, fd, how);
    }
}

/// # Safety
/// `request` is a `struct aiocb`, or null.
unsafe fn before_aio(request: *const c_void) {
    // SAFETY: the descriptor is its first field.
    unsafe { before_request(request, 0, AIO) };
}

/// # Safety
/// That of aio_read(3).
pub unsafe fn aio_read(request: *mut c_void) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        before_aio(request);
        real::aio_read(request)
    }
}

/// # Safety
/// That of aio_write(3).
pub unsafe fn aio_write(request: *mut c_void) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        before_aio(request);
        real::aio_write(request)
    }
}

/// # Safety
/// That of lio_listio(3).
pub unsafe fn lio_listio(
    mode: c_int,
    requests: *const *mut c_void,
    count: c_int,
    event: *mut c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        for at in 0..usize::try_from(count).unwrap_or(0) {
            before_aio(*requests.add(at));
        }
        real::lio_listio(mode, requests, count, event)
    }
}

/// io_submit(2), of libaio or by `syscall`.
///
/// # Safety
/// That of io_submit(2).
pub unsafe fn before_io_submit(count: c_long, requests: *const *mut c_void) {
    /// Of `aio_fildes` in `struct iocb` (include/uapi/linux/aio_abi.h).
    const DESCRIPTOR: usize = 20;
    if FILES.end() == 0 {
        return;
    }
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's contract.
        unsafe { before_request(*requests.add(at), DESCRIPTOR, LIBAIO) };
    }
}

/// # Safety
/// That of io_submit(2).
pub unsafe fn io_submit(
    context: *mut c_void,
    count: c_long,
    requests: *const *mut c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        before_io_submit(count, requests);
        real::io_submit(context, count, requests)
    }
}
