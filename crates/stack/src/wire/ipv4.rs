//! IPv4 headers (RFC 791).
//!
//! Owns the header, its checksum and the addresses' part of the pseudo-header. Inet decides whether
//! a datagram is for us, and reassembles fragments.

use std::net::Ipv4Addr;

pub use super::Protocol;
use super::checksum::{self, Sum};
use super::{Error, Result, be16, ip4, put_ip4, put16};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// The longest datagram, header included.
pub const MAX_LEN: usize = 65535;
/// The time to live [`Packet::init`] writes, the recommended default (RFC 1700).
pub const DEFAULT_TTL: u8 = 64;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff; // units of 8 bytes

/// The sum of the addresses in the pseudo-header of UDP and TCP checksums; the protocol and the
/// length are added for each packet (RFC 768). A connected socket can cache it.
#[inline]
#[must_use]
pub fn address_sum(src: Ipv4Addr, dst: Ipv4Addr) -> Sum {
    Sum::of(&src.octets()).plus(Sum::of(&dst.octets()))
}

/// RFC 791 section 3.2: all fragments but the last are multiples of 8 bytes, and the length of the
/// reassembled datagram with its header must fit the length field.
#[cold]
fn check_fragment(offset: usize, len: usize, more: bool) -> Result<()> {
    let fits = offset <= (MAX_LEN - HEADER_LEN).saturating_sub(len);
    let good = len != 0 && (!more || len.is_multiple_of(8)) && fits;
    if good { Ok(()) } else { Err(Error::BadFragment) }
}

/// A view of an IPv4 packet.
#[derive(Debug, Clone, Copy)]
pub struct Packet<T>(T);

impl<T: AsRef<[u8]>> Packet<T> {
    /// Checks the version, every length against the buffer, and that a fragment can be part of a
    /// datagram. The buffer may be longer than the packet: Ethernet pads.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::BadVersion`], [`Error::BadLength`], [`Error::BadFragment`].
    #[inline]
    pub fn new_checked(buf: T) -> Result<Packet<T>> {
        let packet = Self::new_quoted(buf)?;
        let total = packet.total_len();
        if packet.0.as_ref().len() < total {
            return Err(Error::Truncated);
        }
        if packet.is_fragment() {
            let len = total - packet.header_len();
            check_fragment(packet.fragment_offset(), len, packet.more_fragments())?;
        }
        Ok(packet)
    }

    /// As [`Packet::new_checked`] for the packet an ICMP error quotes: the payload may be cut
    /// short, the header must be complete.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::BadVersion`], [`Error::BadLength`].
    #[inline]
    pub fn new_quoted(buf: T) -> Result<Packet<T>> {
        let b = buf.as_ref();
        if b.len() < HEADER_LEN {
            return Err(Error::Truncated);
        }
        // RFC 1122 section 3.2.1.1: "A datagram whose version number is not 4 MUST be silently
        // discarded."
        if b[0] >> 4 != 4 {
            return Err(Error::BadVersion);
        }
        let packet = Packet(buf);
        let header = packet.header_len();
        if header < HEADER_LEN || packet.total_len() < header {
            return Err(Error::BadLength);
        }
        if packet.0.as_ref().len() < header {
            return Err(Error::Truncated);
        }
        Ok(packet)
    }

