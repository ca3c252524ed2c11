//! Sending: routes, broadcast, datagrams to this host, batches, and what is refused.

use super::*;
use std::io::IoSlice;

fn refused(a: &Station, remote: &str) -> SendError {
    a.path_with("0.0.0.0:1", remote, PathOptions::default()).unwrap_err()
}

#[test]
fn a_datagram_is_correct_at_every_length() {
    let a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    let bytes: Vec<u8> = (0..1472).map(|n| (n * 31) as u8).collect();
    for len in (0..70).chain([512, 1471, 1472]) {
        a.send(&path, &bytes[..len]).unwrap();
        let frame = a.sent().remove(0);
        assert_eq!(frame.len(), 42 + len);
        assert_eq!(ip_of(&frame), udp_packet("10.0.0.1:1", "10.0.0.2:2", &bytes[..len]));
        let pieces = [&bytes[..len / 3], &[], &bytes[len / 3..len]].map(IoSlice::new);
        a.inet.udp_send(&path, &pieces[..], &mut a.pass()).unwrap();
        assert_eq!(a.sent(), [frame]);
    }
    assert_eq!(a.count(Count::UdpOutDatagrams), 146);
}

#[test]
fn a_checksum_of_zero_is_sent_as_all_ones() {
    let a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    a.send(&path, &[0, 0]).unwrap();
    // Data equal to the checksum of the rest makes the sum all ones.
    let rest = a.sent_packet()[26..28].to_vec();
    a.send(&path, &rest).unwrap();
    assert_eq!(a.sent_packet()[26..28], [0xff, 0xff]);
}

#[test]
fn a_link_with_checksum_offload_gets_a_partial_checksum() {
    let own = Addressing::Own(vec!["10.0.0.1/24".parse().unwrap()]);
    let a = Station::with(Info { tx_checksum: true, ..info(MAC_A) }, own);
    a.learn_neighbour(B, MAC_B);
    a.send(&a.path("0.0.0.0:1", "10.0.0.2:2"), b"hello").unwrap();
    // The tape completes a partial checksum: the result is right only if the field held the pseudo-header's sum.
    assert_eq!(a.sent_packet(), udp_packet("10.0.0.1:1", "10.0.0.2:2", b"hello"));
}

#[test]
fn socket_options_are_in_the_header() {
    let a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let options = PathOptions { ttl: 3, tos: 0xb9, ..PathOptions::default() };
    a.send(&a.path_with("0.0.0.0:1", "10.0.0.2:2", options).unwrap(), b"x").unwrap();
    let sent = a.sent_packet();
    let ip = ipv4::Packet::new_checked(&sent[..]).unwrap();
    assert_eq!((ip.ttl(), ip.dscp() << 2 | ip.ecn()), (3, 0xb9));
}

#[test]
fn a_batch_is_sent_in_order_up_to_the_first_failure() {
    let a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    let big = vec![7; 3000];
    let batch: [&[u8]; 4] = [b"one", b"two", &big, b"three"];
    assert_eq!(a.inet.udp_send_many(&path, batch, &mut a.pass()), Ok(4));
    let sent = a.sent();
    assert_eq!(sent.len(), 2 + 3 + 1);
    assert_eq!(ip_of(&sent[5])[28..], *b"three");
    let too_big = vec![7; MAX_PAYLOAD + 1];
    let batch: [&[u8]; 3] = [b"one", &too_big, b"two"];
    assert_eq!(a.inet.udp_send_many(&path, batch, &mut a.pass()), Ok(1));
    let batch: [&[u8]; 1] = [&too_big];
    let result = a.inet.udp_send_many(&path, batch, &mut a.pass());
    assert_eq!(result, Err(SendError::TooBig));
    assert_eq!(a.count(Count::UdpOutDatagrams), 5);
}

