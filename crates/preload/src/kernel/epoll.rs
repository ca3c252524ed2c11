//! Waiting in epoll: the kernel polls if the instance's parameters say so (`EPIOCSPARAMS`). Every instance gets the
//! program's settings when it is made, and those of the sockets it watches as they are added.

use std::ptr;

use busypoll_linux::EpollParams;
use libc::{c_int, c_ulong, epoll_event, sigset_t, timespec};

use super::limit::{exact, millis, within};
use super::poll::{self, Spin};
use super::seen::{self, Kind, Word};
use super::{active, ask, make, nested};
use crate::config::Config;
use crate::errno::Kept;
use crate::harm::{self, Wait};
use crate::real;

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
        seen::put(fd, Kind::Epoll, 0, settings);
        let micros = config.kernel_micros(settings);
        if micros > 0 {
            switch(config, fd, micros);
        }
    }
    fd
}

/// The parameters of an instance that polls by the settings at this index.
pub fn params(config: &Config, place: usize) -> EpollParams {
    config.settings.get(place).map_or_else(EpollParams::default, |settings| EpollParams {
        busy_poll_usecs: config.kernel_micros(place),
        busy_poll_budget: settings.busy_poll_budget,
        prefer_busy_poll: settings.prefer_busy_poll,
    })
}

/// Has the kernel poll for an instance so many microseconds; 0: not at all.
fn switch(config: &Config, fd: c_int, micros: u32) {
    let full = params(config, seen::get(fd).settings());
    let on = micros > 0;
    let _errno = Kept::new();
    let wanted =
        if on { EpollParams { busy_poll_usecs: micros, ..full } } else { EpollParams::default() };
    seen::mark(fd, Word::CUT, on && micros < full.busy_poll_usecs);
    match ask::set_params(fd, wanted) {
        Ok(()) => seen::mark(fd, Word::ON, on),
        // A budget above 64 needs CAP_NET_ADMIN; the other parameters do not.
        Err(_) if on && wanted.busy_poll_budget > 0 => {
            let less = EpollParams { busy_poll_budget: 0, ..wanted };
            let less = ask::set_params(fd, less);
            seen::mark(fd, if less.is_ok() { Word::ON } else { Word::THEIRS }, true);
        }
        // The descriptor was closed past our hooks, and is not an epoll instance any more.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => seen::forget(fd),
        Err(error) => {
            seen::mark(fd, Word::THEIRS, true);
            ask::refused("EPIOCSPARAMS", &error);
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
        && let socket = make::learn(config, fd)
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
    if !seen::get(epoll).has(Word::NESTS) || room <= 0 || events.is_null() {
        return None;
    }
    let spin = poll::spin(nested::members(active()?, epoll)?, limit, mask);
    if let Spin::None = spin {
        return None;
    }
    // SAFETY: the caller's contract.
    unsafe {
        if let Some(result) = spin.look(|| real::epoll_wait(epoll, events, room, 0)) {
            return Some(spin.end(result));
        }
        let sleep = |left, mask| real::epoll_pwait2(epoll, events, room, left, mask);
        Some(spin.sleep(limit, mask, sleep))
    }
}

/// The instance now watches a socket with the settings at this index.
fn watches(config: &Config, epoll: c_int, socket: usize) {
    let word = seen::get(epoll);
    if word.kind() != Kind::Epoll {
        return;
    }
    // The first socket's settings replace the program's.
    let first = !word.has(Word::WATCHES);
    if first {
        seen::mark(epoll, Word::WATCHES, true);
    } else if socket == word.settings() {
        return;
    }
    let place = if first { socket } else { config.joined(word.settings(), socket) };
    if place == word.settings() {
        return;
    }
    seen::set_settings(epoll, place);
    let micros = config.kernel_micros(place);
    if !word.has(Word::THEIRS) && (micros > 0 || word.has(Word::ON)) {
        switch(config, epoll, micros);
    }
}

/// Before a wait of at most `limit` nanoseconds. `None` where there is nothing to decide.
#[inline]
fn before(epoll: c_int, limit: Option<u64>) -> Option<Wait> {
    let word = seen::get(epoll);
    if limit == Some(0)
        || word.kind() != Kind::Epoll
        || !word.has(Word::WATCHES)
        || word.has(Word::THEIRS)
    {
        return None;
    }
    let config = active()?;
    let full = config.kernel_micros(word.settings());
    if full == 0 {
        return None;
    }
    if harm::rests() {
        if word.has(Word::ON) {
            switch(config, epoll, 0);
        }
        return None;
    }
    let micros = within(full, limit);
    let wait = Wait::begin(micros);
    let spins = wait.spins();
    if spins != word.has(Word::ON) || spins && (micros < full || word.has(Word::CUT)) {
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
        seen::mark(fd, Word::THEIRS, true);
    }
    // SAFETY: the caller's contract.
    let result = unsafe { real::ioctl(fd, request, argument) };
    if request == libc::FIONBIO as c_ulong && result == 0 && seen::get(fd).kind() == Kind::Socket {
        // SAFETY: FIONBIO takes a pointer to an int, which the kernel has just read.
        let on = unsafe { *(argument as *const c_int) } != 0;
        seen::mark(fd, Word::NONBLOCKING, on);
    }
    result
}