    /// Bytes of the header, options included: 20 to 60.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.0.as_ref()[0] & 0x0f) * 4
    }

    /// Differentiated services code point, 0 to 63 (RFC 2474).
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.0.as_ref()[1] >> 2
    }

    /// Explicit congestion notification, 0 to 3 (RFC 3168).
    #[inline]
    pub fn ecn(&self) -> u8 {
        self.0.as_ref()[1] & 3
    }

    /// The total length field: bytes of header and payload.
    #[inline]
    pub fn total_len(&self) -> usize {
        usize::from(be16(self.0.as_ref(), 2))
    }

    /// The identification, the same in all fragments of a datagram. Meaningless outside a fragment
    /// (RFC 6864 section 4.1).
    #[inline]
    pub fn ident(&self) -> u16 {
        be16(self.0.as_ref(), 4)
    }

    /// Whether routers must not fragment this packet.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        be16(self.0.as_ref(), 6) & DONT_FRAGMENT != 0
    }

    /// Whether this is a fragment and not the last.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        be16(self.0.as_ref(), 6) & MORE_FRAGMENTS != 0
    }

    /// The offset of this fragment's payload in the datagram's, bytes.
    #[inline]
    pub fn fragment_offset(&self) -> usize {
        usize::from(be16(self.0.as_ref(), 6) & OFFSET) * 8
    }

    /// Whether this is a fragment.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        be16(self.0.as_ref(), 6) & (MORE_FRAGMENTS | OFFSET) != 0
    }

    /// Time to live, in hops.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.0.as_ref()[8]
    }

    /// The protocol of the payload.
    #[inline]
    pub fn protocol(&self) -> Protocol {
        Protocol(self.0.as_ref()[9])
    }

    /// The header checksum field.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.0.as_ref(), 10)
    }

    /// The source address.
    #[inline]
    pub fn src(&self) -> Ipv4Addr {
        ip4(self.0.as_ref(), 12)
    }

    /// The destination address.
    #[inline]
    pub fn dst(&self) -> Ipv4Addr {
        ip4(self.0.as_ref(), 16)
    }

    /// [`address_sum`] of this packet's addresses.
    #[inline]
    pub fn address_sum(&self) -> Sum {
        Sum::of(&self.0.as_ref()[12..20])
    }

    /// Verifies the header checksum; the payload has its own.
    ///
    /// # Errors
    /// [`Error::BadChecksum`].
    #[inline]
    pub fn verify_checksum(&self) -> Result<()> {
        // RFC 1122 section 3.2.1.2: "A host MUST verify the IP header checksum on every received
        // datagram and silently discard every datagram that has a bad checksum."
        if self.header_sum().is_intact() { Ok(()) } else { Err(Error::BadChecksum) }
    }

    #[inline]
    fn header_sum(&self) -> Sum {
        let b = self.0.as_ref();
        // The length is constant in the usual case, so the compiler unrolls the sum.
        let fixed = Sum::of(&b[..HEADER_LEN]);
        match self.header_len() {
            HEADER_LEN => fixed,
            len => fixed.plus(Sum::of(&b[HEADER_LEN..len])),
        }
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> Packet<&'a T> {
    /// The raw options, 0 to 40 bytes, not checked.
    #[inline]
    pub fn options(&self) -> &'a [u8] {
        &self.0.as_ref()[HEADER_LEN..self.header_len()]
    }

    /// The payload without the link's padding; of a quoted packet, as much as was quoted.
    #[inline(always)] // otherwise LLVM emits one shared copy, which checks the length again
    pub fn payload(&self) -> &'a [u8] {
        let b = self.0.as_ref();
        &b[self.header_len()..self.total_len().min(b.len())]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Writes a header without options for `payload_len` bytes, with DF set, which allows ident 0
    /// (RFC 6864 section 4.1), and [`DEFAULT_TTL`]. The header checksum is valid, and every setter
    /// keeps it valid.
    ///
    /// # Errors
    /// [`Error::BadLength`] above 65515 bytes, [`Error::Truncated`] if the buffer is too short
    /// for header and payload.
    #[inline]
    pub fn init(
        mut buf: T,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        protocol: Protocol,
        payload_len: usize,
    ) -> Result<Packet<T>> {
        if payload_len > MAX_LEN - HEADER_LEN {
            return Err(Error::BadLength);
        }
        let total = HEADER_LEN + payload_len;
        let b = buf.as_mut();
        if b.len() < total {
            return Err(Error::Truncated);
        }
        b[0] = 0x45;
        b[1] = 0;
        put16(b, 2, total as u16);
        put16(b, 4, 0);
        put16(b, 6, DONT_FRAGMENT);
        b[8] = DEFAULT_TTL;
        b[9] = protocol.0;
        // Summed from the values, not from the bytes just written: a load that spans several
        // stores stalls.
        let sum = address_sum(src, dst)
            .plus_word(0x4500)
            .plus_word(total as u16)
            .plus_word(DONT_FRAGMENT)
            .plus_word(u16::from_be_bytes([DEFAULT_TTL, protocol.0]));
        put16(b, 10, sum.checksum());
        put_ip4(b, 12, src);
        put_ip4(b, 16, dst);
        Ok(Packet(buf))
    }

    /// Changes a word and updates the checksum.
    #[inline]
    fn set_word(&mut self, at: usize, v: u16) {
        let b = self.0.as_mut();
        let checksum = checksum::update(be16(b, 10), be16(b, at), v);
        put16(b, at, v);
        put16(b, 10, checksum);
    }

    #[inline]
    fn set_address(&mut self, at: usize, v: Ipv4Addr) {
        let [a, b, c, d] = v.octets();
        self.set_word(at, u16::from_be_bytes([a, b]));
        self.set_word(at + 2, u16::from_be_bytes([c, d]));
    }

    /// Sets the type of service byte, as `IP_TOS` does: DSCP in the high six bits, ECN in the low
    /// two.
    #[inline]
    pub fn set_tos(&mut self, v: u8) {
        let first = self.0.as_ref()[0];
        self.set_word(0, u16::from_be_bytes([first, v]));
    }

    /// Sets the identification.
    #[inline]
    pub fn set_ident(&mut self, v: u16) {
        self.set_word(4, v);
    }

    /// Sets or clears DF, and clears the fragment fields.
    #[inline]
    pub fn set_dont_fragment(&mut self, v: bool) {
        self.set_word(6, if v { DONT_FRAGMENT } else { 0 });
    }

    /// Makes the packet a fragment at `offset` bytes of the datagram's payload, and clears DF.
    ///
    /// # Errors
    /// [`Error::BadFragment`] for an invalid fragment; the packet is unchanged then.
    pub fn set_fragment(&mut self, offset: usize, more: bool) -> Result<()> {
        let len = self.total_len() - self.header_len();
        if !offset.is_multiple_of(8) {
            return Err(Error::BadFragment);
        }
        check_fragment(offset, len, more)?;
        let flag = if more { MORE_FRAGMENTS } else { 0 };
        self.set_word(6, flag | (offset / 8) as u16);
        Ok(())
    }

    /// Sets the time to live, in hops.
    #[inline]
    pub fn set_ttl(&mut self, v: u8) {
        let protocol = self.protocol().0;
        self.set_word(8, u16::from_be_bytes([v, protocol]));
    }

    /// Sets the source address.
    #[inline]
    pub fn set_src(&mut self, v: Ipv4Addr) {
        self.set_address(12, v);
    }

    /// Sets the destination address.
    #[inline]
    pub fn set_dst(&mut self, v: Ipv4Addr) {
        self.set_address(16, v);
    }

    /// Writes the header checksum from scratch, for a header whose checksum is invalid.
    #[inline]
    pub fn fill_checksum(&mut self) {
        put16(self.0.as_mut(), 10, 0);
        let checksum = self.header_sum().checksum();
        put16(self.0.as_mut(), 10, checksum);
    }

    /// The payload, writable.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let (from, to) = (self.header_len(), self.total_len());
        let b = self.0.as_mut();
        let to = to.min(b.len()); // a quoted packet may be cut
        &mut b[from..to]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // 10.0.0.1 > 10.0.0.2, UDP, 4 bytes of payload, TTL 64, DF, ident 0x1234, CS6 + ECT(0).
    #[rustfmt::skip]
    const PACKET: [u8; 24] = [
        0x45, 0xc2, 0x00, 0x18, 0x12, 0x34, 0x40, 0x00, 0x40, 0x11, 0x13, 0xdd,
        10, 0, 0, 1, 10, 0, 0, 2, 0xde, 0xad, 0xbe, 0xef,
    ];
    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn error(change: impl Fn(&mut Vec<u8>)) -> Option<Error> {
        let mut bytes = PACKET.to_vec();
        change(&mut bytes);
        Packet::new_checked(&bytes).err()
    }

    #[test]
    fn a_header_is_read() {
        let padded = [&PACKET[..], &[0; 22]].concat();
        let ip = Packet::new_checked(&padded).unwrap();
        assert_eq!((ip.header_len(), ip.total_len()), (20, 24));
        assert_eq!((ip.dscp(), ip.ecn(), ip.ident(), ip.ttl()), (48, 2, 0x1234, 64));
        assert_eq!((ip.src(), ip.dst(), ip.protocol()), (A, B, Protocol::UDP));
        assert!(ip.dont_fragment() && !ip.more_fragments() && !ip.is_fragment());
        assert_eq!((ip.options(), ip.payload()), (&[][..], &[0xde, 0xad, 0xbe, 0xef][..]));
        ip.verify_checksum().unwrap();
        assert_eq!(ip.address_sum().fold(), address_sum(A, B).fold());
    }

    #[test]
    fn the_same_header_is_written() {
        let mut buf = [0xff; 30];
        let mut ip = Packet::init(&mut buf, A, B, Protocol::UDP, 4).unwrap();
        ip.set_tos(0xc2);
        ip.set_ident(0x1234);
        ip.payload_mut().copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
        assert_eq!((&buf[..24], &buf[24..]), (&PACKET[..], &[0xff; 6][..]));
    }

    #[test]
    fn init_rejects_payloads_that_do_not_fit() {
        let mut buf = vec![0; 70000];
        let mut init =
            |room: usize, len| Packet::init(&mut buf[..room], A, B, Protocol::UDP, len).err();
        assert_eq!(init(70000, 65515), None);
        assert_eq!(init(70000, 65516), Some(Error::BadLength));
        assert_eq!(init(70000, usize::MAX), Some(Error::BadLength));
        assert_eq!(init(23, 4), Some(Error::Truncated));
    }

    #[test]
    fn setters_keep_the_checksum_valid() {
        let mut buf = [0; 28];
        let mut ip = Packet::init(&mut buf, A, B, Protocol::UDP, 8).unwrap();
        ip.verify_checksum().unwrap();
        for v in [0u8, 1, 0x7f, 0xff] {
            let addr = Ipv4Addr::from([v; 4]);
            for setter in 0..7 {
                match setter {
                    0 => ip.set_tos(v),
                    1 => ip.set_ident(u16::from_be_bytes([v, v])),
                    2 => ip.set_dont_fragment(v & 1 == 1),
                    3 => ip.set_fragment(usize::from(v) * 8, true).unwrap(),
                    4 => ip.set_ttl(v),
                    5 => ip.set_src(addr),
                    _ => ip.set_dst(addr),
                }
                let kept = ip.checksum();
                ip.fill_checksum();
                assert_eq!(kept, ip.checksum(), "setter {setter}, value {v}");
            }
        }
        assert_eq!((ip.dscp(), ip.ecn(), ip.ident(), ip.ttl()), (63, 3, 0xffff, 255));
        assert_eq!((ip.src(), ip.dst()), (Ipv4Addr::BROADCAST, Ipv4Addr::BROADCAST));
    }

    #[test]
    fn options_are_part_of_the_header() {
        // Router alert (RFC 2113): 94 04 00 00.
        let mut bytes = PACKET.to_vec();
        bytes.splice(20..20, [0x94, 0x04, 0x00, 0x00]);
        bytes[0] = 0x46;
        bytes[3] = 28;
        let mut ip = Packet::new_checked(&mut bytes[..]).unwrap();
        ip.fill_checksum();
        assert_eq!(ip.payload_mut().len(), 4);
        let ip = Packet::new_checked(&bytes).unwrap();
        ip.verify_checksum().unwrap();
        assert_eq!(ip.options(), &[0x94, 0x04, 0x00, 0x00]);
        assert_eq!(ip.payload(), &[0xde, 0xad, 0xbe, 0xef]);
    }

    #[test]
    fn invalid_headers_are_rejected_by_cause() {
        assert_eq!(error(|_| ()), None);
        assert_eq!(error(|b| b.truncate(19)), Some(Error::Truncated));
        assert_eq!(error(|b| b.truncate(23)), Some(Error::Truncated));
        assert_eq!(error(|b| b[0] = 0x65), Some(Error::BadVersion));
        assert_eq!(error(|b| b[0] = 0x44), Some(Error::BadLength)); // header below 20
        assert_eq!(error(|b| b[0] = 0x47), Some(Error::BadLength)); // header beyond the total
        assert_eq!(error(|b| b[3] = 19), Some(Error::BadLength));
        assert_eq!(error(|b| b[3] = 25), Some(Error::Truncated));
    }

    #[test]
    fn valid_fragments_are_read_and_invalid_ones_rejected() {
        let set = |b: &mut Vec<u8>, field: u16| put16(b, 6, field);
        let mut bytes = PACKET.to_vec();
        set(&mut bytes, 0x0003);
        let last = Packet::new_checked(&bytes).unwrap();
        assert!(last.is_fragment() && !last.more_fragments());
        assert_eq!(last.fragment_offset(), 24);

        // 4 bytes with more fragments: not a multiple of 8.
        assert_eq!(error(|b| set(b, 0x2000)), Some(Error::BadFragment));
        // The ping of death: ends beyond 65535.
        assert_eq!(error(|b| set(b, 0x1fff)), Some(Error::BadFragment));
        assert_eq!(error(|b| set(b, 0x1ffd)), Some(Error::BadFragment)); // 20 + 65512 + 4
        assert_eq!(error(|b| set(b, 0x1ffc)), None);
        // An empty fragment.
        bytes[3] = 20;
        assert_eq!(Packet::new_checked(&bytes).err(), Some(Error::BadFragment));
    }

    #[test]
    fn set_fragment_accepts_only_valid_fragments() {
        let mut buf = [0; 28];
        let mut ip = Packet::init(&mut buf, A, B, Protocol::UDP, 8).unwrap();
        for (offset, more) in [(4, true), (65512, false), (usize::MAX & !7, false)] {
            assert_eq!(ip.set_fragment(offset, more), Err(Error::BadFragment), "{offset}");
            assert!(ip.dont_fragment());
        }
        ip.set_fragment(1480, true).unwrap();
        assert!(ip.more_fragments() && !ip.dont_fragment() && ip.fragment_offset() == 1480);
        ip.set_fragment(65504, false).unwrap();
        assert!(Packet::new_checked(&buf).is_ok());
    }

    #[test]
    fn a_quoted_packet_may_be_cut() {
        let ip = Packet::new_quoted(&PACKET[..22]).unwrap();
        assert_eq!(ip.payload(), &[0xde, 0xad]);
        assert_eq!(Packet::new_quoted(&PACKET[..19]).err(), Some(Error::Truncated));
    }
}
