//! Sending over IPv6: routes, source addresses, link-local addresses, packets to this host, and the headers.

use super::*;

fn refused(a: &Station, local: &str, remote: &str) -> SendError {
    a.path_with(local, remote, PathOptions::default()).unwrap_err()
}

#[test]
fn a_datagram_is_correct_at_every_length() {
    let a = a();
    meet(&a);
    let path = a.path("[::]:1", "[fd00::2]:2");
    let bytes: Vec<u8> = (0..1452).map(|n| (n * 31) as u8).collect();
    for len in (0..70).chain([512, 1451, 1452]) {
        a.send(&path, &bytes[..len]).unwrap();
        let mut packet = sent6(&a);
        ipv6::Packet::new_checked(&mut packet[..]).unwrap().set_flow_label(0);
        assert_eq!(packet, udp6_packet("[fd00::1]:1", "[fd00::2]:2", &bytes[..len]));
    }
    assert_eq!(a.count(Count::UdpOutDatagrams), 73);
}

#[test]
fn a_link_with_checksum_offload_gets_a_partial_checksum() {
    let own = Addressing::Own(vec!["fd00::1/64".parse().unwrap()]);
    let a = Station::with(Info { tx_checksum: true, ..info(MAC_A) }, own);
    meet(&a);
    a.send(&a.path("[::]:1", "[fd00::2]:2"), b"hello").unwrap();
    // The tape completes a partial checksum: the result is right only if the field held the pseudo-header's sum.
    let sent = sent6(&a);
    assert_eq!(sent[40..], udp6_packet("[fd00::1]:1", "[fd00::2]:2", b"hello")[40..]);
}

#[test]
fn socket_options_and_ecn_are_in_the_header() {
    let a = a();
    meet(&a);
    let options = PathOptions { ttl: 3, tos: 0xb9, ..PathOptions::default() };
    let path = a.path_with("[::]:1", "[fd00::2]:2", options).unwrap();
    a.send(&path, b"x").unwrap();
    let sent = sent6(&a);
    let ip = ipv6::Packet::new_checked(&sent[..]).unwrap();
    assert_eq!((ip.hop_limit(), ip.traffic_class()), (3, 0xb9));
    // TCP sets the ECN field of its segments.
    let ends = ("[::]:1".parse().unwrap(), "[fd00::2]:2".parse().unwrap());
    let path = a.inet.path_of(Protocol::TCP, ends, 0, options, a.now).unwrap();
    let header = [0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 4, 0, 0, 0, 0, 0, 0];
    let mut batch = a.inet.segment_batch(&path, a.now);
    let write = |room: template::TransportBuf<'_>| {
        let checksum = room.checksum(|| Sum::of(&header));
        room.bytes.copy_from_slice(&header);
        room.bytes[16..18].copy_from_slice(&checksum.to_be_bytes());
    };
    batch.push(20, 2, write).unwrap();
    assert_eq!(batch.push(1461, 0, |_| unreachable!()), Err(SendError::TooBig));
    drop(batch);
    let sent = sent6(&a);
    let ip = ipv6::Packet::new_checked(&sent[..]).unwrap();
    assert_eq!((ip.traffic_class(), ip.next_header()), (0xba, Protocol::TCP));
    let pseudo = ip.address_sum().plus_word(6).plus_word(20);
    assert!(pseudo.plus(Sum::of(ip.payload())).is_intact());
}

#[test]
fn each_flow_has_one_flow_label() {
    let a = a();
    meet(&a);
    let label = |remote: &str| {
        a.send(&a.path("[fd00::1]:1", remote), b"").unwrap();
        ipv6::Packet::new_checked(&sent6(&a)[..]).unwrap().flow_label()
    };
    assert_eq!(label("[fd00::2]:2"), label("[fd00::2]:2"));
    assert_ne!(label("[fd00::2]:2"), label("[fd00::2]:3"));
}

