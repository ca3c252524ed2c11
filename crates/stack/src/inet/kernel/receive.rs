//! Receiving datagrams from a kernel socket with their control messages.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::{AsRawFd, BorrowedFd},
};

/// A buffer for the control messages of [`Received`], of IPv4 and IPv6, correctly aligned.
#[repr(C, align(8))]
struct Control([u8; 192]);

/// A datagram received by a kernel socket.
#[derive(Debug)]
pub(crate) struct Received {
    /// The number of bytes written to the buffer.
    pub(crate) len: usize,
    pub(crate) from: SocketAddr,
    /// The destination address and the receiving interface; unspecified and 0 without a control message.
    pub(crate) to: IpAddr,
    pub(crate) interface: u32,
    /// IPv4's time to live or IPv6's hop limit, and type of service or traffic class; 0 without a control message
    /// (`IP_RECVTTL`, `IP_RECVTOS` and the IPv6 options).
    pub(crate) ttl: u8,
    pub(crate) tos: u8,
}

/// Receives one datagram from a `socket` with IP_PKTINFO or IPV6_RECVPKTINFO set. A longer datagram is truncated to
/// `buffer`. Does not block.
///
/// # Errors
/// `WouldBlock` if there is none; a pending error of the socket.
pub(crate) fn recv_with_destination(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<Received> {
    let mut control = Control([0; 192]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeros is valid for both.
    let (mut name, mut message): (libc::sockaddr_in6, libc::msghdr) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    message.msg_name = std::ptr::from_mut(&mut name).cast();
    message.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: every pointer in `message` is to live memory of the length beside it.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    let nowhere = Ipv4Addr::UNSPECIFIED.into();
    let mut received =
        Received { len, from: sender(&name), to: nowhere, interface: 0, ttl: 0, tos: 0 };
    take_control(&message, &mut received);
    Ok(received)
}

/// The source address that recvmsg has written to `name`, of either family.
fn sender(name: &libc::sockaddr_in6) -> SocketAddr {
    if i32::from(name.sin6_family) == libc::AF_INET6 {
        let (port, scope) = (u16::from_be(name.sin6_port), name.sin6_scope_id);
        return SocketAddrV6::new(name.sin6_addr.s6_addr.into(), port, 0, scope).into();
    }
    // SAFETY: a sockaddr_in is smaller than a sockaddr_in6, aligned no more strictly, and any bytes make one.
    let name = unsafe { &*std::ptr::from_ref(name).cast::<libc::sockaddr_in>() };
    SocketAddrV4::new(address(name.sin_addr), u16::from_be(name.sin_port)).into()
}

fn take_control(message: &libc::msghdr, received: &mut Received) {
    // SAFETY: `message` was filled in by recvmsg and its control buffer is live; the CMSG macros stay
    // inside it.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: a header inside the control buffer, and where its data is.
        let (found, data) = unsafe { (*header, libc::CMSG_DATA(header)) };
        match (found.cmsg_level, found.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // SAFETY: the data of an IP_PKTINFO message is an in_pktinfo, of any alignment.
                let info = unsafe { data.cast::<libc::in_pktinfo>().read_unaligned() };
                received.to = address(info.ipi_addr).into();
                received.interface = info.ipi_ifindex.cast_unsigned();
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                // SAFETY: the data of an IPV6_PKTINFO message is an in6_pktinfo, of any alignment.
                let info = unsafe { data.cast::<libc::in6_pktinfo>().read_unaligned() };
                received.to = Ipv6Addr::from(info.ipi6_addr.s6_addr).into();
                received.interface = info.ipi6_ifindex;
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                // SAFETY: their data is a number.
                received.ttl = unsafe { data.cast::<libc::c_int>().read_unaligned() } as u8;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                // SAFETY: its data is a number.
                received.tos = unsafe { data.cast::<libc::c_int>().read_unaligned() } as u8;
            }
            // SAFETY: its data is one byte.
            (libc::IPPROTO_IP, libc::IP_TOS) => received.tos = unsafe { data.read() },
            _ => {}
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
}

fn address(address: libc::in_addr) -> Ipv4Addr {
    Ipv4Addr::from(address.s_addr.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::UdpSocket, os::fd::AsFd};

    #[test]
    fn destination_ttl_and_tos_are_received() {
        let receiver = UdpSocket::bind("0.0.0.0:0").unwrap();
        let set = |socket: &UdpSocket, name, value: libc::c_int| {
            let (fd, value) = (socket.as_raw_fd(), (&raw const value).cast());
            // SAFETY: an int, and its size.
            assert_eq!(unsafe { libc::setsockopt(fd, libc::IPPROTO_IP, name, value, 4) }, 0);
        };
        for name in [libc::IP_PKTINFO, libc::IP_RECVTTL, libc::IP_RECVTOS] {
            set(&receiver, name, 1);
        }
        let mut buffer = [0; 16];
        let empty = recv_with_destination(receiver.as_fd(), &mut buffer).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        set(&sender, libc::IP_TTL, 77);
        set(&sender, libc::IP_TOS, 16);
        let port = receiver.local_addr().unwrap().port();
        sender.send_to(b"hello", ("127.3.2.1", port)).unwrap();
        let received = recv_with_destination(receiver.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..received.len], b"hello");
        assert_eq!(received.from, sender.local_addr().unwrap());
        assert_eq!(received.to, IpAddr::from([127, 3, 2, 1]));
        assert_eq!((received.ttl, received.tos), (77, 16));
    }
}
