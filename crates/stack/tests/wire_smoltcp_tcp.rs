//! smoltcp as an oracle for TCP over either version of IP: each reads the other's segments as they were written, and on
//! any bytes both agree about header, checksum and options.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use busypoll_stack::wire::checksum::Sum;
use busypoll_stack::wire::tcp::{Header, Opt, Options, Packet, kind};
use busypoll_stack::wire::{ipv4, ipv6};
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as peer;

fn config() -> ProptestConfig {
    ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() }
}

fn addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(a, b)| (Ipv4Addr::from(a).into(), Ipv4Addr::from(b).into())),
        any::<(u128, u128)>()
            .prop_map(|(a, b)| (Ipv6Addr::from(a).into(), Ipv6Addr::from(b).into())),
    ]
}

fn sum(addresses: (IpAddr, IpAddr)) -> Sum {
    match addresses {
        (IpAddr::V4(src), IpAddr::V4(dst)) => ipv4::address_sum(src, dst),
        (IpAddr::V6(src), IpAddr::V6(dst)) => ipv6::address_sum(src, dst),
        _ => unreachable!("both of one family"),
    }
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..100),
        prop::collection::vec(any::<u8>(), 1400..1480),
        (0usize..100).prop_map(|n| vec![0xff; n]),
    ]
}

/// Bytes that are nearly options: correct ones, with wrong lengths here and there.
fn nearly_options() -> impl Strategy<Value = Vec<u8>> {
    let option = prop_oneof![
        Just(vec![kind::NOP]),
        Just(vec![kind::END]),
        any::<[u8; 2]>().prop_map(|v| vec![kind::MSS, 4, v[0], v[1]]),
        any::<u8>().prop_map(|v| vec![kind::WINDOW_SCALE, 3, v]),
        Just(vec![kind::SACK_PERMITTED, 2]),
        any::<[u8; 8]>().prop_map(|v| [&[kind::TIMESTAMPS, 10][..], &v].concat()),
        (1usize..4, any::<[u8; 24]>()).prop_map(|(n, v)| [
            &[kind::SACK, 2 + 8 * n as u8][..],
            &v[..8 * n]
        ]
        .concat()),
        (any::<u8>(), 0u8..12, any::<[u8; 12]>()).prop_map(|(kind, len, v)| [
            &[kind, len][..],
            &v[..usize::from(len)]
        ]
        .concat()),
    ];
    let some = prop::collection::vec(option, 0..6).prop_map(|options| options.concat());
    (some, prop::option::of((0usize..40, any::<u8>())), 0usize..41).prop_map(
        |(mut b, slip, cut)| {
            if let Some((at, value)) = slip
                && let Some(byte) = b.get_mut(at)
            {
                *byte = value;
            }
            b.truncate(cut);
            b
        },
    )
}

/// smoltcp's reading in our terms. smoltcp stops at a known option of a wrong length, which we, like Linux, skip; this
/// list ends there too.
fn theirs(mut bytes: &[u8]) -> (Vec<String>, bool) {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let Ok((rest, option)) = peer::TcpOption::parse(bytes) else { return (all, false) };
        bytes = rest;
        match option {
            peer::TcpOption::EndOfList => break,
            peer::TcpOption::NoOperation => {}
            peer::TcpOption::MaxSegmentSize(mss) => all.push(format!("{:?}", Opt::Mss(mss))),
            peer::TcpOption::WindowScale(ws) => all.push(format!("{:?}", Opt::WindowScale(ws))),
            peer::TcpOption::SackPermitted => all.push(format!("{:?}", Opt::SackPermitted)),
            peer::TcpOption::TimeStamp { tsval, tsecr } => {
                all.push(format!("{:?}", Opt::Timestamps(tsval, tsecr)));
            }
            peer::TcpOption::SackRange(blocks) => {
                all.push(format!("sack {:?}", blocks.iter().flatten().collect::<Vec<_>>()));
            }
            peer::TcpOption::Unknown { kind, .. } => all.push(format!("{:?}", Opt::Other(kind))),
        }
    }
    (all, true)
}

