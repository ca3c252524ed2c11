//! TCP headers (RFC 9293).
//!
//! Owns the header, its checksum, including partial ones, and the bytes of the options. The
//! addresses are passed as an `address_sum` of [`super::ipv4`] or [`super::ipv6`], so this code
//! does not depend on the IP version. The state machine is in `inet::tcp`.

use super::checksum::Sum;
use super::{Error, Protocol, Result, be16, be32, put16, put32};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// The most bytes of options.
pub const MAX_OPTIONS_LEN: usize = 40;

/// The fixed part of a header without its length and checksum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Header {
    /// The source port.
    pub src_port: u16,
    /// The destination port.
    pub dst_port: u16,
    /// The sequence number of the first byte, or of the SYN.
    pub seq: u32,
    /// The next sequence number expected.
    pub ack: u32,
    /// The control bits, from FIN (1) to CWR (128).
    pub flags: u8,
    /// The window, not scaled.
    pub window: u16,
    /// The urgent pointer.
    pub urgent: u16,
}

/// A view of a TCP segment.
#[derive(Debug, Clone, Copy)]
pub struct Packet<T>(T);

impl<T: AsRef<[u8]>> Packet<T> {
    /// Checks the header and its length. The segment is as long as the buffer, an IP payload.
    ///
    /// # Errors
    /// [`Error::Truncated`]; [`Error::BadLength`] if the data offset is below 5.
    #[inline]
    pub fn new_checked(buf: T) -> Result<Packet<T>> {
        let b = buf.as_ref();
        if b.len() < HEADER_LEN {
            return Err(Error::Truncated);
        }
        let len = usize::from(b[12] >> 4) * 4;
        if len < HEADER_LEN {
            return Err(Error::BadLength);
        }
        if b.len() < len {
            return Err(Error::Truncated);
        }
        Ok(Packet(buf))
    }

    /// The whole segment.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }

    /// The source port.
    #[inline]
    pub fn src_port(&self) -> u16 {
        be16(self.0.as_ref(), 0)
    }

