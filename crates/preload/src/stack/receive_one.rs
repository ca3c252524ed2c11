//! What a receive returns, of a datagram or a stream, and how long it waits.

use super::{
    common::{code, error},
    file::{Live, Ref},
    follow, local_stream,
    sockets::restart_unless_timeout,
};
use crate::inside::{ERESTARTSYS, Inside};
use busypoll_stack::{Events, Message, ReceiveFlags, TcpStream, UdpSocket, signal};
use libc::c_int;
use std::{
    io::{self, IoSliceMut},
    net::SocketAddr,
    time::{Duration, Instant},
};

/// What was received.
pub struct Received {
    /// What the call returns.
    pub len: usize,
    /// Data was there, though perhaps there was no room for it.
    pub any: bool,
    pub from: Option<SocketAddr>,
    /// Set for a datagram.
    pub message: Option<Message>,
    /// `MSG_TRUNC` of a datagram, `MSG_OOB`.
    pub flags: c_int,
}

/// Receives with `flags`; `None`: the call is for the companion.
pub fn receive(
    inside: &Inside,
    file: &Ref,
    fd: c_int,
    buffers: &mut [IoSliceMut<'_>],
    flags: c_int,
) -> Option<io::Result<Received>> {
    // The error queue is the companion's.
    if flags & libc::MSG_ERRQUEUE != 0 && file.domain != libc::AF_UNIX {
        return None;
    }
    let waits = flags & libc::MSG_DONTWAIT == 0 && !file.is_nonblocking();
    if file.domain == libc::AF_UNIX {
        return receive_local(inside, file, fd, buffers, flags, waits);
    }
    if waits {
        file.bind_to_wait(fd);
    }
    let live = match file.live() {
        None if file.follows() => match follow::take_over(inside, file, fd, flags) {
            Ok(live) => live?,
            Err(error) => return Some(Err(error)),
        },
        _ => file.activate(fd)?,
    };
    match live {
        Live::Udp(udp) => Some(receive_datagram(inside, udp, fd, buffers, flags)),
        Live::Stream(stream) => Some(receive_stream(inside, stream, fd, buffers, flags)),
        Live::Listener(_) => None,
    }
}

/// The same of an AF_UNIX stream.
fn receive_local(
    inside: &Inside,
    file: &Ref,
    fd: c_int,
    buffers: &mut [IoSliceMut<'_>],
    flags: c_int,
    waits: bool,
) -> Option<io::Result<Received>> {
    if local_stream::is_for_kernel(file, fd, flags, false) {
        return None;
    }
    local_stream::before_call(file, fd);
    if waits
        && file.live().is_none()
        && let Err(error) = local_stream::wait_to_receive(inside, file, fd)
    {
        return Some(Err(error));
    }
    match file.live()? {
        // Urgent data is the kernel's.
        Live::Stream(_) if flags & libc::MSG_OOB != 0 => Some(Err(error(libc::EINVAL))),
        Live::Stream(stream) => {
            // These have no meaning for AF_UNIX.
            let flags = flags & !(libc::MSG_TRUNC | libc::MSG_ERRQUEUE);
            let mut got = receive_stream(inside, stream, fd, buffers, flags);
            if let Ok(got) = &mut got
                && waits
                && flags & (libc::MSG_WAITALL | libc::MSG_PEEK) == libc::MSG_WAITALL
                && file.is_kernel_owned()
            {
                got.len += local_stream::receive_rest(inside, fd, buffers, got.len);
            }
            Some(got)
        }
        _ => None,
    }
}

fn receive_datagram(
    inside: &Inside,
    udp: &UdpSocket,
    fd: c_int,
    buffers: &mut [IoSliceMut<'_>],
    flags: c_int,
) -> io::Result<Received> {
    let how = how(flags);
    let message = match udp.recv_message(buffers, how) {
        Err(stopped) if stopped.kind() == io::ErrorKind::Interrupted => inside
            .wait(restart_unless_timeout(fd, libc::SO_RCVTIMEO), || udp.recv_message(buffers, how)),
        other => other,
    }?;
    let cut = message.len > message.copied;
    let len = if flags & libc::MSG_TRUNC != 0 { message.len } else { message.copied };
    // A datagram from port 0 still has a sender (RFC 768).
    let is_unknown = message.from.port() == 0 && message.from.ip().is_unspecified();
    let from = (!is_unknown).then_some(message.from);
    let flags = if cut { libc::MSG_TRUNC } else { 0 };
    Ok(Received { len, any: message.len > 0, from, message: Some(message), flags })
}

fn how(flags: c_int) -> ReceiveFlags {
    ReceiveFlags { peek: flags & libc::MSG_PEEK != 0, dont_wait: flags & libc::MSG_DONTWAIT != 0 }
}

fn receive_stream(
    inside: &Inside,
    stream: &TcpStream,
    fd: c_int,
    buffers: &mut [IoSliceMut<'_>],
    flags: c_int,
) -> io::Result<Received> {
    if flags & libc::MSG_OOB != 0 {
        return receive_urgent(stream, buffers, flags);
    }
    let how = how(flags);
    if buffers.iter().all(|buffer| buffer.is_empty()) {
        // recv(2) of 0 bytes still waits for data (`tcp_recvmsg_locked`).
        let peek = ReceiveFlags { peek: true, ..how };
        let any = receive_once(inside, stream, fd, &mut [IoSliceMut::new(&mut [0])], peek)? > 0;
        return Ok(Received { len: 0, any, from: None, message: None, flags: 0 });
    }
    let once = |buffers: &mut [IoSliceMut<'_>]| receive_once(inside, stream, fd, buffers, how);
    let wanted: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    let mut len =
        if flags & libc::MSG_TRUNC != 0 { discard(buffers, once)? } else { once(buffers)? };
    if flags & libc::MSG_TRUNC != 0 && how.peek {
        // Nothing is copied, and the length of all that is there is returned.
        len = len.max(stream.unread().min(wanted));
    }
    let waits = flags & libc::MSG_DONTWAIT == 0 && !stream.nonblocking();
    if waits && flags & libc::MSG_WAITALL != 0 {
        match how.peek {
            true => len = peek_all(stream, buffers, how, (len, wanted)),
            false => {
                let mut rest: Vec<IoSliceMut<'_>> =
                    buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
                let mut rest = &mut rest[..];
                let mut more = len;
                // It stops before an urgent byte, as each receive does.
                while more > 0 && len < wanted && !stream.is_at_mark() {
                    IoSliceMut::advance_slices(&mut rest, more);
                    // Whatever ends the wait, the data received so far is returned.
                    more = once(rest).unwrap_or_else(|error| {
                        put_back(stream, &error);
                        0
                    });
                    len += more;
                }
            }
        }
    }
    Ok(Received { len, any: len > 0, from: None, message: None, flags: 0 })
}

/// `MSG_OOB` (`tcp_recv_urg`): one byte, without waiting.
#[cold]
fn receive_urgent(
    stream: &TcpStream,
    buffers: &mut [IoSliceMut<'_>],
    flags: c_int,
) -> io::Result<Received> {
    let nothing = Received { len: 0, any: false, from: None, message: None, flags: 0 };
    let Some(byte) = stream.recv_urgent(flags & libc::MSG_PEEK != 0)? else { return Ok(nothing) };
    let Some(room) = buffers.iter_mut().find_map(|buffer| buffer.first_mut()) else {
        return Ok(Received { flags: libc::MSG_OOB | libc::MSG_TRUNC, ..nothing });
    };
    if flags & libc::MSG_TRUNC == 0 {
        *room = byte;
    }
    Ok(Received { len: 1, any: true, flags: libc::MSG_OOB, ..nothing })
}

/// A call that returns data leaves an error to the next call, as in Linux.
pub(super) fn put_back(stream: &TcpStream, error: &io::Error) {
    if !matches!(code(error), libc::EAGAIN | libc::EINTR | ERESTARTSYS) {
        stream.restore_error(code(error));
    }
}

/// `MSG_PEEK` with `MSG_WAITALL`: waits until all `wanted` bytes are there, starting from `len`, or until the end, a
/// signal or the timeout. Data that is there already ends every sleep on the socket, so this polls at intervals.
fn peek_all(
    stream: &TcpStream,
    buffers: &mut [IoSliceMut<'_>],
    how: ReceiveFlags,
    (mut len, wanted): (usize, usize),
) -> usize {
    let limit = stream.read_timeout().ok().flatten();
    let begun = Instant::now();
    let how = ReceiveFlags { dont_wait: true, ..how };
    while len > 0
        && len < wanted
        && !stream.readiness().has(Events::READ_HANGUP | Events::ERROR)
        && !signal::has_deferred_signal()
        && limit.is_none_or(|limit| begun.elapsed() < limit)
    {
        std::thread::sleep(Duration::from_micros(100));
        len = stream.recv_message(buffers, how).unwrap_or(len);
    }
    len
}

fn receive_once(
    inside: &Inside,
    stream: &TcpStream,
    fd: c_int,
    buffers: &mut [IoSliceMut<'_>],
    how: ReceiveFlags,
) -> io::Result<usize> {
    match stream.recv_message(buffers, how) {
        Err(stopped) if stopped.kind() == io::ErrorKind::Interrupted => inside
            .wait(restart_unless_timeout(fd, libc::SO_RCVTIMEO), || {
                stream.recv_message(buffers, how)
            }),
        other => other,
    }
}

/// `MSG_TRUNC` on TCP: reads as many bytes as there is room for, and does not copy them.
fn discard(
    buffers: &[IoSliceMut<'_>],
    mut read: impl FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
) -> io::Result<usize> {
    let wanted: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    let mut scratch = [0; 4096];
    let room = scratch.get_mut(..wanted.min(4096)).unwrap_or_default();
    read(&mut [IoSliceMut::new(room)])
}
