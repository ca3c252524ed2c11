//! ARP: which requests get a reply, which senders get an entry, and how long entries are valid.

use super::*;

const TARGET_B: (MacAddr, Ipv4Addr) = (MacAddr::UNSPECIFIED, B);

fn second() -> Duration {
    Duration::from_secs(1)
}

fn reply(from: (MacAddr, Ipv4Addr)) -> Vec<u8> {
    arp_frame(arp::Operation::REPLY, from, (MAC_A, A))
}

fn request_for_b() -> Vec<u8> {
    arp_frame(arp::Operation::REQUEST, (MAC_A, A), TARGET_B)
}

/// The same request by unicast to B.
fn probe_b() -> Vec<u8> {
    let mut frame = request_for_b();
    frame[..6].copy_from_slice(&MAC_B.0);
    frame
}

#[test]
fn an_unknown_neighbour_is_solicited_and_then_gets_the_queued_packets() {
    let a = Station::a();
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    a.send(&path, b"one").unwrap();
    a.send(&path, b"two").unwrap();
    assert_eq!(a.sent(), [request_for_b()]);
    assert!(path.is_current(&a.inet));
    a.receive(&reply((MAC_B, B)));
    let sent: Vec<_> = a.sent().iter().map(|frame| ip_of(frame)).collect();
    let expected = [b"one", b"two"].map(|data| udp_packet("10.0.0.1:1", "10.0.0.2:2", data));
    assert_eq!(sent, expected);
    assert!(!path.is_current(&a.inet));
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    a.send(&path, b"three").unwrap();
    let frame = &a.sent()[0];
    assert_eq!(frame[..12], [MAC_B.0, MAC_A.0].concat());
    assert!(path.is_current(&a.inet));
}

#[test]
fn after_three_requests_a_second_apart_the_socket_gets_an_error() {
    let mut a = Station::a();
    let (binding, mailbox) = a.bind("10.0.0.1:1");
    binding.connect("10.0.0.2:2".parse().unwrap()).unwrap();
    let path = a.path("10.0.0.1:1", "10.0.0.2:2");
    a.send(&path, b"lost").unwrap();
    assert_eq!(a.sent(), [request_for_b()]);
    assert_eq!(a.wakes.lock().unwrap()[..], [a.now + second()]);
    a.wait(second() / 2);
    assert!(a.sent().is_empty());
    a.wait(second() / 2);
    a.wait(second());
    assert_eq!(a.sent(), [request_for_b(), request_for_b()]);
    assert!(mailbox.take().is_empty());
    assert_eq!(a.wait(second()), None);
    let error = SocketError { errno: libc::EHOSTUNREACH, hard: false, mtu: None };
    assert_eq!(mailbox.take(), [Got::Error(error, "10.0.0.2:2".parse().unwrap())]);
    assert_eq!((a.count(Count::NeighFailed), a.count(Count::NeighDropped)), (1, 1));
    // The next use solicits it again.
    a.path("10.0.0.1:1", "10.0.0.2:2");
    assert_eq!(a.sent(), [request_for_b()]);
}

#[test]
fn a_full_queue_drops_its_oldest_packets() {
    let a = Station::a();
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    for n in 0..20 {
        a.send(&path, &[n]).unwrap();
    }
    a.receive(&reply((MAC_B, B)));
    let sent = a.sent();
    assert_eq!(sent.len(), 1 + QUEUED_PER_NEIGHBOUR);
    assert_eq!(ip_of(&sent[1])[28], 4);
    assert_eq!(a.count(Count::NeighDropped), 4);
}

#[test]
fn a_used_stale_neighbour_is_probed_and_fails_if_it_is_silent() {
    let mut a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    a.wait(4 * second());
    assert!(a.sent().is_empty(), "in use and stale: the first probe follows after five seconds");
    a.wait(second());
    assert_eq!(a.sent(), [probe_b()]);
    a.receive(&reply((MAC_B, B)));
    // It has answered: no probe while it is reachable, at most 45 s. Then the path is looked up again.
    a.wait(second());
    assert!(a.sent().is_empty() && path.is_current(&a.inet));
    a.wait(45 * second());
    assert!(a.sent().is_empty() && !path.is_current(&a.inet));
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    for _ in 0..5 + 3 {
        a.wait(second());
    }
    assert_eq!(a.sent(), [probe_b(), probe_b(), probe_b()]);
    assert!(!path.is_current(&a.inet));
    assert_eq!(a.count(Count::NeighFailed), 1);
}

