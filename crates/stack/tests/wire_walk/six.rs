//! Calls every accessor of an IPv6 packet.

use busypoll_stack::wire::checksum::Sum;
use busypoll_stack::wire::extension::{Content, FRAGMENT_LEN, Fragment, Refused, put_fragment};
use busypoll_stack::wire::{Error, Protocol, Result, icmpv6, ipv6, ndp, udp};

pub(super) fn ip(bytes: &[u8]) -> Result<()> {
    let ip = ipv6::Packet::new_checked(bytes)?;
    header(&ip);
    assert_eq!(ipv6::HEADER_LEN + ip.payload().len(), ip.total_len());

    let mut copy = bytes.to_vec();
    let mut again =
        ipv6::Packet::init(&mut copy[..], ip.src(), ip.dst(), ip.next_header(), ip.payload_len())?;
    again.set_traffic_class(ip.traffic_class());
    again.set_flow_label(ip.flow_label());
    again.set_hop_limit(ip.hop_limit());
    assert_eq!(again.payload_mut(), ip.payload());
    assert_eq!(copy, bytes, "the accessors cover the whole header");

    match content(&ip) {
        Err(refused) => Err(refused.error),
        Ok(Content::Fragment(_)) => Ok(()),
        Ok(Content::Whole(upper)) => match upper.protocol {
            Protocol::ICMPV6 => {
                icmp(upper.payload, ip.address_sum())?;
                let message = icmpv6::Packet::new_checked(upper.payload)?;
                discovery(ndp::parse(&ip, &message)?);
                Ok(())
            }
            Protocol::TCP => super::tcp::segment(upper.payload, ip.address_sum()),
            Protocol::UDP => super::udp(upper.payload, ip.address_sum()),
            _ => Ok(()),
        },
    }
}

/// The accessors of any header, quoted ones too.
fn header(ip: &ipv6::Packet<&[u8]>) {
    assert!(ip.dscp() < 64 && ip.ecn() < 4 && ip.flow_label() < 1 << 20);
    assert_eq!(ip.traffic_class(), ip.dscp() << 2 | ip.ecn());
    assert_eq!(ip.address_sum().fold(), ipv6::address_sum(ip.src(), ip.dst()).fold());
    assert!(ip.bytes().len() <= ip.total_len());
    let _ = ip.hop_limit();
    let _ = content(ip);
}

/// The walk over the extension headers, and what it promises.
fn content<'a>(ip: &ipv6::Packet<&'a [u8]>) -> std::result::Result<Content<'a>, Refused> {
    let (bytes, content) = (ip.bytes(), ip.content());
    match content {
        Ok(Content::Whole(upper)) => {
            assert_eq!(bytes[upper.next_header_at], upper.protocol.0);
            assert_eq!(&bytes[upper.offset..], upper.payload);
            assert_eq!(upper.unknown().pointer as usize, upper.next_header_at);
        }
        Ok(Content::Fragment(fragment)) => check_fragment(bytes, &fragment),
        Err(Refused { problem: Some(problem), error }) => {
            assert!((problem.pointer as usize) < bytes.len());
            assert!(problem.code == 2 || !ip.dst().is_multicast());
            assert!(matches!(error, Error::BadExtension | Error::BadFragment));
        }
        Err(_) => {}
    }
    content
}

fn check_fragment(bytes: &[u8], f: &Fragment<'_>) {
    assert!(f.more || f.offset != 0);
    assert!(!f.data.is_empty() && (!f.more || f.data.len().is_multiple_of(8)));
    assert!(f.header_at - ipv6::HEADER_LEN + f.offset + f.data.len() <= ipv6::MAX_PAYLOAD);
    assert_eq!(bytes[f.next_header_at], Protocol::FRAGMENT.0);
    assert_eq!(&bytes[f.header_at + FRAGMENT_LEN..], f.data);
    let mut again = [0; FRAGMENT_LEN];
    put_fragment(&mut again, f.next, f.offset, f.more, f.ident).expect("as it was");
    again[1] = bytes[f.header_at + 1]; // reserved
    again[3] |= bytes[f.header_at + 3] & 6;
    assert_eq!(again, bytes[f.header_at..f.header_at + FRAGMENT_LEN]);
}

fn discovery(message: Option<ndp::Message>) {
    match message {
        Some(ndp::Message::NeighborSolicitation { target, source }) => {
            assert!(!target.is_multicast() && source.is_none_or(|mac| mac.is_unicast()));
        }
        Some(ndp::Message::NeighborAdvertisement { target, mac, .. }) => {
            assert!(!target.is_multicast() && mac.is_none_or(|mac| mac.is_unicast()));
        }
        None => {}
    }
}

pub(super) fn icmp(bytes: &[u8], addresses: Sum) -> Result<()> {
    let icmp = icmpv6::Packet::new_checked(bytes)?;
    let _ = (icmp.code(), icmp.checksum(), icmp.ident(), icmp.sequence());
    let _ = (icmp.mtu(), icmp.pointer());
    assert_eq!(icmp.payload().len() + icmpv6::HEADER_LEN, bytes.len());
    if let Ok(quoted) = icmp.quoted() {
        header(&quoted);
        if let Ok(Content::Whole(upper)) = quoted.content() {
            let _ = udp::ports(upper.payload);
        }
    }

    let mut copy = bytes.to_vec();
    let mut reply = icmpv6::Packet::new_checked(&mut copy[..])?;
    reply.fill_checksum(addresses);
    reply.turn_into_reply();
    assert_eq!(reply.verify_checksum(addresses), Ok(()));
    reply.payload_mut().fill(0);
    let mut error = vec![0; icmpv6::error_len(bytes.len())];
    assert!(error.len() + ipv6::HEADER_LEN <= ipv6::MIN_MTU);
    let kind = icmpv6::Type::PACKET_TOO_BIG;
    if let Ok(error) = icmpv6::Packet::init_error(&mut error, addresses, kind, 0, 1400, bytes) {
        assert_eq!(error.verify_checksum(addresses), Ok(()));
    }

    icmp.verify_checksum(addresses)?;
    if icmp.kind().is_error() { icmp.quoted().map(|_| ()) } else { Ok(()) }
}
