//! Messages with descriptors over abstract unix sockets, each whole or not at all (SOCK_SEQPACKET). Does not know their
//! contents.

use crate::{
    sys,
    unix::{
        self,
        message::{self, DESCRIPTORS},
    },
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    ptr,
    time::{Duration, Instant},
};

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
    unix::set_timeouts(&socket, timeout)?;
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

pub(super) fn send(connection: &OwnedFd, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
    if descriptors.len() > DESCRIPTORS {
        return Err(io::Error::other("the interface has more queues than one message can grant"));
    }
    message::send(connection.as_fd(), bytes, descriptors, 0).map(drop)
}

/// Receives one message; empty if the peer has closed the connection. If interrupted, waits on `until` then.
pub(super) fn receive(
    connection: &OwnedFd,
    until: Option<Instant>,
) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; BYTES];
    loop {
        match message::receive(connection.as_fd(), &mut bytes) {
            Err(error) if should_retry(&error, until) => {}
            Err(error) => return Err(error),
            Ok((len, descriptors)) => {
                bytes.truncate(len);
                return Ok((bytes, descriptors));
            }
        }
    }
}
