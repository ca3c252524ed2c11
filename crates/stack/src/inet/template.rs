//! The prebuilt headers of a path, which lack only lengths and checksums: Ethernet, IPv4 or IPv6 and, for datagrams,
//! UDP, in one array. To send a packet, the array is copied and a few words are set.

use super::{
    Payload,
    path::PathOptions,
    tcp::plain::{PLAIN_LEN, Plain},
};
use crate::wire::{EtherType, MacAddr, Protocol, checksum::Sum, ethernet, ipv4, ipv6, udp};
use std::net::{IpAddr, SocketAddr};

const LINK: usize = ethernet::HEADER_LEN;
const V4: usize = LINK + ipv4::HEADER_LEN;
const V6: usize = LINK + ipv6::HEADER_LEN;
const V4_UDP: usize = V4 + udp::HEADER_LEN;
const V6_UDP: usize = V6 + udp::HEADER_LEN;

// Offsets of lengths and checksums in the array.
const TOTAL_LEN: usize = LINK + 2;
const IP_CHECKSUM: usize = LINK + 10;
const PAYLOAD_LEN: usize = LINK + 4;
// Offsets from the end of the IP header.
const UDP_LEN: usize = 4;
const UDP_CHECKSUM: usize = 6;

/// The buffer for a transport header and its data.
pub(super) struct TransportBuf<'a> {
    /// Exactly as many bytes as requested, not zeroed.
    pub(super) bytes: &'a mut [u8],
    pseudo: Sum,
    partial: bool,
}

impl TransportBuf<'_> {
    /// The value of the checksum field. `rest` returns the sum of header and data with that field zero; it is
    /// not called where the link takes partial checksums.
    #[inline]
    pub(super) fn checksum(&self, rest: impl FnOnce() -> Sum) -> u16 {
        if self.partial { self.pseudo.fold() } else { self.pseudo.plus(rest()).checksum() }
    }
}

#[derive(Debug)]
pub(super) struct Template {
    /// The headers; IPv4 and TCP use only the first part.
    bytes: [u8; V6_UDP],
    /// The offset of the transport header: [`V4`] or [`V6`].
    transport: usize,
    /// The sum of the IPv4 header without its length.
    ip_sum: Sum,
    /// The sum of the pseudo-header without its length.
    pseudo: Sum,
    /// The sum of the ports.
    ports: Sum,
}

