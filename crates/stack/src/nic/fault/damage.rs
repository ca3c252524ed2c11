//! Corrupts a frame so that a checksum shows it. Owns nothing; reads headers through [`wire`](crate::wire).

use crate::{
    nic::Checksum,
    wire::{
        EtherType, Protocol,
        checksum::Sum,
        ethernet::{self, Untagged},
        extension::Content,
        ipv4, ipv6,
    },
};
use std::ops::Range;

/// Flips the bit of the IP packet that `number` selects, after completing a partial checksum. False, and
/// nothing done, if no checksum would show it.
pub(super) fn flip_a_bit(bytes: &mut [u8], checksum: Checksum, number: u64) -> bool {
    let Some(packet) = covered(bytes) else { return false };
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

/// The bytes that checksums cover: the IP packet without padding; of IPv6 from the addresses on, because its header has
/// no checksum of its own (RFC 8200 section 8.1).
fn covered(bytes: &[u8]) -> Option<Range<usize>> {
    const ADDRESSES: usize = 8;
    let Untagged { ethertype, offset, payload, .. } =
        ethernet::Frame::new_checked(bytes).ok()?.untag().ok()?;
    let whole = payload.len();
    let covered = match ethertype {
        EtherType::IPV4 => 0..ipv4::Packet::new_checked(payload).map_or(whole, |ip| ip.total_len()),
        EtherType::IPV6 => {
            let end = ipv6::Packet::new_checked(payload).map_or(whole, |ip| ip.total_len());
            ADDRESSES.min(end)..end
        }
        _ => return None,
    };
    Some(offset + covered.start..offset + covered.end)
}

/// Makes a partial transport checksum a full one. False if it may be partial and cannot be completed.
fn complete(bytes: &mut [u8], checksum: Checksum) -> bool {
    match partial_checksum(bytes, checksum) {
        Ok(Some(Partial { segment, field, zero })) => {
            // The field holds the pseudo-header's sum, so the sum over the segment includes it.
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
    /// The value written for a checksum of zero.
    zero: u16,
}

/// It cannot be determined whether the frame's checksum is partial.
struct Unknown;

/// The frame's partial checksum, if it has one.
fn partial_checksum(bytes: &[u8], checksum: Checksum) -> Result<Option<Partial>, Unknown> {
    let frame = ethernet::Frame::new_checked(bytes).map_err(|_| Unknown)?;
    let Untagged { ethertype, offset, payload, .. } = frame.untag().map_err(|_| Unknown)?;
    // Linux completes the checksum before it fragments a packet (ip_do_fragment, ip6_fragment).
    let (addresses, protocol, at, segment) = match ethertype {
        EtherType::IPV4 => {
            let ip = ipv4::Packet::new_checked(payload).map_err(|_| Unknown)?;
            if ip.is_fragment() {
                return Ok(None);
            }
            (ip.address_sum(), ip.protocol(), ip.header_len(), ip.payload())
        }
        EtherType::IPV6 => {
            let ip = ipv6::Packet::new_checked(payload).map_err(|_| Unknown)?;
            match ip.content().map_err(|_| Unknown)? {
                Content::Whole(upper) => {
                    (ip.address_sum(), upper.protocol, upper.offset, upper.payload)
                }
                Content::Fragment(_) => return Ok(None),
            }
        }
        _ => return Err(Unknown),
    };
    let (field, len, zero) = match (protocol, segment) {
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
        let pseudo = addresses.plus_word(protocol.0.into()).plus_word(len as u16);
        let holds_pseudo_sum = segment[field..field + 2] == pseudo.fold().to_be_bytes();
        if !holds_pseudo_sum || pseudo.plus(Sum::of(segment)).is_intact() {
            return Ok(None);
        }
    }
    let start = offset + at;
    Ok(Some(Partial { segment: start..start + len, field, zero }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{MacAddr, udp};
    use std::net::{Ipv4Addr, Ipv6Addr};

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    const SEGMENT: usize = 32;
    const KINDS: [(EtherType, Protocol); 4] = [
        (EtherType::IPV4, Protocol::UDP),
        (EtherType::IPV4, Protocol::TCP),
        (EtherType::IPV6, Protocol::UDP),
        (EtherType::IPV6, Protocol::TCP),
    ];

    /// A frame with a partial checksum and four bytes of padding.
    fn frame((ethertype, protocol): (EtherType, Protocol)) -> Vec<u8> {
        let v4 = ethertype == EtherType::IPV4;
        let header = if v4 { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        let mut bytes = vec![0; ethernet::HEADER_LEN + header + SEGMENT + 4];
        let (to, from) = (MacAddr([2; 6]), MacAddr([4; 6]));
        let mut frame = ethernet::Frame::init(&mut bytes[..], to, from, ethertype).unwrap();
        let addresses = if v4 {
            let packet = ipv4::Packet::init(frame.payload_mut(), A, B, protocol, SEGMENT);
            packet.unwrap().fill_checksum();
            ipv4::address_sum(A, B)
        } else {
            ipv6::Packet::init(frame.payload_mut(), A6, B6, protocol, SEGMENT).unwrap();
            ipv6::address_sum(A6, B6)
        };
        let segment = &mut frame.payload_mut()[header..][..SEGMENT];
        if protocol == Protocol::UDP {
            let mut udp = udp::Packet::init(segment, 1, 2, SEGMENT - 8).unwrap();
            udp.payload_mut().fill(0xa5);
            udp.fill_partial_checksum(addresses);
        } else {
            segment.fill(0x5a);
            let pseudo = addresses.plus_word(6).plus_word(SEGMENT as u16);
            segment[16..18].copy_from_slice(&pseudo.fold().to_be_bytes());
        }
        bytes
    }

    /// Whether every checksum in the frame is right.
    fn intact(bytes: &[u8]) -> bool {
        let frame = ethernet::Frame::new_checked(bytes).unwrap();
        let sum = |addresses: Sum, protocol: Protocol, segment: &[u8]| {
            let pseudo = addresses.plus_word(protocol.0.into()).plus_word(segment.len() as u16);
            pseudo.plus(Sum::of(segment)).is_intact()
        };
        if let Ok(ip) = ipv6::Packet::new_checked(frame.payload()) {
            return sum(ip.address_sum(), ip.next_header(), ip.payload());
        }
        let Ok(ip) = ipv4::Packet::new_checked(frame.payload()) else { return false };
        ip.verify_checksum().is_ok() && sum(ip.address_sum(), ip.protocol(), ip.payload())
    }

    #[test]
    fn a_partial_checksum_is_completed() {
        for kind in KINDS {
            for checksum in [Checksum::Partial, Checksum::MaybePartial] {
                let mut bytes = frame(kind);
                assert!(!intact(&bytes));
                assert!(complete(&mut bytes, checksum));
                assert!(intact(&bytes), "{kind:?} {checksum:?}");
            }
        }
    }

    #[test]
    fn a_partial_checksum_behind_extension_headers_is_completed() {
        let whole = frame((EtherType::IPV6, Protocol::UDP));
        let (head, segment) = whole.split_at(ethernet::HEADER_LEN + ipv6::HEADER_LEN);
        // Destination options that hold only padding.
        let options = [Protocol::UDP.0, 0, 1, 4, 0, 0, 0, 0];
        let mut bytes = [head, &options, segment].concat();
        bytes[ethernet::HEADER_LEN + 4..][..2].copy_from_slice(&40u16.to_be_bytes());
        bytes[ethernet::HEADER_LEN + 6] = 60;
        assert!(complete(&mut bytes, Checksum::MaybePartial));
        let sum = ipv6::address_sum(A6, B6).plus_word(17).plus_word(SEGMENT as u16);
        let start = head.len() + options.len();
        assert!(sum.plus(Sum::of(&bytes[start..start + SEGMENT])).is_intact());
    }

    #[test]
    fn a_full_checksum_that_may_be_partial_is_not_changed() {
        for kind in KINDS {
            let mut bytes = frame(kind);
            assert!(complete(&mut bytes, Checksum::Partial));
            let full = bytes.clone();
            assert!(complete(&mut bytes, Checksum::MaybePartial));
            assert_eq!(bytes, full);
        }
    }

    #[test]
    fn every_flipped_bit_makes_a_checksum_wrong() {
        for kind in KINDS {
            for checksum in [Checksum::Partial, Checksum::MaybePartial] {
                let mut whole = frame(kind);
                assert!(complete(&mut whole, checksum));
                for number in 0..8 * 72 {
                    let mut bytes = frame(kind);
                    assert!(flip_a_bit(&mut bytes, checksum, number));
                    let flipped: u32 =
                        bytes.iter().zip(&whole).map(|(a, b)| (a ^ b).count_ones()).sum();
                    assert_eq!(flipped, 1);
                    assert!(!intact(&bytes), "{kind:?}, bit {number}");
                }
            }
        }
    }

    #[test]
    fn frames_without_a_checksum_to_show_it_are_not_corrupted() {
        let mut arp = frame(KINDS[0]);
        arp[12..14].copy_from_slice(&EtherType::ARP.0.to_be_bytes());
        let mut cut = frame(KINDS[3]);
        cut.truncate(60);
        for (bytes, checksum) in [(&arp, Checksum::Unverified), (&cut, Checksum::Partial)] {
            let mut damaged = bytes.clone();
            assert!(!flip_a_bit(&mut damaged, checksum, 3));
            assert_eq!(damaged, *bytes);
        }
    }

    #[test]
    fn no_frame_panics() {
        for kind in [KINDS[0], KINDS[2]] {
            let mut bytes = frame(kind);
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
                    bytes = frame(kind);
                }
            }
        }
    }
}
