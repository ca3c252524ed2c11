//! The four busy-poll options of a socket. Touches only the given socket.
//!
//! Kernel source: `net/core/sock.c` (`sk_setsockopt`, `sk_getsockopt`), `include/net/busy_poll.h`.
//!
//! | option | set | get | permission to set |
//! |---|---|---|---|
//! | `SO_BUSY_POLL` (46) | microseconds | microseconds | none today; up to about Linux 6.1 raising it needed `CAP_NET_ADMIN` |
//! | `SO_PREFER_BUSY_POLL` (69) | bool | bool | `CAP_NET_ADMIN` in the *initial* user namespace to switch on |
//! | `SO_BUSY_POLL_BUDGET` (70) | packets | not possible (`ENOPROTOOPT`) | the same to raise it, also from its initial 0 |
//! | `SO_INCOMING_NAPI_ID` (56) | not possible | NAPI id | - |
//!
//! Limits: `SO_BUSY_POLL` makes *receive calls* poll. It does nothing for a thread that
//! waits in epoll (see [`crate::epoll`]), and for poll(2) and select(2) only if
//! `net.core.busy_poll` is set as well (see [`crate::sysctl`]). All of them need a NAPI id, which a
//! socket learns from the packets it receives; loopback packets never carry one.

use std::fmt;
use std::num::NonZeroU32;
use std::os::fd::AsFd;

use libc::c_int;

use crate::caps::Capability;
use crate::error::{Error, Result};
use crate::sys;

/// The id of a NAPI instance: a device's receive queue, as the socket layer names it.
///
/// Unique over the whole machine while the instance lives, never below `NR_CPUS + 1`. It dies when
/// the device is reset or reconfigured; most drivers then get a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NapiId(NonZeroU32);

impl NapiId {
    /// The id, or `None` for 0, the kernel's "none".
    pub fn new(id: u32) -> Option<Self> {
        NonZeroU32::new(id).map(NapiId)
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for NapiId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `SO_BUSY_POLL`: how long a receive call on an empty queue may poll the device before it sleeps,
/// in microseconds; 0 = off.
pub fn busy_poll(socket: impl AsFd) -> Result<u32> {
    Ok(get(socket, &BUSY_POLL)? as u32)
}

/// Sets `SO_BUSY_POLL`, in microseconds; 0 = off. The kernel counts a microsecond as 1024 ns.
///
/// New sockets start with `net.core.busy_read`; accepted ones inherit the listener's value.
/// A non-blocking receive makes one pass over the queue, whatever the time.
///
/// # Errors
/// [`Error::OutOfRange`] above `i32::MAX`; [`Error::Denied`] if an old kernel wants
/// `CAP_NET_ADMIN` to raise it; [`Error::Unsupported`] without `CONFIG_NET_RX_BUSY_POLL`.
pub fn set_busy_poll(socket: impl AsFd, micros: u32) -> Result<()> {
    let value = c_int::try_from(micros).map_err(|_| Error::OutOfRange {
        what: BUSY_POLL.name,
        value: micros.into(),
        allowed: "0 to 2147483647 microseconds",
    })?;
    set(socket, &BUSY_POLL, value)
}

/// `SO_PREFER_BUSY_POLL`: whether polls from this socket keep the queue's interrupt masked.
pub fn prefer_busy_poll(socket: impl AsFd) -> Result<bool> {
    Ok(get(socket, &PREFER_BUSY_POLL)? != 0)
}

/// Sets `SO_PREFER_BUSY_POLL`: keep the interrupt masked between busy polls.
///
/// It takes effect only if the NAPI instance has `defer-hard-irqs` and `gro-flush-timeout` above
/// zero (see [`crate::netdev`]): that timer processes packets when no thread polls.
///
/// # Errors
/// [`Error::Denied`]: switching it on needs `CAP_NET_ADMIN` in the initial user namespace.
pub fn set_prefer_busy_poll(socket: impl AsFd, on: bool) -> Result<()> {
    set(socket, &PREFER_BUSY_POLL, on.into())
}

/// Sets `SO_BUSY_POLL_BUDGET`: the most packets one poll pass may take; 0 = the kernel's 8.
///
/// It cannot be read back: the kernel answers `ENOPROTOOPT`.
///
/// # Errors
/// [`Error::Denied`]: raising it needs `CAP_NET_ADMIN` in the initial user namespace; it starts at 0,
/// so without that capability no value but 0 can be set.
pub fn set_busy_poll_budget(socket: impl AsFd, packets: u16) -> Result<()> {
    set(socket, &BUSY_POLL_BUDGET, packets.into())
}

/// `SO_INCOMING_NAPI_ID`: the NAPI instance that delivered packets to this socket, `None` if it
/// knows none.
///
/// A connected socket follows its packets. An **unconnected UDP socket keeps the first id it saw**
/// for life, even when that instance is gone and busy polling has silently ended with it.
pub fn incoming_napi_id(socket: impl AsFd) -> Result<Option<NapiId>> {
    Ok(NapiId::new(get(socket, &INCOMING_NAPI_ID)? as u32))
}

struct Name {
    name: &'static str,
    number: c_int,
    since: &'static str,
}

const BUSY_POLL: Name = Name { name: "SO_BUSY_POLL", number: libc::SO_BUSY_POLL, since: "3.11" };
const PREFER_BUSY_POLL: Name =
    Name { name: "SO_PREFER_BUSY_POLL", number: libc::SO_PREFER_BUSY_POLL, since: "5.11" };
const BUSY_POLL_BUDGET: Name =
    Name { name: "SO_BUSY_POLL_BUDGET", number: libc::SO_BUSY_POLL_BUDGET, since: "5.11" };
const INCOMING_NAPI_ID: Name =
    Name { name: "SO_INCOMING_NAPI_ID", number: libc::SO_INCOMING_NAPI_ID, since: "4.12" };

fn get(socket: impl AsFd, option: &Name) -> Result<c_int> {
    sys::get_option(socket.as_fd(), libc::SOL_SOCKET, option.number)
        .map_err(|e| explain(option, format!("getting {}", option.name), e))
}

fn set(socket: impl AsFd, option: &Name, value: c_int) -> Result<()> {
    sys::set_option(socket.as_fd(), libc::SOL_SOCKET, option.number, value)
        .map_err(|e| explain(option, format!("setting {} to {value}", option.name), e))
}

fn explain(option: &Name, doing: String, e: std::io::Error) -> Error {
    match e.raw_os_error() {
        Some(libc::EPERM) => Error::denied_globally(doing, Capability::NetAdmin),
        Some(libc::ENOPROTOOPT) => Error::Unsupported {
            what: option.name,
            since: option.since,
            with: " built with CONFIG_NET_RX_BUSY_POLL",
        },
        _ => Error::os(doing, e),
    }
}
