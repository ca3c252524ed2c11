//! Damages a frame so that its checksums show it. Owns nothing; reads headers through [`wire`](crate::wire).

use crate::{
    nic::Checksum,
    wire::{
        EtherType, Protocol,
        checksum::Sum,
        ethernet::{self, Untagged},
        ipv4,
    },
};
use std::ops::Range;

/// Flips the bit of the IP packet that `number` picks, a partial checksum completed first. False, and
/// nothing done, where nothing would show it.
pub(super) fn flip_a_bit(bytes: &mut [u8], checksum: Checksum, number: u64) -> bool {
    let Some(packet) = ip_packet(bytes) else { return false };
    if checksum != Checksum::Unverified && !complete(bytes, checksum) {
        return false;
    }
    let bits = packet.len() as u64 * 8;
    if bits == 0 {
        return false;
    }
    let bit = (number % bits) as usize;
    bytes[packet.start + bit / 8] ^= 1 << (bit % 8);
    true
}

/// Where the IP packet lies in the frame; padding is none of it.
fn ip_packet(bytes: &[u8]) -> Option<Range<usize>> {
    let Untagged { ethertype, offset, payload, .. } =
        ethernet::Frame::new_checked(bytes).ok()?.untag().ok()?;
    let len = match ethertype {
        EtherType::IPV4 => {
            ipv4::Packet::new_checked(payload).map_or(payload.len(), |ip| ip.total_len())
        }
        EtherType::IPV6 => payload.len(),
        _ => return None,
    };
    Some(offset..offset + len)
}

/// Makes a partial transport checksum a full one. False if it may be partial and cannot be completed.
fn complete(bytes: &mut [u8], checksum: Checksum) -> bool {
    match partial_checksum(bytes, checksum) {
        Ok(Some(Partial { segment, field, zero })) => {
            // The field holds the pseudo-header's sum, so the segment's own sum includes it.
            let full = match Sum::of(&bytes[segment.clone()]).checksum() {
                0 => zero,
                full => full,
            };
            bytes[segment.start + field..][..2].copy_from_slice(&full.to_be_bytes());
            true
        }
        Ok(None) => true,
        Err(Unknown) => false,
    }
}

struct Partial {
    /// The bytes that the checksum covers.
    segment: Range<usize>,
    /// The checksum's offset in them.
    field: usize,
    /// What a checksum of zero is written as.
    zero: u16,
}

/// A frame of which it cannot be told.
struct Unknown;

