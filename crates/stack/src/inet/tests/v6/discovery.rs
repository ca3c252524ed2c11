//! Neighbour discovery: solicitations, advertisements, and duplicate address detection.

use super::*;

fn second() -> Duration {
    Duration::from_secs(1)
}

#[test]
fn each_address_is_probed_once_and_unique_a_second_later() {
    let mut a = fresh("10.0.0.1/24", "fd00::1/64", MAC_A);
    assert_eq!(a.wakes.lock().unwrap()[..], [Instant::ZERO], "the first tick is due at once");
    a.wait(Duration::ZERO);
    let sent: Vec<_> = a.sent().iter().map(|frame| discovery_of(frame)).collect();
    assert_eq!(sent.len(), 2);
    for ((src, dst, message), own) in sent.iter().zip([A6, LINK_A]) {
        assert_eq!((*src, *dst), (Ipv6Addr::UNSPECIFIED, ipv6::solicited_node(own)));
        assert_eq!(*message, format!("NeighborSolicitation {{ target: {own}, source: None }}"));
    }
    assert_eq!(a.wait(second()), None);
    assert!(a.sent().is_empty());
    assert_eq!(a.count(Count::Ip6AddrDuplicates), 0);
}

#[test]
fn a_duplicate_address_is_given_up() {
    let conflicts = [
        advertisement(ipv6::ALL_NODES, (A6, MAC_B), false, true),
        // Another host probes for the same address.
        solicitation(Ipv6Addr::UNSPECIFIED, ipv6::solicited_node(A6), A6, None),
    ];
    for conflict in conflicts {
        let mut a = fresh("10.0.0.1/24", "fd00::1/64", MAC_A);
        let path = a.path("[::]:1", "[fd00::2]:2");
        a.wait(Duration::ZERO);
        a.sent();
        a.receive(&conflict);
        assert_eq!(a.count(Count::Ip6AddrDuplicates), 1);
        assert!(!path.is_current(&a.inet));
        let other = a.path_with("[::]:1", "[fd00::2]:2", PathOptions::default());
        assert_eq!(other.unwrap().local().ip(), LINK_A, "a duplicate is no source address");
        a.sent();
        a.receive(&solicitation(B6, ipv6::solicited_node(A6), A6, Some(MAC_B)));
        assert!(a.sent().is_empty(), "no advertisement for a duplicate");
        a.receive(&to_a6(&udp6_packet("[fd00::2]:9", "[fd00::1]:7", b"")));
        let dropped = a.count(Count::Ip6InMartians) + a.count(Count::Ip6InAddrErrors);
        assert_eq!(dropped, 1, "no packets to a duplicate");
    }
}

#[test]
fn our_own_looped_back_solicitation_is_no_conflict() {
    let mut a = fresh("10.0.0.1/24", "fd00::1/64", MAC_A);
    a.wait(Duration::ZERO);
    for frame in a.sent() {
        a.receive(&frame);
    }
    assert_eq!(a.count(Count::Ip6AddrConflicts), 0);
}

#[test]
fn a_unique_address_is_defended() {
    let a = a();
    a.receive(&solicitation(Ipv6Addr::UNSPECIFIED, ipv6::solicited_node(A6), A6, None));
    let (src, dst, message) = discovery_of(&a.sent()[0]);
    assert_eq!((src, dst), (A6, ipv6::ALL_NODES));
    assert!(message.contains("solicited: false, overrides: true"), "{message}");
    a.receive(&advertisement(ipv6::ALL_NODES, (A6, MAC_B), false, true));
    assert_eq!(a.count(Count::Ip6AddrDuplicates), 0);
    let binding = a.bind("[fd00::1]:7");
    a.receive(&to_a6(&udp6_packet("[fd00::2]:9", "[fd00::1]:7", b"")));
    assert_eq!(binding.1.take().len(), 1);
}

