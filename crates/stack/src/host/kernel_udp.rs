//! The kernel's UDP sockets that a host makes beside its own. Only system calls.

use crate::{
    inet::BindOptions,
    sys::{self, set_option},
};
use std::{
    io,
    net::{SocketAddr, UdpSocket},
    os::fd::{AsRawFd, OwnedFd},
};

pub(super) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Option<usize> {
    // SAFETY: the buffer is writable for its length.
    let len = unsafe {
        libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
    };
    usize::try_from(len).ok()
}

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
