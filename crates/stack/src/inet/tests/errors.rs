//! ICMP: which packets get an answer, and which received errors are accepted.

use super::*;

/// The ICMP error `kind`, `code` about `quote`, from B to A.
pub(super) fn error_frame(kind: icmp::Type, code: u8, rest: u32, quote: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 8 + quote.len()];
    icmp::Packet::init_error(&mut message[..], kind, code, rest, quote).unwrap();
    to_a(&packet(B, A, Protocol::ICMP, &message))
}

fn unreachable(code: u8, quote: &[u8]) -> Vec<u8> {
    error_frame(icmp::Type::UNREACHABLE, code, 0, quote)
}

fn ping(data: &[u8]) -> Vec<u8> {
    let mut message = [&[0; 8], data].concat();
    icmp::Packet::init_echo(&mut message[..], icmp::Type::ECHO_REQUEST, 3, 4).unwrap();
    icmp::Packet::new_checked(&mut message[..]).unwrap().fill_checksum();
    packet(B, A, Protocol::ICMP, &message)
}

fn error(errno: i32, hard: bool) -> Got {
    Got::Error(SocketError { errno, hard, mtu: None }, "10.0.0.2:9".parse().unwrap())
}

#[test]
fn a_ping_gets_a_reply_with_its_data() {
    let a = Station::a();
    a.learn_neighbour(B, MAC_B);
    a.receive(&to_a(&ping(b"abcde")));
    let reply = a.sent_packet();
    let ip = ipv4::Packet::new_checked(&reply[..]).unwrap();
    assert_eq!((ip.src(), ip.dst()), (A, B));
    let icmp = icmp::Packet::new_checked(ip.payload()).unwrap();
    icmp.verify_checksum().unwrap();
    assert_eq!((icmp.kind(), icmp.ident(), icmp.sequence()), (icmp::Type::ECHO_REPLY, 3, 4));
    assert_eq!(icmp.payload(), b"abcde");
    assert_eq!(a.count(Count::IcmpOutEchoReps), 1);
}

#[test]
fn a_fragmented_ping_gets_a_fragmented_reply() {
    let a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let whole = ping(&[9; 3000]);
    for (start, end) in [(0, 1480), (1480, 2960), (2960, 3008)] {
        let mut bytes = packet(B, A, Protocol::ICMP, &whole[20 + start..20 + end]);
        let mut ip = ipv4::Packet::new_checked(&mut bytes[..]).unwrap();
        ip.set_fragment(start, end < 3008).unwrap();
        a.receive(&to_a(&bytes));
    }
    let lengths: Vec<_> = a.sent().iter().map(|frame| ip_of(frame).len()).collect();
    assert_eq!(lengths, [1500, 1500, 68]);
}

#[test]
fn a_broadcast_ping_or_one_with_a_wrong_checksum_gets_no_reply() {
    let a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let mut bytes = ping(b"abcde");
    ipv4::Packet::new_checked(&mut bytes[..]).unwrap().set_dst([10, 0, 0, 255].into());
    a.receive(&frame_of(MacAddr::BROADCAST, MAC_B, EtherType::IPV4, &bytes));
    let mut bytes = ping(b"abcde");
    *bytes.last_mut().unwrap() ^= 1;
    a.receive(&to_a(&bytes));
    assert!(a.sent().is_empty());
    assert_eq!(a.count(Count::IcmpInCsumErrors), 1);
}

#[test]
fn a_closed_port_gets_an_error_that_quotes_the_packet() {
    let a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let bytes = udp_packet("10.0.0.2:9", "10.0.0.1:7", &[1; 600]);
    a.receive(&to_a(&bytes));
    let sent = a.sent_packet();
    assert_eq!(sent.len(), 576);
    let ip = ipv4::Packet::new_checked(&sent[..]).unwrap();
    let icmp = icmp::Packet::new_checked(ip.payload()).unwrap();
    icmp.verify_checksum().unwrap();
    assert_eq!((icmp.kind(), icmp.code()), (icmp::Type::UNREACHABLE, 3));
    assert!(bytes.starts_with(icmp.payload()));
    assert_eq!((a.count(Count::UdpNoPorts), a.count(Count::IcmpOutDestUnreachs)), (1, 1));
}

