//! ICMP for IPv6 (RFC 4443).
//!
//! Owns the bytes of echoes and errors; [`super::ndp`] owns neighbour discovery, which uses the same
//! messages. Inet decides when an error may be sent (RFC 4443 section 2.4) and which socket gets a
//! received one.

use super::checksum::{self, Sum};
use super::icmp::message;
use super::{Error, Protocol, Result, be16, be32, ipv6, put16, put32};

/// Bytes of a header: the first 8 bytes of every message here.
pub const HEADER_LEN: usize = 8;
/// The longest error. RFC 4443 section 2.4 (c): it quotes as much of the packet "as possible
/// without making the error message packet exceed the minimum IPv6 MTU".
pub const MAX_ERROR_LEN: usize = ipv6::MIN_MTU - ipv6::HEADER_LEN;

/// The type of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Type(pub u8);

impl Type {
    /// A packet could not be delivered; the [`code`] says why.
    pub const UNREACHABLE: Type = Type(1);
    /// A packet was too big for the next hop.
    pub const PACKET_TOO_BIG: Type = Type(2);
    /// Too many hops, or missing fragments.
    pub const TIME_EXCEEDED: Type = Type(3);
    /// A header field that could not be processed.
    pub const PARAMETER_PROBLEM: Type = Type(4);
    /// A ping.
    pub const ECHO_REQUEST: Type = Type(128);
    /// The reply to a ping.
    pub const ECHO_REPLY: Type = Type(129);
    /// Requests the MAC address of an IPv6 address.
    pub const NEIGHBOR_SOLICITATION: Type = Type(135);
    /// Announces the MAC address of an IPv6 address.
    pub const NEIGHBOR_ADVERTISEMENT: Type = Type(136);

    /// Whether this is an error, of a known or unknown type. Errors quote the packet they are about.
    #[inline]
    #[must_use]
    pub fn is_error(self) -> bool {
        // RFC 4443 section 2.1: error messages "are identified as such by a zero in the
        // high-order bit of their message Type field values".
        self.0 < 128
    }
}

/// The codes of the errors (RFC 4443 section 3, RFC 7112 section 5).
pub mod code {
    /// Unreachable: no route.
    pub const NO_ROUTE: u8 = 0;
    /// Unreachable: administratively prohibited.
    pub const PROHIBITED: u8 = 1;
    /// Unreachable: beyond the scope of the sender's address.
    pub const BEYOND_SCOPE: u8 = 2;
    /// Unreachable: the host does not answer.
    pub const ADDRESS_UNREACHABLE: u8 = 3;
    /// Unreachable: no socket is bound to the port.
    pub const PORT_UNREACHABLE: u8 = 4;
    /// Unreachable: the source address failed an ingress or egress policy.
    pub const SOURCE_POLICY: u8 = 5;
    /// Unreachable: the route to the destination is a reject route.
    pub const REJECT_ROUTE: u8 = 6;
    /// Time exceeded: the hop limit ran out.
    pub const HOP_LIMIT_EXCEEDED: u8 = 0;
    /// Time exceeded: a fragment is missing.
    pub const REASSEMBLY_EXCEEDED: u8 = 1;
    /// Parameter problem: an erroneous header field.
    pub const ERRONEOUS_FIELD: u8 = 0;
    /// Parameter problem: an unknown next header.
    pub const UNRECOGNIZED_NEXT_HEADER: u8 = 1;
    /// Parameter problem: an unknown option.
    pub const UNRECOGNIZED_OPTION: u8 = 2;
    /// Parameter problem: a first fragment without all of the packet's headers.
    pub const INCOMPLETE_HEADER_CHAIN: u8 = 3;
}

message!();

impl<T: AsRef<[u8]>> Packet<T> {
    /// The next hop's MTU in a "packet too big", bytes. The caller must check it: any host may send
    /// one, and no link has an MTU below [`ipv6::MIN_MTU`].
    #[inline]
    pub fn mtu(&self) -> Option<u32> {
        (self.kind() == Type::PACKET_TOO_BIG).then(|| self.rest())
    }

