//! The stack plane: TCP and UDP sockets of the chosen interface, run by our stack in this process.
//!
//! | module | owns |
//! |---|---|
//! | [`file`](self::file) | what a descriptor of ours stands for, and how it comes to life |
//! | [`host`](self::host) | the process's Host, made when it is first needed; fork |
//! | [`bequest`](self::bequest), [`heir`](self::heir) | connections that children use: the parent's side, and theirs |
//! | [`end`](self::end) | exit |
//! | [`own`](self::own) | the descriptors the library holds for itself |
//! | [`place`](self::place) | which addresses are on the chosen interface |
//! | [`names`](self::names) | socket, bind, connect, listen, shutdown, names |
//! | [`accept`](mod@self::accept) | accept, of ours and of the kernel's |
//! | [`receive`](self::receive), [`send`](self::send) | data in and out, in all the shapes C has for it |
//! | [`take`](self::take) | what a receive finds, and how long it waits |
//! | [`control`](self::control) | ancillary data |
//! | [`copy`](self::copy) | sendfile, splice |
//! | [`options`](self::options) | getsockopt, setsockopt |
//! | [`groups`](self::groups) | multicast memberships |
//! | [`beyond`](self::beyond) | what is asked for that our stack has not |
//! | [`wait`](self::wait) | poll, select, epoll |
//! | [`descriptors`](self::descriptors) | close, dup, fcntl, ioctl |
//! | [`rings`] | io_uring, and whose sockets are the kernel's for it |
//! | [`stream`](self::stream) | fclose, freopen |
//! | [`pass`](self::pass) | descriptors on their way to another process |
//! | [`address`](self::address) | addresses as C has them |
//!
//! Each socket owns one kernel socket, its companion, whose number the program has. It is the truth until the socket
//! comes to life: it is bound, listens and has its options set like any other; so errors are the kernel's own, and
//! what cannot be accelerated simply stays with it.

mod accept;
mod address;
mod bequest;
mod beyond;
mod control;
mod copy;
mod descriptors;
mod end;
mod file;
mod groups;
mod heir;
mod host;
mod names;
mod options;
mod own;
mod pass;
mod pieces;
mod place;
mod receive;
pub mod rings;
mod send;
mod stream;
mod take;
mod wait;

pub use accept::{accept, accept_other, accept4, accept4_other};
pub use copy::{sendfile, sendfile_other, splice, splice_to_other};
pub use descriptors::{
    close, close_other, close_range, closefrom, dup, dup2, dup2_other, dup3, dup3_other, fcntl,
    fcntl_other, ioctl, sockatmark,
};
pub use end::{close_all, daemon, exit};
pub use file::File;
pub use heir::before_exec;
pub use host::{fork, fork_alone, prepare};
pub use names::{bind, connect, getpeername, getsockname, listen, shutdown, socket};
pub use options::{getsockopt, setsockopt};
pub use own::{eventfd, syscall_made, timerfd_create};
pub use pass::{sendmmsg_other, sendmsg_other};
pub use receive::{
    preadv2, read, read_chk, readv, recv, recv_chk, recvfrom, recvfrom_chk, recvmmsg, recvmsg,
};
pub use send::{pwritev2, send, sendmmsg, sendmsg, sendto, write, writev};
pub use stream::{fclose, freopen, freopen64};
pub use wait::{
    epoll_create, epoll_create1, epoll_ctl, epoll_ctl_other, epoll_pwait, epoll_pwait2, epoll_wait,
    poll, poll_chk, ppoll, ppoll_chk, pselect, select,
};

use crate::{errno, fds::Ref, inside::Inside, real::Failed};
use std::io;

/// Enters with a file. `None`: the call is for the real function, as the library made it itself, or the socket
/// has turned out to be the kernel's.
///
/// The parts are to be let go of in the order `file`, `inside`, as a pattern does that names them so.
#[inline]
fn enter(file: Ref) -> Option<(Inside, Ref)> {
    if file.is_kernels() {
        return None;
    }
    let inside = Inside::enter()?;
    if !file.is_ours() {
        drop(file);
        return None;
    }
    Some((inside, file))
}

/// What a C function returns, and `errno`.
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

/// The answer; where there is none, the kernel's, for which one leaves: it may take its time. A file whose number
/// was closed meanwhile ends here, before that.
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

/// An error by its number.
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

/// What a system call that returned `result` says.
fn said<T: Copy + PartialOrd + Default>(result: T) -> io::Result<T> {
    if result < T::default() { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Binds a companion that is not bound to any port, as the kernel would when it first sends.
fn own_port(fd: libc::c_int, domain: libc::c_int) -> io::Result<()> {
    let (name, len) = address::laid_out(address::any(domain), domain);
    // SAFETY: a valid address of that length.
    said(unsafe { crate::real::bind(fd, (&raw const name).cast(), len) }).map(drop)
}
