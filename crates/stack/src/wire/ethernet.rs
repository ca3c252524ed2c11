//! Ethernet II frames and their VLAN tags (IEEE 802.3, 802.1Q, 802.1ad).
//!
//! Owns MAC addresses, EtherTypes and VLAN tags.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::{Error, Result, be16, put16};

/// Bytes of an untagged header.
pub const HEADER_LEN: usize = 14;
/// Bytes each VLAN tag adds.
pub const TAG_LEN: usize = 4;
/// The most VLAN tags of a frame.
pub const MAX_TAGS: usize = 2;

/// A 48-bit Ethernet address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);
    /// No address: the target hardware address of an ARP request.
    pub const UNSPECIFIED: MacAddr = MacAddr([0; 6]);

    /// The address an IPv4 multicast group is sent to: 01-00-5e and the group's low 23 bits
    /// (RFC 1112 section 6.4).
    #[must_use]
    pub fn of_group(group: Ipv4Addr) -> MacAddr {
        let [_, b, c, d] = group.octets();
        MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d])
    }

    /// The address an IPv6 multicast group is sent to: 33-33 and the group's low 32 bits
    /// (RFC 2464 section 7).
    #[must_use]
    pub fn of_group6(group: Ipv6Addr) -> MacAddr {
        let [.., a, b, c, d] = group.octets();
        MacAddr([0x33, 0x33, a, b, c, d])
    }

    /// Whether this is the broadcast address.
    #[inline]
    #[must_use]
    pub fn is_broadcast(self) -> bool {
        self == Self::BROADCAST
    }

    /// Whether this is a group address. Broadcast is one too (IEEE 802.3 section 3.2.3).
    #[inline]
    #[must_use]
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Whether this can be an interface's address: it is neither a group address nor all zero.
    #[inline]
    #[must_use]
    pub fn is_unicast(self) -> bool {
        !self.is_multicast() && self != Self::UNSPECIFIED
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The error for text that is not a MAC address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a MAC address: {0:?}; write six hexadecimal bytes, as in 02:00:00:00:00:01")]
pub struct ParseMacError(String);

impl FromStr for MacAddr {
    type Err = ParseMacError;

    /// Parses `02:00:00:00:00:01`; dashes may replace the colons.
    fn from_str(s: &str) -> std::result::Result<MacAddr, ParseMacError> {
        let parse = || {
            let separator = if s.contains('-') { '-' } else { ':' };
            let mut parts = s.split(separator);
            let mut mac = [0; 6];
            for byte in &mut mac {
                let part = parts.next()?;
                // from_str_radix alone would accept a sign.
                if !matches!(part.len(), 1 | 2) || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return None;
                }
                *byte = u8::from_str_radix(part, 16).ok()?;
            }
            parts.next().is_none().then_some(MacAddr(mac))
        };
        parse().ok_or_else(|| ParseMacError(s.to_owned()))
    }
}

/// The type of a frame's payload. Below 0x0600 the field is the length of an IEEE 802.3 frame
/// (IEEE 802.3 section 3.2.6), which carries none of the protocols here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: EtherType = EtherType(0x0800);
    /// ARP.
    pub const ARP: EtherType = EtherType(0x0806);
    /// A VLAN tag (802.1Q).
    pub const VLAN: EtherType = EtherType(0x8100);
    /// IPv6.
    pub const IPV6: EtherType = EtherType(0x86dd);
    /// A provider's outer VLAN tag (802.1ad).
    pub const QINQ: EtherType = EtherType(0x88a8);

    /// Whether a VLAN tag follows.
    #[inline]
    #[must_use]
    pub fn is_tag(self) -> bool {
        matches!(self, Self::VLAN | Self::QINQ)
    }
}

/// One VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    /// [`EtherType::VLAN`] or [`EtherType::QINQ`].
    pub tpid: EtherType,
    /// Priority, drop eligibility and VLAN id, as on the wire (802.1Q section 9.6).
    pub tci: u16,
}

impl Tag {
    /// VLAN id, 0 to 4095; 0 means the tag carries a priority only.
    #[inline]
    #[must_use]
    pub fn vid(self) -> u16 {
        self.tci & 0x0fff
    }

    /// Priority, 0 to 7.
    #[inline]
    #[must_use]
    pub fn priority(self) -> u8 {
        (self.tci >> 13) as u8
    }
}

