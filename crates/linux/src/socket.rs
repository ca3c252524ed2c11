//! Facts about a socket: identity, protocol, addresses. Touches only the given socket, and changes nothing.
//!
//! Kernel source: `net/core/sock.c` (`sk_getsockopt`), `net/core/sock_diag.c` (`sock_gen_cookie`),
//! `net/tls/tls_main.c` (`do_tls_getsockopt_conf`).

use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::net::{getpeername, getsockname, sockopt};

use crate::error::{Error, Result};
use crate::sys;

/// Facts about a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketInfo {
    /// [`cookie`].
    pub cookie: u64,
    /// `AF_…` (`SO_DOMAIN`).
    pub family: u16,
    /// `SOCK_…` (`SO_TYPE`).
    pub kind: u32,
    /// `IPPROTO_…` (`SO_PROTOCOL`); 0 if the family has none.
    pub protocol: u32,
    /// Whether it listens (`SO_ACCEPTCONN`).
    pub listening: bool,
    /// `O_NONBLOCK`: its receive calls do not wait.
    pub nonblocking: bool,
    /// The local address of an IPv4 or IPv6 socket; `None` if not bound.
    pub local: Option<SocketAddr>,
    /// The peer's address, if connected.
    pub peer: Option<SocketAddr>,
    /// The upper layer protocol on TCP (`TCP_ULP`), such as `tls`.
    pub ulp: Option<String>,
    /// The number of its network namespace, as of [`crate::netns::cookie`]; `None` before Linux 5.14.
    pub netns_cookie: Option<u64>,
}

/// `SO_COOKIE`: a number that no other socket gets while the machine runs.
///
/// # Errors
/// [`Error::Os`] for what is no socket.
pub fn cookie(socket: impl AsFd) -> Result<u64> {
    sockopt::socket_cookie(socket).map_err(|e| Error::os("getting SO_COOKIE", e.into()))
}

/// Whether the kernel decrypts what a kTLS socket receives (`TLS_RX`): if so, its receive calls have no busy
/// loop. kTLS for sending alone does not change them.
///
/// # Errors
/// [`Error::Os`] for what is no kTLS socket.
pub fn receives_by_ktls(socket: impl AsFd) -> Result<bool> {
    // include/uapi/linux/tls.h. A buffer of this size asks for version and cipher only, not the keys.
    const SOL_TLS: i32 = 282;
    const TLS_RX: i32 = 2;
    match sys::get_option(socket.as_fd(), SOL_TLS, TLS_RX) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Ok(false),
        Err(e) => Err(Error::os("getting TLS_RX", e)),
    }
}

/// Everything about a socket that decides whether it can busy poll.
///
/// # Errors
/// [`Error::Os`] for what is no socket.
pub fn info(socket: impl AsFd) -> Result<SocketInfo> {
    let fd = socket.as_fd();
    let os = |what: &'static str| move |e: rustix::io::Errno| Error::os(what, e.into());
    let family = sockopt::socket_domain(fd).map_err(os("getting SO_DOMAIN"))?.as_raw();
    let ip = matches!(i32::from(family), libc::AF_INET | libc::AF_INET6);
    let bound = |address: &SocketAddr| address.port() != 0 || !address.ip().is_unspecified();
    let protocol = sockopt::socket_protocol(fd).ok().flatten().map_or(0, |p| p.as_raw().get());
    Ok(SocketInfo {
        cookie: cookie(fd)?,
        family,
        kind: sockopt::socket_type(fd).map_err(os("getting SO_TYPE"))?.as_raw(),
        protocol,
        listening: sockopt::socket_acceptconn(fd).unwrap_or(false),
        nonblocking: rustix::fs::fcntl_getfl(fd)
            .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK)),
        local: getsockname(fd).ok().filter(|_| ip).and_then(|a| a.try_into().ok()).filter(bound),
        peer: getpeername(fd).ok().flatten().filter(|_| ip).and_then(|a| a.try_into().ok()),
        ulp: (protocol == libc::IPPROTO_TCP as u32).then(|| sys::get_tcp_ulp(fd)).flatten(),
        netns_cookie: sys::get_netns_cookie(fd).ok(),
    })
}