#[test]
fn routes_and_source_addresses_are_separate_for_each_family() {
    let a = a();
    assert_eq!(refused(&a, "[::]:1", "[2001:db8::1]:2"), SendError::NoRoute);
    let everywhere: Cidr = "::/0".parse().unwrap();
    a.inet.add_route(&a.iface, everywhere, Some("fd00::fe".parse().unwrap())).unwrap();
    let path = a.path("[::]:1", "[2001:db8::1]:2");
    assert_eq!(path.local(), "[fd00::1]:1".parse().unwrap());
    assert!(discovery_of(&a.sent()[0]).2.contains("target: fd00::fe"));
    assert_eq!(refused(&a, "0.0.0.0:1", "192.0.2.1:2"), SendError::NoRoute);
    let lost = a.inet.add_route(&a.iface, everywhere, Some("fd01::1".parse().unwrap()));
    assert!(lost.unwrap_err().to_string().contains("gateway fd01::1"));
    // The families do not mix, except for IPv4-mapped addresses.
    assert_eq!(refused(&a, "0.0.0.0:1", "[fd00::2]:2"), SendError::Family);
    assert_eq!(refused(&a, "[fd00::1]:1", "10.0.0.2:2"), SendError::Family);
    let mapped = a.path("[::]:1", "[::ffff:10.0.0.2]:2");
    assert_eq!(mapped.local(), "10.0.0.1:1".parse().unwrap());
}

#[test]
fn link_local_addresses_and_groups_use_the_interface_of_their_scope_id() {
    let a = a();
    let other = Addressing::Own(vec!["fd01::1/64".parse().unwrap()]);
    let tape = Tape { frames: Arc::default(), room: 10 };
    let second = a.inet.add_interface(info(MAC_B), vec![Box::new(tape)], other);
    assert_eq!((a.iface.scope_id(), second.scope_id()), (1, 2));
    let over = |remote: &str| {
        let path = a.path("[::]:1", remote);
        (path.interface().unwrap().scope_id(), path.local().ip())
    };
    assert_eq!(over("[fe80::2%1]:2"), (1, LINK_A.into()));
    assert_eq!(over("[fe80::2%2]:2").0, 2);
    assert_eq!(over("[fe80::2]:2").0, 1, "the first interface without a scope id");
    assert_eq!(over("[ff02::fb%2]:2").0, 2);
    assert_eq!(refused(&a, "[::]:1", "[fe80::2%9]:2"), SendError::NoRoute);
    let path = a.path("[::]:1", "[ff02::fb]:2");
    a.sent();
    a.send(&path, b"group").unwrap();
    assert_eq!(a.sent()[0][..6], [0x33, 0x33, 0, 0, 0, 0xfb]);
}

#[test]
fn datagrams_to_this_host_never_leave_it() {
    let a = a();
    let (_server, mailbox) = a.bind("[::]:7");
    let cases = [
        ("[fd00::1]:7", "[fd00::1]:1", "[fd00::1]:7"),
        ("[::1]:7", "[::1]:1", "[::1]:7"),
        ("[::]:7", "[::1]:1", "[::1]:7"),
        ("[::ffff:10.0.0.1]:7", "[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.1]:7"),
    ];
    for (remote, from, to) in cases {
        a.send(&a.path("[::]:1", remote), b"me").unwrap();
        assert_eq!(mailbox.take(), [data(from, to, b"me")]);
    }
    // Port unreachable errors are delivered locally, too.
    let (client, errors) = a.bind("[fd00::1]:1");
    client.connect("[fd00::1]:9".parse().unwrap()).unwrap();
    a.send(&a.path("[fd00::1]:1", "[fd00::1]:9"), b"unbound").unwrap();
    let refused = SocketError { errno: libc::ECONNREFUSED, hard: true, mtu: None };
    assert_eq!(errors.take(), [Got::Error(refused, "[fd00::1]:9".parse().unwrap())]);
    assert!(a.sent().is_empty());
}

#[test]
fn port_0_and_hosts_without_ipv6_refuse_the_send() {
    let a = a();
    assert_eq!(refused(&a, "[::]:1", "[fd00::2]:0"), SendError::InvalidPort);
    let v4 = Station::a();
    for remote in ["[ff02::1]:2", "[fe80::1]:2", "[fd00::2]:2"] {
        assert_eq!(refused(&v4, "[::]:1", remote), SendError::NoRoute, "{remote}");
    }
}
