//! Socket options under Linux's names and numbers, and the values a socket holds of them.
//!
//! [`setsockopt`](super::UdpSocket::setsockopt) and [`getsockopt`](super::UdpSocket::getsockopt) take these
//! names; the common ones have typed methods beside them.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

/// Microseconds that a receive may busy poll before it sleeps; 0 = off. A new socket starts with the
/// host's `busy_read`. No privilege is needed, as in Linux since 6.7.
pub const SO_BUSY_POLL: i32 = 46;
/// The id of the NAPI context that the last packet came from; 0 = none yet. Read only.
pub const SO_INCOMING_NAPI_ID: i32 = 56;
/// 1: after a busy poll the queue is left to its pollers four times as long before the interrupt's side
/// takes it. Helps pollers that pause; delays others' packets on that queue while they do.
pub const SO_PREFER_BUSY_POLL: i32 = 69;
/// The most packets that one busy-poll pass takes, 1 to 65,535; 8 unless set. Unlike in Linux it can be
/// read back.
pub const SO_BUSY_POLL_BUDGET: i32 = 70;
/// Bytes of datagrams (with 64 bytes of bookkeeping each) that may wait to be received; what comes beyond
/// is dropped and counted. 212,992 unless set. Not doubled as in Linux.
pub const SO_RCVBUF: i32 = libc::SO_RCVBUF;
/// Bytes that one datagram sent may have. 212,992 unless set.
pub const SO_SNDBUF: i32 = libc::SO_SNDBUF;
/// 1: several sockets may bind one address and port.
pub const SO_REUSEADDR: i32 = libc::SO_REUSEADDR;
/// 1: datagrams may be sent to broadcast addresses.
pub const SO_BROADCAST: i32 = libc::SO_BROADCAST;
/// Takes and clears the pending error, an errno. Read only.
pub const SO_ERROR: i32 = libc::SO_ERROR;

const BUFFER: u32 = 212_992;

/// The values a socket holds.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) busy_poll: AtomicU32,
    pub(super) prefer_busy_poll: AtomicBool,
    pub(super) busy_poll_budget: AtomicU32,
    pub(super) receive_buffer: AtomicU32,
    pub(super) send_buffer: AtomicU32,
    pub(super) reuse_address: AtomicBool,
    pub(super) broadcast: AtomicBool,
}

impl Options {
    pub(super) fn new(busy_read: u32) -> Options {
        Options {
            busy_poll: AtomicU32::new(busy_read),
            prefer_busy_poll: AtomicBool::new(false),
            busy_poll_budget: AtomicU32::new(crate::napi::BUSY_POLL_BUDGET as u32),
            receive_buffer: AtomicU32::new(BUFFER),
            send_buffer: AtomicU32::new(BUFFER),
            reuse_address: AtomicBool::new(false),
            broadcast: AtomicBool::new(false),
        }
    }

    /// # Errors
    /// ENOPROTOOPT for a name that is unknown or read only, EINVAL for a value out of range.
    pub(super) fn set(&self, name: i32, value: i32) -> io::Result<()> {
        let at_least = |least: i32| match u32::try_from(value) {
            Ok(good) if value >= least => Ok(good),
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        match name {
            SO_BUSY_POLL => self.busy_poll.store(at_least(0)?, Ordering::Relaxed),
            SO_PREFER_BUSY_POLL => self.prefer_busy_poll.store(value != 0, Ordering::Relaxed),
            SO_BUSY_POLL_BUDGET if value > i32::from(u16::MAX) => {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            SO_BUSY_POLL_BUDGET => self.busy_poll_budget.store(at_least(1)?, Ordering::Relaxed),
            SO_RCVBUF => self.receive_buffer.store(at_least(1)?, Ordering::Relaxed),
            SO_SNDBUF => self.send_buffer.store(at_least(1)?, Ordering::Relaxed),
            SO_REUSEADDR => self.reuse_address.store(value != 0, Ordering::Relaxed),
            SO_BROADCAST => self.broadcast.store(value != 0, Ordering::Relaxed),
            _ => return Err(io::Error::from_raw_os_error(libc::ENOPROTOOPT)),
        }
        Ok(())
    }

    /// # Errors
    /// ENOPROTOOPT for an unknown name.
    pub(super) fn get(&self, name: i32) -> io::Result<i32> {
        let value = match name {
            SO_BUSY_POLL => self.busy_poll.load(Ordering::Relaxed),
            SO_PREFER_BUSY_POLL => self.prefer_busy_poll.load(Ordering::Relaxed).into(),
            SO_BUSY_POLL_BUDGET => self.busy_poll_budget.load(Ordering::Relaxed),
            SO_RCVBUF => self.receive_buffer.load(Ordering::Relaxed),
            SO_SNDBUF => self.send_buffer.load(Ordering::Relaxed),
            SO_REUSEADDR => self.reuse_address.load(Ordering::Relaxed).into(),
            SO_BROADCAST => self.broadcast.load(Ordering::Relaxed).into(),
            _ => return Err(io::Error::from_raw_os_error(libc::ENOPROTOOPT)),
        };
        Ok(i32::try_from(value).unwrap_or(i32::MAX))
    }
}
