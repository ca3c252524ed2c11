//! Receiving from a kernel UDP socket with the address the datagram was sent to. Owns the control message.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::{AsRawFd, BorrowedFd},
};

/// Room for one IP_PKTINFO, aligned as control messages must be.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Takes one datagram off an IPv4 `socket` that has IP_PKTINFO set: its length, sender and destination
/// address. What `buffer` cannot hold is lost. Does not block.
///
/// # Errors
/// `WouldBlock` if there is none; a pending error of the socket.
pub(crate) fn recv_with_destination(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, SocketAddr, IpAddr)> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeros is valid for both.
    let (mut name, mut message): (libc::sockaddr_in, libc::msghdr) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    message.msg_name = std::ptr::from_mut(&mut name).cast();
    message.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: every pointer in `message` is to live memory of the length beside it.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    let from = SocketAddrV4::new(address(name.sin_addr), u16::from_be(name.sin_port));
    let to = destination(&message).unwrap_or(Ipv4Addr::UNSPECIFIED);
    Ok((length, from.into(), to.into()))
}

fn destination(message: &libc::msghdr) -> Option<Ipv4Addr> {
    // SAFETY: `message` was filled in by recvmsg and its control buffer is live; the CMSG macros stay
    // inside it.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: a header inside the control buffer.
        let found = unsafe { *header };
        if (found.cmsg_level, found.cmsg_type) == (libc::IPPROTO_IP, libc::IP_PKTINFO) {
            // SAFETY: the data of an IP_PKTINFO message is an in_pktinfo, of any alignment.
            let info: libc::in_pktinfo =
                unsafe { libc::CMSG_DATA(header).cast::<libc::in_pktinfo>().read_unaligned() };
            return Some(address(info.ipi_addr));
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
        let (length, from, to) = recv_with_destination(receiver.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"hello");
        assert_eq!(from, sender.local_addr().unwrap());
        assert_eq!(to, IpAddr::from([127, 3, 2, 1]));
    }
}
