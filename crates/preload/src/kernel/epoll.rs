//! Waiting in epoll: the kernel polls if the instance's parameters say so (`EPIOCSPARAMS`). Every instance gets the
//! program's settings when it is made, and those of the sockets it watches as they are added.

use std::ptr;

use busypoll_linux::EpollParams;
use libc::{c_int, c_ulong, epoll_event, sigset_t, timespec};

use super::fd_state::{self, FdState, Kind};
use super::poll::{self, Spin};
use super::timeout::{at_least, exact, millis, within};
use super::{active, busy_poll_options, nested, sockets};
use crate::config::Config;
use crate::errno::{self, Saved};
use crate::real;
use crate::spin_policy::{self, Wait};

/// # Safety
/// That of epoll_create(2).
pub unsafe fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the caller's contract.
    made(unsafe { real::epoll_create(size) })
}

/// # Safety
/// That of epoll_create1(2).
pub unsafe fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the caller's contract.
    made(unsafe { real::epoll_create1(flags) })
}

fn made(fd: c_int) -> c_int {
    if fd >= 0
        && let Some(config) = active()
    {
        let settings = config.settings_of_program();
        fd_state::put(fd, Kind::Epoll, 0, settings);
        let micros = config.kernel_micros(settings);
        if micros > 0 {
            switch(config, fd, micros);
        }
    }
    fd
}

/// Has the kernel poll for an instance so many microseconds; 0: not at all.
fn switch(config: &Config, fd: c_int, micros: u32) {
    let full = busy_poll_options::params(config, fd_state::get(fd).settings());
    let on = micros > 0;
    let _errno = Saved::new();
    let wanted =
        if on { EpollParams { busy_poll_usecs: micros, ..full } } else { EpollParams::default() };
    fd_state::mark(fd, FdState::SHORTENED, on && micros < full.busy_poll_usecs);
    match busy_poll_options::set_params(fd, wanted) {
        Ok(()) => fd_state::mark(fd, FdState::ON, on),
        // A budget above 64 needs CAP_NET_ADMIN; the other parameters do not.
        Err(_) if on && wanted.busy_poll_budget > 0 => {
            let less = EpollParams { busy_poll_budget: 0, ..wanted };
            let less = busy_poll_options::set_params(fd, less);
            fd_state::mark(
                fd,
                if less.is_ok() { FdState::ON } else { FdState::SET_BY_PROGRAM },
                true,
            );
        }
        // The descriptor was closed past our hooks, and is not an epoll instance any more.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => fd_state::forget(fd),
        Err(error) => {
            fd_state::mark(fd, FdState::SET_BY_PROGRAM, true);
            busy_poll_options::report_refusal("EPIOCSPARAMS", &error);
        }
    }
}

/// # Safety
/// That of epoll_ctl(2).
pub unsafe fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if (operation == libc::EPOLL_CTL_ADD || operation == libc::EPOLL_CTL_MOD)
        && let Some(config) = active()
        && let socket = sockets::lookup(config, fd)
        && socket.kind() == Kind::Socket
    {
        watches(config, epoll, socket.settings());
    }
    // SAFETY: the caller's contract.
    let result = unsafe { real::epoll_ctl(epoll, operation, fd, event) };
    if result == 0 && operation != libc::EPOLL_CTL_MOD && active().is_some() {
        nested::changed(epoll, (operation == libc::EPOLL_CTL_ADD).then_some(fd));
    }
    result
}

/// A wait on an instance that watches other instances. `None` where it watches none, or nothing is to be polled.
///
/// # Safety
/// That of epoll_pwait2(2).
#[inline]
unsafe fn nested_wait(
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    limit: Option<u64>,
    mask: *const sigset_t,
) -> Option<c_int> {
    // The kernel refuses such a call at once.
    if !fd_state::get(epoll).has(FdState::NESTED) || room <= 0 || events.is_null() {
        return None;
    }
    let spin = poll::spin(nested::members(active()?, epoll)?, limit, mask);
    if let Spin::None = spin {
        return None;
    }
    // SAFETY: the caller's contract.
    unsafe {
        if let Some(result) = spin.check_now(|| real::epoll_wait(epoll, events, room, 0)) {
            return Some(spin.end(result));
        }
        let sleep = |left, mask| wait_exactly(epoll, events, room, left, mask);
        Some(spin.sleep(limit, mask, sleep))
    }
}

