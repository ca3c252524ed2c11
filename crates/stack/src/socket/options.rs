//! Socket options under Linux's names and numbers. `setsockopt` and `getsockopt` of each socket take these
//! (level, name) pairs; the common ones have typed methods as well. `tcp::options` and `udp::options` implement them.

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
/// 1: after a busy poll the queue is left to its pollers four times as long before the interrupt thread
/// takes it, even while other threads sleep that wait for its packets. Helps pollers that pause; during such a
/// pause the packets of the sleeping threads are late.
pub const SO_PREFER_BUSY_POLL: i32 = 69;
/// The most packets of one busy-poll pass, 1 to 65,535; 8 unless set. Unlike in Linux it can be read back.
pub const SO_BUSY_POLL_BUDGET: i32 = 70;
/// UDP: bytes of datagrams (with 64 bytes of bookkeeping each) that may wait to be received; further datagrams
/// are dropped and counted. 212,992 unless set. TCP: bytes of payload; grows by itself (`tcp_rmem`) unless
/// set. Not doubled as in Linux.
pub const SO_RCVBUF: i32 = libc::SO_RCVBUF;
/// UDP: the largest datagram that can be sent, in bytes. 212,992 unless set. TCP: bytes of payload; grows by itself
/// (`tcp_wmem`) unless set.
pub const SO_SNDBUF: i32 = libc::SO_SNDBUF;
/// TCP, 1: urgent data is read in the stream, not separately.
pub const SO_OOBINLINE: i32 = libc::SO_OOBINLINE;
/// 1: several sockets may bind one address and port.
pub const SO_REUSEADDR: i32 = libc::SO_REUSEADDR;
/// 1: several sockets may share one address and port, if all of them set this option. Each new connection goes to one
/// of the listeners, all datagrams of one peer go to one of the sockets.
pub const SO_REUSEPORT: i32 = libc::SO_REUSEPORT;
/// TCP, 1: a silent peer is probed.
pub const SO_KEEPALIVE: i32 = libc::SO_KEEPALIVE;
/// TCP: the least number of unread bytes that makes the socket readable; 1 unless set.
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
/// Time to live of packets sent, 1 to 255; 64 unless set; -1 sets 64 again.
pub const IP_TTL: i32 = libc::IP_TTL;
/// Type of service of packets sent: DSCP and ECN bits, 0 to 255.
pub const IP_TOS: i32 = libc::IP_TOS;
/// `IP_PMTUDISC_DO` (2): never fragment, refuse larger datagrams; `IP_PMTUDISC_WANT` (1), unless set, and
/// `IP_PMTUDISC_DONT` (0): fragment.
pub const IP_MTU_DISCOVER: i32 = libc::IP_MTU_DISCOVER;

/// 1: a socket bound to `[::]` does not receive IPv4.
pub const IPV6_V6ONLY: i32 = libc::IPV6_V6ONLY;
/// Another name for [`IP_TTL`] here.
pub const IPV6_UNICAST_HOPS: i32 = libc::IPV6_UNICAST_HOPS;
/// Another name for [`IP_TOS`] here.
pub const IPV6_TCLASS: i32 = libc::IPV6_TCLASS;
/// Another name for [`IP_MTU_DISCOVER`] here.
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
/// Seconds in FIN_WAIT_2 after close, at most 120; -1: none; 0: the host's value.
pub const TCP_LINGER2: i32 = libc::TCP_LINGER2;
/// Seconds that a listener holds a connection back from accept(2) while it has received no data; 0 unless set. Rounded
/// up to the time of a whole number of SYN-ACKs: 1, 3, 7, 15 and so on.
pub const TCP_DEFER_ACCEPT: i32 = libc::TCP_DEFER_ACCEPT;
/// The largest window offered, in bytes; 0: as large as the buffer allows.
pub const TCP_WINDOW_CLAMP: i32 = libc::TCP_WINDOW_CLAMP;
/// 1: data is acknowledged at once for a while; 0: acknowledgements are delayed from now on.
pub const TCP_QUICKACK: i32 = libc::TCP_QUICKACK;
/// Milliseconds that data may stay unacknowledged; 0: `tcp_retries2` decides.
pub const TCP_USER_TIMEOUT: i32 = libc::TCP_USER_TIMEOUT;
/// A send waits while this many bytes are queued unsent. The socket is writable when less than half as many are.
pub const TCP_NOTSENT_LOWAT: i32 = 25;
/// The least retransmission timeout in microseconds, at least 1,000 (Linux 6.15).
pub const TCP_RTO_MIN_US: i32 = 45;

/// The initial `SO_RCVBUF` and `SO_SNDBUF` of a datagram socket.
pub(super) const BUFFER: u32 = 212_992;

/// `SO_DOMAIN` of a socket bound to `local`.
pub(super) fn domain(local: SocketAddr) -> i32 {
    if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

pub(super) fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// `value` if it is at least `least`. `least` is not negative.
///
/// # Errors
/// EINVAL.
pub(super) fn at_least(least: i32, value: i32) -> io::Result<u32> {
    match u32::try_from(value) {
        Ok(good) if value >= least => Ok(good),
        _ => Err(errno(libc::EINVAL)),
    }
}