#[test]
fn an_unsupported_protocol_gets_protocol_unreachable() {
    let a = Station::a();
    a.learn_neighbour(B, MAC_B);
    a.receive(&to_a(&packet(B, A, Protocol(132), &[0; 20])));
    assert_eq!(a.sent_packet()[20..22], [3, 2]);
    assert_eq!(a.count(Count::IpInUnknownProtos), 1);
}

#[test]
fn no_error_is_sent_about_broadcasts_errors_or_later_fragments() {
    let a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let closed = |to: &str| udp_packet("10.0.0.2:9", to, b"");
    a.receive(&frame_of(MacAddr::BROADCAST, MAC_B, EtherType::IPV4, &closed("10.0.0.255:7")));
    a.receive(&frame_of(MacAddr::BROADCAST, MAC_B, EtherType::IPV4, &closed("255.255.255.255:7")));
    a.receive(&frame_of(MacAddr::BROADCAST, MAC_B, EtherType::IPV4, &closed("10.0.0.1:7")));
    a.receive(&unreachable(3, &udp_packet("10.0.0.1:7", "10.0.0.2:9", b"")));
    let mut fragment = closed("10.0.0.1:7");
    ipv4::Packet::new_checked(&mut fragment[..]).unwrap().set_fragment(64, false).unwrap();
    a.receive(&to_a(&fragment));
    assert!(a.sent().is_empty());
    assert_eq!(a.count(Count::IpInAddrErrors), 1, "a unicast packet in a broadcast frame");
}

#[test]
fn sent_errors_are_rate_limited() {
    let mut a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let closed = udp_to_a("10.0.0.2:9", "10.0.0.1:7", b"");
    (0..200).for_each(|_| a.receive(&closed));
    let first = a.sent().len();
    assert!((25..100).contains(&first), "{first}");
    assert_eq!(a.count(Count::IcmpOutRateLimited), 200 - first as u64);
    let mut flood = |span| {
        a.wait(span);
        (0..200).for_each(|_| a.receive(&closed));
        a.sent().len()
    };
    // The rate is a thousand a second, and a long pause allows no more than one burst.
    let hundred: usize = (0..100).map(|_| flood(Duration::from_millis(10))).sum();
    assert!((900..1100).contains(&hundred), "{hundred}");
    let after_long = flood(Duration::from_secs(5));
    assert!((25..100).contains(&after_long), "{after_long}");
}

/// CVE-2020-25705: a peer that can count the remaining errors learns whether another peer got one.
#[test]
fn the_number_of_errors_left_is_unpredictable() {
    let mut a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let closed = udp_to_a("10.0.0.2:9", "10.0.0.1:7", b"");
    let mut left = || {
        a.wait(Duration::from_secs(1));
        (0..200).for_each(|_| a.receive(&closed));
        a.sent().len()
    };
    let seconds: std::collections::BTreeSet<usize> = (0..20).map(|_| left()).collect();
    assert!(seconds.len() > 5, "{seconds:?}");
}

#[test]
fn each_error_has_the_errno_linux_gives_it() {
    let a = Station::a();
    let (binding, mailbox) = a.bind("10.0.0.1:7");
    binding.connect("10.0.0.2:9".parse().unwrap()).unwrap();
    let quote = udp_packet("10.0.0.1:7", "10.0.0.2:9", b"what we sent");
    // net/ipv4/icmp.c, icmp_err_convert.
    let table = [
        (0, libc::ENETUNREACH, false),
        (1, libc::EHOSTUNREACH, false),
        (2, libc::ENOPROTOOPT, true),
        (3, libc::ECONNREFUSED, true),
        (5, libc::EOPNOTSUPP, false),
        (6, libc::ENETUNREACH, true),
        (7, libc::EHOSTDOWN, true),
        (8, libc::ENONET, true),
        (9, libc::ENETUNREACH, true),
        (10, libc::EHOSTUNREACH, true),
        (11, libc::ENETUNREACH, false),
        (12, libc::EHOSTUNREACH, false),
        (13, libc::EHOSTUNREACH, true),
        (14, libc::EHOSTUNREACH, true),
        (15, libc::EHOSTUNREACH, true),
    ];
    for (code, errno, hard) in table {
        a.receive(&unreachable(code, &quote));
        assert_eq!(mailbox.take(), [error(errno, hard)], "code {code}");
    }
    a.receive(&error_frame(icmp::Type::TIME_EXCEEDED, 0, 0, &quote));
    a.receive(&error_frame(icmp::Type::PARAMETER_PROBLEM, 0, 0, &quote));
    assert_eq!(mailbox.take(), [error(libc::EHOSTUNREACH, false), error(libc::EPROTO, true)]);
}

