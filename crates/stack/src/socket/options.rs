//! Socket options under Linux's names and numbers. `setsockopt` and `getsockopt` of each socket take these
//! (level, name) pairs; the common ones have typed methods beside them. What a socket does with them is in
//! the files of its kind.

use std::{io, net::SocketAddr};

/// Level of the options of any socket, `SO_...`.
pub const SOL_SOCKET: i32 = libc::SOL_SOCKET;
/// Level of the options of IPv4, `IP_...`.
pub const IPPROTO_IP: i32 = libc::IPPROTO_IP;
/// Level of the options of IPv6, `IPV6_...`.
pub const IPPROTO_IPV6: i32 = libc::IPPROTO_IPV6;
/// Level of the options of TCP, `TCP_...`.
pub const IPPROTO_TCP: i32 = libc::IPPROTO_TCP;

/// Microseconds that a receive may busy poll before it sleeps; 0 = off. A new socket starts with the
/// host's `busy_read`. No privilege is needed, as in Linux since 6.7.
pub const SO_BUSY_POLL: i32 = 46;
/// The id of the NAPI context that the last packet came from; 0 = none yet. Read only.
pub const SO_INCOMING_NAPI_ID: i32 = 56;
/// 1: after a busy poll the queue is left to its pollers four times as long before the interrupt's side
/// takes it, also while other threads sleep that its packets may be for. Helps pollers that pause; delays
/// those threads' packets while they do.
pub const SO_PREFER_BUSY_POLL: i32 = 69;
/// The most packets that one busy-poll pass takes, 1 to 65,535; 8 unless set. Unlike in Linux it can be
/// read back.
pub const SO_BUSY_POLL_BUDGET: i32 = 70;
/// UDP: bytes of datagrams (with 64 bytes of bookkeeping each) that may wait to be received; what comes beyond
/// is dropped and counted. 212,992 unless set. TCP: bytes of payload; grows by itself (`tcp_rmem`) unless
/// set. Not doubled as in Linux.
pub const SO_RCVBUF: i32 = libc::SO_RCVBUF;
/// UDP: bytes that one datagram sent may have. 212,992 unless set. TCP: bytes of payload; grows by itself
/// (`tcp_wmem`) unless set.
pub const SO_SNDBUF: i32 = libc::SO_SNDBUF;
/// TCP, 1: urgent data is read with the other, not apart.
pub const SO_OOBINLINE: i32 = libc::SO_OOBINLINE;
/// 1: several sockets may bind one address and port.
pub const SO_REUSEADDR: i32 = libc::SO_REUSEADDR;
/// 1: several sockets may share one address and port, if all of them say so; each new connection goes to one
/// of the listeners, all datagrams of one peer to one of the sockets.
pub const SO_REUSEPORT: i32 = libc::SO_REUSEPORT;
/// TCP, 1: a silent peer is probed.
pub const SO_KEEPALIVE: i32 = libc::SO_KEEPALIVE;
/// TCP: readable from so many bytes on; 1 unless set.
pub const SO_RCVLOWAT: i32 = libc::SO_RCVLOWAT;
/// 1: datagrams may be sent to broadcast addresses.
pub const SO_BROADCAST: i32 = libc::SO_BROADCAST;
/// Takes and clears the pending error, an errno. Read only.
pub const SO_ERROR: i32 = libc::SO_ERROR;
/// `AF_INET` or `AF_INET6`. Read only.
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

/// 1: a socket at `[::]` does not hear IPv4.
pub const IPV6_V6ONLY: i32 = libc::IPV6_V6ONLY;
/// As [`IP_TTL`], of which it is another name here.
pub const IPV6_UNICAST_HOPS: i32 = libc::IPV6_UNICAST_HOPS;
/// As [`IP_TOS`], of which it is another name here.
pub const IPV6_TCLASS: i32 = libc::IPV6_TCLASS;
/// As [`IP_MTU_DISCOVER`], of which it is another name here.
pub const IPV6_MTU_DISCOVER: i32 = libc::IPV6_MTU_DISCOVER;
/// 1: small segments do not wait for acknowledgements.
pub const TCP_NODELAY: i32 = libc::TCP_NODELAY;
/// Largest segment, bytes of data, 88 to 32,767; 0: as the path allows.
pub const TCP_MAXSEG: i32 = libc::TCP_MAXSEG;
/// 1: partial segments wait for more data, for 200 ms or a retransmission timeout at most.
pub const TCP_CORK: i32 = libc::TCP_CORK;
/// Seconds of silence before the first keep-alive probe, 1 to 32,767.
pub const TCP_KEEPIDLE: i32 = libc::TCP_KEEPIDLE;
/// Seconds between keep-alive probes, 1 to 32,767.
pub const TCP_KEEPINTVL: i32 = libc::TCP_KEEPINTVL;
/// Unanswered keep-alive probes until the connection is given up, 1 to 127.
pub const TCP_KEEPCNT: i32 = libc::TCP_KEEPCNT;
/// How often a SYN is sent again, 1 to 127.
pub const TCP_SYNCNT: i32 = libc::TCP_SYNCNT;
/// Seconds in FIN_WAIT_2 once closed, at most 120; -1: none; 0: as the host.
pub const TCP_LINGER2: i32 = libc::TCP_LINGER2;
/// Seconds, 0 unless set, that a listener leaves a connection unaccepted that has brought no data yet; rounded up to what
/// a whole number of SYN-ACKs takes: 1, 3, 7, 15 and so on.
pub const TCP_DEFER_ACCEPT: i32 = libc::TCP_DEFER_ACCEPT;
/// Largest window offered, bytes; 0: what the buffer has.
pub const TCP_WINDOW_CLAMP: i32 = libc::TCP_WINDOW_CLAMP;
/// 1: what comes is acknowledged at once for a while; 0: delayed from now on.
pub const TCP_QUICKACK: i32 = libc::TCP_QUICKACK;
/// Milliseconds that data may stay unacknowledged; 0: as `tcp_retries2` says.
pub const TCP_USER_TIMEOUT: i32 = libc::TCP_USER_TIMEOUT;
/// Bytes not sent yet from which on a send waits, and half of which keep a socket from being writable.
pub const TCP_NOTSENT_LOWAT: i32 = 25;
/// Least retransmission timeout, microseconds, 1,000 at least (Linux 6.15).
pub const TCP_RTO_MIN_US: i32 = 45;

/// What `SO_RCVBUF` and `SO_SNDBUF` of a datagram socket start with.
pub(super) const BUFFER: u32 = 212_992;

/// `SO_DOMAIN` of a socket at `local`.
pub(super) fn domain(local: SocketAddr) -> i32 {
    if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

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
