//! smoltcp as an oracle for IPv6, ICMPv6 and neighbour discovery, both ways.

use std::net::Ipv6Addr;

use busypoll_stack::wire::extension::{self, Content, put_fragment};
use busypoll_stack::wire::{Error, MacAddr, Protocol, icmpv6, ipv6, ndp, udp};
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as peer;

fn config() -> ProptestConfig {
    ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() }
}

fn address() -> impl Strategy<Value = Ipv6Addr> {
    any::<u128>().prop_map(Ipv6Addr::from)
}

fn unicast() -> impl Strategy<Value = Ipv6Addr> {
    address().prop_filter("unicast", |a| !a.is_multicast() && !a.is_unspecified())
}

fn mac() -> impl Strategy<Value = [u8; 6]> {
    any::<[u8; 6]>().prop_map(|[a, b, c, d, e, f]| [a & 0xfe, b, c, d, e, f | 1])
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..100)
}

/// smoltcp's reading of a message.
fn read<'a>(bytes: &'a [u8], src: Ipv6Addr, dst: Ipv6Addr) -> peer::Icmpv6Repr<'a> {
    let packet = peer::Icmpv6Packet::new_checked(bytes).unwrap();
    peer::Icmpv6Repr::parse(&src, &dst, &packet, &ChecksumCapabilities::default()).unwrap()
}

/// smoltcp's bytes for a message.
fn written(repr: &peer::Icmpv6Repr<'_>, src: Ipv6Addr, dst: Ipv6Addr) -> Vec<u8> {
    let mut bytes = vec![0; repr.buffer_len()];
    let mut packet = peer::Icmpv6Packet::new_unchecked(&mut bytes[..]);
    repr.emit(&src, &dst, &mut packet, &ChecksumCapabilities::default());
    bytes
}

fn raw(mac: [u8; 6]) -> Option<peer::RawHardwareAddress> {
    Some(peer::EthernetAddress(mac).into())
}