/// epoll_pwait2, or epoll_pwait where a filter refuses it: a program that called epoll_wait must not see that.
///
/// # Safety
/// That of epoll_pwait2(2).
unsafe fn wait_exactly(
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's contract.
    let result = unsafe { real::epoll_pwait2(epoll, events, room, limit, mask) };
    if result >= 0 || !matches!(errno::get(), libc::ENOSYS | libc::EPERM) {
        return result;
    }
    // SAFETY: the caller's contract: null or a time.
    let limit = at_least(unsafe { limit.as_ref() }.map(exact));
    // SAFETY: the caller's contract.
    unsafe { real::epoll_pwait(epoll, events, room, limit, mask) }
}

/// The instance now watches a socket with the settings at this index.
fn watches(config: &Config, epoll: c_int, socket: usize) {
    let state = fd_state::get(epoll);
    if state.kind() != Kind::Epoll {
        return;
    }
    // The first socket's settings replace the program's.
    let first = !state.has(FdState::WATCHES_SOCKET);
    if first {
        fd_state::mark(epoll, FdState::WATCHES_SOCKET, true);
    } else if socket == state.settings() {
        return;
    }
    let index = if first { socket } else { config.joined(state.settings(), socket) };
    if index == state.settings() {
        return;
    }
    fd_state::set_settings(epoll, index);
    let micros = config.kernel_micros(index);
    if !state.has(FdState::SET_BY_PROGRAM) && (micros > 0 || state.has(FdState::ON)) {
        switch(config, epoll, micros);
    }
}

/// Before a wait of at most `limit` nanoseconds. `None` where there is nothing to decide.
#[inline]
fn before(epoll: c_int, limit: Option<u64>) -> Option<Wait> {
    let state = fd_state::get(epoll);
    if limit == Some(0)
        || state.kind() != Kind::Epoll
        || !state.has(FdState::WATCHES_SOCKET)
        || state.has(FdState::SET_BY_PROGRAM)
    {
        return None;
    }
    let config = active()?;
    let full = config.kernel_micros(state.settings());
    if full == 0 {
        return None;
    }
    if spin_policy::backs_off() {
        if state.has(FdState::ON) {
            switch(config, epoll, 0);
        }
        return None;
    }
    let micros = within(full, limit);
    let wait = Wait::begin(micros);
    let spins = wait.spins();
    if spins != state.has(FdState::ON) || spins && (micros < full || state.has(FdState::SHORTENED))
    {
        switch(config, epoll, if spins { micros } else { 0 });
    }
    Some(wait)
}

#[inline]
fn after(wait: Option<Wait>, result: c_int) -> c_int {
    if let Some(wait) = wait {
        wait.end();
    }
    result
}

/// # Safety
/// That of epoll_wait(2).
pub unsafe fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: c_int,
) -> c_int {
    let limit = millis(timeout);
    // SAFETY: the caller's contract.
    if let Some(result) = unsafe { nested_wait(epoll, events, room, limit, ptr::null()) } {
        return result;
    }
    let wait = before(epoll, limit);
    // SAFETY: the caller's contract.
    after(wait, unsafe { real::epoll_wait(epoll, events, room, timeout) })
}

/// # Safety
/// That of epoll_pwait(2).
pub unsafe fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let limit = millis(timeout);
    // SAFETY: the caller's contract.
    if let Some(result) = unsafe { nested_wait(epoll, events, room, limit, mask) } {
        return result;
    }
    let wait = before(epoll, limit);
    // SAFETY: the caller's contract.
    after(wait, unsafe { real::epoll_pwait(epoll, events, room, timeout, mask) })
}

/// # Safety
/// That of epoll_pwait2(2).
pub unsafe fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's contract: null or a time.
    let limit = unsafe { timeout.as_ref() }.map(exact);
    // SAFETY: the caller's contract.
    if let Some(result) = unsafe { nested_wait(epoll, events, room, limit, mask) } {
        return result;
    }
    let wait = before(epoll, limit);
    // SAFETY: the caller's contract.
    after(wait, unsafe { real::epoll_pwait2(epoll, events, room, timeout, mask) })
}

/// # Safety
/// That of ioctl(2), with one argument of a machine word.
pub unsafe fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    if request == libc::EPIOCSPARAMS as c_ulong {
        // The program's own choice stands.
        fd_state::mark(fd, FdState::SET_BY_PROGRAM, true);
    }
    // SAFETY: the caller's contract.
    let result = unsafe { real::ioctl(fd, request, argument) };
    if request == libc::FIONBIO as c_ulong
        && result == 0
        && fd_state::get(fd).kind() == Kind::Socket
    {
        // SAFETY: FIONBIO takes a pointer to an int, which the kernel has just read.
        let on = unsafe { *(argument as *const c_int) } != 0;
        fd_state::mark(fd, FdState::NONBLOCKING, on);
    }
    result
}
