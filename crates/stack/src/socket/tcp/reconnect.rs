//! A connection over a link that the other process has not accepted begins anew, in the kernel: a program other than the
//! one whose listener has it may be the one to accept.

use super::hand_over::{as_family, grow_buffer, write_queue};
use crate::{
    host::Received,
    inet::tcp::RepairState,
    socket::options::{SOL_SOCKET, errno},
    sys::{self, get_bytes, get_option, set_bytes},
};
use std::{
    io,
    net::{SocketAddr, TcpStream as KernelStream},
    os::fd::{AsRawFd, BorrowedFd},
    time::Duration,
};

/// How long connecting over loopback, or to another network namespace of this host, may take.
const CONNECT_TIME: Duration = Duration::from_millis(20);

/// Connects `kernel`, which is bound to the local address, and sends what the listener had received, and what is not
/// acknowledged after it. The data not sent yet is left to the caller. `is_near`: over loopback.
///
/// # Errors
/// Those of connect(2); EINPROGRESS if the listener's queue is full; ENOBUFS.
pub(super) fn reconnect(
    kernel: BorrowedFd<'_>,
    state: &RepairState,
    received: &Received,
    is_near: bool,
) -> io::Result<()> {
    let on = received.next.wrapping_sub(state.snd_una) as usize;
    let sent = state.sent.get(on..).unwrap_or_default();
    let len = received.data.len() + sent.len() + state.unsent.len();
    grow_buffer(kernel, libc::SO_SNDBUF, libc::SO_SNDBUFFORCE, len)?;
    connect(kernel, state.remote, is_near)?;
    write_queue(kernel, &received.data)?;
    write_queue(kernel, sent)
}

/// Connects in a short time, although the socket may be blocking.
fn connect(kernel: BorrowedFd<'_>, remote: SocketAddr, is_near: bool) -> io::Result<()> {
    let limit_to = |limit: &[u8]| set_bytes(&kernel, SOL_SOCKET, libc::SO_SNDTIMEO, limit);
    let mut before = [0; size_of::<libc::timeval>()];
    get_bytes(&kernel, SOL_SOCKET, libc::SO_SNDTIMEO, &mut before)?;
    let mut limit = [0; size_of::<libc::timeval>()];
    let micros = CONNECT_TIME.as_micros() as libc::suseconds_t;
    limit[size_of::<libc::time_t>()..].copy_from_slice(&micros.to_ne_bytes());
    limit_to(&limit)?;
    let six = get_option(&kernel, SOL_SOCKET, libc::SO_DOMAIN)? == libc::AF_INET6;
    let connected = sys::connect(kernel.as_raw_fd(), as_family(remote, six));
    limit_to(&before)?;
    match connected {
        // A non-blocking socket is connected over loopback before connect(2) returns this.
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
            if !is_near {
                sys::wait_writable(kernel.as_raw_fd(), CONNECT_TIME);
            }
            let socket = KernelStream::from(kernel.try_clone_to_owned()?);
            socket.peer_addr().map(drop).map_err(|_| errno(libc::EINPROGRESS))
        }
        other => other,
    }
}