    /// The destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        be16(self.0.as_ref(), 2)
    }

    /// The sequence number of the first byte, or of the SYN.
    #[inline]
    pub fn seq(&self) -> u32 {
        be32(self.0.as_ref(), 4)
    }

    /// The next sequence number expected; valid if the ACK bit is set.
    #[inline]
    pub fn ack(&self) -> u32 {
        be32(self.0.as_ref(), 8)
    }

    /// Bytes of the header, options included: 20 to 60.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.0.as_ref()[12] >> 4) * 4
    }

    /// The control bits, from FIN (1) to CWR (128).
    #[inline]
    pub fn flags(&self) -> u8 {
        self.0.as_ref()[13]
    }

    /// The window, not scaled.
    #[inline]
    pub fn window(&self) -> u16 {
        be16(self.0.as_ref(), 14)
    }

    /// The checksum field.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.0.as_ref(), 16)
    }

    /// The urgent pointer; valid if the URG bit is set.
    #[inline]
    pub fn urgent(&self) -> u16 {
        be16(self.0.as_ref(), 18)
    }

    //= RFC 9293 3.1
    //# The sender MUST generate it (MUST-2) and the receiver MUST check it (MUST-3).
    /// Verifies the checksum.
    ///
    /// # Errors
    /// [`Error::BadChecksum`].
    #[inline]
    pub fn verify_checksum(&self, addresses: Sum) -> Result<()> {
        let b = self.0.as_ref();
        if self.pseudo(addresses).plus(Sum::of(b)).is_intact() {
            Ok(())
        } else {
            Err(Error::BadChecksum)
        }
    }

    /// Whether the checksum field holds the partial checksum that Linux leaves for a NIC to
    /// complete (`CHECKSUM_PARTIAL`; `__tcp_v4_send_check` in net/ipv4/tcp_ipv4.c): the
    /// pseudo-header's sum, folded but not complemented. A peer on a veth pair sends such segments,
    /// and nothing completes them. One segment in 65536 matches by chance: call
    /// [`Packet::verify_checksum`] first.
    #[inline]
    pub fn has_partial_checksum(&self, addresses: Sum) -> bool {
        self.checksum() == self.pseudo(addresses).fold()
    }

    /// The sum of the pseudo-header: addresses, protocol and length, which fits 16 bits.
    #[inline]
    fn pseudo(&self, addresses: Sum) -> Sum {
        let len = self.0.as_ref().len();
        addresses.plus_word(u16::from(Protocol::TCP.0)).plus_word(len as u16)
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> Packet<&'a T> {
    /// An iterator over the options.
    #[inline]
    pub fn options(&self) -> Options<'a> {
        Options(self.option_bytes())
    }

    /// The raw options, 0 to 40 bytes.
    #[inline(always)] // otherwise LLVM emits one shared copy, which checks the length again
    pub fn option_bytes(&self) -> &'a [u8] {
        &self.0.as_ref()[HEADER_LEN..self.header_len()]
    }

    /// The data.
    #[inline(always)]
    pub fn payload(&self) -> &'a [u8] {
        &self.0.as_ref()[self.header_len()..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Writes a header with room for `options_len` bytes of options, which it does not write, and
    /// without a checksum: call [`Packet::fill_checksum`] when options and data are in place. The
    /// segment is as long as the buffer.
    ///
    /// # Errors
    /// [`Error::BadLength`] unless `options_len` is a multiple of 4 and at most
    /// [`MAX_OPTIONS_LEN`]; [`Error::Truncated`] if the buffer is too short for the header.
    #[inline]
    pub fn init(mut buf: T, header: &Header, options_len: usize) -> Result<Packet<T>> {
        if options_len > MAX_OPTIONS_LEN || !options_len.is_multiple_of(4) {
            return Err(Error::BadLength);
        }
        let len = HEADER_LEN + options_len;
        let b = buf.as_mut();
        if b.len() < len {
            return Err(Error::Truncated);
        }
        put16(b, 0, header.src_port);
        put16(b, 2, header.dst_port);
        put32(b, 4, header.seq);
        put32(b, 8, header.ack);
        b[12] = (len as u8 / 4) << 4;
        b[13] = header.flags;
        put16(b, 14, header.window);
        put16(b, 16, 0);
        put16(b, 18, header.urgent);
        Ok(Packet(buf))
    }

    /// Writes the checksum.
    #[inline]
    pub fn fill_checksum(&mut self, addresses: Sum) {
        let payload = Sum::of(&self.0.as_ref()[self.header_len()..]);
        self.fill_checksum_with(addresses, payload);
    }

    /// As [`Packet::fill_checksum`], with the sum of the data, which the caller has from copying it.
    #[inline]
    pub fn fill_checksum_with(&mut self, addresses: Sum, payload: Sum) {
        put16(self.0.as_mut(), 16, 0);
        // The header's length is a multiple of 4 bytes, so the data's sum needs no shift.
        let header = Sum::of(&self.0.as_ref()[..self.header_len()]);
        let sum = self.pseudo(addresses).plus(header).plus(payload);
        put16(self.0.as_mut(), 16, sum.checksum());
    }

    /// Writes the pseudo-header's sum only, for a NIC to complete.
    #[inline]
    pub fn fill_partial_checksum(&mut self, addresses: Sum) {
        let sum = self.pseudo(addresses).fold();
        put16(self.0.as_mut(), 16, sum);
    }

    /// Completes a partial checksum, as a NIC would. Only for a segment with a partial checksum; it
    /// corrupts any other checksum.
    #[inline]
    pub fn complete_checksum(&mut self) {
        // The field holds the pseudo-header's sum, so the segment's own sum includes it.
        let sum = Sum::of(self.0.as_ref());
        put16(self.0.as_mut(), 16, sum.checksum());
    }

    /// The options, writable.
    #[inline]
    pub fn options_mut(&mut self) -> &mut [u8] {
        let to = self.header_len();
        &mut self.0.as_mut()[HEADER_LEN..to]
    }

    /// The data, writable.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let from = self.header_len();
        &mut self.0.as_mut()[from..]
    }
}

//= RFC 9293 3.1
//# the following options MUST be supported
/// The numbers of the options.
pub mod kind {
    /// End of the options.
    pub const END: u8 = 0;
    /// Padding.
    pub const NOP: u8 = 1;
    /// Maximum segment size.
    pub const MSS: u8 = 2;
    /// Window scale (RFC 7323).
    pub const WINDOW_SCALE: u8 = 3;
    /// SACK permitted (RFC 2018 section 2).
    pub const SACK_PERMITTED: u8 = 4;
    /// SACK (RFC 2018 section 3).
    pub const SACK: u8 = 5;
    /// Timestamps (RFC 7323).
    pub const TIMESTAMPS: u8 = 8;
}

/// One option with a valid length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opt<'a> {
    /// The largest segment the sender accepts, bytes of data.
    Mss(u16),
    /// The shift of the sender's windows.
    WindowScale(u8),
    /// The sender supports SACK.
    SackPermitted,
    /// The data the sender has received beyond its acknowledgment.
    Sack(Blocks<'a>),
    /// TSval and TSecr.
    Timestamps(u32, u32),
    /// An unknown option, or a known one of an invalid length.
    Other(u8),
}