/// Our reading of smoltcp's message, including the hop limit.
fn parsed(message: &[u8], src: Ipv6Addr, dst: Ipv6Addr, check: impl FnOnce(ndp::Message)) {
    let mut bytes = vec![0; 40 + message.len()];
    let mut ip =
        ipv6::Packet::init(&mut bytes[..], src, dst, Protocol::ICMPV6, message.len()).unwrap();
    ip.set_hop_limit(ndp::HOP_LIMIT);
    ip.payload_mut().copy_from_slice(message);
    let ip = ipv6::Packet::new_checked(&bytes[..]).unwrap();
    let message = icmpv6::Packet::new_checked(ip.payload()).unwrap();
    message.verify_checksum(ip.address_sum()).unwrap();
    check(ndp::parse(&ip, &message).unwrap().expect("neighbour discovery"));
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn headers_agree_with_smoltcp_in_both_directions(
        (src, dst) in (address(), address()),
        (next, hop_limit, class, label) in (any::<u8>(), any::<u8>(), any::<u8>(), 0u32..1 << 20),
        data in data(),
    ) {
        let mut ours = vec![0xee; 40 + data.len()];
        let next_header = Protocol(next);
        let mut ip = ipv6::Packet::init(&mut ours[..], src, dst, next_header, data.len()).unwrap();
        ip.set_hop_limit(hop_limit);
        ip.payload_mut().copy_from_slice(&data);

        let mut theirs = vec![0; 40 + data.len()];
        let repr = peer::Ipv6Repr {
            src_addr: src,
            dst_addr: dst,
            next_header: peer::IpProtocol::from(next),
            payload_len: data.len(),
            hop_limit,
        };
        repr.emit(&mut peer::Ipv6Packet::new_unchecked(&mut theirs[..]));
        theirs[40..].copy_from_slice(&data);
        prop_assert_eq!(&ours, &theirs);

        let mut ip = ipv6::Packet::new_checked(&mut ours[..]).unwrap();
        ip.set_flow_label(label);
        ip.set_traffic_class(class);
        let read = peer::Ipv6Packet::new_checked(&ours[..]).unwrap();
        prop_assert_eq!((read.version(), read.traffic_class()), (6, class));
        prop_assert_eq!(read.flow_label(), label);
        prop_assert_eq!(read.payload(), &data[..]);
    }

    #[test]
    fn both_agree_on_what_is_a_packet(
        first in prop_oneof![4 => 0x60u8..0x70, 1 => any::<u8>()],
        len in prop_oneof![0u16..80, any::<u16>()],
        rest in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        let mut bytes = vec![first, 0, 0, 0];
        bytes.extend(len.to_be_bytes());
        bytes.extend(rest);
        let theirs = peer::Ipv6Packet::new_checked(&bytes[..]);
        match (ipv6::Packet::new_checked(&bytes), theirs) {
            (Ok(ours), Ok(theirs)) => prop_assert_eq!(ours.payload(), theirs.payload()),
            (Err(Error::BadVersion), Ok(theirs)) => prop_assert_ne!(theirs.version(), 6),
            (ours, theirs) => prop_assert!(ours.is_err() && theirs.is_err()),
        }
    }

    #[test]
    fn fragment_headers_agree_with_smoltcp_in_both_directions(
        (offset, more, ident) in (0u16..1 << 13, any::<bool>(), any::<u32>()),
        data in prop::collection::vec(any::<u8>(), 24..25),
    ) {
        let repr = peer::Ipv6FragmentRepr { frag_offset: offset, more_frags: more, ident };
        let mut theirs = [17, 0, 0, 0, 0, 0, 0, 0];
        repr.emit(&mut peer::Ipv6FragmentHeader::new_unchecked(&mut theirs[2..]));
        let mut ours = [0; extension::FRAGMENT_LEN];
        let bytes = usize::from(offset) * 8;
        put_fragment(&mut ours, Protocol::UDP, bytes, more, ident).unwrap();
        // smoltcp's view begins two bytes in, or with the header, depending on its version.
        prop_assert_eq!(&ours[2..], &theirs[2..]);

        let (src, dst) = (Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        let mut packet = vec![0; 48 + data.len()];
        let len = 8 + data.len();
        let mut ip =
            ipv6::Packet::init(&mut packet[..], src, dst, Protocol::FRAGMENT, len).unwrap();
        ip.payload_mut()[..8].copy_from_slice(&ours);
        ip.payload_mut()[8..].copy_from_slice(&data);
        let content = ipv6::Packet::new_checked(&packet).unwrap().content();
        match content {
            Ok(Content::Fragment(f)) => {
                prop_assert_eq!((f.offset, f.more, f.ident), (bytes, more, ident));
                prop_assert_eq!(f.data, &data[..]);
            }
            Ok(Content::Whole(_)) => prop_assert!(bytes == 0 && !more),
            Err(refused) => prop_assert!(bytes + len > ipv6::MAX_PAYLOAD, "{refused:?}"),
        }
    }

    #[test]
    fn echo_agrees_with_smoltcp_in_both_directions(
        (src, dst) in (address(), address()),
        (ident, seq_no) in any::<(u16, u16)>(),
        data in data(),
    ) {
        let repr = peer::Icmpv6Repr::EchoRequest { ident, seq_no, data: &data };
        let mut ours = vec![0; 8 + data.len()];
        let kind = icmpv6::Type::ECHO_REQUEST;
        let mut echo = icmpv6::Packet::init_echo(&mut ours[..], kind, ident, seq_no).unwrap();
        echo.payload_mut().copy_from_slice(&data);
        echo.fill_checksum(ipv6::address_sum(src, dst));
        prop_assert_eq!(&ours, &written(&repr, src, dst));
        icmpv6::Packet::new_checked(&mut ours[..]).unwrap().turn_into_reply();
        let want = peer::Icmpv6Repr::EchoReply { ident, seq_no, data: &data };
        prop_assert_eq!(read(&ours, dst, src), want);
    }

    #[test]
    fn smoltcp_reads_the_errors_we_write(
        (src, dst) in (unicast(), unicast()),
        (sport, dport, mtu) in any::<(u16, u16, u32)>(),
        data in data(),
        which in 0..4,
    ) {
        let mut lost = vec![0; 48 + data.len()];
        let len = 8 + data.len();
        let mut ip = ipv6::Packet::init(&mut lost[..], src, dst, Protocol::UDP, len).unwrap();
        udp::Packet::init(ip.payload_mut(), sport, dport, data.len()).unwrap();
        let (kind, code) = match which {
            0 => (icmpv6::Type::UNREACHABLE, icmpv6::code::PORT_UNREACHABLE),
            1 => (icmpv6::Type::PACKET_TOO_BIG, 0),
            2 => (icmpv6::Type::TIME_EXCEEDED, icmpv6::code::HOP_LIMIT_EXCEEDED),
            _ => (icmpv6::Type::PARAMETER_PROBLEM, icmpv6::code::UNRECOGNIZED_NEXT_HEADER),
        };
        let rest = if which % 2 == 1 { mtu } else { 0 };
        let mut bytes = vec![0; icmpv6::error_len(lost.len())];
        let addresses = ipv6::address_sum(dst, src);
        icmpv6::Packet::init_error(&mut bytes, addresses, kind, code, rest, &lost).unwrap();

        let (header, quoted) = match read(&bytes, dst, src) {
            peer::Icmpv6Repr::DstUnreachable { reason, header, data } => {
                prop_assert_eq!(reason, peer::Icmpv6DstUnreachable::PortUnreachable);
                (header, data)
            }
            peer::Icmpv6Repr::PktTooBig { mtu: reported, header, data } => {
                prop_assert_eq!(reported, mtu);
                (header, data)
            }
            peer::Icmpv6Repr::TimeExceeded { reason, header, data } => {
                prop_assert_eq!(reason, peer::Icmpv6TimeExceeded::HopLimitExceeded);
                (header, data)
            }
            peer::Icmpv6Repr::ParamProblem { reason, pointer, header, data } => {
                prop_assert_eq!(reason, peer::Icmpv6ParamProblem::UnrecognizedNxtHdr);
                prop_assert_eq!(pointer, mtu);
                (header, data)
            }
            other => panic!("{other:?}"),
        };
        prop_assert_eq!((header.src_addr, header.dst_addr), (src, dst));
        prop_assert_eq!(quoted, &lost[40..]);
        let ours = icmpv6::Packet::new_checked(&bytes).unwrap();
        prop_assert_eq!(udp::ports(ours.quoted().unwrap().payload()), Ok((sport, dport)));
    }

    #[test]
    fn neighbour_discovery_agrees_with_smoltcp_in_both_directions(
        (src, dst, target) in (unicast(), unicast(), unicast()),
        mac in mac(),
        (solicited, overrides) in any::<(bool, bool)>(),
    ) {
        let addresses = ipv6::address_sum(src, dst);
        let mut ours = [0; ndp::NEIGHBOR_LEN];
        let ask = peer::NdiscRepr::NeighborSolicit { target_addr: target, lladdr: raw(mac) };
        let len =
            ndp::put_neighbor_solicitation(&mut ours, addresses, target, Some(MacAddr(mac)));
        let theirs = written(&peer::Icmpv6Repr::Ndisc(ask), src, dst);
        prop_assert_eq!(&ours[..len.unwrap()], &theirs[..]);
        parsed(&theirs, src, dst, |message| {
            let ndp::Message::NeighborSolicitation { target: t, source } = message else {
                panic!("{message:?}")
            };
            assert_eq!((t, source), (target, Some(MacAddr(mac))));
        });

        let mut flags = peer::NdiscNeighborFlags::empty();
        flags.set(peer::NdiscNeighborFlags::SOLICITED, solicited);
        flags.set(peer::NdiscNeighborFlags::OVERRIDE, overrides);
        let advert = peer::NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr: raw(mac) };
        let len = ndp::put_neighbor_advertisement(
            &mut ours, addresses, target, MacAddr(mac), solicited, overrides);
        let theirs = written(&peer::Icmpv6Repr::Ndisc(advert), src, dst);
        prop_assert_eq!(&ours[..len.unwrap()], &theirs[..]);
        parsed(&theirs, src, dst, |message| {
            let ndp::Message::NeighborAdvertisement {
                target: t, mac: m, router, solicited: s, overrides: o } = message
            else {
                panic!("{message:?}")
            };
            assert_eq!((t, m, router, s, o), (target, Some(MacAddr(mac)), false, solicited, overrides));
        });
    }
}
