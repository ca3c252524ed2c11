//! Waiting in recv and the like: the kernel polls if `SO_BUSY_POLL` is set. The option is set
//! before the wait, where the decision has changed.

use libc::{c_int, c_void, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::fd_state::{self, FdState, Kind};
use super::{active, sockets};
use crate::errno::Saved;
use crate::real;
use crate::spin_policy::{self, Wait};

/// Before a call that may wait for `fd`. `None` where there is nothing to decide.
#[inline]
fn before(fd: c_int, flags: c_int) -> Option<Wait> {
    let state = fd_state::get(fd);
    if state.kind() != Kind::Socket
        || state.has(FdState::NONBLOCKING)
        || state.has(FdState::SET_BY_PROGRAM)
        || flags & libc::MSG_DONTWAIT != 0
    {
        return None;
    }
    begin(fd, state)
}

fn begin(fd: c_int, state: FdState) -> Option<Wait> {
    let micros = active()?.kernel_micros(state.settings());
    if micros == 0 {
        return None;
    }
    if spin_policy::backs_off() {
        if state.has(FdState::ON) {
            let _errno = Saved::new();
            sockets::switch(fd, 0);
        }
        return None;
    }
    let wait = Wait::begin(micros);
    if wait.spins() != state.has(FdState::ON) {
        let _errno = Saved::new();
        sockets::switch(fd, if wait.spins() { micros } else { 0 });
    }
    Some(wait)
}

/// A socket inherited over an exec is recognised at its first receive.
#[inline]
fn before_recv(fd: c_int, flags: c_int) -> Option<Wait> {
    if fd_state::get(fd).kind() == Kind::Unknown
        && let Some(config) = active()
    {
        sockets::lookup(config, fd);
    }
    before(fd, flags)
}

#[inline]
fn after<T>(wait: Option<Wait>, result: T) -> T {
    if let Some(wait) = wait {
        wait.end();
    }
    result
}

/// # Safety
/// That of read(2).
pub unsafe fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    let wait = before(fd, 0);
    // SAFETY: the caller's contract.
    after(wait, unsafe { real::read(fd, buf, len) })
}

/// # Safety
/// That of readv(2).
pub unsafe fn readv(fd: c_int, iov: *const libc::iovec, count: c_int) -> ssize_t {
    let wait = before(fd, 0);
    // SAFETY: the caller's contract.
    after(wait, unsafe { real::readv(fd, iov, count) })
}

/// # Safety
/// That of recv(2).
pub unsafe fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let wait = before_recv(fd, flags);
    // SAFETY: the caller's contract.
    after(wait, unsafe { real::recv(fd, buf, len, flags) })
}

/// # Safety
/// That of recvfrom(2).
pub unsafe fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    let wait = before_recv(fd, flags);
    // SAFETY: the caller's contract.
    after(wait, unsafe { real::recvfrom(fd, buf, len, flags, addr, addr_len) })
}

/// # Safety
/// That of recvmsg(2).
pub unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let wait = before_recv(fd, flags);
    // SAFETY: the caller's contract.
    after(wait, unsafe { real::recvmsg(fd, message, flags) })
}

/// # Safety
/// That of recvmmsg(2).
pub unsafe fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let wait = before_recv(fd, flags);
    // SAFETY: the caller's contract.
    after(wait, unsafe { real::recvmmsg(fd, messages, count, flags, timeout) })
}

/// # Safety
/// That of read(2), in a buffer of `room` bytes.
pub unsafe fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    let wait = before(fd, 0);
    // SAFETY: the caller's contract; the real one aborts the program where `len` exceeds `room`.
    after(wait, unsafe { real::__read_chk(fd, buf, len, room) })
}

/// # Safety
/// That of recv(2), in a buffer of `room` bytes.
pub unsafe fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    let wait = before_recv(fd, flags);
    // SAFETY: as in `__read_chk`.
    after(wait, unsafe { real::__recv_chk(fd, buf, len, room, flags) })
}

/// # Safety
/// That of recvfrom(2), in a buffer of `room` bytes.
pub unsafe fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    let wait = before_recv(fd, flags);
    // SAFETY: as in `__read_chk`.
    after(wait, unsafe { real::__recvfrom_chk(fd, buf, len, room, flags, addr, addr_len) })
}