/// The payload of a frame after its VLAN tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Untagged<'a> {
    /// The type of the payload; never a tag.
    pub ethertype: EtherType,
    /// The offset of the payload in the frame: 14, 18 or 22.
    pub offset: usize,
    /// The payload, including the link's padding.
    pub payload: &'a [u8],
    frame: &'a [u8],
}

impl<'a> Untagged<'a> {
    /// The tags before the payload, outermost first.
    pub fn tags(&self) -> impl Iterator<Item = Tag> + use<'a> {
        let frame = self.frame;
        // Each tag is an EtherType and two more bytes; the first is where the frame's EtherType is.
        (HEADER_LEN - 2..self.offset - 2)
            .step_by(TAG_LEN)
            .map(move |at| Tag { tpid: EtherType(be16(frame, at)), tci: be16(frame, at + 2) })
    }
}

/// A view of an Ethernet frame without its FCS.
#[derive(Debug, Clone, Copy)]
pub struct Frame<T>(T);

impl<T: AsRef<[u8]>> Frame<T> {
    /// Checks that the header is complete.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    #[inline]
    pub fn new_checked(buf: T) -> Result<Frame<T>> {
        if buf.as_ref().len() < HEADER_LEN {
            return Err(Error::Truncated);
        }
        Ok(Frame(buf))
    }

    /// The destination address.
    #[inline]
    pub fn dst(&self) -> MacAddr {
        mac(self.0.as_ref(), 0)
    }

    /// The source address.
    #[inline]
    pub fn src(&self) -> MacAddr {
        mac(self.0.as_ref(), 6)
    }

    /// The EtherType right after the addresses; of a tagged frame, the outer tag's.
    #[inline]
    pub fn ethertype(&self) -> EtherType {
        EtherType(be16(self.0.as_ref(), 12))
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> Frame<&'a T> {
    /// Everything after the 14-byte header; of a tagged frame, tags included.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.0.as_ref()[HEADER_LEN..]
    }

    /// Skips zero, one or two VLAN tags, of either EtherType in either order.
    ///
    /// # Errors
    /// [`Error::Truncated`] if a tag is incomplete; [`Error::TooManyTags`] if there is a third.
    #[inline]
    pub fn untag(&self) -> Result<Untagged<'a>> {
        let frame = self.0.as_ref();
        let ethertype = self.ethertype();
        if !ethertype.is_tag() {
            return Ok(Untagged { ethertype, offset: HEADER_LEN, payload: self.payload(), frame });
        }
        let offset = past_tags(frame)?;
        let ethertype = EtherType(be16(frame, offset - 2));
        Ok(Untagged { ethertype, offset, payload: &frame[offset..], frame })
    }
}

/// The offset of a tagged frame's payload. Not inlined, so that untagged frames, nearly all, cost
/// one comparison only.
#[cold]
#[inline(never)]
fn past_tags(frame: &[u8]) -> Result<usize> {
    let mut offset = HEADER_LEN;
    while EtherType(be16(frame, offset - 2)).is_tag() {
        if offset == HEADER_LEN + MAX_TAGS * TAG_LEN {
            return Err(Error::TooManyTags);
        }
        offset += TAG_LEN;
        if frame.len() < offset {
            return Err(Error::Truncated);
        }
    }
    Ok(offset)
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Frame<T> {
    /// Writes an untagged header.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the buffer is too short for it.
    #[inline]
    pub fn init(buf: T, dst: MacAddr, src: MacAddr, ethertype: EtherType) -> Result<Frame<T>> {
        let mut frame = Frame::new_checked(buf)?;
        frame.set_dst(dst);
        frame.set_src(src);
        put16(frame.0.as_mut(), 12, ethertype.0);
        Ok(frame)
    }

    /// Sets the destination address.
    #[inline]
    pub fn set_dst(&mut self, v: MacAddr) {
        self.0.as_mut()[..6].copy_from_slice(&v.0);
    }

    /// Sets the source address.
    #[inline]
    pub fn set_src(&mut self, v: MacAddr) {
        self.0.as_mut()[6..12].copy_from_slice(&v.0);
    }

    /// Everything after the 14-byte header, writable.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.0.as_mut()[HEADER_LEN..]
    }
}

#[inline]
pub(super) fn mac(b: &[u8], at: usize) -> MacAddr {
    // One bounds check instead of six.
    let b = &b[at..at + 6];
    MacAddr([b[0], b[1], b[2], b[3], b[4], b[5]])
}

