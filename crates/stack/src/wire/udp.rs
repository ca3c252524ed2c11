//! UDP (RFC 768).
//!
//! Owns the 8-byte header and its checksum, including partial ones. The addresses are passed as an
//! [`ipv4::address_sum`](super::ipv4::address_sum), so this code does not depend on the IP version.

use super::checksum::Sum;
use super::{Error, Protocol, Result, be16, put16};

/// Bytes of a header.
pub const HEADER_LEN: usize = 8;

/// The header of a datagram whose data lies in several buffers: nothing is checked but that it is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The source port.
    pub src_port: u16,
    /// The destination port.
    pub dst_port: u16,
    /// The length field: bytes of header and data.
    pub len: u16,
    /// The checksum field; 0 if there is none.
    pub checksum: u16,
}

impl Header {
    /// Reads the header at the beginning of `bytes`.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<Header> {
        let b: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(Error::Truncated)?;
        let [src_port, dst_port, len, checksum] = [be16(b, 0), be16(b, 2), be16(b, 4), be16(b, 6)];
        Ok(Header { src_port, dst_port, len, checksum })
    }
}

/// The source and destination port at the start of a UDP or TCP header, which the 8 bytes quoted in
/// an ICMP error always contain.
///
/// # Errors
/// [`Error::Truncated`] below 4 bytes.
#[inline]
pub fn ports(header: &[u8]) -> Result<(u16, u16)> {
    match header {
        [a, b, c, d, ..] => Ok((u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]))),
        _ => Err(Error::Truncated),
    }
}

/// A view of a UDP datagram.
#[derive(Debug, Clone, Copy)]
pub struct Packet<T>(T);

impl<T: AsRef<[u8]>> Packet<T> {
    /// Checks the header and its length against the buffer. The buffer, an IP payload, may be
    /// longer: the bytes after the datagram are not part of its data (RFC 9868).
    ///
    /// # Errors
    /// [`Error::Truncated`]; [`Error::BadLength`] if the length is below 8.
    #[inline]
    pub fn new_checked(buf: T) -> Result<Packet<T>> {
        let b = buf.as_ref();
        if b.len() < HEADER_LEN {
            return Err(Error::Truncated);
        }
        // RFC 768: "This means the minimum value of the length is eight." A length of 0 is a
        // jumbogram's (RFC 2675), which only IPv6 has.
        let len = usize::from(be16(b, 4));
        if len < HEADER_LEN {
            return Err(Error::BadLength);
        }
        if b.len() < len {
            return Err(Error::Truncated);
        }
        Ok(Packet(buf))
    }

    /// The source port; 0 if the sender expects no answer.
    #[inline]
    pub fn src_port(&self) -> u16 {
        be16(self.0.as_ref(), 0)
    }