fn ours(bytes: &[u8]) -> Vec<String> {
    let text = |option| match option {
        // smoltcp keeps three blocks.
        Opt::Sack(blocks) => format!("sack {:?}", blocks.iter().take(3).collect::<Vec<_>>()),
        other => format!("{other:?}"),
    };
    Options::new(bytes).map(text).collect()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn smoltcp_reads_the_segment_we_write(
        ip in addresses(),
        (src_port, dst_port, seq, ack) in any::<(u16, u16, u32, u32)>(),
        (flags, window, urgent) in any::<(u8, u16, u16)>(),
        options in prop::collection::vec(any::<[u8; 4]>(), 0..=10),
        data in data(),
    ) {
        let options = options.concat();
        let mut bytes = vec![0xee; 20 + options.len() + data.len()];
        let header = Header { src_port, dst_port, seq, ack, flags, window, urgent };
        let mut tcp = Packet::init(&mut bytes[..], &header, options.len()).unwrap();
        tcp.options_mut().copy_from_slice(&options);
        tcp.payload_mut().copy_from_slice(&data);
        tcp.fill_partial_checksum(sum(ip));
        let (src, dst) = (ip.0.into(), ip.1.into());
        let read = peer::TcpPacket::new_checked(&bytes[..]).unwrap();
        prop_assert!(read.verify_partial_checksum(&src, &dst));
        Packet::new_checked(&mut bytes[..]).unwrap().fill_checksum(sum(ip));

        let read = peer::TcpPacket::new_checked(&bytes[..]).unwrap();
        prop_assert!(read.verify_checksum(&src, &dst));
        prop_assert_eq!((read.src_port(), read.dst_port()), (src_port, dst_port));
        prop_assert_eq!(read.seq_number().0 as u32, seq);
        prop_assert_eq!(read.ack_number().0 as u32, ack);
        prop_assert_eq!((read.window_len(), read.urgent_at()), (window, urgent));
        let bits = [read.fin(), read.syn(), read.rst(), read.psh(), read.ack(), read.urg()];
        let bits = bits.iter().rev().fold(0, |all, bit| all << 1 | u8::from(*bit));
        prop_assert_eq!(bits, flags & 0x3f);
        prop_assert_eq!(read.options(), &options[..]);
        prop_assert_eq!(read.payload(), &data[..]);
    }

    #[test]
    fn we_read_the_segment_smoltcp_writes(
        ip in addresses(),
        (src_port, dst_port, seq, window_len) in (1u16.., 1u16.., any::<i32>(), any::<u16>()),
        ack in prop::option::of(any::<i32>()),
        syn in any::<bool>(),
        mss in prop::option::of(any::<u16>()),
        window_scale in prop::option::of(any::<u8>()),
        timestamp in prop::option::of(any::<(u32, u32)>()),
        data in data(),
    ) {
        let caps = ChecksumCapabilities::default();
        let repr = peer::TcpRepr {
            src_port,
            dst_port,
            control: if syn { peer::TcpControl::Syn } else { peer::TcpControl::Psh },
            seq_number: peer::TcpSeqNumber(seq),
            ack_number: ack.map(peer::TcpSeqNumber),
            window_len,
            window_scale,
            max_seg_size: mss,
            sack_permitted: syn,
            sack_ranges: [None; 3],
            timestamp: timestamp
                .map(|(tsval, tsecr)| peer::TcpTimestampRepr { tsval, tsecr }),
            payload: &data,
        };
        let mut bytes = vec![0; repr.buffer_len()];
        let mut packet = peer::TcpPacket::new_unchecked(&mut bytes[..]);
        repr.emit(&mut packet, &ip.0.into(), &ip.1.into(), &caps);

        let tcp = Packet::new_checked(&bytes).unwrap();
        prop_assert_eq!(tcp.verify_checksum(sum(ip)), Ok(()));
        prop_assert_eq!((tcp.src_port(), tcp.dst_port()), (src_port, dst_port));
        prop_assert_eq!((tcp.seq(), tcp.ack()), (seq as u32, ack.unwrap_or(0) as u32));
        let flags = if syn { 2 } else { 8 } | if ack.is_some() { 16 } else { 0 };
        prop_assert_eq!((tcp.flags(), tcp.window()), (flags, window_len));
        prop_assert_eq!(tcp.payload(), &data[..]);
        let has = |option| tcp.options().any(|o| o == option);
        prop_assert!(mss.is_none_or(|mss| has(Opt::Mss(mss))));
        prop_assert!(window_scale.is_none_or(|ws| has(Opt::WindowScale(ws))));
        prop_assert!(timestamp.is_none_or(|(v, e)| has(Opt::Timestamps(v, e))));
        prop_assert!(!syn || has(Opt::SackPermitted));

        let mut again = bytes.clone();
        Packet::new_checked(&mut again[..]).unwrap().fill_checksum(sum(ip));
        prop_assert_eq!(again, bytes);
    }

    #[test]
    fn both_read_the_same_options(bytes in nearly_options()) {
        let (theirs, whole) = theirs(&bytes);
        let mut ours = ours(&bytes);
        if !whole {
            ours.truncate(theirs.len());
        }
        prop_assert_eq!(ours, theirs, "{:?}", bytes);
    }

    #[test]
    fn both_agree_on_what_is_a_segment(
        offset in any::<u8>(),
        mut bytes in prop::collection::vec(any::<u8>(), 0..80),
        ip in addresses(),
    ) {
        if let Some(byte) = bytes.get_mut(12) {
            *byte = offset;
        }
        let theirs = peer::TcpPacket::new_checked(&bytes[..]);
        let ours = Packet::new_checked(&bytes);
        prop_assert_eq!(ours.is_ok(), theirs.is_ok());
        if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
            prop_assert_eq!(ours.payload(), theirs.payload());
            prop_assert_eq!(
                ours.verify_checksum(sum(ip)).is_ok(),
                theirs.verify_checksum(&ip.0.into(), &ip.1.into()));
        }
    }
}
