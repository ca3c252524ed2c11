//! No bytes make a view panic: neither random bytes nor mutated good frames.

mod wire_walk;

use std::net::{Ipv4Addr, Ipv6Addr};

use busypoll_stack::wire::extension::put_fragment;
use busypoll_stack::wire::{
    Error, EtherType, MacAddr, Protocol, arp, ethernet, icmp, icmpv6, ipv4, ipv6, ndp, tcp, udp,
};
use proptest::prelude::*;

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

const A6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

fn frame(ethertype: EtherType, payload_len: usize, fill: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = vec![0; ethernet::HEADER_LEN + payload_len];
    let mut frame = ethernet::Frame::init(&mut bytes, MacAddr::BROADCAST, MAC, ethertype).unwrap();
    fill(frame.payload_mut());
    bytes
}

fn ip_frame(protocol: Protocol, len: usize, fill: impl FnOnce(&mut [u8])) -> Vec<u8> {
    frame(EtherType::IPV4, ipv4::HEADER_LEN + len, |b| {
        fill(ipv4::Packet::init(b, A, B, protocol, len).unwrap().payload_mut());
    })
}

fn udp_frame(data: &[u8]) -> Vec<u8> {
    ip_frame(Protocol::UDP, udp::HEADER_LEN + data.len(), |b| {
        let mut udp = udp::Packet::init(b, 4000, 7, data.len()).unwrap();
        udp.payload_mut().copy_from_slice(data);
        udp.fill_checksum(ipv4::address_sum(A, B));
    })
}

/// The options of Linux's SYN.
const SYN: [u8; 20] = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
/// Two NOPs, timestamps, two NOPs, three SACK blocks: all 40 bytes.
const SACKS: [u8; 40] = [
    1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1, 5, 26, 0, 0, 0, 9, 0, 0, 0, 11, 0, 0, 0, 13, 0, 0,
    0, 15, 0, 0, 0, 17, 0, 0, 0, 19,
];

fn lay_tcp(b: &mut [u8], addresses: busypoll_stack::wire::checksum::Sum, options: &[u8]) {
    let header = tcp::Header { src_port: 4000, dst_port: 7, flags: 16, ..tcp::Header::default() };
    let mut segment = tcp::Packet::init(b, &header, options.len()).unwrap();
    segment.options_mut().copy_from_slice(options);
    segment.fill_checksum(addresses);
}

fn tcp_frame(options: &[u8], data: usize) -> Vec<u8> {
    ip_frame(Protocol::TCP, tcp::HEADER_LEN + options.len() + data, |b| {
        lay_tcp(b, ipv4::address_sum(A, B), options);
    })
}

/// An IPv6 packet with the extension headers `before`, the first of kind `first`.
fn six_frame(
    dst: Ipv6Addr,
    first: Protocol,
    before: &[u8],
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    frame(EtherType::IPV6, ipv6::HEADER_LEN + before.len() + len, |b| {
        let mut ip = ipv6::Packet::init(b, A6, dst, first, before.len() + len).unwrap();
        ip.set_hop_limit(255);
        let (head, rest) = ip.payload_mut().split_at_mut(before.len());
        head.copy_from_slice(before);
        fill(rest);
    })
}

fn six_udp(first: Protocol, before: &[u8]) -> Vec<u8> {
    six_frame(B6, first, before, udp::HEADER_LEN + 16, |b| {
        udp::Packet::init(b, 4000, 7, 16).unwrap().fill_checksum(ipv6::address_sum(A6, B6));
    })
}

