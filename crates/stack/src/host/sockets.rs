//! The kernel sockets that a host makes for a shared interface: raw sockets that receive ICMP errors, and companions of
//! UDP sockets. Only system calls.

use crate::{inet::BindOptions, sys};
use std::{
    io,
    net::{SocketAddr, UdpSocket},
    os::fd::{AsRawFd, OwnedFd},
};

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

pub(super) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Option<usize> {
    // SAFETY: the buffer is writable for its length.
    let len = unsafe {
        libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
    };
    usize::try_from(len).ok()
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

/// A kernel UDP socket bound to `local` that reports the destination of each datagram.
///
/// It is always bound to a port by number: the kernel releases a port that it chose itself when the socket is
/// disconnected (`__udp_disconnect`).
pub(super) fn bind(local: SocketAddr, options: BindOptions) -> io::Result<UdpSocket> {
    if local.port() != 0 {
        return bind_by_number(local, options);
    }
    loop {
        let mut chosen = local;
        chosen.set_port(bind_by_number(local, options)?.local_addr()?.port());
        match bind_by_number(chosen, options) {
            // Another socket has taken it in between.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            other => return other,
        }
    }
}

fn bind_by_number(local: SocketAddr, options: BindOptions) -> io::Result<UdpSocket> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a plain system call.
    let socket = sys::owned(unsafe { libc::socket(family, kind, 0) })?;
    if local.is_ipv6() {
        let only_v6 = i32::from(options.only_v6);
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only_v6)?;
    }
    if options.reuse_address {
        set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    }
    if options.reuse_port {
        set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    sys::bind(socket.as_raw_fd(), local)?;
    let socket = UdpSocket::from(socket);
    enable_pktinfo(&socket)?;
    Ok(socket)
}

/// From now on `socket` reports the destination of each datagram.
pub(super) fn enable_pktinfo(socket: &UdpSocket) -> io::Result<()> {
    let set = |level, name| set_option(socket, level, name, 1);
    if socket.local_addr()?.is_ipv4() {
        set(libc::IPPROTO_IP, libc::IP_PKTINFO)?;
    } else {
        for name in [libc::IPV6_RECVPKTINFO, libc::IPV6_RECVHOPLIMIT, libc::IPV6_RECVTCLASS] {
            set(libc::IPPROTO_IPV6, name)?;
        }
    }
    // An IPv6 socket may receive IPv4, too.
    set(libc::IPPROTO_IP, libc::IP_RECVTTL)?;
    set(libc::IPPROTO_IP, libc::IP_RECVTOS)
}

/// Reads an option of a kernel socket that is one number.
pub(crate) fn get_option(socket: &impl AsRawFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0;
    let mut len = size_of_val(&value) as libc::socklen_t;
    let to = (&raw mut value).cast();
    // SAFETY: `value` and `len` are valid for the call.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &raw mut len) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(crate) fn set_option<T: Copy>(
    socket: &impl AsRawFd,
    level: i32,
    name: i32,
    value: T,
) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` is valid for the call.
    match unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(super) fn disconnect(socket: &UdpSocket) -> io::Result<()> {
    let family = libc::AF_UNSPEC as libc::sa_family_t;
    // SAFETY: an all-zero sockaddr is valid.
    let mut address: libc::sockaddr = unsafe { std::mem::zeroed() };
    address.sa_family = family;
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: `address` is a valid sockaddr of that length.
    match unsafe { libc::connect(socket.as_raw_fd(), &raw const address, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
