//! Messages with descriptors over abstract unix sockets, each whole or not at all (SOCK_SEQPACKET). Does not know their
//! contents.

use crate::{sys, unix};
use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    time::{Duration, Instant},
};

/// The most descriptors in one message: the kernel takes 253 (SCM_MAX_FD).
const DESCRIPTORS: usize = 250;

/// The longest message.
pub(super) const BYTES: usize = 1024;

/// A socket that listens at an abstract name. It and its connections are non-blocking.
///
/// # Errors
/// The name is taken; no descriptor left.
pub fn listen(name: &str) -> io::Result<OwnedFd> {
    unix::listen(name, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK)
}

/// The next connection to `listener`.
///
/// # Errors
/// `WouldBlock` if there is none.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is wanted.
    sys::owned(unsafe {
        libc::accept4(listener.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), flags)
    })
}

/// A connection to a listener whose user is [trusted](unix::trusts): any process may listen at a name, and a guard's
/// name is free once the guard has ended. An uninterrupted call on the connection waits for `timeout` at the most.
pub(super) fn connect(name: &str, timeout: Duration) -> io::Result<OwnedFd> {
    let socket = connect_to_any(name, timeout)?;
    let (_, user) = unix::peer(socket.as_fd())?;
    match unix::trusts(user) {
        true => Ok(socket),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("user {user} listens there, which is neither root nor this user"),
        )),
    }
}

/// A connection to a listener of any user.
pub(super) fn connect_to_any(name: &str, timeout: Duration) -> io::Result<OwnedFd> {
    let until = Instant::now() + timeout;
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: a plain system call.
    let socket = sys::owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    for option in [libc::SO_SNDTIMEO, libc::SO_RCVTIMEO] {
        set_limit(&socket, option, timeout)?;
    }
    let (address, len) = unix::address(name)?;
    loop {
        // SAFETY: a valid address of that length.
        if unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) } == 0 {
            return Ok(socket);
        }
        let error = io::Error::last_os_error();
        if !should_retry(&error, Some(until)) {
            return Err(as_timed_out(error));
        }
    }
}

fn set_limit(socket: &OwnedFd, option: libc::c_int, limit: Duration) -> io::Result<()> {
    let limit = libc::timeval {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_usec: limit.subsec_micros().into(),
    };
    let len = size_of_val(&limit) as libc::socklen_t;
    let value = (&raw const limit).cast();
    // SAFETY: a timeval, and its length.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether to repeat a call that ended with `error`. A socket with a timeout is not restarted by `SA_RESTART`, and each
/// repeated call waits for the full timeout again. If signals keep coming, only the clock ends the wait.
fn should_retry(error: &io::Error, until: Option<Instant>) -> bool {
    error.kind() == io::ErrorKind::Interrupted && until.is_none_or(|until| Instant::now() < until)
}

/// A call whose timeout has passed fails as if the socket were non-blocking, or with EINTR. Reports that as `TimedOut`.
pub(super) fn as_timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {
            io::Error::new(io::ErrorKind::TimedOut, "it takes too long to answer")
        }
        _ => error,
    }
}

/// Room for the descriptors of one message, as the kernel lays them out.
#[repr(C, align(8))]
struct Control([u8; 64 + DESCRIPTORS * size_of::<RawFd>()]);

pub(super) fn send(connection: &OwnedFd, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
    if descriptors.len() > DESCRIPTORS {
        return Err(io::Error::other("the interface has more queues than one message can grant"));
    }
    let mut control = Control([0; _]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let size = size_of_val(descriptors) as u32;
    // SAFETY: `control` has room for the descriptors and their header; all that the message points to outlives the
    // call, which only reads it.
    let sent = unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !descriptors.is_empty() {
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = libc::CMSG_SPACE(size) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size) as _;
            let to = libc::CMSG_DATA(header);
            ptr::copy_nonoverlapping(descriptors.as_ptr().cast(), to, size_of_val(descriptors));
        }
        libc::sendmsg(connection.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives one message; empty if the peer has closed the connection. If interrupted, waits on `until` then.
pub(super) fn receive(
    connection: &OwnedFd,
    until: Option<Instant>,
) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; BYTES];
    let mut control = Control([0; _]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut descriptors = Vec::new();
    // SAFETY: all that the message points to is writable for the length given, and outlives the call; the control
    // messages are read as the kernel laid them out, and each descriptor is taken once.
    let received = unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of_val(&control) as _;
        let received = loop {
            let flags = libc::MSG_CMSG_CLOEXEC;
            let received = libc::recvmsg(connection.as_raw_fd(), &raw mut message, flags);
            if received >= 0 || !should_retry(&io::Error::last_os_error(), until) {
                break received;
            }
        };
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while received >= 0 && !header.is_null() {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let first = libc::CMSG_DATA(header).cast::<RawFd>();
                for at in 0..bytes / size_of::<RawFd>() {
                    let fd = first.add(at).read_unaligned();
                    descriptors.push(OwnedFd::from_raw_fd(fd));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        received
    };
    match usize::try_from(received) {
        Ok(len) => {
            bytes.truncate(len);
            Ok((bytes, descriptors))
        }
        Err(_) => Err(io::Error::last_os_error()),
    }
}
