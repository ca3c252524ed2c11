//! Receiving, by all the C functions for it.

use super::{
    address, cmsg,
    common::{answer, code, error},
    file::{Live, Ref, answer_or, enter},
    iovec, local_stream,
    receive_one::{Received, put_back, receive},
    wait,
};
use crate::{
    inside::{ERESTARTSYS, Inside},
    real,
};
use busypoll_policy::Protocol;
use libc::{c_int, c_void, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use std::{
    io::{self, IoSliceMut},
    time::Instant,
};

/// Receives into one buffer. `None`: the call is for the companion.
///
/// # Safety
/// `buf` points to `len` writable bytes, or is null.
unsafe fn receive_into(
    (inside, file): (&Inside, &Ref),
    fd: c_int,
    (buf, len): (*mut c_void, size_t),
    flags: c_int,
) -> Option<io::Result<Received>> {
    let mut scratch: [u8; 4096];
    let nowhere = buf.is_null() && len > 0;
    // TCP with MSG_TRUNC discards, so it needs no buffer.
    let discards = flags & libc::MSG_TRUNC != 0
        && file.protocol == Protocol::Tcp
        && file.domain != libc::AF_UNIX;
    let room = if nowhere && discards {
        scratch = [0; 4096];
        &mut scratch[..len.min(4096)]
    } else {
        // SAFETY: the caller's contract.
        unsafe { iovec::writable(buf.cast(), len) }
    };
    let got = receive(inside, file, fd, &mut [IoSliceMut::new(room)], flags)?;
    Some(got.and_then(|got| match nowhere && got.any && !discards {
        true => Err(error(libc::EFAULT)),
        false => Ok(got),
    }))
}

/// The calls that take one buffer.
///
/// # Safety
/// `buf` points to `len` writable bytes, or is null.
unsafe fn into_buffer(
    (inside, file): (Inside, Ref),
    fd: c_int,
    (buf, len): (*mut c_void, size_t),
    flags: c_int,
    by_kernel: impl Fn() -> ssize_t,
) -> ssize_t {
    // SAFETY: the caller's contract.
    let got = unsafe { receive_into((&inside, &file), fd, (buf, len), flags) };
    answer_or(inside, file, got.map(|got| got.map(|got| got.len)), by_kernel)
}

/// # Safety
/// That of read(2).
pub unsafe fn read(file: Ref, fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller's contract, here and below.
    let by_kernel = || unsafe { real::read(fd, buf, len) };
    match enter(file) {
        // SAFETY: the caller's contract.
        Some(entered) if len > 0 => unsafe { into_buffer(entered, fd, (buf, len), 0, by_kernel) },
        // read(2) of 0 bytes does not wait.
        Some((_, file)) if file.live().is_some() => 0,
        _ => by_kernel(),
    }
}

/// # Safety
/// That of recv(2).
pub unsafe fn recv(file: Ref, fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract.
    let by_kernel = || unsafe { real::recv(fd, buf, len, flags) };
    let Some(entered) = enter(file) else { return by_kernel() };
    // SAFETY: the caller's contract.
    unsafe { into_buffer(entered, fd, (buf, len), flags, by_kernel) }
}

/// # Safety
/// That of recvfrom(2).
pub unsafe fn recvfrom(
    file: Ref,
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller's contract, here and below.
    let by_kernel = || unsafe { real::recvfrom(fd, buf, len, flags, addr, addr_len) };
    let Some((inside, file)) = enter(file) else { return by_kernel() };
    // SAFETY: the caller's contract.
    let got = unsafe { receive_into((&inside, &file), fd, (buf, len), flags) };
    let named = |got: Received| {
        if file.domain == libc::AF_UNIX && got.any {
            // SAFETY: the caller's contract.
            unsafe { local_stream::write_sender(fd, addr, addr_len) };
            return Ok(got.len);
        }
        // SAFETY: the caller's contract.
        unsafe { address::write_if_asked(got.from, file.domain, addr, addr_len) }?;
        Ok(got.len)
    };
    let got = got.map(|got| got.and_then(named));
    answer_or(inside, file, got, by_kernel)
}

/// # Safety
/// That of readv(2).
pub unsafe fn readv(file: Ref, fd: c_int, iov: *const libc::iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's contract, here and below.
    let by_kernel = || unsafe { real::readv(fd, iov, count) };
    let Some((inside, file)) = enter(file) else { return by_kernel() };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    // SAFETY: the caller's contract.
    let got = unsafe {
        iovec::with_writable(iov, count, libc::EINVAL, |buffers| {
            let nothing = buffers.iter().all(|buffer| buffer.is_empty());
            Ok(match nothing && file.live().is_some() {
                true => Some(0),
                false => receive(&inside, &file, fd, buffers, 0).transpose()?.map(|got| got.len),
            })
        })
    };
    answer_or(inside, file, got.transpose(), by_kernel)
}

/// # Safety
/// That of preadv2(2).
pub unsafe fn preadv2(
    file: Ref,
    fd: c_int,
    iov: *const libc::iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
) -> ssize_t {
    // A socket has no offset; -1 means a plain read. Of the flags only RWF_NOWAIT has a meaning here.
    if at == -1 && flags & !libc::RWF_NOWAIT == 0 {
        if flags == 0 {
            // SAFETY: the caller's contract.
            return unsafe { readv(file, fd, iov, count) };
        }
        // SAFETY: all zeroes are valid; then the caller's contract.
        unsafe {
            let mut message: msghdr = std::mem::zeroed();
            message.msg_iov = iov.cast_mut();
            message.msg_iovlen = usize::try_from(count).unwrap_or(usize::MAX) as _;
            return recvmsg(file, fd, &raw mut message, libc::MSG_DONTWAIT);
        }
    }
    // SAFETY: the caller's contract. The kernel returns ESPIPE or another error.
    unsafe { real::preadv2(fd, iov, count, at, flags) }
}

/// # Safety
/// That of recvmsg(2).
pub unsafe fn recvmsg(file: Ref, fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract, here and below.
    let by_kernel = || unsafe { real::recvmsg(fd, message, flags) };
    let Some((inside, file)) = enter(file) else { return by_kernel() };
    // SAFETY: the caller's contract.
    let got = unsafe { one_message(&inside, &file, fd, message, flags) };
    answer_or(inside, file, got, by_kernel)
}

/// # Safety
/// That of recvmsg(2).
unsafe fn one_message(
    inside: &Inside,
    file: &Ref,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> Option<io::Result<usize>> {
    // SAFETY: the caller's contract, here and below.
    let Some(message) = (unsafe { message.as_mut() }) else {
        return Some(Err(error(libc::EFAULT)));
    };
    let (iov, count) = (message.msg_iov, message.msg_iovlen);
    // SAFETY: the caller's contract.
    let got = unsafe {
        iovec::with_writable(iov, count, libc::EMSGSIZE, |buffers| {
            receive(inside, file, fd, buffers, flags).transpose()
        })
    };
    let got = match got {
        Ok(None) => return None,
        Ok(Some(got)) => got,
        Err(error) => return Some(Err(error)),
    };
    message.msg_flags = got.flags | flags & libc::MSG_CMSG_CLOEXEC;
    let (name, len) = (message.msg_name.cast(), &raw mut message.msg_namelen);
    if file.domain == libc::AF_UNIX && got.any {
        // SAFETY: the caller's contract.
        unsafe { local_stream::write_sender(fd, name, len) };
    // SAFETY: the caller's contract.
    } else if let Err(error) = unsafe { address::write_if_asked(got.from, file.domain, name, len) }
    {
        return Some(Err(error));
    }
    let cmsg_flags = file.cmsg_flags.load(std::sync::atomic::Ordering::Relaxed);
    message.msg_flags |= match (got.message, file.live()) {
        (Some(datagram), Some(Live::Udp(udp))) if cmsg_flags != 0 => {
            let drops = udp.stats().drops;
            // SAFETY: the caller's contract.
            unsafe { cmsg::put_for_datagram(cmsg_flags, &datagram, drops, file.domain, message) }
        }
        (None, Some(Live::Stream(stream))) if cmsg_flags != 0 => {
            // SAFETY: the caller's contract.
            unsafe { cmsg::put_for_stream(cmsg_flags, stream, got.any, message) }
        }
        _ => {
            message.msg_controllen = 0;
            0
        }
    };
    Some(Ok(got.len))
}

/// # Safety
/// That of recvmmsg(2).
pub unsafe fn recvmmsg(
    file: Ref,
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the caller's contract, here and below.
    let by_kernel = || unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    // Its waits do not end when a stream moves.
    if file.kernel_stream().is_some() {
        local_stream::leave(&file, fd);
    }
    let Some((inside, file)) = enter(file) else { return by_kernel() };
    // SAFETY: the caller's contract.
    let limit = match unsafe { wait::span(timeout) } {
        Ok(limit) => limit,
        Err(error) => return answer(Err(error)),
    };
    if messages.is_null() && count > 0 {
        return answer(Err(error(libc::EFAULT)));
    }
    let begun = Instant::now();
    let wait_for_one = flags & libc::MSG_WAITFORONE != 0;
    let mut flags = flags & !libc::MSG_WAITFORONE;
    let mut received = 0;
    let mut failed = None;
    // The kernel has no limit on the count either.
    for at in 0..count as usize {
        // SAFETY: the caller's contract.
        let entry = unsafe { &mut *messages.add(at) };
        // SAFETY: the caller's contract.
        match unsafe { one_message(&inside, &file, fd, &raw mut entry.msg_hdr, flags) } {
            None if received == 0 => {
                drop(inside);
                return by_kernel();
            }
            None => break,
            Some(Ok(len)) => entry.msg_len = len as u32,
            Some(Err(error)) => {
                failed = Some(error);
                break;
            }
        }
        received += 1;
        if wait_for_one {
            flags |= libc::MSG_DONTWAIT;
        }
        if limit.is_some_and(|limit| begun.elapsed() >= limit) {
            break;
        }
    }
    // SAFETY: the caller's contract.
    if let (Some(limit), Some(timeout)) = (limit, unsafe { timeout.as_mut() }) {
        let left = limit.saturating_sub(begun.elapsed());
        timeout.tv_sec = left.as_secs() as _;
        timeout.tv_nsec = left.subsec_nanos().into();
    }
    match failed {
        Some(error) if received == 0 => answer(Err(error)),
        failed => {
            // The next call returns the error (`do_recvmmsg`).
            match (failed, file.live()) {
                (Some(error), Some(Live::Udp(udp)))
                    if !matches!(code(&error), libc::EAGAIN | libc::EINTR | ERESTARTSYS) =>
                {
                    udp.restore_error(code(&error));
                }
                (Some(error), Some(Live::Stream(stream))) => put_back(stream, &error),
                _ => {}
            }
            answer(Ok(received))
        }
    }
}

/// `read` as `-D_FORTIFY_SOURCE` calls it: with the size of the buffer's object.
///
/// # Safety
/// That of read(2).
pub unsafe fn read_chk(
    file: Ref,
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    if len > room {
        // SAFETY: the caller's contract; it aborts the program with glibc's message.
        return unsafe { real::__read_chk(fd, buf, len, room) };
    }
    // SAFETY: the caller's contract.
    unsafe { read(file, fd, buf, len) }
}

/// `recv`, in the same way.
///
/// # Safety
/// That of recv(2).
pub unsafe fn recv_chk(
    file: Ref,
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if len > room {
        // SAFETY: as in `read_chk`.
        return unsafe { real::__recv_chk(fd, buf, len, room, flags) };
    }
    // SAFETY: the caller's contract.
    unsafe { recv(file, fd, buf, len, flags) }
}

/// `recvfrom`, in the same way.
///
/// # Safety
/// That of recvfrom(2).
#[expect(clippy::too_many_arguments, reason = "as many as the C library's")]
pub unsafe fn recvfrom_chk(
    file: Ref,
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    if len > room {
        // SAFETY: as in `read_chk`.
        return unsafe { real::__recvfrom_chk(fd, buf, len, room, flags, addr, addr_len) };
    }
    // SAFETY: the caller's contract.
    unsafe { recvfrom(file, fd, buf, len, flags, addr, addr_len) }
}
