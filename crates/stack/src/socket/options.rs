//! Socket options under Linux's names and numbers. `setsockopt` and `getsockopt` of each socket take these
//! (level, name) pairs; the common ones have typed methods beside them. What a socket does with them is in
//! the files of its kind.

use std::io;

/// Level of the options of any socket, `SO_...`.
pub const SOL_SOCKET: i32 = libc::SOL_SOCKET;
/// Level of the options of IPv4, `IP_...`.
pub const IPPROTO_IP: i32 = libc::IPPROTO_IP;

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
/// `AF_INET`. Read only.
pub const SO_DOMAIN: i32 = libc::SO_DOMAIN;
/// `SOCK_DGRAM` or `SOCK_STREAM`. Read only.
pub const SO_TYPE: i32 = libc::SO_TYPE;
/// `IPPROTO_UDP` or `IPPROTO_TCP`. Read only.
pub const SO_PROTOCOL: i32 = libc::SO_PROTOCOL;
/// 1 if it listens. Read only.
pub const SO_ACCEPTCONN: i32 = libc::SO_ACCEPTCONN;
/// Time to live of packets sent, 1 to 255; 64 unless set, and again with -1.
pub const IP_TTL: i32 = libc::IP_TTL;
/// Type of service of packets sent: DSCP and ECN bits, 0 to 255.
pub const IP_TOS: i32 = libc::IP_TOS;
/// `IP_PMTUDISC_DO` (2): never fragment, refuse what is too big; `IP_PMTUDISC_WANT` (1), unless set, and
/// `IP_PMTUDISC_DONT` (0): fragment.
pub const IP_MTU_DISCOVER: i32 = libc::IP_MTU_DISCOVER;

/// What `SO_RCVBUF` and `SO_SNDBUF` of a datagram socket start with.
pub(super) const BUFFER: u32 = 212_992;

pub(super) fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// `value`, if it is not below `least`, which is not below zero.
///
/// # Errors
/// EINVAL.
pub(super) fn at_least(least: i32, value: i32) -> io::Result<u32> {
    match u32::try_from(value) {
        Ok(good) if value >= least => Ok(good),
        _ => Err(errno(libc::EINVAL)),
    }
}