/// One good frame of each kind over IPv6.
fn good_six() -> Vec<Vec<u8>> {
    let sum = ipv6::address_sum(A6, B6);
    // Hop-by-hop, destination options, routing: each of them 8 bytes.
    let all = [60, 0, 1, 4, 0, 0, 0, 0, 43, 0, 0x3e, 1, 9, 1, 1, 0, 17, 0, 2, 0, 0, 0, 0, 0];
    let mut fragment = [0; 8];
    put_fragment(&mut fragment, Protocol::UDP, 1232, true, 7).unwrap();
    let mut first = [0; 8];
    put_fragment(&mut first, Protocol::UDP, 0, true, 7).unwrap();
    let icmp =
        |dst, len, fill: &dyn Fn(&mut [u8])| six_frame(dst, Protocol::ICMPV6, &[], len, fill);
    let group = ipv6::solicited_node(B6);
    let to_group = ipv6::address_sum(A6, group);
    vec![
        six_udp(Protocol::UDP, &[]),
        six_udp(Protocol::HOP_BY_HOP, &all),
        six_udp(Protocol::FRAGMENT, &fragment),
        six_udp(Protocol::FRAGMENT, &first),
        six_frame(B6, Protocol::TCP, &[], 40, |b| lay_tcp(b, sum, &SYN)),
        icmp(B6, 24, &|b| {
            let ping = icmpv6::Type::ECHO_REQUEST;
            icmpv6::Packet::init_echo(b, ping, 1, 2).unwrap().fill_checksum(sum);
        }),
        icmp(B6, 72, &|b| {
            let quote = &six_udp(Protocol::UDP, &[])[14..];
            icmpv6::Packet::init_error(b, sum, icmpv6::Type::PACKET_TOO_BIG, 0, 1280, quote)
                .unwrap();
        }),
        icmp(group, ndp::NEIGHBOR_LEN, &|b| {
            ndp::put_neighbor_solicitation(b, to_group, B6, Some(MAC)).unwrap();
        }),
        icmp(B6, ndp::NEIGHBOR_LEN, &|b| {
            ndp::put_neighbor_advertisement(b, sum, A6, MAC, true, true).unwrap();
        }),
    ]
}

fn fragment_frame() -> Vec<u8> {
    let mut bytes = udp_frame(&[1; 16]);
    let mut ip = ipv4::Packet::new_checked(&mut bytes[14..]).unwrap();
    ip.set_fragment(1480, true).unwrap();
    bytes
}

fn options_frame() -> Vec<u8> {
    let mut bytes = udp_frame(b"options");
    bytes.splice(34..34, [0x94, 0x04, 0, 0, 1, 1, 1, 0]);
    bytes[14] = 0x47;
    bytes[17] += 8;
    ipv4::Packet::new_checked(&mut bytes[14..]).unwrap().fill_checksum();
    bytes
}

fn tagged(mut bytes: Vec<u8>, tags: usize) -> Vec<u8> {
    for _ in 0..tags {
        bytes.splice(12..12, [0x81, 0x00, 0x20, 0x05]);
    }
    bytes
}

/// One good frame of each kind.
fn good() -> Vec<Vec<u8>> {
    let echo = ip_frame(Protocol::ICMP, icmp::HEADER_LEN + 16, |b| {
        icmp::Packet::init_echo(b, icmp::Type::ECHO_REQUEST, 1, 2).unwrap().fill_checksum();
    });
    let error = ip_frame(Protocol::ICMP, icmp::HEADER_LEN + 28, |b| {
        let quote = &udp_frame(b"lost")[14..];
        icmp::Packet::init_error(b, icmp::Type::UNREACHABLE, 3, 0, quote).unwrap();
    });
    let request = frame(EtherType::ARP, arp::LEN, |b| {
        let unspecified = (MacAddr::UNSPECIFIED, B);
        arp::Packet::init(b, arp::Operation::REQUEST, (MAC, A), unspecified).unwrap();
    });
    let mut all = vec![
        udp_frame(b""),
        udp_frame(b"odd"),
        udp_frame(&[0xa5; 300]),
        options_frame(),
        fragment_frame(),
        tagged(udp_frame(b"one tag"), 1),
        tagged(udp_frame(b"two tags"), 2),
        echo,
        error,
        request,
        tcp_frame(&[], 3),
        tcp_frame(&SYN, 0),
        tcp_frame(&SACKS, 7),
    ];
    all.extend(good_six());
    all
}

#[derive(Debug, Clone)]
enum Mutation {
    Truncate(usize),
    Extend(Vec<u8>),
    Byte(usize, u8),
    /// Edge values where lengths and offsets are.
    Word(usize, u16),
    Tag(u16),
    Cut(usize, usize),
    Double(usize, usize),
}

