//! The stack plane: TCP and UDP sockets of the chosen interface, run by our stack in this process.
//!
//! | module | owns |
//! |---|---|
//! | [`file`](self::file) | the open file description of a descriptor of ours, and its activation |
//! | [`host`](self::host) | the process's Host, made when it is first needed; fork |
//! | [`handover_parent`](self::handover_parent) | connections that children share: the parent's side |
//! | [`handover_child`](self::handover_child) | the child's side |
//! | [`exit`](self::exit) | exit |
//! | [`internal_fds`](self::internal_fds) | the descriptors that the library holds for itself |
//! | [`route`](self::route) | which addresses are routed over the chosen interface |
//! | [`sockets`](self::sockets) | socket, bind, connect, listen, shutdown, getsockname, getpeername |
//! | [`accept`](mod@self::accept) | accept, of our listeners and of the kernel's |
//! | [`receive`](self::receive), [`send`](self::send) | data in and out, by all the C functions for it |
//! | [`receive_one`](self::receive_one) | what a receive returns, and how long it waits |
//! | [`cmsg`](self::cmsg) | ancillary data |
//! | [`companion_address`](self::companion_address) | what is known of a companion's address |
//! | [`copy`](self::copy) | sendfile, splice |
//! | [`options`](self::options) | getsockopt, setsockopt |
//! | [`groups`](self::groups) | multicast memberships |
//! | [`unsupported_options`](self::unsupported_options) | options that our stack does not support |
//! | [`wait`](self::wait) | poll, select, epoll |
//! | [`descriptors`](self::descriptors) | close, dup, fcntl, ioctl |
//! | [`rings`] | io_uring: its sockets are the kernel's |
//! | [`foreign`](self::foreign) | sockets that other processes have made |
//! | [`stream`](self::stream) | fclose, freopen |
//! | [`libc_io`](self::libc_io) | fdopen, dprintf, aio: sockets used by calls that bypass the hooks |
//! | [`scm_rights`](self::scm_rights) | descriptors passed to another process |
//! | [`address`](self::address) | conversion of socket addresses |
//!
//! Each socket owns one kernel socket, its companion, whose descriptor the program has. Until the socket is activated,
//! the companion alone is bound, listens and has its options set like any other. So errors are the kernel's own, and a
//! socket that cannot be accelerated simply stays with the kernel.

mod accept;
mod address;
mod cmsg;
mod companion_address;
mod copy;
mod descriptors;
mod exit;
mod file;
mod foreign;
mod groups;
mod handover_child;
mod handover_parent;
mod host;
mod internal_fds;
mod iovec;
mod libc_io;
mod options;
mod receive;
mod receive_one;
pub mod rings;
mod route;
mod scm_rights;
mod send;
mod sockets;
mod stream;
mod unsupported_options;
mod wait;

pub use accept::{accept, accept_other, accept4, accept4_other};
pub use companion_address::may_be_shared;
pub use copy::{sendfile, sendfile_other, splice, splice_to_other};
pub use descriptors::{
    close, close_other, close_range, closefrom, dup, dup2, dup2_other, dup3, dup3_other, fcntl,
    fcntl_other, ioctl, sockatmark,
};
pub use exit::{close_all, daemon, exit};
pub use file::{FILES, File, Ref};
pub use foreign::{recvmmsg_other, recvmsg_other};
pub use handover_child::before_exec;
pub use host::{fork, forked_by, prepare, raw_fork};
pub use internal_fds::{eventfd, syscall_made, timerfd_create};
pub use libc_io::{
    add_dup2, aio_read, aio_write, before_dprintf, before_io_submit, fdopen, io_submit, lio_listio,
    vdprintf, vdprintf_chk,
};
pub use options::{getsockopt, setsockopt};
pub use receive::{
    preadv2, read, read_chk, readv, recv, recv_chk, recvfrom, recvfrom_chk, recvmmsg, recvmsg,
};
pub use scm_rights::{sendmmsg_other, sendmsg_other};
pub use send::{pwritev2, send, sendmmsg, sendmsg, sendto, write, writev};
pub use sockets::{bind, connect, getpeername, getsockname, listen, shutdown, socket};
pub use stream::{fclose, freopen, freopen64};
pub use wait::{
    epoll_create, epoll_create1, epoll_ctl, epoll_ctl_other, epoll_pwait, epoll_pwait2, epoll_wait,
    poll, poll_chk, ppoll, ppoll_chk, pselect, select,
};

use crate::{
    errno,
    inside::{ERESTARTSYS, Inside},
    real::Failed,
};
use std::io;

/// Enters with a file. `None`: the call is for the real function, as the library itself made it, or the socket has
/// turned out to be the kernel's.
///
/// The parts must be dropped in the order `file`, `inside`, as the pattern `(inside, file)` does.
#[inline]
fn enter(file: Ref) -> Option<(Inside, Ref)> {
    if file.is_kernel_owned() {
        return None;
    }
    let inside = Inside::enter()?;
    if !file.is_ours() {
        drop(file);
        return None;
    }
    Some((inside, file))
}

/// A call that the library makes on a descriptor of the program, as the hook would serve it: by the socket of ours that
/// is there now, anew when a signal has interrupted it and it restarts; otherwise by the kernel.
fn dispatch<T: Failed + PartialEq>(
    fd: libc::c_int,
    ours: impl Fn(Ref) -> T,
    by_kernel: impl FnOnce() -> T,
) -> T {
    while let Some(file) = FILES.get(fd) {
        let result = ours(file);
        if result != T::FAILED || errno::get() != ERESTARTSYS {
            return result;
        }
    }
    by_kernel()
}

/// Returns as a C function does, with `errno`.
#[inline]
fn answer<T: Failed + TryFrom<usize>>(result: io::Result<usize>) -> T {
    match result {
        Ok(value) => T::try_from(value).unwrap_or(T::FAILED),
        Err(error) => {
            errno::set(code(&error));
            T::FAILED
        }
    }
}

/// The answer; if there is none, the kernel's. The kernel's call may sleep, so the thread leaves first, and a file that
/// was closed meanwhile is dropped before.
#[inline]
fn answer_or<T: Failed + TryFrom<usize>>(
    inside: Inside,
    file: Ref,
    result: Option<io::Result<usize>>,
    by_kernel: impl FnOnce() -> T,
) -> T {
    let answered = result.map(answer);
    drop(file);
    drop(inside);
    answered.unwrap_or_else(by_kernel)
}

/// The errno of an error.
fn code(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or_else(|| match error.kind() {
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        io::ErrorKind::Interrupted => libc::EINTR,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
        io::ErrorKind::BrokenPipe => libc::EPIPE,
        io::ErrorKind::NotConnected => libc::ENOTCONN,
        io::ErrorKind::AddrInUse => libc::EADDRINUSE,
        io::ErrorKind::PermissionDenied => libc::EPERM,
        io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull => libc::ENOBUFS,
        _ => libc::EIO,
    })
}

fn error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// The result of a system call that returned `result`.
fn checked<T: Copy + PartialOrd + Default>(result: T) -> io::Result<T> {
    if result < T::default() { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Binds an unbound companion to a free port, as the kernel would at its first send.
fn bind_free_port(fd: libc::c_int, domain: libc::c_int) -> io::Result<()> {
    let (name, len) = address::laid_out(address::any(domain), domain);
    // SAFETY: a valid address of that length.
    checked(unsafe { crate::real::bind(fd, (&raw const name).cast(), len) }).map(drop)
}
