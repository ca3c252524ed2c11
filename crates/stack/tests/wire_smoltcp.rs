//! smoltcp's parsers as an oracle: smoltcp reads our packets as we wrote them, we read smoltcp's packets as it wrote
//! them, and both agree on which bytes are a packet.

use std::net::Ipv4Addr;

use busypoll_stack::wire::checksum::{self, Sum};
use busypoll_stack::wire::{Error, EtherType, MacAddr, Protocol, arp, ethernet, icmp, ipv4, udp};
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as peer;

fn config() -> ProptestConfig {
    ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() }
}

fn address() -> impl Strategy<Value = Ipv4Addr> {
    any::<u32>().prop_map(Ipv4Addr::from)
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..100),
        prop::collection::vec(any::<u8>(), 1400..1480),
        (0usize..100).prop_map(|n| vec![0xff; n]),
        (0usize..100).prop_map(|n| vec![0; n]),
    ]
}

/// Bytes that are nearly an IPv4 header, with UDP's limits in the length field.
fn nearly_ip() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![0u16..80, any::<u16>()];
    let first = prop_oneof![4 => 0x44u8..=0x48, 1 => any::<u8>()];
    let rest = prop::collection::vec(any::<u8>(), 0..64);
    (first, length.clone(), length, rest).prop_map(|(first, total, udp, rest)| {
        let mut b = vec![first, 0];
        b.extend(total.to_be_bytes());
        b.extend(rest);
        if let Some(field) = b.get_mut(24..26) {
            field.copy_from_slice(&udp.to_be_bytes());
        }
        b
    })
}