impl Mutation {
    fn apply(&self, b: &mut Vec<u8>) {
        let at = |i: usize, len: usize| i % (len + 1);
        match *self {
            Mutation::Truncate(i) => b.truncate(at(i, b.len())),
            Mutation::Extend(ref more) => b.extend_from_slice(more),
            Mutation::Byte(i, v) => {
                if let Some(byte) = b.get_mut(i) {
                    *byte = v;
                }
            }
            Mutation::Word(i, v) => {
                if let Some(word) = b.get_mut(i..i + 2) {
                    word.copy_from_slice(&v.to_be_bytes());
                }
            }
            Mutation::Tag(tpid) => {
                let [x, y] = tpid.to_be_bytes();
                let here = b.len().min(12);
                b.splice(here..here, [x, y, 0, 9]);
            }
            Mutation::Cut(i, n) => {
                let from = at(i, b.len());
                b.drain(from..(from + n).min(b.len()));
            }
            Mutation::Double(i, n) => {
                let from = at(i, b.len());
                let piece = b[from..(from + n).min(b.len())].to_vec();
                b.splice(from..from, piece);
            }
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let edge = prop_oneof![
        Just(0u16),
        0u16..64,
        Just(0x1fff),
        Just(0x2000),
        Just(0x7fff),
        Just(0x8000),
        0xffe0u16..=0xffff,
        any::<u16>()
    ];
    // Version and IHL, total length, fragment field; the same 8 bytes later, behind two tags; the UDP length with and
    // without options; the quoted header's; IPv6 lengths and extension headers; TCP's data offset and the lengths of
    // its options, over either version.
    let spots = prop::sample::select(vec![
        12, 14, 16, 18, 20, 22, 24, 28, 38, 42, 44, 46, 50, 52, 54, 55, 56, 58, 60, 62, 64, 66, 67,
        70, 72, 75, 78,
    ]);
    prop_oneof![
        any::<usize>().prop_map(Mutation::Truncate),
        prop::collection::vec(any::<u8>(), 0..80).prop_map(Mutation::Extend),
        (0usize..130, any::<u8>()).prop_map(|(i, v)| Mutation::Byte(i, v)),
        (spots, edge).prop_map(|(i, v)| Mutation::Word(i, v)),
        prop::sample::select(vec![0x8100, 0x88a8]).prop_map(Mutation::Tag),
        (any::<usize>(), 1usize..40).prop_map(|(i, n)| Mutation::Cut(i, n)),
        (any::<usize>(), 1usize..40).prop_map(|(i, n)| Mutation::Double(i, n)),
    ]
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = wire_walk::frame(&bytes);
    }

    #[test]
    fn mutated_good_frames_never_panic(
        bytes in prop::sample::select(good()),
        mutations in prop::collection::vec(mutation(), 1..5),
    ) {
        let mut bytes = bytes;
        for m in &mutations {
            m.apply(&mut bytes);
        }
        let _ = wire_walk::frame(&bytes);
    }
}

#[test]
fn good_frames_parse() {
    for bytes in good() {
        assert_eq!(wire_walk::frame(&bytes), Ok(()), "{bytes:02x?}");
    }
    let deep = tagged(udp_frame(b"three tags"), 3);
    assert_eq!(wire_walk::frame(&deep), Err(Error::TooManyTags));
}

#[test]
fn a_frame_cut_anywhere_is_truncated() {
    for bytes in good() {
        for len in 0..bytes.len() {
            assert_eq!(wire_walk::frame(&bytes[..len]), Err(Error::Truncated), "{bytes:02x?}");
        }
    }
}

/// The offset from which on each bit of the frame is covered by a checksum. Not covered are a link header, the start of
/// an IPv6 header, extension headers, and the payload of a fragment.
fn guarded_from(bytes: &[u8]) -> Option<usize> {
    let whole = |ip: ipv4::Packet<&[u8]>| !ip.is_fragment();
    match bytes[12..14] {
        [8, 0] => whole(ipv4::Packet::new_checked(&bytes[14..]).unwrap()).then_some(14),
        [0x86, 0xdd] if [6, 17, 58].contains(&bytes[20]) => Some(14 + 8),
        _ => None,
    }
}

#[test]
fn every_bit_of_an_ip_packet_is_covered_by_a_checksum() {
    for bytes in good() {
        let Some(from) = guarded_from(&bytes) else { continue };
        for bit in from * 8..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(wire_walk::frame(&bad).is_err(), "bit {bit} of {bytes:02x?}");
        }
    }
}
