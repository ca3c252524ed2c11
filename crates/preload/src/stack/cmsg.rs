//! Ancillary data of recvmsg(2). [`File::cmsg_flags`](super::file::File::cmsg_flags) holds what a program has
//! requested.

use super::{
    address::{self, in_addr},
    common::error,
    route,
    unsupported_options::TX_TIMESTAMPS,
};
use busypoll_stack::{Message, TcpStream, time};
use libc::{c_int, cmsghdr, msghdr};
use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddrV4, SocketAddrV6},
    ptr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

const PACKET_INFO: u32 = 1;
const PACKET_INFO_6: u32 = 2;
const TIMESTAMP: u32 = 4;
const TIMESTAMP_NANOS: u32 = 8;
const OVERFLOW: u32 = 16;
const TIMESTAMPING: u32 = 32;
const TIME_TO_LIVE: u32 = 64;
const TYPE_OF_SERVICE: u32 = 128;
const HOP_LIMIT: u32 = 256;
const TRAFFIC_CLASS: u32 = 512;
const ORIGDSTADDR: u32 = 1024;
const ORIGDSTADDR_6: u32 = 2048;
const INQ: u32 = 4096;

// include/uapi/asm-generic/socket.h: the same layout on 64-bit machines, under a newer number.
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const SO_TIMESTAMPING_NEW: c_int = 65;
/// include/uapi/linux/tcp.h; `TCP_CM_INQ` is the same.
const TCP_INQ: c_int = 36;

/// The index of the loopback interface (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

/// The requests for a receive time.
const ANY_TIMESTAMP: u32 = TIMESTAMP | TIMESTAMP_NANOS | TIMESTAMPING;

/// The requests answered from the IP header.
const FROM_IP_HEADER: u32 = PACKET_INFO
    | PACKET_INFO_6
    | TIME_TO_LIVE
    | TYPE_OF_SERVICE
    | HOP_LIMIT
    | TRAFFIC_CLASS
    | ORIGDSTADDR
    | ORIGDSTADDR_6;

/// The bit of `cmsg_flags` that an option sets, if any.
pub fn bit(level: c_int, name: c_int) -> Option<u32> {
    Some(match (level, name) {
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => PACKET_INFO,
        (libc::IPPROTO_IP, libc::IP_RECVTTL) => TIME_TO_LIVE,
        (libc::IPPROTO_IP, libc::IP_RECVTOS) => TYPE_OF_SERVICE,
        (libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR) => ORIGDSTADDR,
        (libc::IPPROTO_IPV6, libc::IPV6_RECVORIGDSTADDR) => ORIGDSTADDR_6,
        (libc::IPPROTO_TCP, TCP_INQ) => INQ,
        (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO) => PACKET_INFO_6,
        (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT) => HOP_LIMIT,
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS) => TRAFFIC_CLASS,
        (libc::SOL_SOCKET, libc::SO_TIMESTAMP | SO_TIMESTAMP_NEW) => TIMESTAMP,
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS | SO_TIMESTAMPNS_NEW) => TIMESTAMP_NANOS,
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW) => TIMESTAMPING,
        (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => OVERFLOW,
        _ => return None,
    })
}

/// The bits that are cleared when `bit` is set: `SO_TIMESTAMP` and `SO_TIMESTAMPNS` exclude each other
/// (`sock_set_timestamp`).
pub fn excludes(bit: u32) -> u32 {
    match bit {
        TIMESTAMP => TIMESTAMP_NANOS,
        TIMESTAMP_NANOS => TIMESTAMP,
        _ => 0,
    }
}

/// A message's room for ancillary data, filled from its beginning.
struct Buffer {
    at: *mut u8,
    left: usize,
    used: usize,
    cut: bool,
}

impl Buffer {
    fn of(message: &msghdr) -> Buffer {
        let left = if message.msg_control.is_null() { 0 } else { message.msg_controllen };
        Buffer { at: message.msg_control.cast(), left, used: 0, cut: false }
    }