#[test]
fn an_error_is_accepted_only_about_an_existing_conversation() {
    let a = Station::a();
    let (binding, mailbox) = a.bind("10.0.0.1:7");
    binding.connect("10.0.0.2:9".parse().unwrap()).unwrap();
    for quote in [
        udp_packet("10.0.0.1:7", "10.0.0.2:8", b""),
        udp_packet("10.0.0.1:8", "10.0.0.2:9", b""),
        udp_packet("10.0.0.2:9", "10.0.0.1:7", b""),
        udp_packet("10.0.0.3:7", "10.0.0.2:9", b""),
        packet(A, B, Protocol::TCP, &[0, 7, 0, 9]),
        udp_packet("10.0.0.1:7", "10.0.0.2:9", b"")[..23].to_vec(),
    ] {
        let mut message = [&[0; 8], &quote[..]].concat();
        icmp::Packet::init_echo(&mut message[..], icmp::Type::UNREACHABLE, 0, 0).unwrap();
        message[1] = 3;
        icmp::Packet::new_checked(&mut message[..]).unwrap().fill_checksum();
        a.receive(&to_a(&packet(B, A, Protocol::ICMP, &message)));
    }
    assert!(mailbox.take().is_empty());
    assert_eq!(a.count(Count::IcmpInErrors), 6);
}

#[test]
fn an_unconnected_socket_gets_errors_about_its_datagrams() {
    let a = Station::a();
    let (_binding, mailbox) = a.bind("0.0.0.0:7");
    let quote = udp_packet("10.0.0.1:7", "10.0.0.2:9", b"");
    a.receive(&unreachable(3, &quote));
    assert_eq!(mailbox.take(), [error(libc::ECONNREFUSED, true)]);
    // The same error through the kernel's raw socket.
    a.inet.icmp_error_input(&ip_of(&unreachable(3, &quote)), &mut a.pass());
    assert_eq!(mailbox.take(), [error(libc::ECONNREFUSED, true)]);
    let not_ours = udp_packet("10.0.0.3:7", "10.0.0.2:9", b"");
    a.receive(&unreachable(3, &not_ours));
    a.inet.icmp_error_input(&ping(b""), &mut a.pass());
    a.inet.icmp_error_input(b"not a packet", &mut a.pass());
    assert!(mailbox.take().is_empty());
}

#[test]
fn a_reported_path_mtu_expires_after_ten_minutes() {
    let mut a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let (_binding, mailbox) = a.bind("0.0.0.0:7");
    let path = a.path("0.0.0.0:7", "10.0.0.2:9");
    let quote = udp_packet("10.0.0.1:7", "10.0.0.2:9", b"");
    let too_big = |mtu| error_frame(icmp::Type::UNREACHABLE, 4, mtu, &quote);
    a.receive(&too_big(1000));
    let reported = |mtu| {
        let error = SocketError { errno: libc::EMSGSIZE, hard: false, mtu: Some(mtu) };
        [Got::Error(error, "10.0.0.2:9".parse().unwrap())]
    };
    assert_eq!(mailbox.take(), reported(1000));
    assert!(!path.is_current(&a.inet));
    assert_eq!(a.path("0.0.0.0:7", "10.0.0.2:9").mtu(), 1000);
    // An error cannot raise it, nor lower it below min_pmtu.
    a.receive(&too_big(1400));
    assert_eq!(mailbox.take(), reported(1000));
    a.receive(&too_big(68));
    assert_eq!(mailbox.take(), reported(552));
    let path = a.path("0.0.0.0:7", "10.0.0.2:9");
    a.send(&path, b"x").unwrap();
    let sent = a.sent_packet();
    assert!(!ipv4::Packet::new_checked(&sent[..]).unwrap().dont_fragment());
    a.wait(Duration::from_secs(601));
    assert!(!path.is_current(&a.inet));
    assert_eq!(a.path("0.0.0.0:7", "10.0.0.2:9").mtu(), 1500);
}
