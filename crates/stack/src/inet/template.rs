//! The headers of a way, ready but for lengths and checksums: Ethernet, IP of either version and, for
//! datagrams, UDP, end to end in one array. A packet is that array copied and a few words put right.

use super::{Payload, path::PathOptions};
use crate::wire::{EtherType, MacAddr, Protocol, checksum::Sum, ethernet, ipv4, udp};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const LINK: usize = ethernet::HEADER_LEN;
const V4: usize = LINK + ipv4::HEADER_LEN;
const V4_UDP: usize = V4 + udp::HEADER_LEN;

// Where in the array lengths and checksums are.
const TOTAL_LEN: usize = LINK + 2;
const IP_CHECKSUM: usize = LINK + 10;

/// Where a transport header and its data go.
pub(super) struct Room<'a> {
    /// Exactly as many bytes as were asked for, holding old data.
    pub(super) bytes: &'a mut [u8],
    pseudo: Sum,
    partial: bool,
}

impl Room<'_> {
    /// What the checksum field must hold. `rest` gives the sum of header and data with that field zero; it is
    /// not asked for where the link carries partial checksums.
    #[inline]
    pub(super) fn checksum(&self, rest: impl FnOnce() -> Sum) -> u16 {
        if self.partial { self.pseudo.fold() } else { self.pseudo.plus(rest()).checksum() }
    }
}

#[derive(Debug)]
pub(super) struct Template {
    bytes: [u8; V4_UDP],
    /// The sum of the IPv4 header with no length.
    ip_sum: Sum,
    /// The sum of the pseudo-header with no length.
    pseudo: Sum,
    /// The sum of the ports.
    ports: Sum,
}

impl Template {
    pub(super) fn new(
        protocol: Protocol,
        (local, remote): (SocketAddr, SocketAddr),
        dont_fragment: bool,
        options: PathOptions,
    ) -> Template {
        let mut bytes = [0; V4_UDP];
        let mut pseudo = Sum::ZERO;
        if let (IpAddr::V4(src), IpAddr::V4(dst)) = (local.ip(), remote.ip()) {
            pseudo = ipv4::address_sum(src, dst).plus_word(protocol.0.into());
            lay_ipv4(&mut bytes[LINK..], protocol, (src, dst), dont_fragment, options);
        }
        // It has room for the header: this cannot fail.
        let _ = udp::Packet::init(&mut bytes[V4..], local.port(), remote.port(), 0);
        for at in [TOTAL_LEN, IP_CHECKSUM, V4 + 4] {
            bytes[at..at + 2].fill(0);
        }
        Template {
            ip_sum: Sum::of(&bytes[LINK..V4]),
            bytes,
            pseudo,
            ports: Sum::ZERO.plus_word(local.port()).plus_word(remote.port()),
        }
    }

    /// Writes the link's header.
    pub(super) fn address(&mut self, to: MacAddr, from: MacAddr) {
        // The buffer has the header's size: this cannot fail.
        let _ = ethernet::Frame::init(&mut self.bytes[..LINK], to, from, EtherType::IPV4);
    }

    /// Bytes of the IP header.
    pub(super) fn ip_len(&self) -> usize {
        self.before_transport() - LINK
    }

    /// Bytes of a frame before the transport header.
    #[inline]
    pub(super) fn before_transport(&self) -> usize {
        V4
    }

    /// A frame around the datagram `payload`, which fits `frame` exactly. With `partial` the checksum is left
    /// to whoever receives it.
    #[inline]
    pub(super) fn lay_datagram<P: Payload + ?Sized>(
        &self,
        frame: &mut [u8],
        payload: &P,
        partial: bool,
    ) {
        let total = (frame.len() - LINK) as u16;
        let Some((head, body)) = frame.split_first_chunk_mut::<V4_UDP>() else { return };
        let len = total - ipv4::HEADER_LEN as u16;
        let pseudo = self.pseudo.plus_word(len);
        let checksum = if partial {
            pseudo.fold()
        } else {
            // RFC 768: "If the computed checksum is zero, it is transmitted as all ones."
            match pseudo.plus(self.ports).plus_word(len).plus(payload.sum()).checksum() {
                0 => 0xffff,
                checksum => checksum,
            }
        };
        *head = self.bytes;
        put(head, TOTAL_LEN, total);
        put(head, IP_CHECKSUM, self.ip_sum.plus_word(total).checksum());
        put(head, V4 + 4, len);
        put(head, V4 + 6, checksum);
        payload.copy_to(body);
    }

    /// A frame around a segment that `fill` lays, with `ecn` in the two ECN bits of its IP header.
    #[inline]
    pub(super) fn lay_segment(
        &self,
        frame: &mut [u8],
        ecn: u8,
        partial: bool,
        fill: impl FnOnce(Room<'_>),
    ) {
        let total = (frame.len() - LINK) as u16;
        let Some((head, bytes)) = frame.split_first_chunk_mut::<V4>() else { return };
        *head = self.bytes[..V4].try_into().unwrap_or([0; V4]);
        head[LINK + 1] |= ecn;
        put(head, TOTAL_LEN, total);
        let ip_sum = self.ip_sum.plus_word(total).plus_word(ecn.into());
        put(head, IP_CHECKSUM, ip_sum.checksum());
        let pseudo = self.pseudo.plus_word(bytes.len() as u16);
        fill(Room { bytes, pseudo, partial });
    }
}

#[inline]
fn put(bytes: &mut [u8], at: usize, word: u16) {
    bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

fn lay_ipv4(
    bytes: &mut [u8],
    protocol: Protocol,
    (src, dst): (Ipv4Addr, Ipv4Addr),
    dont_fragment: bool,
    options: PathOptions,
) {
    // There is room for a header: this cannot fail.
    let Ok(mut ip) = ipv4::Packet::init(bytes, src, dst, protocol, 0) else { return };
    ip.set_ttl(options.ttl);
    // The ECN bits of TCP are TCP's own (RFC 3168 section 6.1; Linux's `ip_sock_set_tos`).
    ip.set_tos(if protocol == Protocol::TCP { options.tos & !3 } else { options.tos });
    ip.set_dont_fragment(dont_fragment);
}
