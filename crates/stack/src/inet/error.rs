//! Errors of datagrams: at once ([`SendError`]), or later, reported by another host ([`SocketError`]). Owns the errno
//! of each, which is always Linux's.

use std::io;

/// Why a datagram was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The route goes through the kernel: another interface, loopback, an address of a shared interface, or a
    /// datagram above such an interface's MTU. Send it on the kernel socket.
    #[error("this datagram leaves through the kernel; send it on the kernel socket")]
    UseKernel,
    /// ENETUNREACH: no route to the destination.
    #[error("no route to the network; add a route or a gateway")]
    NoRoute,
    /// EHOSTUNREACH: the next hop is not resolved.
    #[error("the next hop does not answer; check that the host is up and on this link")]
    HostUnreachable,
    /// EMSGSIZE: above 65,507 bytes (65,527 over IPv6), or above the path's MTU where fragmenting is forbidden.
    #[error("the datagram is too big; send less, or allow fragments")]
    TooBig,
    /// ENOBUFS: the transmit ring is full. The NIC drains it: try again.
    #[error("the transmit ring is full; try again")]
    RingFull,
    /// EACCES: a broadcast address without `SO_BROADCAST`.
    #[error("a broadcast address; set SO_BROADCAST first")]
    Broadcast,
    /// EINVAL: port 0.
    #[error("port 0 cannot be sent to; name a port")]
    InvalidPort,
    /// EAFNOSUPPORT: an address of the other family than the socket's.
    #[error("the address is of the other family; use an address of the socket's")]
    Family,
}

impl SendError {
    /// The errno; `None` for [`SendError::UseKernel`], which is no failure.
    #[must_use]
    pub fn errno(self) -> Option<i32> {
        Some(match self {
            SendError::UseKernel => return None,
            SendError::NoRoute => libc::ENETUNREACH,
            SendError::HostUnreachable => libc::EHOSTUNREACH,
            SendError::TooBig => libc::EMSGSIZE,
            SendError::RingFull => libc::ENOBUFS,
            SendError::Broadcast => libc::EACCES,
            SendError::InvalidPort => libc::EINVAL,
            SendError::Family => libc::EAFNOSUPPORT,
        })
    }
}

impl From<SendError> for io::Error {
    fn from(error: SendError) -> io::Error {
        match error.errno() {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::new(io::ErrorKind::Unsupported, error),
        }
    }
}

/// An error about a datagram that was sent earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketError {
    /// What the socket's next call reports.
    pub errno: i32,
    /// Linux reports it to a connected socket without `IP_RECVERR` (`fatal` in net/ipv4/icmp.c
    /// `icmp_err_convert`). Soft errors, and those of unconnected sockets, need `IP_RECVERR` (`__udp4_lib_err`).
    pub hard: bool,
    /// With EMSGSIZE: the largest IP packet the path takes, bytes.
    pub mtu: Option<u32>,
}

impl SocketError {
    pub(super) const fn hard(errno: i32) -> SocketError {
        SocketError { errno, hard: true, mtu: None }
    }

    pub(super) const fn soft(errno: i32) -> SocketError {
        SocketError { errno, hard: false, mtu: None }
    }
}

impl From<SocketError> for io::Error {
    fn from(error: SocketError) -> io::Error {
        io::Error::from_raw_os_error(error.errno)
    }
}
