//! What a socket is: identity, protocol, addresses. Touches only the one it is given, and changes nothing.
//!
//! Kernel source: `net/core/sock.c` (`sk_getsockopt`), `net/core/sock_diag.c` (`sock_gen_cookie`),
//! `net/tls/tls_main.c` (`do_tls_getsockopt_conf`).

use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::net::{getpeername, getsockname, sockopt};

use crate::error::{Error, Result};
use crate::sys;

/// What a socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketInfo {
    /// [`cookie`].
    pub cookie: u64,
    /// `AF_…` (`SO_DOMAIN`).
    pub family: u16,
    /// `SOCK_…` (`SO_TYPE`).
    pub kind: u32,
    /// `IPPROTO_…` (`SO_PROTOCOL`); 0 where the family has none.
    pub protocol: u32,
    /// It has been told to listen (`SO_ACCEPTCONN`).
    pub listening: bool,
    /// `O_NONBLOCK`: its receive calls do not wait.
    pub nonblocking: bool,
    /// Where an IPv4 or IPv6 socket is bound; `None` if nowhere.
    pub local: Option<SocketAddr>,
    /// Whom it is connected to.
    pub peer: Option<SocketAddr>,
    /// What is stacked on TCP (`TCP_ULP`), such as `tls`.
    pub ulp: Option<String>,
    /// The number of its network namespace, as of [`crate::netns::cookie`]; `None` before Linux 5.14.
    pub netns_cookie: Option<u64>,
}

/// `SO_COOKIE`: a number no other socket of this machine has or will have while it runs.
///
/// # Errors
/// [`Error::Os`] for what is no socket.
pub fn cookie(socket: impl AsFd) -> Result<u64> {
    sockopt::socket_cookie(socket).map_err(|e| Error::os("getting SO_COOKIE", e.into()))
}

/// Whether the kernel decrypts what a kTLS socket receives (`TLS_RX`): its receive calls then have no busy
/// loop. kTLS for what is sent alone leaves them as they were.
///
/// # Errors
/// [`Error::Os`] for what is no kTLS socket.
pub fn receives_by_ktls(socket: impl AsFd) -> Result<bool> {
    // include/uapi/linux/tls.h; version and cipher alone are asked for, not the keys.
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
