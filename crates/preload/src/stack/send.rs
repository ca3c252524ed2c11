//! Sending, by all the C functions for it.

use super::{
    activation::{self, bind_free_port, leave_fd_to_kernel},
    address, cmsg,
    common::{self, answer, code, error},
    file::{File, Live, Ref, answer_or, dispatch, enter},
    iovec, local_stream, route,
    scm_rights::{self, sendmmsg_other, sendmsg_other},
    sockets,
    udp_links::{self, Sender},
    unsupported_options,
};
use crate::{inside::Inside, real};
use busypoll_policy::Protocol;
use busypoll_stack::{Outgoing, SendFlags, TcpStream, UdpSocket};
use libc::{c_int, c_void, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    sync::atomic::Ordering,
};

/// A destination address as C passes it.
#[derive(Clone, Copy)]
struct Destination {
    address: *const sockaddr,
    len: socklen_t,
}

const NO_DESTINATION: Destination = Destination { address: std::ptr::null(), len: 0 };

impl Destination {
    /// # Safety
    /// The pointer and length are valid.
    unsafe fn read(self, file: &File) -> io::Result<Option<SocketAddr>> {
        if self.address.is_null() || self.len == 0 {
            return Ok(None);
        }
        // SAFETY: the caller's contract.
        let to = unsafe { address::read_of(file.domain, self.address, self.len) }?;
        // An IPv4 socket refuses addresses of other families (`udp_sendmsg`).
        match file.domain == libc::AF_INET && to.is_ipv6() {
            true => Err(error(libc::EAFNOSUPPORT)),
            false => Ok(Some(to)),
        }
    }

    /// Connects, and then sends.
    ///
    /// # Safety
    /// The pointer and length are valid.
    unsafe fn connect(self, file: Ref, fd: c_int, send: impl FnOnce() -> ssize_t) -> ssize_t {
        // SAFETY: the caller's contract.
        if !self.address.is_null() && !unsafe { address::names_family(self.address, self.len) } {
            return answer(Err(error(libc::EOPNOTSUPP)));
        }
        // SAFETY: the caller's contract.
        match unsafe { sockets::connect(file, fd, self.address, self.len) } {
            0 => send(),
            _ => -1,
        }
    }
}

/// Whether a send connects first (`tcp_sendmsg_fastopen`). The SYN carries no data, as in the kernel without a cookie
/// from the peer.
fn connects(file: &File, flags: c_int) -> bool {
    flags & libc::MSG_FASTOPEN != 0
        && file.protocol == Protocol::Tcp
        && file.domain != libc::AF_UNIX
        && !file.is_kernel_owned()
}