    /// The destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        be16(self.0.as_ref(), 2)
    }

    /// Bytes of header and payload: at least 8.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // never empty: the header counts
    pub fn len(&self) -> usize {
        usize::from(be16(self.0.as_ref(), 4))
    }

    /// The checksum field.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.0.as_ref(), 6)
    }

    /// Whether the datagram has a checksum. Over IPv6 it must have one (RFC 8200 section 8.1).
    #[inline]
    pub fn has_checksum(&self) -> bool {
        // RFC 768: "An all zero transmitted checksum value means that the transmitter generated
        // no checksum."
        self.checksum() != 0
    }

    /// Verifies the checksum, if there is one.
    ///
    /// # Errors
    /// [`Error::BadChecksum`].
    #[inline]
    pub fn verify_checksum(&self, addresses: Sum) -> Result<()> {
        if !self.has_checksum() || self.pseudo(addresses).plus(self.sum()).is_intact() {
            Ok(())
        } else {
            Err(Error::BadChecksum)
        }
    }

    /// Whether the checksum field holds the partial checksum that Linux leaves for a NIC to
    /// complete (`CHECKSUM_PARTIAL`; `udp4_hwcsum` in net/ipv4/udp.c): the pseudo-header's sum,
    /// folded but not complemented. A peer on a veth pair sends such datagrams, and nothing
    /// completes them. One datagram in 65536 matches by chance: call
    /// [`Packet::verify_checksum`] first.
    #[inline]
    pub fn has_partial_checksum(&self, addresses: Sum) -> bool {
        self.checksum() == self.pseudo(addresses).fold()
    }

    /// RFC 768: the pseudo-header holds the addresses, the protocol and "the UDP length", which
    /// need not be the length of the IP payload.
    #[inline]
    fn pseudo(&self, addresses: Sum) -> Sum {
        addresses.plus_word(u16::from(Protocol::UDP.0)).plus_word(be16(self.0.as_ref(), 4))
    }

    /// The sum of the datagram, including its checksum field. The header is summed word by word: a
    /// load that spans several stores would stall.
    #[inline]
    fn sum(&self) -> Sum {
        let b = self.0.as_ref();
        Sum::of(&b[HEADER_LEN..self.len()])
            .plus_word(be16(b, 0))
            .plus_word(be16(b, 2))
            .plus_word(be16(b, 4))
            .plus_word(be16(b, 6))
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> Packet<&'a T> {
    /// The data.
    #[inline(always)] // otherwise LLVM emits one shared copy, which checks the length again
    pub fn payload(&self) -> &'a [u8] {
        &self.0.as_ref()[HEADER_LEN..self.len()]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Writes a header for `payload_len` bytes, without a checksum: call
    /// [`Packet::fill_checksum`] when the payload is in place.
    ///
    /// # Errors
    /// [`Error::BadLength`] above 65527 bytes, [`Error::Truncated`] if the buffer is too short
    /// for header and payload.
    #[inline]
    pub fn init(mut buf: T, src_port: u16, dst_port: u16, payload_len: usize) -> Result<Packet<T>> {
        if payload_len > usize::from(u16::MAX) - HEADER_LEN {
            return Err(Error::BadLength);
        }
        let len = HEADER_LEN + payload_len;
        let b = buf.as_mut();
        if b.len() < len {
            return Err(Error::Truncated);
        }
        put16(b, 0, src_port);
        put16(b, 2, dst_port);
        put16(b, 4, len as u16);
        put16(b, 6, 0);
        Ok(Packet(buf))
    }

    /// Sets the source port.
    #[inline]
    pub fn set_src_port(&mut self, v: u16) {
        put16(self.0.as_mut(), 0, v);
    }

    /// Sets the destination port.
    #[inline]
    pub fn set_dst_port(&mut self, v: u16) {
        put16(self.0.as_mut(), 2, v);
    }

    /// Writes the checksum.
    #[inline]
    pub fn fill_checksum(&mut self, addresses: Sum) {
        self.clear_checksum();
        let sum = self.pseudo(addresses).plus(self.sum());
        self.put_checksum(sum);
    }

    /// Removes the checksum; only IPv4 allows that.
    #[inline]
    pub fn clear_checksum(&mut self) {
        put16(self.0.as_mut(), 6, 0);
    }

    /// Writes the pseudo-header's sum only, for a NIC to complete.
    #[inline]
    pub fn fill_partial_checksum(&mut self, addresses: Sum) {
        let sum = self.pseudo(addresses).fold();
        put16(self.0.as_mut(), 6, sum);
    }

    /// Completes a partial checksum, as a NIC would. Only for a datagram with a partial checksum;
    /// it corrupts any other checksum.
    #[inline]
    pub fn complete_checksum(&mut self) {
        // The field holds the pseudo-header's sum, so the datagram's own sum includes it.
        let sum = self.sum();
        self.put_checksum(sum);
    }

    /// The data, writable.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let to = self.len();
        &mut self.0.as_mut()[HEADER_LEN..to]
    }

    #[inline]
    fn put_checksum(&mut self, sum: Sum) {
        // RFC 768: "If the computed checksum is zero, it is transmitted as all ones."
        let checksum = match sum.checksum() {
            0 => 0xffff,
            c => c,
        };
        put16(self.0.as_mut(), 6, checksum);
    }
}

#[cfg(test)]
mod tests {
    use super::super::ipv4::address_sum;
    use super::*;
    use std::net::Ipv4Addr;

    const A: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

    // "hello" from A:4000 to B:7, as Linux 6.18 sends it on a veth pair: the checksum is partial.
    const PARTIAL: [u8; 13] =
        [0x0f, 0xa0, 0x00, 0x07, 0x00, 0x0d, 0x14, 0x33, b'h', b'e', b'l', b'l', b'o'];
    const FULL: u16 = 0x9846;

    fn full() -> [u8; 13] {
        let mut bytes = PARTIAL;
        put16(&mut bytes, 6, FULL);
        bytes
    }

