//! An interface shared with the kernel: inet uses the kernel's tables and leaves the rest to the kernel.

use super::*;
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
};

/// Simulated tables of a kernel.
#[derive(Default)]
struct Tables {
    generation: AtomicU64,
    neighbours: Mutex<BTreeMap<IpAddr, MacAddr>>,
    resolved: Mutex<Vec<IpAddr>>,
    confirmed: Mutex<Vec<IpAddr>>,
    /// All neighbours are stale.
    stale: AtomicBool,
    /// The generation changes during each route lookup.
    changing: AtomicBool,
    /// The source address of each route lookup.
    sources: Mutex<Vec<Option<IpAddr>>>,
}

impl Tables {
    fn learn(&self, address: Ipv4Addr, mac: MacAddr) {
        self.neighbours.lock().unwrap().insert(address.into(), mac);
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn forget(&self, address: Ipv4Addr) {
        self.neighbours.lock().unwrap().remove(&IpAddr::from(address));
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn take_resolved(&self) -> Vec<IpAddr> {
        std::mem::take(&mut self.resolved.lock().unwrap())
    }
}

impl KernelTables for Tables {
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn has_address(&self, is: &mut dyn FnMut(IpAddr, u8) -> bool) -> bool {
        is(A.into(), 24)
    }

    fn route(&self, destination: IpAddr, source: Option<IpAddr>) -> Option<Hop> {
        self.sources.lock().unwrap().push(source);
        if self.changing.load(Ordering::Relaxed) {
            self.generation.fetch_add(1, Ordering::Release);
        }
        let IpAddr::V4(v4) = destination else { return None };
        let source = source.unwrap_or(A.into());
        match v4.octets() {
            [10, 0, 0, _] => Some(Hop { next_hop: destination, source, mtu: None }),
            [192, 0, 2, _] => Some(Hop { next_hop: B.into(), source, mtu: Some(1400) }),
            _ => None,
        }
    }

    fn neighbour(&self, address: IpAddr) -> Option<MacAddr> {
        self.neighbours.lock().unwrap().get(&address).copied()
    }

    fn is_stale(&self, _address: IpAddr) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    fn resolve(&self, address: IpAddr) {
        self.resolved.lock().unwrap().push(address);
    }

    fn confirm(&self, address: IpAddr) {
        self.confirmed.lock().unwrap().push(address);
    }
}

fn shared() -> (Station, Arc<Tables>) {
    let tables = Arc::new(Tables::default());
    (Station::with(info(MAC_A), Addressing::Kernel(tables.clone())), tables)
}

#[test]
fn queued_packets_are_sent_when_the_kernel_resolves_the_neighbour() {
    let (a, tables) = shared();
    let path = a.path("0.0.0.0:1", "192.0.2.1:2");
    assert_eq!((path.local(), path.mtu()), ("10.0.0.1:1".parse().unwrap(), 1400));
    a.send(&path, b"one").unwrap();
    assert_eq!(
        tables.take_resolved(),
        [IpAddr::from(B)],
        "one system call, not one for each datagram"
    );
    assert!(a.sent().is_empty() && path.is_current(&a.inet));
    a.inet.neighbours_changed(&a.iface, &mut a.pass());
    assert!(a.sent().is_empty());
    tables.learn(B, MAC_B);
    a.inet.neighbours_changed(&a.iface, &mut a.pass());
    assert_eq!(a.sent_packet()[28..], *b"one");
    assert!(!path.is_current(&a.inet));
    let path = a.path("0.0.0.0:1", "192.0.2.1:2");
    a.send(&path, b"two").unwrap();
    assert_eq!(a.sent()[0][..6], MAC_B.0);
    a.inet.confirm(&path, a.now);
    assert_eq!(*tables.confirmed.lock().unwrap(), [IpAddr::from(B)]);
}

#[test]
fn a_neighbour_in_use_is_marked_as_used_in_the_kernel() {
    let (mut a, tables) = shared();
    tables.learn(B, MAC_B);
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    tables.take_resolved();
    a.send(&path, b"x").unwrap();
    assert!(tables.take_resolved().is_empty());
    a.wait(Duration::from_secs(10));
    a.send(&path, b"x").unwrap();
    a.send(&path, b"x").unwrap();
    assert_eq!(tables.take_resolved(), [IpAddr::from(B)]);
}

/// RFC 4861 section 7.3.3: "The first time a node sends a packet to a neighbor whose entry is STALE, the sender changes
/// the state to DELAY".
#[test]
fn a_stale_neighbour_is_verified_at_once_even_if_it_was_just_marked_as_used() {
    let (mut a, tables) = shared();
    tables.learn(B, MAC_B);
    let send = |a: &Station| {
        let path = a.path("0.0.0.0:1", "10.0.0.2:2");
        a.send(&path, b"x").unwrap();
    };
    send(&a);
    tables.take_resolved();
    a.wait(Duration::from_millis(200));
    send(&a);
    assert!(tables.take_resolved().is_empty());
    tables.stale.store(true, Ordering::Relaxed);
    send(&a);
    send(&a);
    assert_eq!(tables.take_resolved(), [IpAddr::from(B)]);
    tables.stale.store(false, Ordering::Relaxed);
    a.wait(Duration::from_secs(9));
    send(&a);
    assert!(tables.take_resolved().is_empty());
}

#[test]
fn a_neighbour_the_kernel_cannot_resolve_is_unreachable() {
    let (mut a, _tables) = shared();
    let (binding, mailbox) = a.bind("10.0.0.1:1");
    binding.connect("10.0.0.2:2".parse().unwrap()).unwrap();
    a.send(&a.path("10.0.0.1:1", "10.0.0.2:2"), b"lost").unwrap();
    a.wait(Duration::from_millis(2999));
    assert_eq!(mailbox.take(), []);
    a.wait(Duration::from_millis(1));
    let error = SocketError { errno: libc::EHOSTUNREACH, hard: false, mtu: None };
    assert_eq!(mailbox.take(), [Got::Error(error, "10.0.0.2:2".parse().unwrap())]);
}

/// `ip neigh flush` also ends the resolution: it deletes entries until it finds none.
#[test]
fn a_neighbour_deleted_while_packets_are_queued_is_resolved_again() {
    let (mut a, tables) = shared();
    tables.learn(B, MAC_B);
    let path = |a: &Station| a.path("0.0.0.0:1", "10.0.0.2:2");
    a.send(&path(&a), b"known").unwrap();
    assert_eq!(tables.take_resolved(), [IpAddr::from(B)], "marked as used");
    tables.forget(B);
    a.send(&path(&a), b"waits").unwrap();
    assert_eq!(
        tables.take_resolved(),
        [IpAddr::from(B)],
        "at once, even if it was just marked as used"
    );
    let due = a.now + Duration::from_millis(200);
    assert_eq!(a.wakes.lock().unwrap().last(), Some(&due));
    a.wait(Duration::from_millis(200));
    assert_eq!(tables.take_resolved(), [IpAddr::from(B)]);
    a.wait(Duration::from_millis(199));
    assert!(tables.take_resolved().is_empty());
    tables.learn(B, MAC_B);
    a.inet.neighbours_changed(&a.iface, &mut a.pass());
    a.wait(Duration::from_millis(1));
    assert!(tables.take_resolved().is_empty(), "no packet is queued");
}

#[test]
fn a_path_is_outdated_if_the_route_changes_during_its_lookup() {
    let (a, tables) = shared();
    tables.learn(B, MAC_B);
    tables.changing.store(true, Ordering::Relaxed);
    assert!(!a.path("0.0.0.0:1", "192.0.2.1:2").is_current(&a.inet));
    tables.changing.store(false, Ordering::Relaxed);
    assert!(a.path("0.0.0.0:1", "192.0.2.1:2").is_current(&a.inet));
}

#[test]
fn the_kernels_route_is_looked_up_from_the_specified_source() {
    let (a, tables) = shared();
    let second = "10.0.0.3:1";
    assert_eq!(a.path(second, "192.0.2.1:2").local(), second.parse().unwrap());
    a.path("0.0.0.0:1", "192.0.2.1:2");
    a.path("224.0.0.251:1", "192.0.2.1:2");
    let named = Some("10.0.0.3".parse().unwrap());
    assert_eq!(*tables.sources.lock().unwrap(), [named, None, None]);
}

#[test]
fn local_broadcast_and_multicast_datagrams_go_to_the_kernel() {
    let (a, tables) = shared();
    tables.learn(B, MAC_B);
    let allowed = PathOptions { broadcast: true, ..PathOptions::default() };
    for remote in [
        "10.0.0.1:2",
        "127.0.0.1:2",
        "0.0.0.0:2",
        "198.51.100.1:2",
        "10.0.0.255:2",
        "255.255.255.255:2",
        "224.0.0.1:2",
    ] {
        let refused = a.path_with("0.0.0.0:1", remote, allowed).unwrap_err();
        assert_eq!(refused, SendError::UseKernel, "{remote}");
    }
    let path = a.path("0.0.0.0:1", "10.0.0.2:2");
    a.send(&path, &[0; 1472]).unwrap();
    // The kernel refuses what is too large without fragments.
    let options = PathOptions { discover: crate::inet::PmtuDiscover::DO, ..PathOptions::default() };
    let whole = a.path_with("0.0.0.0:1", "10.0.0.2:2", options).unwrap();
    assert_eq!(a.send(&whole, &[0; 1473]), Err(SendError::UseKernel));
    a.sent();
    a.send(&path, &[0; 1473]).unwrap();
    assert_eq!(a.sent().len(), 2);
}

/// RFC 1122 section 3.3.2. The kernel has not seen the fragment.
#[test]
fn a_datagram_that_stays_incomplete_is_reported_to_its_sender() {
    let (mut a, tables) = shared();
    tables.learn(B, MAC_B);
    let mut first = packet(B, A, Protocol::UDP, &[0; 64]);
    ipv4::Packet::new_checked(&mut first[..]).unwrap().set_fragment(0, true).unwrap();
    a.receive(&to_a(&first));
    a.wait(Duration::from_secs(31));
    assert_eq!(a.count(Count::IcmpOutTimeExcds), 1);
    assert_eq!(a.sent().len(), 1);
}

#[test]
fn a_shared_interface_answers_neither_arp_nor_ping_nor_closed_ports() {
    let (a, tables) = shared();
    tables.learn(B, MAC_B);
    a.receive(&arp_frame(arp::Operation::REQUEST, (MAC_B, B), (MacAddr::UNSPECIFIED, A)));
    a.receive(&udp_to_a("10.0.0.2:9", "10.0.0.1:7", b""));
    let mut ping = [0; 8];
    icmp::Packet::init_echo(&mut ping, icmp::Type::ECHO_REQUEST, 1, 1).unwrap().fill_checksum();
    a.receive(&to_a(&packet(B, A, Protocol::ICMP, &ping)));
    assert!(a.sent().is_empty());
    let (_binding, mailbox) = a.bind("10.0.0.1:7");
    a.receive(&udp_to_a("10.0.0.2:9", "10.0.0.1:7", b"x"));
    assert_eq!(mailbox.take().len(), 1);
}
