//! Resetting the connections of a program that is gone: from the kernel's raw sockets, as the rings have gone with the
//! program.
//!
//! Each peer gets a reset with the sequence number that the program would have sent next. The peer accepts it if it
//! expects exactly that (RFC 5961, section 3.2). A peer that is behind, as a segment was lost, answers with the number
//! it expects; the answer comes to the kernel, which knows no such connection and resets it. A peer that is ahead, as
//! the program was killed between sending a segment and recording it, would drop the reset. So an old number follows,
//! as in a keep-alive probe, and the peer answers that in the same way.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use busypoll_stack::ledger::LedgerEntry;
use busypoll_stack::wire::{ipv4, ipv6, tcp};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::net::{bind, ipproto, sendto, socket_with};

const RST: u8 = 4;
const ACK: u8 = 16;

/// Resets each connection, over the interface with this index. Peers that cannot be reached are skipped.
pub(super) fn all(lines: &[LedgerEntry], interface: u32) {
    for line in lines {
        let _ = reset(line, interface);
    }
}

fn reset(line: &LedgerEntry, interface: u32) -> io::Result<()> {
    let (from, to) = (line.local.ip(), line.remote.ip());
    let family = if from.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    // For a link-local address the kernel needs the link; for others it ignores it.
    let host = |ip| match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, 0),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, 0, 0, interface).into(),
    };
    bind(&socket, &host(from))?;
    for (flags, seq) in [(RST | ACK, line.snd_nxt), (ACK, line.snd_nxt.wrapping_sub(1))] {
        let header = tcp::Header {
            src_port: line.local.port(),
            dst_port: line.remote.port(),
            seq,
            ack: line.rcv_nxt,
            flags,
            ..tcp::Header::default()
        };
        sendto(&socket, &segment(&header, from, to)?, SendFlags::empty(), &host(to))?;
    }
    Ok(())
}

fn segment(header: &tcp::Header, from: IpAddr, to: IpAddr) -> io::Result<[u8; tcp::HEADER_LEN]> {
    let addresses = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ipv4::address_sum(from, to),
        (IpAddr::V6(from), IpAddr::V6(to)) => ipv6::address_sum(from, to),
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let mut bytes = [0; tcp::HEADER_LEN];
    let mut packet = tcp::Packet::init(&mut bytes, header, 0).map_err(io::Error::other)?;
    packet.fill_checksum(addresses);
    Ok(bytes)
}