#[test]
fn an_upper_layers_confirmation_replaces_the_probe() {
    let mut a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    a.inet.confirm(&path, a.now);
    a.wait(10 * second());
    assert!(a.sent().is_empty() && path.is_current(&a.inet));
}

#[test]
fn a_request_for_our_address_gets_a_reply_and_its_sender_an_entry() {
    let a = Station::a();
    a.receive(&arp_frame(arp::Operation::REQUEST, (MAC_B, B), (MacAddr::UNSPECIFIED, A)));
    assert_eq!(a.sent(), [arp_frame(arp::Operation::REPLY, (MAC_A, A), (MAC_B, B))]);
    a.send(&a.path("0.0.0.0:1", "10.0.0.2:2"), b"at once").unwrap();
    assert_eq!(a.sent_packet()[28..], *b"at once");
}

#[test]
fn a_probe_gets_a_reply_and_its_sender_no_entry() {
    let a = Station::a();
    let unspecified = (MAC_B, Ipv4Addr::UNSPECIFIED);
    a.receive(&arp_frame(arp::Operation::REQUEST, unspecified, (MacAddr::UNSPECIFIED, A)));
    assert_eq!(a.sent(), [arp_frame(arp::Operation::REPLY, (MAC_A, A), unspecified)]);
    assert_eq!(lock(&a.iface.neighbours).table.len(), 0);
}

#[test]
fn packets_not_about_our_address_create_no_entry() {
    let a = Station::a();
    let c = (MAC_B, Ipv4Addr::new(10, 0, 0, 3));
    a.receive(&arp_frame(arp::Operation::REQUEST, (MAC_B, B), c));
    a.receive(&arp_frame(arp::Operation::REPLY, (MAC_B, B), (MacAddr::BROADCAST, B)));
    a.receive(&reply((MAC_B, B)));
    assert!(a.sent().is_empty());
    assert_eq!(lock(&a.iface.neighbours).table.len(), 0);
}

#[test]
fn an_announcement_changes_a_known_neighbour_once_per_second() {
    let mut a = Station::a();
    a.learn_neighbour(B, MAC_B);
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    let moved = MacAddr([2, 0, 0, 0, 0, 0xc]);
    let announcement = arp_frame(arp::Operation::REQUEST, (moved, B), (MacAddr::UNSPECIFIED, B));
    a.receive(&announcement);
    assert!(path.is_current(&a.inet), "within a second the first answer wins");
    a.wait(second());
    a.receive(&announcement);
    assert!(!path.is_current(&a.inet));
    a.send(&a.path("0.0.0.0:1", "10.0.0.2:2"), b"").unwrap();
    assert_eq!(a.sent()[0][..6], moved.0);
}

#[test]
fn malformed_arp_is_counted() {
    let a = Station::a();
    let good = arp_frame(arp::Operation::REQUEST, (MAC_B, B), (MacAddr::UNSPECIFIED, A));
    let group = arp_frame(arp::Operation::REQUEST, (MacAddr::BROADCAST, B), (MAC_A, A));
    for bad in [
        &good[..41],
        &group[..],
        &{
            let mut f = good.clone();
            f[21] = 9;
            f
        }[..],
    ] {
        a.receive(bad);
    }
    assert_eq!(a.count(Count::ArpInErrors), 3);
    a.receive(&arp_frame(arp::Operation::REQUEST, (MAC_B, A), (MacAddr::UNSPECIFIED, A)));
    assert_eq!(a.count(Count::ArpInConflicts), 1);
    assert!(a.sent().is_empty());
}

#[test]
fn the_table_is_bounded_and_keeps_neighbours_in_use() {
    let mut a = Station::new("10.0.0.1/8", MAC_A);
    a.learn_neighbour(B, MAC_B);
    let mut path = a.path("0.0.0.0:1", "10.0.0.2:2");
    for n in 0..3000u32 {
        a.wait(Duration::from_micros(10));
        a.learn_neighbour(Ipv4Addr::from_bits(0x0a01_0000 + n), MAC_B);
        if !path.is_current(&a.inet) {
            panic!("evicted after {n}");
        }
        path = a.path("0.0.0.0:1", "10.0.0.2:2");
    }
    assert_eq!(lock(&a.iface.neighbours).table.len(), NEIGHBOURS);
}
