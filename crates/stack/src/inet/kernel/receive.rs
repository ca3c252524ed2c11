//! Receiving from a kernel socket with the address the datagram was sent to. Owns the control message.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::{AsRawFd, BorrowedFd},
};

/// Room for one IP_PKTINFO or IPV6_PKTINFO, aligned as control messages must be.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Takes one datagram off a `socket` that has IP_PKTINFO or IPV6_RECVPKTINFO set: its length, sender, destination
/// address, and the interface it came over, 0 if that is not told. What `buffer` cannot hold is lost. Does not block.
///
/// # Errors
/// `WouldBlock` if there is none; a pending error of the socket.
pub(crate) fn recv_with_destination(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, SocketAddr, IpAddr, u32)> {
    let mut control = Control([0; 64]);
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
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    let (to, interface) = destination(&message).unwrap_or((Ipv4Addr::UNSPECIFIED.into(), 0));
    Ok((length, sender(&name), to, interface))
}

/// The address in a name that recvmsg has written: both families begin alike, and the smaller fits the larger.
fn sender(name: &libc::sockaddr_in6) -> SocketAddr {
    if i32::from(name.sin6_family) == libc::AF_INET6 {
        let (port, scope) = (u16::from_be(name.sin6_port), name.sin6_scope_id);
        return SocketAddrV6::new(name.sin6_addr.s6_addr.into(), port, 0, scope).into();
    }
    // SAFETY: a sockaddr_in is smaller than a sockaddr_in6, aligned no more strictly, and any bytes make one.
    let name = unsafe { &*std::ptr::from_ref(name).cast::<libc::sockaddr_in>() };
    SocketAddrV4::new(address(name.sin_addr), u16::from_be(name.sin_port)).into()
}

fn destination(message: &libc::msghdr) -> Option<(IpAddr, u32)> {
    // SAFETY: `message` was filled in by recvmsg and its control buffer is live; the CMSG macros stay
    // inside it.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: a header inside the control buffer.
        let found = unsafe { *header };
        match (found.cmsg_level, found.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // SAFETY: the data of an IP_PKTINFO message is an in_pktinfo, of any alignment.
                let info: libc::in_pktinfo =
                    unsafe { libc::CMSG_DATA(header).cast::<libc::in_pktinfo>().read_unaligned() };
                return Some((address(info.ipi_addr).into(), info.ipi_ifindex.cast_unsigned()));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                // SAFETY: the data of an IPV6_PKTINFO message is an in6_pktinfo, of any alignment.
                let info: libc::in6_pktinfo =
                    unsafe { libc::CMSG_DATA(header).cast::<libc::in6_pktinfo>().read_unaligned() };
                let address = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                return Some((address.into(), info.ipi6_ifindex));
            }
            _ => {}
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

fn address(address: libc::in_addr) -> Ipv4Addr {
    Ipv4Addr::from(address.s_addr.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::UdpSocket, os::fd::AsFd};

    #[test]
    fn the_destination_is_told() {
        let receiver = UdpSocket::bind("0.0.0.0:0").unwrap();
        let on: libc::c_int = 1;
        // SAFETY: an int, and its size.
        let set = unsafe {
            libc::setsockopt(
                receiver.as_raw_fd(),
                libc::IPPROTO_IP,
                libc::IP_PKTINFO,
                (&raw const on).cast(),
                4,
            )
        };
        assert_eq!(set, 0);
        let mut buffer = [0; 16];
        let empty = recv_with_destination(receiver.as_fd(), &mut buffer).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = receiver.local_addr().unwrap().port();
        sender.send_to(b"hello", ("127.3.2.1", port)).unwrap();
        let (length, from, to, _) = recv_with_destination(receiver.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"hello");
        assert_eq!(from, sender.local_addr().unwrap());
        assert_eq!(to, IpAddr::from([127, 3, 2, 1]));
    }
}