    /// The offset in the packet that a parameter problem is about; it may be beyond the quote.
    #[inline]
    pub fn pointer(&self) -> Option<u32> {
        (self.kind() == Type::PARAMETER_PROBLEM).then(|| self.rest())
    }

    /// The second half of the header.
    #[inline]
    pub(super) fn rest(&self) -> u32 {
        be32(self.0.as_ref(), 4)
    }

    /// Verifies the checksum, which covers the addresses and the whole message; `addresses` is
    /// their [`ipv6::address_sum`].
    ///
    /// # Errors
    /// [`Error::BadChecksum`].
    #[inline]
    pub fn verify_checksum(&self, addresses: Sum) -> Result<()> {
        if self.sum(addresses).is_intact() { Ok(()) } else { Err(Error::BadChecksum) }
    }

    /// The sum of pseudo-header and message, including the checksum field (RFC 4443 2.3).
    #[inline]
    fn sum(&self, addresses: Sum) -> Sum {
        let b = self.0.as_ref();
        // An IP payload: its length fits the lower word of the pseudo-header's 32 bits.
        addresses
            .plus_word(b.len() as u16)
            .plus_word(u16::from(Protocol::ICMPV6.0))
            .plus(Sum::of(b))
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> Packet<&'a T> {
    /// The packet an error is about: one we sent, if the error is genuine. Its payload may be cut
    /// anywhere; [`udp::ports`](super::udp::ports) needs 4 bytes of it, after the extension headers.
    ///
    /// # Errors
    /// [`Error::BadValue`] if the message is no error; else as [`ipv6::Packet::new_quoted`].
    #[inline]
    pub fn quoted(&self) -> Result<ipv6::Packet<&'a [u8]>> {
        if !self.kind().is_error() {
            return Err(Error::BadValue);
        }
        ipv6::Packet::new_quoted(self.payload())
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Writes an error and its checksum. `rest` is the second half of the header: the MTU, or the
    /// pointer, or 0. `quote` is the IP packet the error is about; as much of it is quoted as fits
    /// in the buffer: [`error_len`] returns how long the buffer should be.
    ///
    /// # Errors
    /// [`Error::Truncated`] unless there is room for all of `quote`, or for its fixed header and 8
    /// bytes more. As [`ipv6::Packet::new_quoted`] if `quote` is no IPv6 packet.
    pub fn init_error(
        buf: T,
        addresses: Sum,
        kind: Type,
        code: u8,
        rest: u32,
        quote: &[u8],
    ) -> Result<Packet<T>> {
        ipv6::Packet::new_quoted(quote)?;
        let mut packet = Self::init(buf, kind, code, rest)?;
        packet.quote(quote, quote.len().min(ipv6::HEADER_LEN + 8))?;
        packet.fill_checksum(addresses);
        Ok(packet)
    }

    /// Turns an echo request into its reply, in place: the data stays the same (RFC 4443 section
    /// 4.2). A valid checksum stays valid if the addresses are only swapped; the reply to a ping of
    /// a group has another source and needs [`Packet::fill_checksum`].
    #[inline]
    pub fn turn_into_reply(&mut self) {
        let checksum = self.checksum();
        let b = self.0.as_mut();
        let old = be16(b, 0);
        b[0] = Type::ECHO_REPLY.0;
        b[1] = 0;
        let new = be16(b, 0);
        put16(b, 2, checksum::update(checksum, old, new));
    }

    /// Writes the checksum over the addresses and the whole message.
    #[inline]
    pub fn fill_checksum(&mut self, addresses: Sum) {
        put16(self.0.as_mut(), 2, 0);
        let checksum = self.sum(addresses).checksum();
        put16(self.0.as_mut(), 2, checksum);
    }
}

/// The length of an error that quotes as much as allowed of a packet of `len` bytes.
#[must_use]
pub fn error_len(len: usize) -> usize {
    len.saturating_add(HEADER_LEN).min(MAX_ERROR_LEN)
}

#[cfg(test)]
mod tests {
    use super::super::udp;
    use super::*;
    use std::net::Ipv6Addr;