    /// Writes the used length to the message; returns `MSG_CTRUNC` if data was cut.
    fn end(self, message: &mut msghdr) -> c_int {
        message.msg_controllen = self.used as _;
        if self.cut { libc::MSG_CTRUNC } else { 0 }
    }

    /// `put_cmsg`: what does not fit is cut, or left out.
    fn put<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        let header = size_of::<cmsghdr>();
        if self.left < header {
            self.cut = true;
            return;
        }
        let whole = header + size_of::<T>();
        let len = whole.min(self.left);
        self.cut |= len < whole;
        // SAFETY: `left` bytes are writable, by the contract of the constructor's caller, and `len` is not more.
        unsafe {
            let head = cmsghdr { cmsg_len: len as _, cmsg_level: level, cmsg_type: kind };
            self.at.cast::<cmsghdr>().write_unaligned(head);
            let from = (&raw const value).cast::<u8>();
            ptr::copy_nonoverlapping(from, self.at.add(header), len - header);
        }
        let step = whole.next_multiple_of(size_of::<usize>()).min(self.left);
        // SAFETY: not beyond the buffer.
        self.at = unsafe { self.at.add(step) };
        self.left -= step;
        self.used += step;
    }
}

/// Checks the ancillary data of a message that is sent on a stream: our stack supports none of it (`sock_cmsg_send`).
///
/// # Errors
/// ENOPROTOOPT for transmit timestamps; EINVAL for other timestamp flags, or a value that is too short.
///
/// # Safety
/// `message` has ancillary data as it says.
pub unsafe fn check_for_stream(message: &msghdr) -> io::Result<()> {
    // SAFETY: the caller's contract, here and below.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !next.is_null() {
        // SAFETY: a header within the buffer, as the macros ensure.
        let (header, data) = unsafe { (next.read_unaligned(), libc::CMSG_DATA(next)) };
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) {
            if header.cmsg_len < size_of::<cmsghdr>() + size_of::<c_int>() {
                return Err(error(libc::EINVAL));
            }
            // SAFETY: as long as the header says.
            match unsafe { data.cast::<c_int>().read_unaligned() } {
                0 => {}
                asked if asked & !TX_TIMESTAMPS != 0 => return Err(error(libc::EINVAL)),
                _ => return Err(error(libc::ENOPROTOOPT)),
            }
        }
        // SAFETY: the caller's contract.
        next = unsafe { libc::CMSG_NXTHDR(message, next) };
    }
    Ok(())
}

/// Writes the ancillary data that the program has requested for a datagram. Returns `MSG_CTRUNC` if there was not
/// enough room.
///
/// # Safety
/// `message` has room for ancillary data as it says.
pub unsafe fn put_for_datagram(
    cmsg_flags: u32,
    datagram: &Message,
    drops: u64,
    domain: c_int,
    message: &mut msghdr,
) -> c_int {
    let mut buffer = Buffer::of(message);
    if cmsg_flags & ANY_TIMESTAMP != 0 {
        put_times(cmsg_flags, time::now() - datagram.arrived, &mut buffer);
    }
    if cmsg_flags & OVERFLOW != 0 && drops > 0 {
        buffer.put(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, drops as u32);
    }
    if cmsg_flags & FROM_IP_HEADER != 0 {
        put_ip(cmsg_flags, datagram, domain, &mut buffer);
    }
    buffer.end(message)
}

/// As [`put_for_datagram`], for a stream from which data or its end was received.
///
/// # Safety
/// That of [`put_for_datagram`].
pub unsafe fn put_for_stream(
    cmsg_flags: u32,
    stream: &TcpStream,
    received: bool,
    message: &mut msghdr,
) -> c_int {
    let mut buffer = Buffer::of(message);
    // A stream has no packets: the time is that of the last segment with data.
    if cmsg_flags & ANY_TIMESTAMP != 0
        && received
        && let Ok(info) = stream.info()
    {
        put_times(cmsg_flags, info.last_data_recv, &mut buffer);
    }
    if cmsg_flags & INQ != 0 {
        let unread = c_int::try_from(stream.unread_with_fin()).unwrap_or(c_int::MAX);
        buffer.put(libc::IPPROTO_TCP, TCP_INQ, unread);
    }
    buffer.end(message)
}

