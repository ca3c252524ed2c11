//! ICMPv6: which packets get an answer, and which received errors are accepted.

use super::*;
use icmpv6::{Type, code};

fn ping(src: Ipv6Addr, dst: Ipv6Addr, data: &[u8]) -> Vec<u8> {
    let mut message = [&[0; 8], data].concat();
    icmpv6::Packet::init_echo(&mut message[..], Type::ECHO_REQUEST, 3, 4).unwrap();
    icmp6(src, dst, &message)
}

/// The ICMPv6 error from B to A about `quote`.
fn error_frame(kind: Type, code: u8, rest: u32, quote: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 8 + quote.len()];
    message[0] = kind.0;
    message[1] = code;
    message[4..8].copy_from_slice(&rest.to_be_bytes());
    message[8..].copy_from_slice(quote);
    to_a6(&icmp6(B6, A6, &message))
}

/// The only packet sent: source, type, code, second word, the rest.
fn answer(a: &Station) -> (Ipv6Addr, Type, u8, u32, Vec<u8>) {
    let packet = sent6(a);
    let ip = ipv6::Packet::new_checked(&packet[..]).unwrap();
    let message = icmpv6::Packet::new_checked(ip.payload()).unwrap();
    message.verify_checksum(ip.address_sum()).unwrap();
    let rest = u32::from(message.ident()) << 16 | u32::from(message.sequence());
    (ip.src(), message.kind(), message.code(), rest, message.payload().to_vec())
}

#[test]
fn a_ping_gets_a_reply_with_its_data() {
    let a = a();
    meet(&a);
    a.receive(&to_a6(&ping(B6, A6, b"abcde")));
    assert_eq!(answer(&a), (A6, Type::ECHO_REPLY, 0, 3 << 16 | 4, b"abcde".to_vec()));
    // The reply to a ping of a group comes from one of our addresses (RFC 4443 section 4.2).
    let group = ping(B6, ipv6::ALL_NODES, b"all");
    a.receive(&frame_of(MacAddr::of_group6(ipv6::ALL_NODES), MAC_B, EtherType::IPV6, &group));
    assert_eq!(answer(&a), (A6, Type::ECHO_REPLY, 0, 3 << 16 | 4, b"all".to_vec()));
    assert_eq!(a.count(Count::Icmp6OutEchoReplies), 2);
    let mut bad = ping(B6, A6, b"abcde");
    bad[50] ^= 1;
    a.receive(&to_a6(&bad));
    assert_eq!((a.sent().len(), a.count(Count::Icmp6InCsumErrors)), (0, 1));
}

#[test]
fn a_ping_of_a_link_local_address_gets_its_reply_over_the_same_link() {
    let a = a();
    let link_b = "fe80::b".parse().unwrap();
    a.receive(&solicitation(link_b, LINK_A, LINK_A, Some(MAC_B)));
    a.sent();
    a.receive(&to_a6(&ping(link_b, LINK_A, b"near")));
    assert_eq!(answer(&a).0, LINK_A);
}

#[test]
fn an_undeliverable_packet_gets_an_error_that_quotes_it() {
    let a = a();
    meet(&a);
    let closed = udp6_packet("[fd00::2]:9", "[fd00::1]:7", &[1; 1300]);
    a.receive(&to_a6(&closed));
    let (src, kind, got, rest, quote) = answer(&a);
    assert_eq!((src, kind, got, rest), (A6, Type::UNREACHABLE, code::PORT_UNREACHABLE, 0));
    assert_eq!(quote, closed[..1232], "as much as fits in 1280 bytes");
    assert_eq!((a.count(Count::UdpNoPorts), a.count(Count::Icmp6OutDestUnreachs)), (1, 1));
    a.receive(&to_a6(&packet6(B6, A6, Protocol(132), &[0; 20])));
    let (_, kind, got, pointer, _) = answer(&a);
    assert_eq!((kind, got), (Type::PARAMETER_PROBLEM, code::UNRECOGNIZED_NEXT_HEADER));
    assert_eq!((pointer, a.count(Count::Ip6InUnknownProtos)), (6, 1));
}