    #[test]
    fn a_datagram_is_read() {
        let trailed = [&full()[..], &[7; 6]].concat();
        let udp = Packet::new_checked(&trailed).unwrap();
        assert_eq!((udp.src_port(), udp.dst_port(), udp.len()), (4000, 7, 13));
        assert_eq!(udp.payload(), b"hello");
        udp.verify_checksum(address_sum(A, B)).unwrap();
        assert_eq!(ports(&trailed[..4]), Ok((4000, 7)));
        assert_eq!(ports(&trailed[..3]), Err(Error::Truncated));
    }

    #[test]
    fn the_same_datagram_is_written() {
        let mut buf = [0xee; 15];
        let mut udp = Packet::init(&mut buf, 1, 2, 5).unwrap();
        assert!(!udp.has_checksum());
        udp.set_src_port(4000);
        udp.set_dst_port(7);
        udp.payload_mut().copy_from_slice(b"hello");
        udp.fill_checksum(address_sum(A, B));
        assert_eq!((&buf[..13], &buf[13..]), (&full()[..], &[0xee; 2][..]));
    }

    #[test]
    fn a_partial_checksum_of_linux_is_completed() {
        let addresses = address_sum(A, B);
        let mut bytes = PARTIAL;
        let mut udp = Packet::new_checked(&mut bytes).unwrap();
        assert!(udp.has_partial_checksum(addresses));
        assert_eq!(udp.verify_checksum(addresses), Err(Error::BadChecksum));
        udp.complete_checksum();
        assert!(!udp.has_partial_checksum(addresses));
        udp.verify_checksum(addresses).unwrap();
        udp.fill_partial_checksum(addresses);
        assert_eq!(bytes, PARTIAL);
        Packet::new_checked(&mut bytes).unwrap().complete_checksum();
        assert_eq!(bytes, full());
    }

    #[test]
    fn no_checksum_is_valid_and_any_flipped_bit_is_not() {
        let addresses = address_sum(A, B);
        let mut bytes = full();
        Packet::new_checked(&mut bytes).unwrap().clear_checksum();
        let udp = Packet::new_checked(&bytes).unwrap();
        assert!(!udp.has_checksum() && udp.verify_checksum(addresses).is_ok());
        assert!(!udp.has_partial_checksum(addresses));

        for bit in 0..13 * 8 {
            let mut bytes = full();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let got = Packet::new_checked(bytes).and_then(|p| p.verify_checksum(addresses));
            assert!(got.is_err(), "bit {bit} flipped and not detected");
        }
        let other = address_sum(A, Ipv4Addr::new(10, 9, 0, 3));
        assert!(Packet::new_checked(full()).unwrap().verify_checksum(other).is_err());
    }

    #[test]
    fn a_checksum_of_zero_is_sent_as_all_ones() {
        let addresses = address_sum(A, B);
        let mut buf = [0; 10];
        // A payload equal to the checksum of the rest makes the sum all ones.
        let mut udp = Packet::init(&mut buf, 4000, 7, 2).unwrap();
        udp.fill_checksum(addresses);
        let rest = udp.checksum();
        put16(udp.payload_mut(), 0, rest);
        udp.fill_checksum(addresses);
        assert_eq!(udp.checksum(), 0xffff);
        udp.verify_checksum(addresses).unwrap();
        udp.fill_partial_checksum(addresses);
        udp.complete_checksum();
        assert_eq!(udp.checksum(), 0xffff);
    }

    #[test]
    fn invalid_lengths_are_rejected_by_cause() {
        let with_len = |len: u16| {
            let mut bytes = full();
            put16(&mut bytes, 4, len);
            Packet::new_checked(bytes).err()
        };
        assert_eq!(with_len(0), Some(Error::BadLength));
        assert_eq!(with_len(7), Some(Error::BadLength));
        assert_eq!(with_len(8), None);
        assert_eq!(with_len(14), Some(Error::Truncated));
        assert_eq!(Packet::new_checked([0; 7]).err(), Some(Error::Truncated));

        let mut buf = vec![0; 70000];
        let mut init = |room: usize, len| Packet::init(&mut buf[..room], 1, 2, len).err();
        assert_eq!(init(70000, 65527), None);
        assert_eq!(init(70000, 65528), Some(Error::BadLength));
        assert_eq!(init(70000, usize::MAX), Some(Error::BadLength));
        assert_eq!(init(12, 5), Some(Error::Truncated));
    }
}