#[test]
fn a_solicitation_gets_an_advertisement_and_an_on_link_sender_an_entry() {
    let a = a();
    a.receive(&solicitation(B6, ipv6::solicited_node(A6), A6, Some(MAC_B)));
    let frame = &a.sent()[0];
    assert_eq!(frame[..6], MAC_B.0);
    let (src, dst, message) = discovery_of(frame);
    assert_eq!((src, dst), (A6, B6));
    let expected = format!("target: {A6}, mac: Some({MAC_A:?}), router: false, solicited: true");
    assert!(message.contains(&expected) && message.contains("overrides: true"), "{message}");
    a.send(&a.path("[::]:1", "[fd00::2]:2"), b"x").unwrap();
    assert_eq!(ip6_of(&a.sent()[0])[48..], *b"x", "B needs no solicitation");
    // An off-link sender gets no entry, and there is no route to it.
    let known = || lock(&a.iface.neighbours).table.len();
    let before = known();
    let far = "2001:db8::1".parse().unwrap();
    a.receive(&solicitation(far, A6, A6, Some(MAC_B)));
    assert_eq!(lock(&a.iface.neighbours).table.known(far.into()).ok(), None);
    a.sent();
    // A solicitation for another address gets no answer and no entry.
    let (before, other) = (before.max(known()), "fd00::9".parse().unwrap());
    let sender = "fd00::8".parse().unwrap();
    a.receive(&solicitation(sender, ipv6::solicited_node(other), other, Some(MAC_B)));
    assert_eq!((a.sent().len(), known()), (0, before));
}

#[test]
fn an_unknown_neighbour_is_solicited_and_then_gets_the_queued_packets() {
    let a = a();
    let path = a.path("[::]:1", "[fd00::2]:2");
    a.send(&path, b"one").unwrap();
    a.send(&path, b"two").unwrap();
    let sent = a.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0][..6], [0x33, 0x33, 0xff, 0, 0, 2]);
    let (src, dst, message) = discovery_of(&sent[0]);
    assert_eq!((src, dst), (A6, ipv6::solicited_node(B6)));
    assert!(message.contains(&format!("source: Some({MAC_A:?})")));
    a.receive(&advertisement(A6, (B6, MAC_B), true, true));
    let sent: Vec<_> = a.sent().iter().map(|frame| ip6_of(frame)[48..].to_vec()).collect();
    assert_eq!(sent, [b"one", b"two"]);
    assert!(!path.is_current(&a.inet));
    let path = a.path("[::]:1", "[fd00::2]:2");
    assert!(path.is_current(&a.inet));
    a.send(&path, b"three").unwrap();
    assert_eq!(a.sent()[0][..12], [MAC_B.0, MAC_A.0].concat());
}

#[test]
fn after_three_solicitations_a_second_apart_the_socket_gets_an_error() {
    let mut a = a();
    let (binding, mailbox) = a.bind("[fd00::1]:1");
    binding.connect("[fd00::2]:2".parse().unwrap()).unwrap();
    a.send(&a.path("[fd00::1]:1", "[fd00::2]:2"), b"lost").unwrap();
    let mut solicitations = a.sent().len();
    for _ in 0..3 {
        a.wait(second());
        solicitations += a.sent().len();
    }
    assert_eq!(solicitations, 3);
    let error = SocketError { errno: libc::EHOSTUNREACH, hard: false, mtu: None };
    assert_eq!(mailbox.take(), [Got::Error(error, "[fd00::2]:2".parse().unwrap())]);
}

/// RFC 4861 section 7.2.5.
#[test]
fn an_advertisement_without_the_override_flag_does_not_change_the_address() {
    const MAC_C: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xc]);
    // An unsolicited advertisement creates no entry.
    let host = a();
    host.receive(&advertisement(ipv6::ALL_NODES, (B6, MAC_B), false, true));
    assert_eq!(lock(&host.iface.neighbours).table.len(), 0);
    for (solicited, overrides, accepted) in
        [(false, false, false), (true, false, false), (false, true, true), (true, true, true)]
    {
        let a = a();
        meet(&a);
        let dst = if solicited { A6 } else { ipv6::ALL_NODES };
        a.receive(&advertisement(dst, (B6, MAC_C), solicited, overrides));
        let expected = if accepted { MAC_C } else { MAC_B };
        a.send(&a.path("[::]:1", "[fd00::2]:2"), b"x").unwrap();
        let frame = &a.sent()[0];
        assert_eq!(frame[..6], expected.0, "solicited {solicited}, override {overrides}");
    }
}

#[test]
fn messages_with_a_hop_limit_below_255_are_dropped() {
    let a = a();
    let frames =
        [solicitation(B6, A6, A6, Some(MAC_B)), advertisement(A6, (B6, MAC_B), true, true)];
    for mut frame in frames {
        frame[14 + 7] = 254;
        a.receive(&frame);
    }
    assert_eq!(a.count(Count::Icmp6InErrors), 2);
    assert!(a.sent().is_empty() && lock(&a.iface.neighbours).table.len() == 0);
}