#[test]
fn no_error_is_sent_where_rfc_4443_forbids_it() {
    let a = a();
    meet(&a);
    let group = MacAddr::of_group6(ipv6::ALL_NODES);
    let closed = |from: &str, to: &str| udp6_packet(from, to, b"");
    // An ICMPv6 message after an unknown option, which would cause an error otherwise.
    let option = |kind: u8| {
        let message = [[58, 0, 0x80, 4, 0, 0, 0, 0], [kind, 4, 0, 0, 0, 0, 0, 0]].concat();
        to_a6(&packet6(B6, A6, Protocol(60), &message))
    };
    let frames = [
        frame_of(group, MAC_B, EtherType::IPV6, &closed("[fd00::2]:9", "[ff02::1]:7")),
        to_a6(&closed("[::]:9", "[fd00::1]:7")),
        option(1),
        option(137),
    ];
    for frame in frames {
        a.receive(&frame);
        assert!(a.sent().is_empty(), "{frame:02x?}");
    }
    a.receive(&option(128));
    assert_eq!(answer(&a).1, Type::PARAMETER_PROBLEM);
    (0..200).for_each(|_| a.receive(&to_a6(&closed("[fd00::2]:9", "[fd00::1]:7"))));
    let sent = a.sent().len();
    assert!((25..100).contains(&sent), "{sent}");
    assert_eq!(a.count(Count::Icmp6OutRateLimited), 200 - sent as u64);
}

#[test]
fn each_error_has_the_errno_linux_gives_it() {
    let a = a();
    let (binding, mailbox) = a.bind("[fd00::1]:7");
    binding.connect("[fd00::2]:9".parse().unwrap()).unwrap();
    let quote = udp6_packet("[fd00::1]:7", "[fd00::2]:9", b"what we sent");
    // net/ipv6/icmp.c, tab_unreach and icmpv6_err_convert.
    let table = [
        (1, 0, libc::ENETUNREACH, false),
        (1, 1, libc::EACCES, true),
        (1, 2, libc::EHOSTUNREACH, false),
        (1, 3, libc::EHOSTUNREACH, false),
        (1, 4, libc::ECONNREFUSED, true),
        (1, 5, libc::EACCES, true),
        (1, 6, libc::EACCES, true),
        (1, 99, libc::EPROTO, true),
        (3, 0, libc::EHOSTUNREACH, false),
        (4, 0, libc::EPROTO, true),
        (77, 0, libc::EPROTO, false),
    ];
    for (kind, code, errno, hard) in table {
        a.receive(&error_frame(Type(kind), code, 0, &quote));
        let error = SocketError { errno, hard, mtu: None };
        let expected = Got::Error(error, "[fd00::2]:9".parse().unwrap());
        assert_eq!(mailbox.take(), [expected], "type {kind} code {code}");
    }
    // The same error through the kernel's raw socket.
    let frame = error_frame(Type::UNREACHABLE, 4, 0, &quote);
    a.inet.icmpv6_error_input(&ip6_of(&frame)[40..], A6, 0, &mut a.pass());
    assert_eq!(mailbox.take().len(), 1);
}

#[test]
fn an_error_is_accepted_only_about_an_existing_conversation() {
    let a = a();
    let (binding, mailbox) = a.bind("[fd00::1]:7");
    binding.connect("[fd00::2]:9".parse().unwrap()).unwrap();
    let good = udp6_packet("[fd00::1]:7", "[fd00::2]:9", b"");
    for quote in [
        udp6_packet("[fd00::1]:7", "[fd00::2]:8", b""),
        udp6_packet("[fd00::1]:8", "[fd00::2]:9", b""),
        udp6_packet("[fd00::2]:9", "[fd00::1]:7", b""),
        udp6_packet("[fd00::3]:7", "[fd00::2]:9", b""),
        packet6(A6, B6, Protocol::TCP, &[0, 7, 0, 9, 0, 0, 0, 0]),
        good[..47].to_vec(),
    ] {
        a.receive(&error_frame(Type::UNREACHABLE, 4, 0, &quote));
    }
    assert!(mailbox.take().is_empty());
    assert_eq!(a.count(Count::Icmp6InErrors), 6);
}

#[test]
fn a_reported_path_mtu_is_accepted_down_to_1280_bytes() {
    let mut a = a();
    let (_binding, mailbox) = a.bind("[::]:7");
    let quote = udp6_packet("[fd00::1]:7", "[fd00::2]:9", b"");
    let mtu = |a: &Station| a.path("[::]:7", "[fd00::2]:9").mtu();
    for (reported, accepted) in [(68, 1500), (1279, 1500), (1400, 1400), (1280, 1280), (1450, 1280)]
    {
        a.receive(&error_frame(Type::PACKET_TOO_BIG, 0, reported, &quote));
        assert_eq!(mtu(&a), accepted, "reported {reported}");
    }
    let is_soft_emsgsize =
        |got: &Got| matches!(got, Got::Error(e, _) if e.errno == libc::EMSGSIZE && !e.hard);
    assert!(mailbox.take().iter().all(is_soft_emsgsize));
    a.wait(Duration::from_secs(601));
    assert_eq!(mtu(&a), 1500);
}