/// The receive time, `ago` before now, by the wall clock.
fn put_times(cmsg_flags: u32, ago: Duration, buffer: &mut Buffer) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let at = now.saturating_sub(ago);
    let seconds = at.as_secs() as libc::time_t;
    let nanos = libc::timespec { tv_sec: seconds, tv_nsec: at.subsec_nanos().into() };
    if cmsg_flags & TIMESTAMP != 0 {
        let micros = libc::timeval { tv_sec: seconds, tv_usec: at.subsec_micros().into() };
        buffer.put(libc::SOL_SOCKET, libc::SO_TIMESTAMP, micros);
    }
    if cmsg_flags & TIMESTAMP_NANOS != 0 {
        buffer.put(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, nanos);
    }
    if cmsg_flags & TIMESTAMPING != 0 {
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        buffer.put(libc::SOL_SOCKET, libc::SO_TIMESTAMPING, [nanos, none, none]);
    }
}

/// Data from the IP header, in the kernel's order (`ip6_datagram_recv_common_ctl`, and then `ip_cmsg_recv_offset` or
/// `ip6_datagram_recv_specific_ctl`).
fn put_ip(cmsg_flags: u32, datagram: &Message, domain: c_int, buffer: &mut Buffer) {
    let ip = datagram.to.ip().to_canonical();
    let index = if ip.is_loopback() { LOOPBACK } else { route::index() };
    if domain == libc::AF_INET6 && cmsg_flags & PACKET_INFO_6 != 0 {
        let v6 = match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let address = libc::in6_addr { s6_addr: v6.octets() };
        let info = libc::in6_pktinfo { ipi6_addr: address, ipi6_ifindex: index };
        buffer.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
    }
    if let IpAddr::V4(v4) = ip {
        if cmsg_flags & PACKET_INFO != 0 {
            let address = in_addr(v4);
            // The source address of an answer.
            let own = if v4.is_multicast() { route::ipv4_address() } else { v4 };
            let info = libc::in_pktinfo {
                ipi_ifindex: index.cast_signed(),
                ipi_spec_dst: in_addr(own),
                ipi_addr: address,
            };
            buffer.put(libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        if cmsg_flags & TIME_TO_LIVE != 0 {
            buffer.put(libc::IPPROTO_IP, libc::IP_TTL, c_int::from(datagram.ttl));
        }
        if cmsg_flags & TYPE_OF_SERVICE != 0 {
            buffer.put(libc::IPPROTO_IP, libc::IP_TOS, datagram.tos);
        }
        if cmsg_flags & ORIGDSTADDR != 0 {
            let name = address::v4(SocketAddrV4::new(v4, datagram.to.port()));
            buffer.put(libc::IPPROTO_IP, libc::IP_ORIGDSTADDR, name);
        }
    }
    if let IpAddr::V6(v6) = ip {
        if cmsg_flags & HOP_LIMIT != 0 {
            buffer.put(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, c_int::from(datagram.ttl));
        }
        if cmsg_flags & TRAFFIC_CLASS != 0 {
            buffer.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, c_int::from(datagram.tos));
        }
        if cmsg_flags & ORIGDSTADDR_6 != 0 {
            let scope = if needs_scope(v6) { index } else { 0 };
            let name = address::v6(SocketAddrV6::new(v6, datagram.to.port(), 0, scope));
            buffer.put(libc::IPPROTO_IPV6, libc::IPV6_ORIGDSTADDR, name);
        }
    }
}

/// Whether an address is valid on its link or interface only (`__ipv6_addr_needs_scope_id`).
fn needs_scope(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.octets();
    address.is_unicast_link_local() || first == 0xff && matches!(second & 15, 1 | 2)
}