fn peer_addr(a: Ipv4Addr) -> peer::IpAddress {
    peer::IpAddress::Ipv4(a)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn smoltcp_reads_the_udp_frame_we_write(
        macs in any::<([u8; 6], [u8; 6])>(),
        (src, dst) in (address(), address()),
        (sport, dport, tos, ttl, ident) in any::<(u16, u16, u8, u8, u16)>(),
        fragment in prop::option::of(0usize..100),
        data in data(),
    ) {
        let mut bytes = vec![0xee; 42 + data.len()];
        let mut frame = ethernet::Frame::init(
            &mut bytes[..], MacAddr(macs.0), MacAddr(macs.1), EtherType::IPV4).unwrap();
        let mut ip = ipv4::Packet::init(
            frame.payload_mut(), src, dst, Protocol::UDP, 8 + data.len()).unwrap();
        ip.set_tos(tos);
        ip.set_ttl(ttl);
        ip.set_ident(ident);
        if let Some(n) = fragment {
            ip.set_fragment(n * 8, false).unwrap();
        }
        let mut udp = udp::Packet::init(ip.payload_mut(), sport, dport, data.len()).unwrap();
        udp.payload_mut().copy_from_slice(&data);
        udp.fill_checksum(ipv4::address_sum(src, dst));

        let frame = peer::EthernetFrame::new_checked(&bytes[..]).unwrap();
        prop_assert_eq!(frame.dst_addr().0, macs.0);
        prop_assert_eq!(frame.src_addr().0, macs.1);
        prop_assert_eq!(frame.ethertype(), peer::EthernetProtocol::Ipv4);
        let ip = peer::Ipv4Packet::new_checked(frame.payload()).unwrap();
        prop_assert!(ip.verify_checksum());
        prop_assert_eq!((ip.src_addr(), ip.dst_addr()), (src, dst));
        prop_assert_eq!(ip.next_header(), peer::IpProtocol::Udp);
        prop_assert_eq!((ip.dscp() << 2 | ip.ecn(), ip.hop_limit(), ip.ident()), (tos, ttl, ident));
        prop_assert_eq!(ip.dont_frag(), fragment.is_none());
        prop_assert_eq!(usize::from(ip.frag_offset()), fragment.unwrap_or(0) * 8);
        let udp = peer::UdpPacket::new_checked(ip.payload()).unwrap();
        prop_assert!(udp.verify_checksum(&peer_addr(src), &peer_addr(dst)));
        prop_assert_ne!(udp.checksum(), 0);
        prop_assert_eq!((udp.src_port(), udp.dst_port()), (sport, dport));
        prop_assert_eq!(udp.payload(), &data[..]);
    }

    #[test]
    fn we_read_the_udp_packet_smoltcp_writes(
        (src, dst) in (address(), address()),
        (sport, dport, hop_limit) in any::<(u16, u16, u8)>(),
        data in data(),
    ) {
        let caps = ChecksumCapabilities::default();
        let udp = peer::UdpRepr { src_port: sport, dst_port: dport };
        let ip = peer::Ipv4Repr {
            src_addr: src,
            dst_addr: dst,
            next_header: peer::IpProtocol::Udp,
            payload_len: 8 + data.len(),
            hop_limit,
        };
        let mut bytes = vec![0; 28 + data.len()];
        let mut packet = peer::Ipv4Packet::new_unchecked(&mut bytes[..]);
        ip.emit(&mut packet, &caps);
        udp.emit(
            &mut peer::UdpPacket::new_unchecked(packet.payload_mut()),
            &peer_addr(src), &peer_addr(dst), data.len(), |b| b.copy_from_slice(&data), &caps);

        let ip = ipv4::Packet::new_checked(&bytes).unwrap();
        prop_assert_eq!(ip.verify_checksum(), Ok(()));
        prop_assert_eq!((ip.src(), ip.dst(), ip.ttl()), (src, dst, hop_limit));
        prop_assert_eq!(ip.protocol(), Protocol::UDP);
        let udp = udp::Packet::new_checked(ip.payload()).unwrap();
        prop_assert_eq!(udp.verify_checksum(ip.address_sum()), Ok(()));
        prop_assert_eq!((udp.src_port(), udp.dst_port()), (sport, dport));
        prop_assert_eq!(udp.payload(), &data[..]);

        // Byte by byte: the same checksums for the same packet.
        let mut ours = bytes.clone();
        let mut ip = ipv4::Packet::new_checked(&mut ours[..]).unwrap();
        ip.fill_checksum();
        let mut udp = udp::Packet::new_checked(ip.payload_mut()).unwrap();
        udp.fill_checksum(ipv4::address_sum(src, dst));
        prop_assert_eq!(ours, bytes);
    }

    #[test]
    fn arp_agrees_with_smoltcp_in_both_directions(
        (smac, tmac, op) in any::<([u8; 6], [u8; 6], u16)>(),
        (sip, tip) in (address(), address()),
    ) {
        let mut ours = [0; arp::LEN];
        arp::Packet::init(
            &mut ours, arp::Operation(op), (MacAddr(smac), sip), (MacAddr(tmac), tip)).unwrap();
        let repr = peer::ArpRepr::EthernetIpv4 {
            operation: peer::ArpOperation::from(op),
            source_hardware_addr: peer::EthernetAddress(smac),
            source_protocol_addr: sip,
            target_hardware_addr: peer::EthernetAddress(tmac),
            target_protocol_addr: tip,
        };
        let read = peer::ArpRepr::parse(&peer::ArpPacket::new_checked(&ours[..]).unwrap());
        prop_assert_eq!(read.unwrap(), repr);
        let mut theirs = [0; arp::LEN];
        repr.emit(&mut peer::ArpPacket::new_unchecked(&mut theirs[..]));
        prop_assert_eq!(theirs, ours);
    }

    #[test]
    fn echo_agrees_with_smoltcp_in_both_directions((ident, seq_no, reply) in any::<(u16, u16, bool)>(), data in data()) {
        let caps = ChecksumCapabilities::default();
        let (kind, repr) = if reply {
            (icmp::Type::ECHO_REPLY, peer::Icmpv4Repr::EchoReply { ident, seq_no, data: &data })
        } else {
            (icmp::Type::ECHO_REQUEST, peer::Icmpv4Repr::EchoRequest { ident, seq_no, data: &data })
        };
        let mut ours = vec![0; 8 + data.len()];
        let mut packet = icmp::Packet::init_echo(&mut ours[..], kind, ident, seq_no).unwrap();
        packet.payload_mut().copy_from_slice(&data);
        packet.fill_checksum();
        let read = peer::Icmpv4Packet::new_checked(&ours[..]).unwrap();
        prop_assert_eq!(peer::Icmpv4Repr::parse(&read, &caps).unwrap(), repr);
        let mut theirs = vec![0; 8 + data.len()];
        repr.emit(&mut peer::Icmpv4Packet::new_unchecked(&mut theirs[..]), &caps);
        prop_assert_eq!(&theirs, &ours);

        icmp::Packet::new_checked(&mut ours[..]).unwrap().turn_into_reply();
        let read = peer::Icmpv4Packet::new_checked(&ours[..]).unwrap();
        let want = peer::Icmpv4Repr::EchoReply { ident, seq_no, data: &data };
        prop_assert_eq!(peer::Icmpv4Repr::parse(&read, &caps).unwrap(), want);
    }

    #[test]
    fn smoltcp_reads_the_error_we_write(
        (src, dst) in (address(), address()),
        (sport, dport) in any::<(u16, u16)>(),
        room in 36usize..576,
        data in data(),
    ) {
        let caps = ChecksumCapabilities::default();
        let mut lost = vec![0; 28 + data.len()];
        let mut ip =
            ipv4::Packet::init(&mut lost[..], src, dst, Protocol::UDP, 8 + data.len()).unwrap();
        udp::Packet::init(ip.payload_mut(), sport, dport, data.len()).unwrap();
        let mut bytes = vec![0; room.min(8 + lost.len())];
        icmp::Packet::init_error(
            &mut bytes, icmp::Type::UNREACHABLE, icmp::code::PORT_UNREACHABLE, 0, &lost).unwrap();

        let read = peer::Icmpv4Packet::new_checked(&bytes[..]).unwrap();
        prop_assert!(read.verify_checksum());
        prop_assert_eq!(read.msg_type(), peer::Icmpv4Message::DstUnreachable);
        // smoltcp's parser of errors needs the whole quoted packet.
        if bytes.len() == 8 + lost.len() {
            let repr = peer::Icmpv4Repr::parse(&read, &caps).unwrap();
            let peer::Icmpv4Repr::DstUnreachable { reason, header, data: quoted } = repr else {
                panic!("{repr:?}");
            };
            prop_assert_eq!(reason, peer::Icmpv4DstUnreachable::PortUnreachable);
            prop_assert_eq!((header.src_addr, header.dst_addr), (src, dst));
            prop_assert_eq!(quoted, &lost[20..]);
        }
        let ours = icmp::Packet::new_checked(&bytes).unwrap();
        let quoted = ours.quoted().unwrap();
        prop_assert_eq!((quoted.src(), quoted.dst()), (src, dst));
        prop_assert_eq!(udp::ports(quoted.payload()), Ok((sport, dport)));
    }

    #[test]
    fn both_agree_on_what_is_a_packet(bytes in nearly_ip()) {
        let theirs = peer::Ipv4Packet::new_checked(&bytes[..]);
        let ip = match (ipv4::Packet::new_checked(&bytes), theirs) {
            (Ok(ours), Ok(theirs)) => {
                prop_assert_eq!(ours.payload(), theirs.payload());
                prop_assert_eq!(ours.verify_checksum().is_ok(), theirs.verify_checksum());
                prop_assert_eq!(ours.is_fragment(), theirs.more_frags() || theirs.frag_offset() > 0);
                prop_assert_eq!(ours.fragment_offset(), usize::from(theirs.frag_offset()));
                ours
            }
            // smoltcp leaves these two checks to upper layers.
            (Err(Error::BadVersion), Ok(theirs)) => {
                prop_assert_ne!(theirs.version(), 4);
                return Ok(());
            }
            (Err(Error::BadFragment), Ok(theirs)) => {
                prop_assert!(theirs.more_frags() || theirs.frag_offset() > 0);
                return Ok(());
            }
            (ours, theirs) => {
                prop_assert!(ours.is_err() && theirs.is_err(), "{ours:?} {theirs:?}");
                return Ok(());
            }
        };
        let ours = udp::Packet::new_checked(ip.payload());
        let theirs = peer::UdpPacket::new_checked(ip.payload());
        prop_assert_eq!(ours.is_ok(), theirs.is_ok());
        if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
            let (src, dst) = (peer_addr(ip.src()), peer_addr(ip.dst()));
            prop_assert_eq!(ours.payload(), theirs.payload());
            prop_assert_eq!(
                ours.verify_checksum(ip.address_sum()).is_ok(), theirs.verify_checksum(&src, &dst));
        }
    }

    #[test]
    fn partial_checksums_look_partial_to_smoltcp(
        (src, dst) in (address(), address()),
        data in data(),
    ) {
        let mut bytes = vec![0; 8 + data.len()];
        let mut udp = udp::Packet::init(&mut bytes[..], 1, 2, data.len()).unwrap();
        udp.payload_mut().copy_from_slice(&data);
        udp.fill_partial_checksum(ipv4::address_sum(src, dst));
        let read = peer::UdpPacket::new_checked(&bytes[..]).unwrap();
        prop_assert!(read.verify_partial_checksum(&peer_addr(src), &peer_addr(dst)));
        udp::Packet::new_checked(&mut bytes[..]).unwrap().complete_checksum();
        let read = peer::UdpPacket::new_checked(&bytes[..]).unwrap();
        prop_assert!(read.verify_checksum(&peer_addr(src), &peer_addr(dst)));
    }

    #[test]
    fn sums_and_updates_equal_smoltcps(
        mut bytes in prop::collection::vec(any::<u8>(), 2..3000),
        cut in any::<prop::sample::Index>(),
        word in any::<u16>(),
    ) {
        let sum = peer::checksum::data(&bytes);
        prop_assert_eq!(Sum::of(&bytes).fold(), sum);
        let (a, b) = bytes.split_at(cut.index(bytes.len()));
        prop_assert_eq!(Sum::of_pieces([a, b]).fold(), sum);

        let at = cut.index(bytes.len() / 2) * 2;
        let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
        // A sum of zeroes only is the one case that an update cannot distinguish from all ones.
        prop_assume!(bytes.iter().any(|b| *b != 0));
        prop_assert_eq!(checksum::update(!sum, old, word), !peer::checksum::data(&bytes));
    }
}
