//! Sockets that this process has not made: inherited over exec, or received from another process. Other processes may
//! have them too, and what options they have is not known; so they stay with the kernel. They are entered in the table
//! to report their first use: a socket that is only passed on, or closed, changes nothing.

use super::{
    common::{self, for_each_fd},
    file::{FILES, File},
    host, not_accelerated, route,
    unsupported_options::{INHERITED, RECEIVED, UnsupportedOption},
};
use crate::{
    config::{self, Config},
    inside::Inside,
    kernel, memory, real,
    report::Once,
};
use busypoll_policy::Protocol;
use libc::{c_int, c_uint, mmsghdr, msghdr, ssize_t, timespec};
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use std::os::fd::BorrowedFd;

static PASSED: Once = Once::new();

/// Called when the library is loaded: enters the sockets that were inherited over exec.
pub fn prepare(config: &Config) {
    if !config.is_stack() {
        return;
    }
    let Some(_inside) = Inside::enter() else { return };
    for_each_fd(|fd| enter(fd, INHERITED));
}

/// Enters the file at `fd`, if it is a socket that could be on the stack plane, with the reason why it is not.
fn enter(fd: c_int, why: UnsupportedOption) {
    if FILES.get(fd).is_some() || memory::is_short() {
        return;
    }
    // SAFETY: open, as it was listed or received just now; a closed one is only an error.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let domain = match sockopt::socket_domain(socket) {
        Ok(AddressFamily::INET) => libc::AF_INET,
        Ok(AddressFamily::INET6) => libc::AF_INET6,
        _ => return,
    };
    let kind = sockopt::socket_type(socket).ok();
    let protocol = match (kind, sockopt::socket_protocol(socket).ok().flatten()) {
        (Some(SocketType::STREAM), Some(ipproto::TCP | ipproto::MPTCP)) => Protocol::Tcp,
        (Some(SocketType::DGRAM), Some(ipproto::UDP)) => Protocol::Udp,
        _ => return,
    };
    let file = File::new(protocol, domain);
    let local = common::local(fd).ok().filter(|local| local.port() != 0);
    let remote = common::remote(fd);
    let leads = match (local, remote) {
        (Some(local), Some(remote)) => route::leads_to(remote, local.ip()),
        _ => true,
    };
    // The process of the run that hands a connection over for an exec reports that itself.
    let is_handed_over = why == INHERITED
        && protocol == Protocol::Tcp
        && remote.is_some()
        && !config::get().is_some_and(Config::is_first);
    if is_handed_over || !leads || !file.is_for_stack(local, remote) {
        return;
    }
    // SAFETY: a plain system call.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    file.set_nonblocking(flags >= 0 && flags & libc::O_NONBLOCK != 0);
    if sockopt::socket_acceptconn(socket).is_ok_and(|listens| listens) {
        file.set_backlog(0);
    }
    file.require(why);
    FILES.set(fd, FILES.hold(file));
}

/// Enters the sockets that `message`, just received, has brought.
///
/// # Safety
/// recvmsg(2) has filled it.
#[cold]
unsafe fn enter_received(message: &msghdr) {
    if !config::get().is_some_and(Config::is_stack) {
        return;
    }
    let Some(_inside) = Inside::enter() else { return };
    // SAFETY: the caller's contract.
    unsafe { for_each_passed(message, |fd| enter(fd, RECEIVED)) };
}

/// A program without a Host gets the listener at `fd`: the kernel makes its connections from now on.
pub fn share_listener(fd: c_int) {
    let shared = host::share_listener(fd);
    // What comes to a loopback address comes over no queue.
    let is_loopback =
        || common::local(fd).is_ok_and(|local| local.ip().to_canonical().is_loopback());
    if !shared && !is_loopback() {
        let why = format_args!(
            "{}: a listener is passed to another program, and its connections come over this run's queues",
            not_accelerated::device()
        );
        let then = "that program accepts none of them; such a server needs --plane kernel";
        not_accelerated::report(&PASSED, why, then);
    }
}

/// Calls `what` for each descriptor that `message` passes.
///
/// # Safety
/// Its ancillary data is as it says.
pub unsafe fn for_each_passed(message: &msghdr, mut what: impl FnMut(c_int)) {
    // SAFETY: ancillary data as its header says, here and below.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null or a header within the ancillary data.
    while let Some(header) = unsafe { next.as_ref() } {
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: its data starts there.
            let data = unsafe { libc::CMSG_DATA(next) }.cast::<c_int>();
            // SAFETY: a plain calculation.
            let bytes = header.cmsg_len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
            for at in 0..bytes / size_of::<c_int>() {
                // SAFETY: within the data.
                what(unsafe { data.add(at).read_unaligned() });
            }
        }
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(message, next) };
    }
}

/// recvmsg(2) on a descriptor that is not a socket of ours.
///
/// # Safety
/// That of recvmsg(2).
pub unsafe fn recvmsg_other(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract, here and below.
    unsafe {
        let received = kernel::recvmsg(fd, message, flags);
        if received >= 0 && (*message).msg_controllen > 0 {
            enter_received(&*message);
        }
        received
    }
}

/// recvmmsg(2) on a descriptor that is not a socket of ours.
///
/// # Safety
/// That of recvmmsg(2).
pub unsafe fn recvmmsg_other(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the caller's contract, here and below.
    unsafe {
        let received = kernel::recvmmsg(fd, messages, count, flags, timeout);
        for at in 0..usize::try_from(received).unwrap_or(0) {
            let message = &raw const (*messages.add(at)).msg_hdr;
            if (*message).msg_controllen > 0 {
                enter_received(&*message);
            }
        }
        received
    }
}