/// The blocks of one SACK option: the first sequence number of each, and the one after its last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks<'a>(&'a [[u8; 8]]);

impl<'a> Blocks<'a> {
    /// The blocks, in the order of the segment, not checked.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, u32)> + use<'a> {
        self.0.iter().map(|b| (be32(b, 0), be32(b, 4)))
    }
}

/// The options of a segment. The iterator stops at an invalid length; the options before it count,
/// as in Linux (`tcp_parse_options` in net/ipv4/tcp_input.c).
#[derive(Debug, Clone, Copy)]
pub struct Options<'a>(&'a [u8]);

impl<'a> Options<'a> {
    /// Options from any bytes.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Options<'a> {
        Options(bytes)
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Opt<'a>;

    //= RFC 9293 3.2
    //# receivers MUST be prepared to process options even if they do not begin on a word boundary
    //# (MUST-64).
    #[inline]
    fn next(&mut self) -> Option<Opt<'a>> {
        while let [kind::NOP, rest @ ..] = self.0 {
            self.0 = rest;
        }
        let &[kind, len, ..] = self.0 else { return None };
        let len = usize::from(len);
        //= RFC 9293 3.1
        //# TCP implementations MUST be prepared to handle an illegal option length (e.g., zero)
        if kind == kind::END || len < 2 {
            self.0 = &[];
            return None;
        }
        let Some((option, rest)) = self.0.split_at_checked(len) else {
            self.0 = &[];
            return None;
        };
        self.0 = rest;
        Some(match (kind, &option[2..]) {
            (kind::MSS, &[a, b]) => Opt::Mss(u16::from_be_bytes([a, b])),
            (kind::WINDOW_SCALE, &[shift]) => Opt::WindowScale(shift),
            (kind::SACK_PERMITTED, []) => Opt::SackPermitted,
            (kind::TIMESTAMPS, data @ [_, _, _, _, _, _, _, _]) => {
                Opt::Timestamps(be32(data, 0), be32(data, 4))
            }
            (kind::SACK, data) => match data.as_chunks() {
                (blocks @ [_, ..], []) => Opt::Sack(Blocks(blocks)),
                _ => Opt::Other(kind),
            },
            _ => Opt::Other(kind),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::ipv4;
    use super::*;
    use std::net::Ipv4Addr;

    // A SYN of Linux 6.18 from 10.9.0.1:4000 to 10.9.0.2:7, options in Linux's order.
    #[rustfmt::skip]
    const SYN: [u8; 40] = [
        0x0f, 0xa0, 0x00, 0x07, 0x12, 0x34, 0x56, 0x78, 0x00, 0x00, 0x00, 0x00, 0xa0, 0x02,
        0xfa, 0xf0, 0x00, 0x00, 0x00, 0x00, 0x02, 0x04, 0x05, 0xb4, 0x04, 0x02, 0x08, 0x0a,
        0x00, 0x00, 0x00, 0x64, 0x00, 0x00, 0x00, 0x00, 0x01, 0x03, 0x03, 0x07,
    ];

    fn addresses() -> Sum {
        ipv4::address_sum(Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2))
    }

    fn read(bytes: &[u8]) -> Vec<Opt<'_>> {
        Options::new(bytes).collect()
    }

