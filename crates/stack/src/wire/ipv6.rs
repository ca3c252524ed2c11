//! IPv6 headers (RFC 8200).
//!
//! Owns the fixed header, the addresses' part of the pseudo-header and the groups that every node
//! is in. [`super::extension`] owns the extension headers.

use std::net::Ipv6Addr;

use super::checksum::Sum;
use super::extension::{self, Content, Refused};
use super::{Error, Protocol, Result, be16, be32, ip6, put_ip6, put16, put32};

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;
/// The most bytes after the fixed header. Jumbograms (RFC 2675) are not supported.
pub const MAX_PAYLOAD: usize = 65535;
/// The minimum MTU of every link (RFC 8200 section 5).
pub const MIN_MTU: usize = 1280;
/// The hop limit [`Packet::init`] writes (RFC 1700).
pub const DEFAULT_HOP_LIMIT: u8 = 64;

/// The all-nodes group of a link (RFC 4291 section 2.7.1).
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The solicited-node group of `address`: ff02::1:ff00:0/104 and its low 24 bits (RFC 4291 section
/// 2.7.1).
#[must_use]
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    let low = u16::from_be_bytes([b, c]);
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), low)
}

/// The sum of the addresses in the pseudo-header of UDP, TCP and ICMPv6 checksums; the protocol
/// and the length are added for each packet (RFC 8200 section 8.1). A connected socket can cache
/// it.
#[inline]
#[must_use]
pub fn address_sum(src: Ipv6Addr, dst: Ipv6Addr) -> Sum {
    Sum::of(&src.octets()).plus(Sum::of(&dst.octets()))
}

/// A view of an IPv6 packet.
#[derive(Debug, Clone, Copy)]
pub struct Packet<T>(T);

impl<T: AsRef<[u8]>> Packet<T> {
    /// Checks the version and the length against the buffer. The buffer may be longer than the
    /// packet: Ethernet pads.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::BadVersion`].
    #[inline]
    pub fn new_checked(buf: T) -> Result<Packet<T>> {
        let packet = Self::new_quoted(buf)?;
        if packet.0.as_ref().len() < packet.total_len() {
            return Err(Error::Truncated);
        }
        Ok(packet)
    }

    /// As [`Packet::new_checked`] for the packet an ICMPv6 error quotes: the payload may be cut
    /// short, the header must be complete.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::BadVersion`].
    #[inline]
    pub fn new_quoted(buf: T) -> Result<Packet<T>> {
        let b = buf.as_ref();
        if b.len() < HEADER_LEN {
            return Err(Error::Truncated);
        }
        if b[0] >> 4 != 6 {
            return Err(Error::BadVersion);
        }
        Ok(Packet(buf))
    }

