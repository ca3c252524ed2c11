//! sendfile(2) and splice(2): data between a socket of ours and a file or pipe of the kernel's, through memory.

use super::{answer, code, enter, error, said};
use crate::{
    fds::{self, Ref},
    real,
    table::exported as hook,
};
use libc::{c_int, c_void, off_t, size_t, ssize_t};
use std::{cell::RefCell, io};

const CHUNK: usize = 64 << 10;

thread_local! {
    /// One thread copies one thing at a time.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn with_buffer<T>(then: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with(|buffer| match buffer.try_borrow_mut() {
        Ok(mut buffer) => {
            buffer.resize(CHUNK, 0);
            then(&mut buffer)
        }
        // In a handler of a signal that came meanwhile.
        Err(_) => then(&mut vec![0; CHUNK]),
    })
}

/// sendfile(2) to a socket of ours.
///
/// # Safety
/// That of sendfile(2).
pub unsafe fn sendfile(
    file: Ref,
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller's contract, here and below.
    let by_kernel = || unsafe { real::sendfile(out, from, offset, count) };
    // Each call below enters for itself.
    if file.live().is_none() || enter(file).is_none() {
        return by_kernel();
    }
    // SAFETY: the caller's contract.
    let place = unsafe { offset.as_mut() };
    let result = with_buffer(|buffer| send_file(out, from, place, count, buffer));
    answer(result)
}

fn send_file(
    out: c_int,
    from: c_int,
    mut offset: Option<&mut off_t>,
    count: usize,
    buffer: &mut [u8],
) -> io::Result<usize> {
    let mut done = 0;
    // As much as the kernel does in one call.
    let count = count.min(0x7fff_f000);
    while done < count {
        let room = buffer.len().min(count - done);
        let to = buffer.as_mut_ptr().cast::<c_void>();
        // Where the file is read from does not move before the data is sent.
        // SAFETY: `room` writable bytes.
        let read = match &offset {
            // SAFETY: the caller's contract.
            Some(at) => unsafe { libc::pread(from, to, room, **at) },
            // SAFETY: the caller's contract.
            None => unsafe {
                let at = libc::lseek(from, 0, libc::SEEK_CUR);
                if at < 0 { at as ssize_t } else { libc::pread(from, to, room, at) }
            },
        };
        let read = match said(read) {
            Ok(0) => break,
            Ok(read) => read as usize,
            Err(error) if done == 0 && code(&error) == libc::ESPIPE => {
                return Err(super::error(libc::EINVAL));
            }
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        };
        let more = if done + read < count { libc::MSG_MORE } else { 0 };
        // SAFETY: `read` readable bytes.
        let sent = unsafe { hook::send(out, buffer.as_ptr().cast(), read, more) };
        let sent = match said(sent) {
            Ok(sent) => sent as usize,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        };
        done += sent;
        match &mut offset {
            Some(at) => **at += sent as off_t,
            // SAFETY: a plain system call.
            None => unsafe {
                libc::lseek(from, sent as off_t, libc::SEEK_CUR);
            },
        }
        if sent < read {
            break;
        }
    }
    Ok(done)
}

/// sendfile(2) to something else: from a socket there is none.
///
/// # Safety
/// That of sendfile(2).
pub unsafe fn sendfile_to_other(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller's contract. A companion has no data to give, and says EINVAL as any socket.
    unsafe { real::sendfile(out, from, offset, count) }
}

/// splice(2) from a socket of ours to a pipe.
///
/// # Safety
/// That of splice(2).
pub unsafe fn splice(
    file: Ref,
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    len: size_t,
    flags: u32,
) -> ssize_t {
    if file.live().is_none() || enter(file).is_none() {
        // SAFETY: the caller's contract.
        return unsafe { real::splice(from, from_offset, to, to_offset, len, flags) };
    }
    if !from_offset.is_null() || !to_offset.is_null() {
        return answer(Err(error(libc::ESPIPE)));
    }
    answer(with_buffer(|buffer| {
        // Only what the pipe has room for is taken from the socket.
        let len = len.min(buffer.len()).min(room(to)?);
        if len == 0 {
            return Err(error(libc::EAGAIN));
        }
        let wait = if flags & libc::SPLICE_F_NONBLOCK != 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: `len` writable bytes.
        let got = said(unsafe { hook::recv(from, buffer.as_mut_ptr().cast(), len, wait) })?;
        write_all(to, buffer.get(..got as usize).unwrap_or_default())?;
        Ok(got as usize)
    }))
}

/// splice(2) from something else, perhaps to a socket of ours.
///
/// # Safety
/// That of splice(2).
pub unsafe fn splice_to_other(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    len: size_t,
    flags: u32,
) -> ssize_t {
    // SAFETY: the caller's contract.
    let by_kernel = || unsafe { real::splice(from, from_offset, to, to_offset, len, flags) };
    let Some(file) = fds::get(to) else { return by_kernel() };
    if file.live().is_none() || enter(file).is_none() {
        return by_kernel();
    }
    if !from_offset.is_null() || !to_offset.is_null() {
        return answer(Err(error(libc::ESPIPE)));
    }
    answer(with_buffer(|buffer| {
        let len = len.min(buffer.len());
        if flags & libc::SPLICE_F_NONBLOCK != 0 && waiting(from)? == 0 {
            return Err(error(libc::EAGAIN));
        }
        // SAFETY: `len` writable bytes.
        let got = said(unsafe { real::read(from, buffer.as_mut_ptr().cast(), len) })? as usize;
        let more = if flags & libc::SPLICE_F_MORE != 0 { libc::MSG_MORE } else { 0 };
        let mut rest = buffer.get(..got).unwrap_or_default();
        // What has left the pipe must not be lost, so there is no way back.
        while !rest.is_empty() {
            // SAFETY: readable bytes.
            match said(unsafe { hook::send(to, rest.as_ptr().cast(), rest.len(), more) }) {
                Ok(sent) => rest = rest.get(sent as usize..).unwrap_or_default(),
                Err(error) if code(&error) == libc::EAGAIN => wait_for(to)?,
                Err(error) => return Err(error),
            }
        }
        Ok(got)
    }))
}

fn wait_for(fd: c_int) -> io::Result<()> {
    let mut fds = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry.
    said(unsafe { hook::poll(&raw mut fds, 1, 100) }).map(drop)
}

/// How much a pipe takes without waiting.
fn room(pipe: c_int) -> io::Result<usize> {
    // SAFETY: plain system calls.
    let size = said(unsafe { real::fcntl(pipe, libc::F_GETPIPE_SZ, 0) })
        .map_err(|_| error(libc::EINVAL))?;
    // Its pages may each hold less than a page.
    Ok(if waiting(pipe)? == 0 { size as usize } else { 4096.min(size as usize) })
}

fn waiting(pipe: c_int) -> io::Result<usize> {
    let mut bytes: c_int = 0;
    // SAFETY: a valid place for the answer.
    said(unsafe { real::ioctl(pipe, libc::FIONREAD, (&raw mut bytes).addr()) })?;
    Ok(bytes as usize)
}

fn write_all(to: c_int, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        // SAFETY: readable bytes.
        match said(unsafe { real::write(to, data.as_ptr().cast(), data.len()) }) {
            Ok(written) => data = data.get(written as usize..).unwrap_or_default(),
            Err(error) if code(&error) == libc::EAGAIN => {
                let mut fds = libc::pollfd { fd: to, events: libc::POLLOUT, revents: 0 };
                // SAFETY: one entry.
                unsafe { real::poll(&raw mut fds, 1, 100) };
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