#[test]
fn a_full_ring_fails_the_send() {
    let a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    let many = vec![&b"x"[..]; 1500];
    assert_eq!(a.inet.udp_send_many(&path, many, &mut a.pass()), Ok(1000));
    assert_eq!(a.send(&path, b"x"), Err(SendError::RingFull));
    assert_eq!(a.count(Count::UdpOutDatagrams), 1000);
}

#[test]
fn the_route_with_the_longest_prefix_wins() {
    let a = Station::a();
    let via = |to: &str, gateway: [u8; 4]| {
        a.inet.add_route(&a.iface, to.parse().unwrap(), Some(gateway.into())).unwrap();
    };
    assert_eq!(refused(&a, "192.0.2.1:2"), SendError::NoRoute);
    via("0.0.0.0/0", [10, 0, 0, 254]);
    via("192.0.2.0/24", [10, 0, 0, 253]);
    let next_hop = |remote: &str| {
        a.path("0.0.0.0:1", remote);
        let frame = a.sent().remove(0);
        arp::Packet::new_checked(&frame[14..]).unwrap().target_ip().octets()[3]
    };
    assert_eq!(next_hop("198.51.100.1:2"), 254);
    assert_eq!(next_hop("192.0.2.1:2"), 253);
    assert_eq!(next_hop("10.0.0.9:2"), 9);
    let lost = a.inet.add_route(&a.iface, Ipv4Cidr::DEFAULT.into(), Some([10, 9, 0, 1].into()));
    assert!(lost.unwrap_err().to_string().contains("gateway 10.9.0.1"));
}

#[test]
fn a_new_route_outdates_paths() {
    let a = Station::a();
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    a.inet.add_route(&a.iface, Ipv4Cidr::DEFAULT.into(), Some(B.into())).unwrap();
    assert!(!path.is_current(&a.inet));
}

#[test]
fn broadcast_needs_so_broadcast() {
    let a = Station::a();
    let allowed = PathOptions { broadcast: true, ..PathOptions::default() };
    for broadcast in ["255.255.255.255:2", "10.0.0.255:2"] {
        assert_eq!(refused(&a, broadcast), SendError::Broadcast);
        let path = a.path_with("0.0.0.0:1", broadcast, allowed).unwrap();
        a.send(&path, b"all").unwrap();
        assert_eq!(a.sent()[0][..6], [0xff; 6]);
    }
    a.send(&a.path("0.0.0.0:1", "224.0.0.251:2"), b"group").unwrap();
    assert_eq!(a.sent()[0][..6], [0x01, 0x00, 0x5e, 0, 0, 0xfb]);
}

#[test]
fn datagrams_to_this_host_never_leave_it() {
    let a = Station::a();
    let (_server, mailbox) = a.bind("0.0.0.0:7");
    for (remote, source) in
        [("10.0.0.1:7", "10.0.0.1:1"), ("127.0.0.1:7", "127.0.0.1:1"), ("0.0.0.0:7", "127.0.0.1:1")]
    {
        let path = a.path("0.0.0.0:1", remote);
        a.send(&path, b"me").unwrap();
        let to = if remote == "0.0.0.0:7" { "127.0.0.1:7" } else { remote };
        assert_eq!(mailbox.take(), [data(source, to, b"me")]);
    }
    // Port unreachable errors are delivered locally, too.
    let (client, errors) = a.bind("10.0.0.1:1");
    client.connect("10.0.0.1:9".parse().unwrap()).unwrap();
    a.send(&a.path("10.0.0.1:1", "10.0.0.1:9"), b"unbound").unwrap();
    let refused = SocketError { errno: libc::ECONNREFUSED, hard: true, mtu: None };
    assert_eq!(errors.take(), [Got::Error(refused, "10.0.0.1:9".parse().unwrap())]);
    assert!(a.sent().is_empty());
}

#[test]
fn port_0_the_other_family_and_unrouted_addresses_are_refused() {
    let a = Station::a();
    assert_eq!(refused(&a, "10.0.0.2:0"), SendError::InvalidPort);
    assert_eq!(refused(&a, "[::1]:2"), SendError::Family);
    let error = std::io::Error::from(refused(&a, "192.0.2.1:1"));
    assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH));
}

