//! sendfile(2) and splice(2): data between a socket of ours and a file or pipe of the kernel's, through memory.

use super::{
    common::{answer, checked, code, error},
    file::{FILES, Ref, dispatch, enter},
    local_stream,
    receive::recv,
    send::send,
    thread_end, wait,
};
use crate::{inside::Restart, real};
use libc::{c_int, c_void, off_t, size_t, ssize_t};
use std::{
    cell::RefCell,
    io::{self, Read},
    mem::ManuallyDrop,
    os::fd::AsRawFd,
    ptr,
    sync::atomic::Ordering,
    time::Duration,
};

const CHUNK: usize = 64 << 10;

local! {
    /// A thread copies for one call at a time.
    static BUFFER: RefCell<ManuallyDrop<Vec<u8>>> = RefCell::new(ManuallyDrop::new(Vec::new()));
}

/// The calling thread ends: frees its buffer.
pub fn on_thread_exit() {
    let buffer = BUFFER.try_with(|buffer| buffer.replace(ManuallyDrop::new(Vec::new())));
    drop(buffer.map(ManuallyDrop::into_inner));
}

fn with_buffer<T>(then: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with(|buffer| match buffer.try_borrow_mut() {
        Ok(mut buffer) => {
            thread_end::watch_thread_end();
            buffer.resize(CHUNK, 0);
            then(&mut buffer)
        }
        // In a signal handler that interrupted a copy.
        Err(_) => then(&mut vec![0; CHUNK]),
    })
}

/// sendfile(2) from a socket of ours: to a pipe it works as splice(2) (`do_sendfile`); for anything else the kernel
/// gives the error.
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
    let none = ptr::null_mut();
    let is_splice = offset.is_null() && matches!(ssize_t::try_from(count), Ok(1..));
    // SAFETY: the caller's contract, here and below.
    unsafe {
        match is_splice {
            true => splice(file, from, none, out, none, count, 0),
            false => real::sendfile(out, from, offset, count),
        }
    }
}