/// Sends `buffers`; `None`: the call is for the companion.
///
/// # Safety
/// `to` is valid.
unsafe fn send_buffers(
    inside: &Inside,
    file: &Ref,
    fd: c_int,
    buffers: &[IoSlice<'_>],
    to: Destination,
    flags: c_int,
) -> Option<io::Result<usize>> {
    if file.domain == libc::AF_UNIX {
        if local_stream::is_for_kernel(file, fd, flags, false) {
            return None;
        }
        local_stream::before_call(file, fd);
        if !to.address.is_null() && to.len > 0 {
            return file.live().map(|_| Err(error(libc::EISCONN)));
        }
    }
    // A part of a datagram: our stack sends whole ones only.
    if flags & libc::MSG_MORE != 0
        && file.protocol == Protocol::Udp
        && !file.is_kernel_owned()
        && activation::require(file, fd, unsupported_options::MORE)
    {
        activation::release_if_required(file, fd);
        return None;
    }
    let live = match file.live() {
        Some(live) => live,
        None if file.domain == libc::AF_UNIX => return None,
        None => {
            // SAFETY: the caller's contract.
            let to = unsafe { to.read(file) }.ok()?;
            first_send(file, fd, to)?
        }
    };
    Some(match live {
        Live::Udp(udp) => {
            // SAFETY: the caller's contract.
            let to = match unsafe { to.read(file) } {
                Ok(to) => to,
                Err(error) => return Some(Err(error)),
            };
            send_datagram(inside, udp, fd, buffers, to, flags)
        }
        Live::Stream(stream) => send_stream(inside, stream, fd, buffers, flags),
        Live::Listener(_) => return None,
    })
}

/// The first send on a socket that is not active, to `to` or to its peer. `None`: the companion sends.
fn first_send(file: &Ref, fd: c_int, to: Option<SocketAddr>) -> Option<&Live> {
    if file.is_kernel_owned() {
        return None;
    }
    if file.protocol == Protocol::Tcp {
        file.follow.has_sent.store(true, Ordering::Relaxed);
        activation::report_if_foreign(file, fd);
        return None;
    }
    match udp_links::sender(file, fd, to) {
        Sender::AsEver => {}
        Sender::Kernel => return None,
        Sender::Link => {
            if common::local(fd).ok()?.port() == 0 {
                bind_free_port(fd, file.domain).ok()?;
            }
            return file.activate(fd);
        }
    }
    let local = common::local(fd).ok()?;
    if local.port() == 0 {
        // Unbound, so not connected either.
        let to = to?;
        if !(file.is_for_stack(None, Some(to)) && route::leads_to(to, local.ip())) {
            leave_fd_to_kernel(fd, file);
            return None;
        }
        bind_free_port(fd, file.domain).ok()?;
    }
    file.activate(fd)
}

fn send_datagram(
    inside: &Inside,
    udp: &UdpSocket,
    fd: c_int,
    buffers: &[IoSlice<'_>],
    to: Option<SocketAddr>,
    flags: c_int,
) -> io::Result<usize> {
    if flags & libc::MSG_OOB != 0 {
        return Err(error(libc::EOPNOTSUPP));
    }
    let dont_wait = flags & libc::MSG_DONTWAIT != 0;
    match udp.send_message(buffers, to, dont_wait) {
        Err(stopped) if stopped.kind() == io::ErrorKind::Interrupted => {
            let restart = sockets::restart_unless_timeout(fd, libc::SO_SNDTIMEO);
            inside.wait(restart, || udp.send_message(buffers, to, dont_wait))
        }
        other => other,
    }
}

fn send_stream(
    inside: &Inside,
    stream: &TcpStream,
    fd: c_int,
    buffers: &[IoSlice<'_>],
    flags: c_int,
) -> io::Result<usize> {
    let has = |flag| flags & flag != 0;
    let how = SendFlags {
        more: has(libc::MSG_MORE),
        dont_wait: has(libc::MSG_DONTWAIT),
        record_end: has(libc::MSG_EOR),
        urgent: has(libc::MSG_OOB),
    };
    let sent = match stream.send_message(buffers, how) {
        Err(stopped) if stopped.kind() == io::ErrorKind::Interrupted => {
            let restart = sockets::restart_unless_timeout(fd, libc::SO_SNDTIMEO);
            inside.wait(restart, || stream.send_message(buffers, how))
        }
        other => other,
    };
    if flags & libc::MSG_NOSIGNAL == 0
        && sent.as_ref().is_err_and(|error| code(error) == libc::EPIPE)
    {
        // SAFETY: a signal to the calling thread, handled once it is outside.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
    }
    sent
}

/// The calls that take one buffer.
///
/// # Safety
/// `buf` points to `len` readable bytes; `to` is valid.
unsafe fn from_buffer(
    file: Ref,
    fd: c_int,
    (buf, len): (*const c_void, size_t),
    to: Destination,
    flags: c_int,
    by_kernel: impl Fn() -> ssize_t,
) -> ssize_t {
    let Some((inside, file)) = enter(file) else { return by_kernel() };
    // SAFETY: the caller's contract.
    let sent = match unsafe { iovec::readable(buf.cast(), len) } {
        // SAFETY: the caller's contract.
        Ok(bytes) => unsafe { send_buffers(&inside, &file, fd, &[IoSlice::new(bytes)], to, flags) },
        Err(error) => Some(Err(error)),
    };
    answer_or(inside, file, sent, by_kernel)
}

/// # Safety
/// That of write(2).
pub unsafe fn write(file: Ref, fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller's contract.
    unsafe { from_buffer(file, fd, (buf, len), NO_DESTINATION, 0, || real::write(fd, buf, len)) }
}

/// # Safety
/// That of send(2).
pub unsafe fn send(file: Ref, fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract.
    unsafe {
        from_buffer(file, fd, (buf, len), NO_DESTINATION, flags, || real::send(fd, buf, len, flags))
    }
}

/// # Safety
/// That of sendto(2).
pub unsafe fn sendto(
    file: Ref,
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    let to = Destination { address: addr, len: addr_len };
    if connects(&file, flags) {
        let flags = flags & !libc::MSG_FASTOPEN;
        // SAFETY: the caller's contract.
        return unsafe {
            to.connect(file, fd, || {
                dispatch(
                    fd,
                    |file| sendto(file, fd, buf, len, flags, addr, addr_len),
                    || real::sendto(fd, buf, len, flags, addr, addr_len),
                )
            })
        };
    }
    // SAFETY: the caller's contract.
    unsafe {
        from_buffer(file, fd, (buf, len), to, flags, || {
            real::sendto(fd, buf, len, flags, addr, addr_len)
        })
    }
}

/// # Safety
/// That of writev(2).
pub unsafe fn writev(file: Ref, fd: c_int, iov: *const libc::iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's contract.
    unsafe { from_vector(file, fd, (iov, count), 0, || real::writev(fd, iov, count)) }
}

/// # Safety
/// That of pwritev2(2).
pub unsafe fn pwritev2(
    file: Ref,
    fd: c_int,
    iov: *const libc::iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's contract. With an offset the kernel returns ESPIPE or another error.
    let by_kernel = || unsafe { real::pwritev2(fd, iov, count, at, flags) };
    if at != -1 || flags & !libc::RWF_NOWAIT != 0 {
        return by_kernel();
    }
    let flags = if flags == 0 { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: the caller's contract.
    unsafe { from_vector(file, fd, (iov, count), flags, by_kernel) }
}

/// # Safety
/// `iov` points to `count` vectors of readable memory.
unsafe fn from_vector(
    file: Ref,
    fd: c_int,
    (iov, count): (*const libc::iovec, c_int),
    flags: c_int,
    by_kernel: impl Fn() -> ssize_t,
) -> ssize_t {
    let Some((inside, file)) = enter(file) else { return by_kernel() };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    // SAFETY: the caller's contract.
    let sent = unsafe {
        iovec::with_readable(iov, count, libc::EINVAL, |buffers| {
            // writev(2) of 0 bytes sends nothing, not even an empty datagram (`vfs_writev`).
            if file.live().is_some() && buffers.iter().all(|buffer| buffer.is_empty()) {
                return Ok(Some(0));
            }
            send_buffers(&inside, &file, fd, buffers, NO_DESTINATION, flags).transpose()
        })
    };
    answer_or(inside, file, sent.transpose(), by_kernel)
}

/// # Safety
/// That of sendmsg(2).
pub unsafe fn sendmsg(file: Ref, fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract.
    if let Some(header) = unsafe { message.as_ref() }
        && connects(&file, flags)
    {
        let to =
            Destination { address: header.msg_name.cast_const().cast(), len: header.msg_namelen };
        let flags = flags & !libc::MSG_FASTOPEN;
        // SAFETY: the caller's contract.
        return unsafe {
            to.connect(file, fd, || {
                dispatch(
                    fd,
                    |file| sendmsg(file, fd, message, flags),
                    || real::sendmsg(fd, message, flags),
                )
            })
        };
    }
    let is_unix = file.domain == libc::AF_UNIX;
    // SAFETY: the caller's contract.
    let by_kernel = || unsafe {
        match is_unix {
            // It may pass descriptors.
            true => sendmsg_other(fd, message, flags),
            false => real::sendmsg(fd, message, flags),
        }
    };
    // SAFETY: the caller's contract.
    if is_unix && let Some(sent) = unsafe { scm_rights::send_later(&file, fd, message, flags) } {
        return sent;
    }
    let Some((inside, file)) = enter(file) else { return by_kernel() };
    // SAFETY: the caller's contract.
    let sent = unsafe { one_message(&inside, &file, fd, message, flags) };
    answer_or(inside, file, sent, by_kernel)
}

/// # Safety
/// That of sendmsg(2).
unsafe fn one_message(
    inside: &Inside,
    file: &Ref,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> Option<io::Result<usize>> {
    // SAFETY: the caller's contract, here and below.
    let message = unsafe { message.as_ref() }?;
    let (iov, count) = (message.msg_iov, message.msg_iovlen);
    let to =
        Destination { address: message.msg_name.cast_const().cast(), len: message.msg_namelen };
    if file.domain == libc::AF_UNIX
        && local_stream::is_for_kernel(file, fd, flags, message.msg_controllen > 0)
    {
        return None;
    }
    // The kernel sends datagrams with ancillary data (a source address, segments, a time to live).
    if file.protocol == Protocol::Udp && message.msg_controllen > 0 {
        if file.live().is_none() {
            // SAFETY: the caller's contract.
            let to = unsafe { to.read(file) }.ok()?;
            first_send(file, fd, to)?;
        }
        return None;
    }
    if message.msg_controllen > 0
        && let Some(Live::Stream(_)) = file.live()
    {
        // SAFETY: the caller's contract.
        if let Err(error) = unsafe { cmsg::check_for_stream(message) } {
            return Some(Err(error));
        }
    }
    // SAFETY: the caller's contract.
    let sent = unsafe {
        iovec::with_readable(iov, count, libc::EMSGSIZE, |buffers| {
            send_buffers(inside, file, fd, buffers, to, flags).transpose()
        })
    };
    sent.transpose()
}

/// # Safety
/// That of sendmmsg(2).
pub unsafe fn sendmmsg(
    file: Ref,
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
) -> c_int {
    let is_unix = file.domain == libc::AF_UNIX;
    // SAFETY: the caller's contract, here and below.
    let by_kernel = |done: usize| unsafe {
        let (messages, count) = (messages.add(done), count.saturating_sub(done as u32));
        match is_unix {
            true => sendmmsg_other(fd, messages, count, flags),
            false => real::sendmmsg(fd, messages, count, flags),
        }
    };
    if file.kernel_stream().is_some() {
        local_stream::leave(&file, fd);
    }
    let Some((inside, file)) = enter(file) else { return by_kernel(0) };
    if messages.is_null() && count > 0 {
        return answer(Err(error(libc::EFAULT)));
    }
    let count = (count as usize).min(iovec::UIO_MAXIOV);
    let mut sent = 0;
    while sent < count {
        if flags == 0
            && let Some(Live::Udp(udp)) = file.live()
            // SAFETY: the caller's contract.
            && let Some(batch) = unsafe { batch(udp, &file, messages.wrapping_add(sent), count - sent) }
        {
            match batch {
                Ok(batch) => sent += batch,
                Err(_) if sent > 0 => break,
                Err(error) => return answer(Err(error)),
            }
            continue;
        }
        // SAFETY: the caller's contract.
        let entry = unsafe { &mut *messages.add(sent) };
        // SAFETY: the caller's contract.
        match unsafe { one_message(&inside, &file, fd, &raw const entry.msg_hdr, flags) } {
            Some(Ok(len)) => entry.msg_len = len as u32,
            Some(Err(_)) if sent > 0 => break,
            Some(Err(error)) => return answer(Err(error)),
            None => {
                drop(inside);
                let more = by_kernel(sent);
                return if more < 0 && sent > 0 {
                    sent as c_int
                } else {
                    more.max(-1) + if more < 0 { 0 } else { sent as c_int }
                };
            }
        }
        sent += 1;
    }
    answer(Ok(sent))
}

/// The most datagrams for one doorbell.
const BATCH: usize = 64;

/// Sends the leading `messages` that have one buffer each and no ancillary data in one batch. Returns how many; `None`
/// if there are not two of them.
///
/// # Safety
/// `messages` points to `count` messages.
unsafe fn batch(
    udp: &UdpSocket,
    file: &File,
    messages: *mut mmsghdr,
    count: usize,
) -> Option<io::Result<usize>> {
    let mut outgoing = [Outgoing { payload: &[], to: None }; BATCH];
    let mut ready = 0;
    for (at, slot) in outgoing.iter_mut().enumerate().take(count) {
        // SAFETY: the caller's contract, here and below.
        let header = unsafe { &(*messages.add(at)).msg_hdr };
        if header.msg_iovlen != 1 || header.msg_controllen != 0 {
            break;
        }
        let name =
            Destination { address: header.msg_name.cast_const().cast(), len: header.msg_namelen };
        // SAFETY: the caller's contract.
        let Ok(to) = (unsafe { name.read(file) }) else { break };
        // SAFETY: the caller's contract.
        let bytes = unsafe {
            iovec::readable((*header.msg_iov).iov_base.cast(), (*header.msg_iov).iov_len)
        };
        let Ok(payload) = bytes else { break };
        *slot = Outgoing { payload, to };
        ready += 1;
    }
    if ready < 2 {
        return None;
    }
    let sent = udp.send_many(outgoing.get(..ready)?);
    for (at, one) in outgoing.iter().enumerate().take(*sent.as_ref().unwrap_or(&0)) {
        // SAFETY: the caller's contract.
        unsafe { (*messages.add(at)).msg_len = one.payload.len() as u32 };
    }
    Some(sent)
}
