//! Raw sockets of the kernel that receive the ICMP errors of a network namespace.

use crate::sys::{self, set_option};
use std::{io, os::fd::OwnedFd};

/// Raw sockets that receive the ICMP errors of a network namespace. Making them takes CAP_NET_RAW; using them takes no
/// capability.
#[derive(Debug)]
pub struct IcmpSockets {
    /// For ICMP.
    pub v4: OwnedFd,
    /// For ICMPv6; none where the kernel has no IPv6.
    pub v6: Option<OwnedFd>,
}

impl IcmpSockets {
    /// Opens them in the calling thread's network namespace.
    ///
    /// # Errors
    /// Missing CAP_NET_RAW; no descriptor left.
    pub fn open() -> io::Result<IcmpSockets> {
        Ok(IcmpSockets { v4: raw_icmp()?, v6: raw_icmpv6()? })
    }
}

/// A socket that gets the ICMP errors of the namespace.
fn raw_icmp() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a plain system call.
    let socket = unsafe { libc::socket(libc::AF_INET, kind, libc::IPPROTO_ICMP) };
    let socket = sys::owned(socket).map_err(|error| {
        io::Error::new(error.kind(), format!("raw ICMP socket: {error} (it needs CAP_NET_RAW)"))
    })?;
    // `struct icmp_filter`: a set bit drops its type. Pings would fill the socket, and errors would be lost.
    let errors = 1u32 << 3 | 1 << 4 | 1 << 11 | 1 << 12;
    set_option(&socket, libc::SOL_RAW, ICMP_FILTER, !errors)?;
    Ok(socket)
}

/// A socket that gets the ICMPv6 errors of the namespace; none where the kernel has no IPv6.
fn raw_icmpv6() -> io::Result<Option<OwnedFd>> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a plain system call.
    let socket = unsafe { libc::socket(libc::AF_INET6, kind, libc::IPPROTO_ICMPV6) };
    let socket = match sys::owned(socket) {
        Ok(socket) => socket,
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => return Ok(None),
        Err(error) => {
            let why = format!("raw ICMPv6 socket: {error} (it needs CAP_NET_RAW)");
            return Err(io::Error::new(error.kind(), why));
        }
    };
    set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
    // `struct icmp6_filter`: a set bit drops its type. Errors are types 1 to 4.
    let mut filter = [u32::MAX; 8];
    filter[0] = !0b1_1110;
    set_option(&socket, libc::IPPROTO_ICMPV6, ICMPV6_FILTER, filter)?;
    Ok(Some(socket))
}

/// include/uapi/linux/icmp.h, icmpv6.h.
const ICMP_FILTER: i32 = 1;
const ICMPV6_FILTER: i32 = 1;
