//! Options of a companion and of its active socket: queried, set, copied from one to the other.

use super::{
    common::span,
    file::{File, Live},
};
use crate::real;
use busypoll_stack::Owner;
use libc::{IPPROTO_TCP, TCP_CONGESTION, c_int, socklen_t};
use std::{io, mem::MaybeUninit, sync::atomic::Ordering, time::Duration};

// include/uapi/asm-generic/fcntl.h: a `struct f_owner_ex` is a kind and an id.
const F_GETOWN_EX: c_int = 16;
const F_OWNER_TID: c_int = 0;
const F_OWNER_PGRP: c_int = 2;

/// Sets an option whose value is a single number.
///
/// # Errors
/// ENOPROTOOPT for one our stack does not know.
pub fn set_number(live: &Live, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    match live {
        Live::Udp(udp) => udp.setsockopt(level, name, value),
        Live::Stream(stream) => stream.setsockopt(level, name, value),
        Live::Listener(listener) => listener.setsockopt(level, name, value),
    }
}

/// The companion's value of an option of type `T`.
///
/// # Safety
/// Any bytes are a valid `T`.
pub unsafe fn query<T>(fd: c_int, level: c_int, name: c_int) -> Option<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as socklen_t;
    // SAFETY: valid pointers for the answer.
    let result =
        unsafe { real::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len) };
    // SAFETY: zeroed, and any bytes are valid.
    (result == 0).then(|| unsafe { value.assume_init() })
}

pub fn get_number(live: &Live, level: c_int, name: c_int) -> io::Result<c_int> {
    match live {
        Live::Udp(udp) => udp.getsockopt(level, name),
        Live::Stream(stream) => stream.getsockopt(level, name),
        Live::Listener(listener) => listener.getsockopt(level, name),
    }
}

/// `SO_RCVTIMEO` or `SO_SNDTIMEO` of a companion.
pub fn timeout(fd: c_int, name: c_int) -> Option<Duration> {
    // SAFETY: two numbers.
    unsafe { query::<libc::timeval>(fd, libc::SOL_SOCKET, name) }.and_then(span)
}

/// Gives `live` the companion's timeout.
pub fn set_timeout(live: &Live, name: c_int, timeout: Option<Duration>) {
    let receiving = name == libc::SO_RCVTIMEO;
    // They fail only for a zero timeout, and that is not passed here.
    let _ = match live {
        Live::Udp(udp) if receiving => udp.set_read_timeout(timeout),
        Live::Udp(udp) => udp.set_write_timeout(timeout),
        Live::Stream(stream) if receiving => stream.set_read_timeout(timeout),
        Live::Stream(stream) => stream.set_write_timeout(timeout),
        Live::Listener(listener) if receiving => listener.set_accept_timeout(timeout),
        Live::Listener(_) => Ok(()),
    };
}

/// Copies `SO_LINGER` from the companion.
pub fn copy_linger(fd: c_int, live: &Live) {
    let Live::Stream(stream) = live else { return };
    // SAFETY: two numbers.
    if let Some(linger) = unsafe { query::<libc::linger>(fd, libc::SOL_SOCKET, libc::SO_LINGER) } {
        let seconds = Duration::from_secs(linger.l_linger.unsigned_abs().into());
        // It cannot fail.
        let _ = stream.set_linger((linger.l_onoff != 0).then_some(seconds));
    }
}

/// Copies `TCP_CONGESTION` from the companion. An algorithm that our stack does not have is ignored.
pub fn copy_congestion(fd: c_int, live: &Live) {
    let Live::Stream(stream) = live else { return };
    // SAFETY: bytes.
    if let Some(text) = unsafe { query::<[u8; 16]>(fd, IPPROTO_TCP, TCP_CONGESTION) } {
        let name = text.split(|byte| *byte == 0).next().unwrap_or_default();
        let _ = std::str::from_utf8(name).map(|name| stream.set_congestion(name));
    }
}

/// Copies the receiver of SIGURG from the companion.
pub fn copy_owner(fd: c_int, live: &Live) {
    let Live::Stream(stream) = live else { return };
    let mut owner = [0, 0];
    // SAFETY: a valid pointer for the answer.
    let result = unsafe { real::fcntl(fd, F_GETOWN_EX, (&raw mut owner).expose_provenance()) };
    let owner = match owner {
        _ if result != 0 => None,
        [_, 0] => None,
        [F_OWNER_TID, thread] => Some(Owner::Thread(thread)),
        [F_OWNER_PGRP, group] => Some(Owner::Group(group)),
        [_, process] => Some(Owner::Process(process)),
    };
    stream.set_owner(owner);
}

/// `SO_REUSEADDR`, `SO_REUSEPORT` or another option of a companion that is on or off.
pub fn is_on(fd: c_int, level: c_int, name: c_int) -> bool {
    // SAFETY: a number.
    unsafe { query::<c_int>(fd, level, name) }.is_some_and(|on| on != 0)
}

/// Sets such an option of a companion. It cannot fail for an option that can be queried.
pub fn set_on(fd: c_int, level: c_int, name: c_int, on: bool) {
    let on = c_int::from(on);
    // SAFETY: a number, and its length.
    unsafe {
        real::setsockopt(fd, level, name, (&raw const on).cast(), size_of_val(&on) as socklen_t)
    };
}

/// The options that a connection keeps when its owner changes, and their values on a new socket.
const KEPT: [(c_int, c_int, c_int); 6] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 0),
    (IPPROTO_TCP, libc::TCP_NODELAY, 0),
    (IPPROTO_TCP, libc::TCP_KEEPIDLE, 7200),
    (IPPROTO_TCP, libc::TCP_KEEPINTVL, 75),
    (IPPROTO_TCP, libc::TCP_KEEPCNT, 9),
    (IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0),
];

/// Sets the options of a connection to those of its companion, which has been the connection.
pub fn copy_from_companion(fd: c_int, live: &Live) {
    for (level, name, _) in KEPT {
        // SAFETY: a number.
        if let Some(value) = unsafe { query::<c_int>(fd, level, name) } {
            let _ = set_number(live, level, name, value);
        }
    }
}

/// Sets the companion's options to those of its connection: one that was accepted has its listener's. What the program
/// has set on the connection itself, the companion has.
pub fn copy_to_companion(live: &Live, fd: c_int) {
    for (level, name, new) in KEPT {
        if let Ok(value) = get_number(live, level, name)
            && value != new
        {
            let len = size_of_val(&value) as socklen_t;
            // SAFETY: a number, and its size. If the kernel refuses, the option is unchanged.
            unsafe { real::setsockopt(fd, level, name, (&raw const value).cast(), len) };
        }
    }
}

impl File {
    /// Whether an option of the companion `fd` is on that is off on a new socket.
    pub fn is_on(&self, fd: c_int, level: c_int, name: c_int) -> bool {
        match self.options_known.load(Ordering::Relaxed) {
            true => self.stored_option(level, name).is_some_and(|value| value != 0),
            false => is_on(fd, level, name),
        }
    }

    /// `IPV6_V6ONLY`, whose default an administrator sets.
    pub fn is_only_v6(&self, fd: c_int) -> bool {
        self.domain == libc::AF_INET6
            && match self.stored_option(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) {
                Some(value) => value != 0,
                None => is_on(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
            }
    }
}
