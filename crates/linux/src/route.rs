//! The route to an address, as the kernel would choose it now: `RTM_GETROUTE`. Reads only.
//!
//! Kernel source: `net/ipv4/route.c` (`inet_rtm_getroute`), `net/ipv6/route.c`. No permission is needed.

use std::net::IpAddr;

use netlink_bindings::rt_route::{Request, Rtmsg};

use crate::error::{Error, Result};
use crate::netlink::Socket;

/// The route of packets to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The kind of destination.
    pub kind: RouteKind,
    /// The device it leaves by; loopback for this host's own addresses.
    pub ifindex: u32,
    /// The next hop, if it is not the address itself.
    pub gateway: Option<IpAddr>,
    /// The preferred source address.
    pub source: Option<IpAddr>,
}

/// The kind of a route's destination (`RTN_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// Out of a device.
    Unicast,
    /// To this host, over loopback whatever device has the address.
    Local,
    /// Broadcast, multicast or anycast.
    Many,
}

/// The route to `address` in the calling thread's network namespace, with policy rules.
///
/// # Errors
/// [`Error::NoRoute`] if the kernel would refuse the packet.
///
/// ```
/// use busypoll_linux::route::{RouteKind, route_to};
/// assert_eq!(route_to("127.0.0.1".parse().unwrap())?.kind, RouteKind::Local);
/// # Ok::<(), busypoll_linux::Error>(())
/// ```
pub fn route_to(address: IpAddr) -> Result<Route> {
    let mut socket = Socket::route().map_err(|e| Error::os("opening an rtnetlink socket", e))?;
    let (family, bits) = match address {
        IpAddr::V4(_) => (libc::AF_INET, 32),
        IpAddr::V6(_) => (libc::AF_INET6, 128),
    };
    let mut header = Rtmsg::new();
    header.rtm_family = family as u8;
    header.rtm_dst_len = bits;
    let mut request = Request::new().op_getroute_do(&header);
    request.encode().push_dst(address);
    let mut found = None;
    let done = socket.request(&request, 0, |(header, attributes)| {
        let kind = match header.rtm_type {
            libc::RTN_UNICAST => RouteKind::Unicast,
            libc::RTN_LOCAL => RouteKind::Local,
            libc::RTN_BROADCAST | libc::RTN_MULTICAST | libc::RTN_ANYCAST => RouteKind::Many,
            _ => return,
        };
        found = attributes.get_oif().ok().map(|ifindex| Route {
            kind,
            ifindex,
            gateway: attributes.get_gateway().or_else(|_| attributes.get_via()).ok(),
            source: attributes.get_prefsrc().ok(),
        });
    });
    let no_route = || Error::NoRoute { address };
    match done {
        Ok(()) => found.ok_or_else(no_route),
        Err(e) => match e.errno() {
            // No route; or a blackhole, prohibit or unreachable route; or no such address family.
            Some(
                libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::EACCES
                | libc::EINVAL
                | libc::EAFNOSUPPORT
                | libc::EOPNOTSUPP,
            ) => Err(no_route()),
            _ => Err(e.into_error(format!("asking for the route to {address}"))),
        },
    }
}