/// sendfile(2) from another descriptor, perhaps to a socket of ours.
///
/// # Safety
/// That of sendfile(2).
pub unsafe fn sendfile_other(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller's contract, here and below.
    let by_kernel = || unsafe { real::sendfile(out, from, offset, count) };
    let Some(file) = FILES.get(out) else { return by_kernel() };
    local_stream::leave_kernels(&file);
    // Each call below enters for itself.
    file.follow.has_sent.store(true, Ordering::Relaxed);
    if file.live().is_none() || enter(file).is_none() {
        return by_kernel();
    }
    // SAFETY: the caller's contract.
    let offset = unsafe { offset.as_mut() };
    let result = with_buffer(|buffer| send_file(out, from, offset, count, buffer));
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
    // The most that the kernel does in one call.
    let count = count.min(0x7fff_f000);
    while done < count {
        let room = buffer.len().min(count - done);
        let to = buffer.as_mut_ptr().cast::<c_void>();
        // The file offset does not move before the data is sent.
        let at = match &offset {
            Some(at) => Ok(**at),
            // SAFETY: a plain system call.
            None => checked(unsafe { libc::lseek(from, 0, libc::SEEK_CUR) }),
        };
        // SAFETY: `room` writable bytes.
        let read = at.and_then(|at| Ok((at, checked(unsafe { libc::pread(from, to, room, at) })?)));
        let (next, read) = match read {
            Ok((_, 0)) => break,
            Ok((at, read)) => (at + read as off_t, read as usize),
            Err(failed) if done == 0 && offset.is_none() && code(&failed) == libc::ESPIPE => {
                return Err(error(libc::EINVAL));
            }
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        };
        // Without MSG_MORE at the end of the file, so that the data is sent at once.
        let follows = done + read < count && !is_end(from, next);
        let more = if follows { libc::MSG_MORE } else { 0 };
        // SAFETY: `read` readable bytes.
        let sent = unsafe { send_any(out, buffer.as_ptr().cast(), read, more) };
        let sent = match checked(sent) {
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

/// Whether `file` ends at `at`.
fn is_end(file: c_int, at: off_t) -> bool {
    let mut byte = 0u8;
    // SAFETY: one writable byte.
    unsafe { libc::pread(file, (&raw mut byte).cast(), 1, at) <= 0 }
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
    local_stream::leave_kernels(&file);
    let is_ours = is_plain([from_offset, to_offset], len, flags)
        && file.live().is_some()
        && enter(file).is_some();
    let pipe = if is_ours { Pipe::of(to) } else { None };
    let Some(pipe) = pipe.filter(|pipe| pipe.writable) else {
        // SAFETY: the caller's contract. The kernel refuses invalid calls on a companion as on any socket.
        return unsafe { real::splice(from, from_offset, to, to_offset, len, flags) };
    };
    answer(with_buffer(|buffer| {
        // Only what the pipe has room for is taken from the socket. The flag applies to the pipe alone
        // (`tcp_splice_read`).
        let room = room(to, pipe.nonblocking || flags & libc::SPLICE_F_NONBLOCK != 0)?;
        let len = len.min(buffer.len()).min(room);
        // SAFETY: `len` writable bytes.
        let got = checked(unsafe { receive_any(from, buffer.as_mut_ptr().cast(), len, 0) })?;
        write_all(to, buffer.get(..got as usize).unwrap_or_default())?;
        Ok(got as usize)
    }))
}

/// splice(2) from another descriptor, perhaps to a socket of ours.
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
    let Some(file) = FILES.get(to) else { return by_kernel() };
    local_stream::leave_kernels(&file);
    let is_ours = is_plain([from_offset, to_offset], len, flags)
        && file.live().is_some()
        && enter(file).is_some();
    if !is_ours || !Pipe::of(from).is_some_and(|pipe| pipe.readable) {
        return by_kernel();
    }
    answer(with_buffer(|buffer| {
        // Data leaves the pipe only once it is sent, so that none is lost.
        let len = len.min(buffer.len());
        let there = peek(from, buffer.get_mut(..len).unwrap_or_default(), flags)?;
        if there == 0 {
            return Ok(0);
        }
        let more = if flags & libc::SPLICE_F_MORE != 0 { libc::MSG_MORE } else { 0 };
        // SAFETY: readable bytes.
        let sent = checked(unsafe { send_any(to, buffer.as_ptr().cast(), there, more) })? as usize;
        discard(from, buffer.get_mut(..sent).unwrap_or_default());
        Ok(sent)
    }))
}

/// Whether there is something to transfer, with known flags and without offsets, which a socket does not have.
fn is_plain(offsets: [*mut i64; 2], len: size_t, flags: u32) -> bool {
    let known =
        libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    len > 0 && flags & !known == 0 && offsets.iter().all(|offset| offset.is_null())
}

/// An end of a pipe.
struct Pipe {
    readable: bool,
    writable: bool,
    nonblocking: bool,
}

impl Pipe {
    /// `None`: `fd` is not a pipe.
    fn of(fd: c_int) -> Option<Pipe> {
        // SAFETY: plain system calls.
        let (size, flags) =
            unsafe { (real::fcntl(fd, libc::F_GETPIPE_SZ, 0), real::fcntl(fd, libc::F_GETFL, 0)) };
        let mode = flags & libc::O_ACCMODE;
        (size > 0 && flags >= 0).then_some(Pipe {
            readable: mode != libc::O_WRONLY,
            writable: mode != libc::O_RDONLY,
            nonblocking: flags & libc::O_NONBLOCK != 0,
        })
    }
}

/// Copies the first bytes of a pipe to `buffer` and leaves them in the pipe; waits for them as splice(2) with these
/// flags does. Returns how many; 0: the end.
fn peek(pipe: c_int, buffer: &mut [u8], flags: u32) -> io::Result<usize> {
    let (mut copy, into) = io::pipe()?;
    let now = flags & libc::SPLICE_F_NONBLOCK;
    // SAFETY: a plain system call.
    let len = checked(unsafe { libc::tee(pipe, into.as_raw_fd(), buffer.len(), now) })? as usize;
    let room = buffer.get_mut(..len).unwrap_or_default();
    copy.read_exact(room)?;
    Ok(len)
}

/// Removes as many bytes from a pipe as `room` holds.
fn discard(pipe: c_int, mut room: &mut [u8]) {
    while !room.is_empty() {
        // SAFETY: writable bytes.
        match unsafe { real::read(pipe, room.as_mut_ptr().cast(), room.len()) } {
            read @ 1.. => room = room.get_mut(read as usize..).unwrap_or_default(),
            // Another reader has taken them.
            _ => return,
        }
    }
}

/// How much the pipe has room for. Waits for room, unless `now`.
fn room(pipe: c_int, now: bool) -> io::Result<usize> {
    let limit = now.then_some(Duration::ZERO);
    let there = wait::wait_for_kernel_fd(pipe, libc::POLLOUT, limit, Restart::BySignal)?;
    if there & libc::POLLERR != 0 {
        // It has no reader: SIGPIPE, as for any write to it.
        // SAFETY: a signal to the calling thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
        return Err(error(libc::EPIPE));
    }
    if there & libc::POLLOUT == 0 {
        return Err(error(libc::EAGAIN));
    }
    let mut bytes: c_int = 0;
    // SAFETY: a valid pointer for the answer.
    checked(unsafe { real::ioctl(pipe, libc::FIONREAD, (&raw mut bytes).addr()) })?;
    // Its pages may be partly filled, but at least one is free.
    Ok(match bytes {
        // SAFETY: a plain system call.
        0 => checked(unsafe { real::fcntl(pipe, libc::F_GETPIPE_SZ, 0) })? as usize,
        _ => 4096,
    })
}

/// Writes all of `data`: it has left the socket, and must not be lost.
fn write_all(to: c_int, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        // SAFETY: readable bytes.
        match checked(unsafe { real::write(to, data.as_ptr().cast(), data.len()) }) {
            Ok(written) => data = data.get(written as usize..).unwrap_or_default(),
            Err(failed) if code(&failed) == libc::EINTR => {}
            // Another writer has filled the pipe.
            Err(error) if code(&error) == libc::EAGAIN => {
                let mut fds = libc::pollfd { fd: to, events: libc::POLLOUT, revents: 0 };
                // SAFETY: one entry.
                unsafe { real::poll(&raw mut fds, 1, -1) };
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// send(2), whether `fd` is still ours or not.
///
/// # Safety
/// That of send(2).
unsafe fn send_any(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract.
    let by_kernel = || unsafe { real::send(fd, buf, len, flags) };
    // SAFETY: the caller's contract.
    dispatch(fd, |file| unsafe { send(file, fd, buf, len, flags) }, by_kernel)
}

/// recv(2), whether `fd` is still ours or not.
///
/// # Safety
/// That of recv(2).
unsafe fn receive_any(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract.
    let by_kernel = || unsafe { real::recv(fd, buf, len, flags) };
    // SAFETY: the caller's contract.
    dispatch(fd, |file| unsafe { recv(file, fd, buf, len, flags) }, by_kernel)
}