    /// DSCP in the high six bits, ECN in the low two, as in IPv4's type of service.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (be16(self.0.as_ref(), 0) >> 4) as u8
    }

    /// Differentiated services code point, 0 to 63 (RFC 2474).
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.traffic_class() >> 2
    }

    /// Explicit congestion notification, 0 to 3 (RFC 3168).
    #[inline]
    pub fn ecn(&self) -> u8 {
        self.traffic_class() & 3
    }

    /// The flow label, 20 bits; 0 if the packet has none (RFC 6437).
    #[inline]
    pub fn flow_label(&self) -> u32 {
        be32(self.0.as_ref(), 0) & 0x000f_ffff
    }

    /// The payload length field: bytes after the fixed header, including extension headers.
    #[inline]
    pub fn payload_len(&self) -> usize {
        usize::from(be16(self.0.as_ref(), 4))
    }

    /// Bytes of header and payload by the payload length field.
    #[inline]
    pub fn total_len(&self) -> usize {
        HEADER_LEN + self.payload_len()
    }

    /// The type of the first extension header, or of the payload.
    #[inline]
    pub fn next_header(&self) -> Protocol {
        Protocol(self.0.as_ref()[6])
    }

    /// The remaining hops.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.0.as_ref()[7]
    }

    /// The source address.
    #[inline]
    pub fn src(&self) -> Ipv6Addr {
        ip6(self.0.as_ref(), 8)
    }

    /// The destination address.
    #[inline]
    pub fn dst(&self) -> Ipv6Addr {
        ip6(self.0.as_ref(), 24)
    }

    /// [`address_sum`] of this packet's addresses.
    #[inline]
    pub fn address_sum(&self) -> Sum {
        Sum::of(&self.0.as_ref()[8..HEADER_LEN])
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> Packet<&'a T> {
    /// The packet, without the link's padding; of a quoted packet, as much as was quoted.
    #[inline(always)] // otherwise LLVM emits one shared copy, which checks the length again
    pub fn bytes(&self) -> &'a [u8] {
        let b = self.0.as_ref();
        &b[..self.total_len().min(b.len())]
    }

    /// The bytes after the fixed header, including extension headers.
    #[inline(always)]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes()[HEADER_LEN..]
    }

    /// Parses the extension headers and returns the content after them.
    ///
    /// # Errors
    /// [`Refused`] if RFC 8200 requires the packet to be discarded, with the ICMPv6 error to send.
    #[inline]
    pub fn content(&self) -> std::result::Result<Content<'a>, Refused> {
        extension::content(self.bytes(), self.next_header(), self.dst())
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Writes a header for `payload_len` bytes: traffic class and flow label 0, hop limit
    /// [`DEFAULT_HOP_LIMIT`].
    ///
    /// # Errors
    /// [`Error::BadLength`] above [`MAX_PAYLOAD`] bytes, [`Error::Truncated`] if the buffer is
    /// too short for header and payload.
    #[inline]
    pub fn init(
        mut buf: T,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        next_header: Protocol,
        payload_len: usize,
    ) -> Result<Packet<T>> {
        if payload_len > MAX_PAYLOAD {
            return Err(Error::BadLength);
        }
        let b = buf.as_mut();
        if b.len() < HEADER_LEN + payload_len {
            return Err(Error::Truncated);
        }
        put32(b, 0, 6 << 28);
        put16(b, 4, payload_len as u16);
        b[6] = next_header.0;
        b[7] = DEFAULT_HOP_LIMIT;
        put_ip6(b, 8, src);
        put_ip6(b, 24, dst);
        Ok(Packet(buf))
    }

    /// Sets the traffic class, as `IPV6_TCLASS` does.
    #[inline]
    pub fn set_traffic_class(&mut self, v: u8) {
        let word = be16(self.0.as_ref(), 0) & 0xf00f | u16::from(v) << 4;
        put16(self.0.as_mut(), 0, word);
    }

    /// Sets the flow label: the low 20 bits of `v`.
    #[inline]
    pub fn set_flow_label(&mut self, v: u32) {
        let word = be32(self.0.as_ref(), 0) & 0xfff0_0000 | v & 0x000f_ffff;
        put32(self.0.as_mut(), 0, word);
    }

    /// Sets the next header.
    #[inline]
    pub fn set_next_header(&mut self, v: Protocol) {
        self.0.as_mut()[6] = v.0;
    }

    /// Sets the hop limit.
    #[inline]
    pub fn set_hop_limit(&mut self, v: u8) {
        self.0.as_mut()[7] = v;
    }

    /// Sets the source address.
    #[inline]
    pub fn set_src(&mut self, v: Ipv6Addr) {
        put_ip6(self.0.as_mut(), 8, v);
    }

    /// Sets the destination address.
    #[inline]
    pub fn set_dst(&mut self, v: Ipv6Addr) {
        put_ip6(self.0.as_mut(), 24, v);
    }

    /// The bytes after the fixed header, writable.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let to = self.total_len();
        let b = self.0.as_mut();
        let to = to.min(b.len()); // a quoted packet may be cut
        &mut b[HEADER_LEN..to]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // fe80::1 > ff02::1:ff00:2, UDP, 4 bytes, hop limit 255, traffic class 0xc2, flow 0xabcde.
    #[rustfmt::skip]
    const PACKET: [u8; 44] = [
        0x6c, 0x2a, 0xbc, 0xde, 0x00, 0x04, 0x11, 0xff,
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
        0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 2,
        0xde, 0xad, 0xbe, 0xef,
    ];
    const A: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    const B: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

    #[test]
    fn a_header_is_read() {
        let padded = [&PACKET[..], &[0; 6]].concat();
        let ip = Packet::new_checked(&padded).unwrap();
        assert_eq!((ip.traffic_class(), ip.dscp(), ip.ecn()), (0xc2, 48, 2));
        assert_eq!((ip.flow_label(), ip.hop_limit()), (0xabcde, 255));
        assert_eq!((ip.payload_len(), ip.total_len()), (4, 44));
        assert_eq!((ip.src(), ip.dst()), (A, solicited_node(B)));
        assert_eq!((ip.next_header(), ip.payload()), (Protocol::UDP, &PACKET[40..]));
        assert_eq!(ip.bytes(), PACKET);
        assert_eq!(ip.address_sum().fold(), address_sum(ip.src(), ip.dst()).fold());
    }

    #[test]
    fn the_same_header_is_written() {
        let mut buf = [0xee; 50];
        let mut ip = Packet::init(&mut buf, B, A, Protocol::TCP, 4).unwrap();
        assert_eq!(ip.hop_limit(), DEFAULT_HOP_LIMIT);
        ip.set_flow_label(0xffff_ffff);
        ip.set_traffic_class(0xc2);
        ip.set_flow_label(0xabcde);
        ip.set_hop_limit(255);
        ip.set_next_header(Protocol::UDP);
        ip.set_src(A);
        ip.set_dst(solicited_node(B));
        ip.payload_mut().copy_from_slice(&PACKET[40..]);
        assert_eq!((&buf[..44], &buf[44..]), (&PACKET[..], &[0xee; 6][..]));
    }

    #[test]
    fn invalid_headers_are_rejected_by_cause() {
        let error = |b: &[u8]| Packet::new_checked(b).err();
        assert_eq!(error(&PACKET), None);
        assert_eq!(error(&PACKET[..39]), Some(Error::Truncated));
        assert_eq!(error(&PACKET[..43]), Some(Error::Truncated));
        assert_eq!(error(&[0x45; 44]), Some(Error::BadVersion));
        let quoted = Packet::new_quoted(&PACKET[..42]).unwrap();
        assert_eq!(quoted.payload(), &[0xde, 0xad]);

        let mut buf = vec![0; 70000];
        let mut init =
            |room: usize, len| Packet::init(&mut buf[..room], A, B, Protocol::UDP, len).err();
        assert_eq!(init(70000, 65535), None);
        assert_eq!(init(70000, 65536), Some(Error::BadLength));
        assert_eq!(init(70000, usize::MAX), Some(Error::BadLength));
        assert_eq!(init(43, 4), Some(Error::Truncated));
    }

    #[test]
    fn the_solicited_node_group_is_that_of_rfc_4291() {
        // "the Solicited-Node multicast address corresponding to the IPv6 address
        // 4037::01:800:200E:8C6C is FF02::1:FF0E:8C6C"
        let group = solicited_node("4037::01:800:200E:8C6C".parse().unwrap());
        assert_eq!(group, "FF02::1:FF0E:8C6C".parse::<Ipv6Addr>().unwrap());
    }
}
