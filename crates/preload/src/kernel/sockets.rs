//! Sockets as they are made and get addresses: each gets the settings that the policy has for it.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use busypoll_policy::Protocol;
use libc::{c_int, c_void, sockaddr, socklen_t};
use rustix::net::sockopt;

use super::fd_state::{self, FdState, Kind};
use super::{active, busy_poll_options};
use crate::config::Config;
use crate::errno::Saved;
use crate::real;

/// # Safety
/// That of socket(2).
pub unsafe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the caller's contract.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if fd >= 0
        && let Some(config) = active()
    {
        match protocol_of_type(domain, kind) {
            Some(protocol) => {
                let settings = config.settings_of(protocol, None, None);
                configure(config, fd, settings, kind & libc::SOCK_NONBLOCK != 0);
            }
            None => fd_state::forget(fd),
        }
    }
    fd
}

/// # Safety
/// That of accept4(2).
pub unsafe fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    accepted(fd, unsafe { real::accept4(fd, addr, len, flags) }, flags)
}

/// An accepted socket inherits the listener's option; the rules may differ now that its addresses
/// are known.
fn accepted(listener: c_int, fd: c_int, flags: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    let Some(config) = active() else { return fd };
    let known = lookup(config, listener);
    if known.kind() != Kind::Socket {
        fd_state::forget(fd);
        return fd;
    }
    let nonblocking = if flags & libc::SOCK_NONBLOCK != 0 { FdState::NONBLOCKING } else { 0 };
    let inherited = if known.has(FdState::ON) { FdState::ON } else { 0 };
    let set_by_program =
        if known.has(FdState::SET_BY_PROGRAM) { FdState::SET_BY_PROGRAM } else { 0 };
    fd_state::put(fd, Kind::Socket, nonblocking | inherited | set_by_program, known.settings());
    reapply_policy(config, fd);
    fd
}

/// # Safety
/// That of bind(2).
pub unsafe fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's contract.
    let result = unsafe { real::bind(fd, addr, len) };
    if let Some(config) = active()
        && result == 0
    {
        reapply_policy(config, fd);
    }
    result
}

/// # Safety
/// That of connect(2).
pub unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's contract.
    let result = unsafe { real::connect(fd, addr, len) };
    if let Some(config) = active()
        && (result == 0 || crate::errno::get() == libc::EINPROGRESS)
    {
        reapply_policy(config, fd);
    }
    result
}

/// # Safety
/// That of setsockopt(2).
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if level == libc::SOL_SOCKET && name == libc::SO_BUSY_POLL {
        // The program's own choice stands.
        fd_state::mark(fd, FdState::SET_BY_PROGRAM, true);
    }
    // SAFETY: the caller's contract.
    unsafe { real::setsockopt(fd, level, name, value, len) }
}

/// Looks up a descriptor that was not made through our hooks: one inherited over an exec.
pub fn lookup(config: &Config, fd: c_int) -> FdState {
    let state = fd_state::get(fd);
    if state.kind() != Kind::Unknown || fd < 0 {
        return state;
    }
    // SAFETY: a number that is not open is an error of the calls below and nothing else.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let Some(protocol) = protocol_of(socket) else {
        return fd_state::put(fd, Kind::Other, 0, 0);
    };
    let nonblocking =
        rustix::fs::fcntl_getfl(socket).is_ok_and(|f| f.contains(rustix::fs::OFlags::NONBLOCK));
    let settings = config.settings_of(protocol, local(socket), remote(socket));
    configure(config, fd, settings, nonblocking)
}

/// Asks the policy again, for a socket that has got an address.
fn reapply_policy(config: &Config, fd: c_int) {
    let state = fd_state::get(fd);
    if config.launch.policy.rules.is_empty() || state.kind() != Kind::Socket {
        return;
    }
    // SAFETY: as in `lookup`.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let Some(protocol) = protocol_of(socket) else { return };
    let settings = config.settings_of(protocol, local(socket), remote(socket));
    if settings != state.settings() {
        fd_state::set_settings(fd, settings);
        if !state.has(FdState::SET_BY_PROGRAM) {
            apply(config, fd, settings);
        }
    }
}

/// Applies the settings to a new socket.
fn configure(config: &Config, fd: c_int, settings: usize, nonblocking: bool) -> FdState {
    let bits = if nonblocking { FdState::NONBLOCKING } else { 0 };
    fd_state::put(fd, Kind::Socket, bits, settings);
    apply(config, fd, settings);
    fd_state::get(fd)
}

fn apply(config: &Config, fd: c_int, index: usize) {
    let micros = config.kernel_micros(index);
    let Some(settings) = config.settings.get(index) else { return };
    if micros == 0 && !fd_state::get(fd).has(FdState::ON) {
        return;
    }
    let _errno = Saved::new();
    switch(fd, micros);
    // The launcher has reported what the user may not do; a failure here is ignored.
    if settings.prefer_busy_poll && micros > 0 {
        let _ = busy_poll_options::set_option(fd, libc::SO_PREFER_BUSY_POLL, 1);
    }
    if settings.busy_poll_budget > 0 && micros > 0 {
        let budget = settings.busy_poll_budget.into();
        let _ = busy_poll_options::set_option(fd, libc::SO_BUSY_POLL_BUDGET, budget);
    }
}

/// Has the kernel poll for a socket for `micros` microseconds; 0: not at all.
pub fn switch(fd: c_int, micros: u32) {
    match busy_poll_options::set_option(fd, libc::SO_BUSY_POLL, micros) {
        Ok(()) => fd_state::mark(fd, FdState::ON, micros > 0),
        // The descriptor was closed past our hooks, and is not a socket any more.
        Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => fd_state::forget(fd),
        Err(error) => {
            // It is not tried a second time.
            fd_state::mark(fd, FdState::SET_BY_PROGRAM, true);
            busy_poll_options::report_refusal("SO_BUSY_POLL", &error);
        }
    }
}

/// The protocols whose sockets keep the NAPI id of their packets.
fn protocol_of_type(domain: c_int, kind: c_int) -> Option<Protocol> {
    match (domain, kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)) {
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM) => Some(Protocol::Tcp),
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM) => Some(Protocol::Udp),
        _ => None,
    }
}

fn protocol_of(socket: BorrowedFd<'_>) -> Option<Protocol> {
    let domain = sockopt::socket_domain(socket).ok()?;
    let kind = sockopt::socket_type(socket).ok()?;
    protocol_of_type(domain.as_raw().into(), kind.as_raw().cast_signed())
}

fn local(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getsockname(socket).ok()?.try_into().ok()
}

fn remote(socket: impl AsFd) -> Option<SocketAddr> {
    rustix::net::getpeername(socket).ok()??.try_into().ok()
}