impl Template {
    /// The headers of packets between two addresses of one family. `flow` is the IPv6 flow label (RFC 6437).
    pub(super) fn new(
        protocol: Protocol,
        (local, remote): (SocketAddr, SocketAddr),
        dont_fragment: bool,
        options: PathOptions,
        flow: u32,
    ) -> Template {
        // TCP itself sets the ECN bits of its packets (RFC 3168 section 6.1; Linux's `ip_sock_set_tos`).
        let tos = if protocol == Protocol::TCP { options.tos & !3 } else { options.tos };
        let mut bytes = [0; V6_UDP];
        let (mut pseudo, is_v6) = (Sum::ZERO, local.is_ipv6());
        // There is room for the headers: nothing here can fail.
        match (local.ip(), remote.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                pseudo = ipv4::address_sum(src, dst);
                if let Ok(mut ip) = ipv4::Packet::init(&mut bytes[LINK..], src, dst, protocol, 0) {
                    ip.set_ttl(options.ttl);
                    ip.set_tos(tos);
                    ip.set_dont_fragment(dont_fragment);
                }
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                pseudo = ipv6::address_sum(src, dst);
                if let Ok(mut ip) = ipv6::Packet::init(&mut bytes[LINK..], src, dst, protocol, 0) {
                    ip.set_hop_limit(options.ttl);
                    ip.set_traffic_class(tos);
                    ip.set_flow_label(flow);
                }
            }
            _ => {}
        }
        let transport = if is_v6 { V6 } else { V4 };
        let _ = udp::Packet::init(&mut bytes[transport..], local.port(), remote.port(), 0);
        let lengths: &[usize] = if is_v6 { &[] } else { &[TOTAL_LEN, IP_CHECKSUM] };
        for at in lengths.iter().copied().chain([transport + UDP_LEN]) {
            bytes[at..at + 2].fill(0);
        }
        Template {
            ip_sum: Sum::of(&bytes[LINK..V4]),
            bytes,
            transport,
            pseudo: pseudo.plus_word(protocol.0.into()),
            ports: Sum::ZERO.plus_word(local.port()).plus_word(remote.port()),
        }
    }

    /// Writes the Ethernet header.
    pub(super) fn set_link_header(&mut self, to: MacAddr, from: MacAddr) {
        let ethertype = if self.transport == V6 { EtherType::IPV6 } else { EtherType::IPV4 };
        // The buffer has the header's size: this cannot fail.
        let _ = ethernet::Frame::init(&mut self.bytes[..LINK], to, from, ethertype);
    }

    /// The length of the IP header.
    pub(super) fn ip_len(&self) -> usize {
        self.before_transport() - LINK
    }

    /// The most bytes after the IP header that its length field allows.
    pub(super) fn max_transport_len(&self) -> usize {
        if self.transport == V6 { ipv6::MAX_PAYLOAD } else { ipv4::MAX_LEN - ipv4::HEADER_LEN }
    }

    /// The bytes of a frame before the transport header.
    #[inline]
    pub(super) fn before_transport(&self) -> usize {
        self.transport
    }

    /// Writes a frame with the datagram `payload`, which fits `frame` exactly. With `partial` the checksum field
    /// gets only the sum of the pseudo-header.
    #[inline]
    pub(super) fn write_datagram<P: Payload + ?Sized>(
        &self,
        frame: &mut [u8],
        payload: &P,
        partial: bool,
    ) {
        if self.transport == V6 {
            self.write_datagram_at::<V6, V6_UDP, P>(frame, payload, partial);
        } else {
            self.write_datagram_at::<V4, V4_UDP, P>(frame, payload, partial);
        }
    }

    #[inline]
    fn write_datagram_at<const IP: usize, const UDP: usize, P: Payload + ?Sized>(
        &self,
        frame: &mut [u8],
        payload: &P,
        partial: bool,
    ) {
        let len = (frame.len() - IP) as u16;
        let Some((head, body)) = frame.split_first_chunk_mut::<UDP>() else { return };
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
        self.write_ip::<IP, UDP>(head, len, 0);
        put(head, IP + UDP_LEN, len);
        put(head, IP + UDP_CHECKSUM, checksum);
        payload.copy_to(body);
    }

    /// Writes a frame with a segment that `fill` writes, with `ecn` as the ECN field of its IP header.
    #[inline]
    pub(super) fn write_segment(
        &self,
        frame: &mut [u8],
        ecn: u8,
        partial: bool,
        fill: impl FnOnce(TransportBuf<'_>),
    ) {
        if self.transport == V6 {
            self.write_segment_at::<V6>(frame, ecn, partial, fill);
        } else {
            self.write_segment_at::<V4>(frame, ecn, partial, fill);
        }
    }

    #[inline]
    fn write_segment_at<const IP: usize>(
        &self,
        frame: &mut [u8],
        ecn: u8,
        partial: bool,
        fill: impl FnOnce(TransportBuf<'_>),
    ) {
        let Some((head, bytes)) = frame.split_first_chunk_mut::<IP>() else { return };
        let len = bytes.len() as u16;
        self.write_ip::<IP, IP>(head, len, ecn);
        fill(TransportBuf { bytes, pseudo: self.pseudo.plus_word(len), partial });
    }

    /// Writes a frame with a plain segment and its data, which fit `frame` exactly.
    #[inline]
    pub(super) fn write_plain(
        &self,
        frame: &mut [u8],
        ports: [u8; 4],
        (segment, data): (&Plain, &[u8]),
        partial: bool,
    ) {
        if self.transport == V6 {
            self.write_plain_at::<V6>(frame, ports, (segment, data), partial);
        } else {
            self.write_plain_at::<V4>(frame, ports, (segment, data), partial);
        }
    }

    #[inline]
    fn write_plain_at<const IP: usize>(
        &self,
        frame: &mut [u8],
        ports: [u8; 4],
        (segment, data): (&Plain, &[u8]),
        partial: bool,
    ) {
        let Some((head, rest)) = frame.split_first_chunk_mut::<IP>() else { return };
        let len = rest.len() as u16;
        self.write_ip::<IP, IP>(head, len, 0);
        let Some((header, body)) = rest.split_first_chunk_mut::<PLAIN_LEN>() else { return };
        data.copy_to(body);
        let pseudo = self.pseudo.plus_word(len);
        let checksum = if partial {
            pseudo.fold()
        } else {
            segment.write(header, ports, 0);
            pseudo.plus(Sum::of(header)).plus(Sum::of(data)).checksum()
        };
        segment.write(header, ports, checksum);
    }

    /// Writes the first `ALL` bytes of the template, with the IP header's fields set for `len` bytes after it.
    #[inline]
    fn write_ip<const IP: usize, const ALL: usize>(&self, head: &mut [u8; ALL], len: u16, ecn: u8) {
        // Nothing is read back from the frame: its cache lines may still be with the CPU that last read them.
        if let Some(ready) = self.bytes.first_chunk::<ALL>() {
            *head = *ready;
            head[LINK + 1] = ready[LINK + 1] | if IP == V6 { ecn << 4 } else { ecn };
        }
        if IP == V6 {
            put(head, PAYLOAD_LEN, len);
        } else {
            let total = len + ipv4::HEADER_LEN as u16;
            put(head, TOTAL_LEN, total);
            let sum = self.ip_sum.plus_word(total).plus_word(ecn.into());
            put(head, IP_CHECKSUM, sum.checksum());
        }
    }
}

#[inline]
fn put(bytes: &mut [u8], at: usize, word: u16) {
    bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
}