    //= RFC 9293 3.1 test
    //# The sender MUST generate it (MUST-2) and the receiver MUST check it (MUST-3).
    #[test]
    fn a_segment_is_read() {
        let mut bytes = [&SYN[..], b"odd"].concat();
        Packet::new_checked(&mut bytes[..]).unwrap().fill_checksum(addresses());
        let tcp = Packet::new_checked(&bytes).unwrap();
        tcp.verify_checksum(addresses()).unwrap();
        assert_eq!((tcp.src_port(), tcp.dst_port()), (4000, 7));
        assert_eq!((tcp.seq(), tcp.ack(), tcp.flags()), (0x1234_5678, 0, 2));
        assert_eq!((tcp.window(), tcp.urgent(), tcp.header_len()), (0xfaf0, 0, 40));
        assert_eq!(tcp.payload(), b"odd");
        let want =
            [Opt::Mss(1460), Opt::SackPermitted, Opt::Timestamps(100, 0), Opt::WindowScale(7)];
        assert!(tcp.options().eq(want));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let got = Packet::new_checked(&bad).and_then(|p| p.verify_checksum(addresses()));
            assert!(got.is_err(), "bit {bit} flipped and not detected");
        }
    }

    #[test]
    fn the_same_segment_is_written() {
        let mut buf = [0xee; 40];
        let (src_port, dst_port, seq) = (4000, 7, 0x1234_5678);
        let header =
            Header { src_port, dst_port, seq, ack: 0, flags: 2, window: 0xfaf0, urgent: 0 };
        let mut tcp = Packet::init(&mut buf[..], &header, 20).unwrap();
        tcp.options_mut().copy_from_slice(&SYN[20..]);
        assert!(tcp.payload_mut().is_empty());
        assert_eq!(buf, SYN);

        let mut init =
            |room: usize, options| Packet::init(&mut buf[..room], &header, options).err();
        assert_eq!(init(24, 4), None);
        assert_eq!(init(23, 4), Some(Error::Truncated));
        assert_eq!(init(40, 3), Some(Error::BadLength));
        assert_eq!(init(40, 44), Some(Error::BadLength));
        assert_eq!(init(40, usize::MAX), Some(Error::BadLength));
    }

    #[test]
    fn partial_checksums_and_given_payload_sums_give_the_full_checksum() {
        let mut bytes = [&SYN[..], b"hello"].concat();
        let mut tcp = Packet::new_checked(&mut bytes[..]).unwrap();
        tcp.fill_checksum(addresses());
        let full = tcp.checksum();
        tcp.fill_partial_checksum(addresses());
        assert!(tcp.has_partial_checksum(addresses()) && tcp.verify_checksum(addresses()).is_err());
        tcp.complete_checksum();
        assert_eq!(tcp.checksum(), full);
        tcp.fill_checksum_with(addresses(), Sum::of(b"hello"));
        assert_eq!(tcp.checksum(), full);
        assert!(!tcp.has_partial_checksum(addresses()));
    }

    #[test]
    fn invalid_headers_are_rejected_by_cause() {
        let error = |offset: u8, len: usize| {
            let mut bytes = SYN;
            bytes[12] = offset << 4;
            Packet::new_checked(&bytes[..len]).err()
        };
        assert_eq!(error(5, 19), Some(Error::Truncated));
        assert_eq!(error(5, 20), None);
        assert_eq!(error(4, 40), Some(Error::BadLength));
        assert_eq!(error(0, 40), Some(Error::BadLength));
        assert_eq!(error(11, 40), Some(Error::Truncated));
    }

    //= RFC 9293 3.1 test
    //# TCP implementations MUST be prepared to handle an illegal option length (e.g., zero)
    #[test]
    fn an_illegal_option_length_ends_the_options() {
        assert_eq!(read(&[2, 4, 5, 0xb4, 3, 0, 4, 2]), [Opt::Mss(1460)]); // zero
        assert_eq!(read(&[2, 4, 5, 0xb4, 3, 1, 4, 2]), [Opt::Mss(1460)]); // one
        assert_eq!(read(&[4, 2, 8, 10, 0, 0, 0, 1]), [Opt::SackPermitted]); // overrun
        assert_eq!(read(&[4, 2, 8]), [Opt::SackPermitted]); // no length at all
        assert_eq!(read(&[1, 1, 0, 2, 4, 5, 0xb4]), []); // bytes after the end
    }

    //= RFC 9293 3.1 test
    //# A TCP implementation MUST (MUST-6) ignore without error any TCP Option it does not implement, assuming [...]
    //= RFC 9293 3.2 test
    //# receivers MUST be prepared to process options even if they do not begin on a word boundary (MUST-64).
    #[test]
    fn a_known_option_of_an_invalid_length_is_skipped() {
        let known = |bytes: &[u8], kind| {
            let bytes = [bytes, &[4, 2]].concat();
            assert_eq!(read(&bytes), [Opt::Other(kind), Opt::SackPermitted], "{bytes:?}");
        };
        known(&[2, 3, 5], kind::MSS);
        known(&[3, 4, 7, 7], kind::WINDOW_SCALE);
        known(&[4, 3, 0], kind::SACK_PERMITTED);
        known(&[8, 9, 0, 0, 0, 1, 0, 0, 0], kind::TIMESTAMPS);
        known(&[5, 2], kind::SACK);
        known(&[5, 9, 0, 0, 0, 1, 0, 0, 0], kind::SACK);
        known(&[5, 12, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0], kind::SACK);
        known(&[34, 4, 1, 2], 34); // fast open
    }

    #[test]
    fn sack_blocks_are_read_in_order() {
        let bytes = [1, 1, 5, 18, 0, 0, 0, 9, 0, 0, 0, 11, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 2];
        let [Opt::Sack(blocks)] = read(&bytes)[..] else { panic!("{:?}", read(&bytes)) };
        assert!(blocks.iter().eq([(9, 11), (u32::MAX, 2)]));
    }
}