    const A: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const B: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

    fn addresses() -> Sum {
        ipv6::address_sum(A, B)
    }

    fn datagram(data: usize) -> Vec<u8> {
        let mut bytes = vec![0; 48 + data];
        let mut ip = ipv6::Packet::init(&mut bytes, A, B, Protocol::UDP, 8 + data).unwrap();
        udp::Packet::init(ip.payload_mut(), 4000, 7, data).unwrap().fill_checksum(addresses());
        bytes
    }

    #[test]
    fn an_echo_becomes_its_reply_with_a_valid_checksum() {
        let mut bytes = [0x5a; 13];
        let mut echo = Packet::init_echo(&mut bytes[..], Type::ECHO_REQUEST, 0x2296, 1).unwrap();
        echo.payload_mut().copy_from_slice(b"hello");
        echo.fill_checksum(addresses());
        assert_eq!((echo.kind(), echo.code()), (Type::ECHO_REQUEST, 0));
        assert_eq!((echo.ident(), echo.sequence()), (0x2296, 1));
        assert_eq!((echo.mtu(), echo.pointer()), (None, None));
        echo.verify_checksum(addresses()).unwrap();
        echo.turn_into_reply();
        echo.verify_checksum(ipv6::address_sum(B, A)).unwrap();
        let reply = Packet::new_checked(&bytes).unwrap();
        assert_eq!((reply.kind(), reply.payload()), (Type::ECHO_REPLY, &b"hello"[..]));
        assert_eq!(reply.quoted().err(), Some(Error::BadValue));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            let bad = Packet::new_checked(bad).unwrap();
            assert!(bad.verify_checksum(addresses()).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn an_error_and_its_quote_are_written_and_read() {
        let lost = datagram(3);
        let mut buf = vec![0xee; error_len(lost.len())];
        let (kind, code) = (Type::UNREACHABLE, code::PORT_UNREACHABLE);
        Packet::init_error(&mut buf, addresses(), kind, code, 0, &lost).unwrap();
        let error = Packet::new_checked(&buf).unwrap();
        error.verify_checksum(addresses()).unwrap();
        assert_eq!((error.kind(), error.code(), error.payload()), (kind, code, &lost[..]));
        let quoted = error.quoted().unwrap();
        assert_eq!((quoted.src(), quoted.dst()), (A, B));
        assert_eq!(udp::ports(quoted.payload()), Ok((4000, 7)));

        let mut init = |room: usize, quote: &[u8]| {
            Packet::init_error(&mut buf[..room], addresses(), kind, code, 0, quote).err()
        };
        assert_eq!(init(56, &lost), None);
        assert_eq!(init(55, &lost), Some(Error::Truncated));
        assert_eq!(init(50, &lost[..42]), None); // a quoted packet of 42 bytes only
        assert_eq!(init(56, &[0x45; 60]), Some(Error::BadVersion));
        assert_eq!(init(7, &lost), Some(Error::Truncated));
    }

    #[test]
    fn an_error_fits_the_minimum_mtu() {
        assert_eq!(error_len(51), 59);
        assert_eq!(error_len(1500) + ipv6::HEADER_LEN, 1280);
        let mut buf = vec![0; error_len(1500)];
        let too_big = (Type::PACKET_TOO_BIG, 0, 1400);
        let (kind, code, rest) = too_big;
        let error =
            Packet::init_error(&mut buf, addresses(), kind, code, rest, &datagram(1452)).unwrap();
        assert_eq!((error.mtu(), error.pointer()), (Some(1400), None));
        error.verify_checksum(addresses()).unwrap();
        let buf = &mut buf[..60];
        let quote = datagram(0);
        let error =
            Packet::init_error(buf, addresses(), Type::PARAMETER_PROBLEM, 1, 6, &quote).unwrap();
        assert_eq!((error.mtu(), error.pointer()), (None, Some(6)));
    }
}