/// Where the frame has a partial checksum, if it has one. IPv6 is unknown until there are views of it.
fn partial_checksum(bytes: &[u8], checksum: Checksum) -> Result<Option<Partial>, Unknown> {
    let frame = ethernet::Frame::new_checked(bytes).map_err(|_| Unknown)?;
    let Untagged { ethertype, offset, payload, .. } = frame.untag().map_err(|_| Unknown)?;
    if ethertype != EtherType::IPV4 {
        return Err(Unknown);
    }
    let ip = ipv4::Packet::new_checked(payload).map_err(|_| Unknown)?;
    // Linux completes the checksum before it cuts a packet up (ip_do_fragment).
    if ip.is_fragment() {
        return Ok(None);
    }
    let segment = ip.payload();
    let (field, len, zero) = match (ip.protocol(), segment) {
        (Protocol::UDP, [_, _, _, _, a, b, ..]) => {
            (6, usize::from(u16::from_be_bytes([*a, *b])), 0xffff) // RFC 768
        }
        (Protocol::TCP, _) => (16, segment.len(), 0),
        _ => return Ok(None),
    };
    let Some(segment) = segment.get(..len).filter(|segment| segment.len() >= field + 2) else {
        return Err(Unknown);
    };
    if checksum == Checksum::MaybePartial {
        let pseudo = ip.address_sum().plus_word(ip.protocol().0.into()).plus_word(len as u16);
        let holds_pseudo_sum = segment[field..field + 2] == pseudo.fold().to_be_bytes();
        if !holds_pseudo_sum || pseudo.plus(Sum::of(segment)).is_intact() {
            return Ok(None);
        }
    }
    let start = offset + ip.header_len();
    Ok(Some(Partial { segment: start..start + len, field, zero }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{MacAddr, udp};
    use std::net::Ipv4Addr;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    /// A frame with a partial checksum and four bytes of padding.
    fn frame(protocol: Protocol) -> Vec<u8> {
        let segment = 32;
        let end = ethernet::HEADER_LEN + ipv4::HEADER_LEN + segment;
        let mut bytes = vec![0; end + 4];
        let mut frame = ethernet::Frame::init(
            &mut bytes[..],
            MacAddr([2; 6]),
            MacAddr([4; 6]),
            EtherType::IPV4,
        )
        .unwrap();
        let mut ip = ipv4::Packet::init(frame.payload_mut(), A, B, protocol, segment).unwrap();
        ip.fill_checksum();
        if protocol == Protocol::UDP {
            let mut udp = udp::Packet::init(ip.payload_mut(), 1, 2, segment - 8).unwrap();
            udp.payload_mut().fill(0xa5);
            udp.fill_partial_checksum(ipv4::address_sum(A, B));
        } else {
            ip.payload_mut().fill(0x5a);
            let pseudo = ipv4::address_sum(A, B).plus_word(6).plus_word(segment as u16);
            ip.payload_mut()[16..18].copy_from_slice(&pseudo.fold().to_be_bytes());
        }
        bytes
    }

    /// Whether every checksum in the frame is right.
    fn intact(bytes: &[u8]) -> bool {
        let frame = ethernet::Frame::new_checked(bytes).unwrap();
        let Ok(ip) = ipv4::Packet::new_checked(frame.payload()) else { return false };
        let len = ip.payload().len() as u16;
        let pseudo = ip.address_sum().plus_word(ip.protocol().0.into()).plus_word(len);
        ip.verify_checksum().is_ok() && pseudo.plus(Sum::of(ip.payload())).is_intact()
    }

    #[test]
    fn a_partial_checksum_is_completed() {
        for protocol in [Protocol::UDP, Protocol::TCP] {
            for checksum in [Checksum::Partial, Checksum::MaybePartial] {
                let mut bytes = frame(protocol);
                assert!(!intact(&bytes));
                assert!(complete(&mut bytes, checksum));
                assert!(intact(&bytes), "{protocol:?} {checksum:?}");
            }
        }
    }

    #[test]
    fn a_full_checksum_that_may_be_partial_stays() {
        for protocol in [Protocol::UDP, Protocol::TCP] {
            let mut bytes = frame(protocol);
            assert!(complete(&mut bytes, Checksum::Partial));
            let full = bytes.clone();
            assert!(complete(&mut bytes, Checksum::MaybePartial));
            assert_eq!(bytes, full);
        }
    }

    #[test]
    fn every_flip_shows() {
        for protocol in [Protocol::UDP, Protocol::TCP] {
            for checksum in [Checksum::Partial, Checksum::MaybePartial] {
                let mut whole = frame(protocol);
                assert!(complete(&mut whole, checksum));
                for number in 0..8 * 52 {
                    let mut bytes = frame(protocol);
                    assert!(flip_a_bit(&mut bytes, checksum, number));
                    let flipped: u32 =
                        bytes.iter().zip(&whole).map(|(a, b)| (a ^ b).count_ones()).sum();
                    assert_eq!(flipped, 1);
                    assert!(!intact(&bytes), "{protocol:?}, bit {number}");
                }
            }
        }
    }

    #[test]
    fn what_no_checksum_covers_is_left_alone() {
        let mut arp = frame(Protocol::UDP);
        arp[12..14].copy_from_slice(&EtherType::ARP.0.to_be_bytes());
        let mut ipv6 = frame(Protocol::UDP);
        ipv6[12..14].copy_from_slice(&EtherType::IPV6.0.to_be_bytes());
        for (bytes, checksum) in [(&arp, Checksum::Unverified), (&ipv6, Checksum::Partial)] {
            let mut damaged = bytes.clone();
            assert!(!flip_a_bit(&mut damaged, checksum, 3));
            assert_eq!(damaged, *bytes);
        }
    }

    #[test]
    fn no_frame_panics() {
        let mut bytes = frame(Protocol::UDP);
        let mut number = 1u64;
        for _ in 0..20_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (number >> 33) as usize % bytes.len();
            bytes[at] = (number >> 24) as u8;
            let len = (number >> 40) as usize % (bytes.len() + 1);
            for checksum in [Checksum::Unverified, Checksum::MaybePartial, Checksum::Partial] {
                flip_a_bit(&mut bytes[..len].to_vec(), checksum, number);
            }
            if number.is_multiple_of(16) {
                bytes = frame(Protocol::UDP);
            }
        }
    }
}