#[cfg(test)]
mod tests {
    use super::*;

    const DST: [u8; 6] = [0x33, 0x33, 0, 0, 0, 0xfb];
    const SRC: [u8; 6] = [0x02, 0x42, 0xac, 0x11, 0x00, 0x02];

    fn frame(rest: &[u8]) -> Vec<u8> {
        [&DST, &SRC, rest].concat()
    }

    #[test]
    fn an_untagged_frame_is_read() {
        let bytes = frame(&[0x08, 0x06, 1, 2, 3]);
        let frame = Frame::new_checked(&bytes).unwrap();
        assert_eq!((frame.dst(), frame.src()), (MacAddr(DST), MacAddr(SRC)));
        let inner = frame.untag().unwrap();
        assert_eq!((inner.ethertype, inner.offset), (EtherType::ARP, 14));
        assert_eq!((inner.payload, inner.tags().count()), (&[1, 2, 3][..], 0));
    }

    #[test]
    fn one_and_two_tags_are_skipped() {
        let one = frame(&[0x81, 0x00, 0xa0, 0x2a, 0x08, 0x00, 9]);
        let frame_one = Frame::new_checked(&one).unwrap();
        let inner = frame_one.untag().unwrap();
        let tag = inner.tags().next().unwrap();
        assert_eq!((tag.tpid, tag.vid(), tag.priority()), (EtherType::VLAN, 42, 5));
        assert_eq!((inner.ethertype, inner.offset, inner.payload), (EtherType::IPV4, 18, &[9][..]));
        assert_eq!(inner.tags().count(), 1);
        assert_eq!(frame_one.ethertype(), EtherType::VLAN);

        let two = frame(&[0x88, 0xa8, 0x0f, 0xff, 0x81, 0x00, 0x00, 0x01, 0x86, 0xdd]);
        let frame_two = Frame::new_checked(&two).unwrap();
        let inner = frame_two.untag().unwrap();
        let tags =
            [Tag { tpid: EtherType::QINQ, tci: 0x0fff }, Tag { tpid: EtherType::VLAN, tci: 1 }];
        assert!(inner.tags().eq(tags));
        assert_eq!((inner.ethertype, inner.offset), (EtherType::IPV6, 22));
        assert!(inner.payload.is_empty());
    }

    #[test]
    fn truncated_and_too_many_tags_are_told_apart() {
        let three = frame(&[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3, 8, 0]);
        for len in 0..three.len() {
            let got = Frame::new_checked(&three[..len]).and_then(|f| f.untag().map(|i| i.offset));
            // From 22 bytes on, two whole tags and the EtherType of a third are there.
            let want = if len < 22 { Error::Truncated } else { Error::TooManyTags };
            assert_eq!(got, Err(want), "length {len}");
        }
    }

    #[test]
    fn mac_addresses_are_parsed_and_displayed() {
        let mac: MacAddr = "02:42:AC:11:0:2".parse().unwrap();
        assert_eq!(mac, MacAddr(SRC));
        assert_eq!(mac.to_string(), "02:42:ac:11:00:02");
        assert_eq!("02-42-ac-11-00-02".parse(), Ok(mac));
        for bad in [
            "",
            "02:42:ac:11:00",
            "02:42:ac:11:00:02:",
            "+2:42:ac:11:00:02",
            "002:42:ac:11:00:02",
            "02:42:ac-11:00:02",
            "é2:42:ac:11:00:02",
        ] {
            assert!(bad.parse::<MacAddr>().is_err(), "{bad:?}");
        }
        assert!("x".parse::<MacAddr>().unwrap_err().to_string().contains("02:00:00:00:00:01"));
    }

    #[test]
    fn mac_addresses_are_broadcast_multicast_or_unicast() {
        assert!(MacAddr::BROADCAST.is_broadcast() && MacAddr::BROADCAST.is_multicast());
        assert!(MacAddr(DST).is_multicast() && !MacAddr(DST).is_broadcast());
        assert!(MacAddr(SRC).is_unicast() && !MacAddr::UNSPECIFIED.is_unicast());
        let group = MacAddr::of_group(Ipv4Addr::new(239, 255, 0, 1));
        assert_eq!(group, MacAddr([0x01, 0x00, 0x5e, 0x7f, 0, 1]));
        assert_eq!(MacAddr::of_group6("ff02::fb".parse().unwrap()), MacAddr(DST));
    }
}