#[test]
fn dropped_frames_and_packets_are_counted_by_cause() {
    let a = Station::a();
    let (_binding, mailbox) = a.bind("0.0.0.0:7");
    let good = udp_packet("10.0.0.2:9", "10.0.0.1:7", b"x");
    let tagged = |tci: u16| {
        let tag = [&[0x81, 0x00][..], &tci.to_be_bytes()].concat();
        let frame = to_a(&good);
        [&frame[..12], &tag, &frame[12..]].concat()
    };
    let with = |change: fn(&mut ipv4::Packet<&mut [u8]>)| {
        let mut bytes = good.clone();
        change(&mut ipv4::Packet::new_checked(&mut bytes[..]).unwrap());
        to_a(&bytes)
    };
    let mut bad_sum = good.clone();
    bad_sum[10] ^= 1;
    let cases: [(Vec<u8>, Count); 11] = [
        (to_a(&good)[..13].to_vec(), Count::LinkInTruncated),
        (frame_of(MAC_B, MAC_B, EtherType::IPV4, &good), Count::LinkInOtherHost),
        (tagged(5), Count::LinkInVlan),
        (frame_of(MAC_A, MAC_B, EtherType::IPV6, &good), Count::LinkInUnknownProtos),
        (to_a(&good[..19]), Count::IpExtInTruncatedPkts),
        (to_a(&bad_sum), Count::IpInCsumErrors),
        (with(|ip| ip.set_dst([10, 0, 0, 3].into())), Count::IpInAddrErrors),
        (with(|ip| ip.set_dst([224, 0, 0, 1].into())), Count::IpInAddrErrors),
        (with(|ip| ip.set_src([127, 0, 0, 1].into())), Count::IpInMartians),
        (with(|ip| ip.set_src([10, 0, 0, 1].into())), Count::IpInMartians),
        (with(|ip| ip.set_src([10, 0, 0, 255].into())), Count::IpInMartians),
    ];
    for (frame, count) in cases {
        let before = a.count(count);
        a.receive(&frame);
        assert_eq!(a.count(count), before + 1, "{count:?}");
    }
    assert!(mailbox.take().is_empty());
    // A priority tag is not a VLAN, and padding is not data.
    a.receive(&[&tagged(0xe000)[..], &[0; 20]].concat());
    assert_eq!(mailbox.take(), [data("10.0.0.2:9", "10.0.0.1:7", b"x")]);
    assert!(a.inet.counters().contains(&("IpInCsumErrors", 1)));
}

#[test]
fn source_routes_are_dropped_and_other_options_skipped() {
    let a = Station::a();
    let (_binding, mailbox) = a.bind("0.0.0.0:7");
    let with_options = |options: [u8; 4]| {
        let good = udp_packet("10.0.0.2:9", "10.0.0.1:7", b"x");
        let mut bytes = [&good[..20], &options, &good[20..]].concat();
        bytes[0] = 0x46;
        bytes[3] += 4;
        ipv4::Packet::new_checked(&mut bytes[..]).unwrap().fill_checksum();
        to_a(&bytes)
    };
    // No operation, an unknown option, the end of the list and bytes after it.
    for fine in [[1, 1, 1, 0], [1, 0x44, 3, 0], [0, 131, 9, 9]] {
        a.receive(&with_options(fine));
        assert_eq!(mailbox.take().len(), 1, "{fine:?}");
    }
    for bad in [[131, 3, 4, 0], [1, 137, 3, 4], [7, 0, 0, 0], [7, 5, 0, 0], [1, 1, 1, 7]] {
        a.receive(&with_options(bad));
    }
    assert!(mailbox.take().is_empty());
    assert_eq!((a.count(Count::IpInSourceRoutes), a.count(Count::IpInHdrErrors)), (2, 3));
}
