//! Which socket a datagram goes to, and which binds are refused.

use super::*;

const REUSE: BindOptions = BindOptions { reuse_address: true, reuse_port: false, only_v6: false };

fn bind_error(a: &Station, local: &str, reuse_address: bool) -> Option<i32> {
    let options = BindOptions { reuse_address, ..BindOptions::default() };
    let result = a.inet.udp_bind(local.parse().unwrap(), options, Arc::<Mailbox>::default());
    result.err().map(|error| error.raw_os_error().unwrap())
}

#[test]
fn the_most_specific_socket_gets_the_datagram() {
    let a = Station::a();
    let (_any, any) = a.bind("0.0.0.0:7");
    let other = Arc::new(Mailbox::default());
    // 10.0.0.1:7 beside 0.0.0.0:7 needs SO_REUSEADDR on both.
    assert_eq!(bind_error(&a, "10.0.0.1:7", true), Some(libc::EADDRINUSE));
    drop(_any);
    let share = |local: &str, mailbox: &Arc<Mailbox>| {
        a.inet.udp_bind(local.parse().unwrap(), REUSE, mailbox.clone()).unwrap()
    };
    let _any = share("0.0.0.0:7", &any);
    a.receive(&udp_to_a("10.0.0.2:9", "10.0.0.1:7", b"1"));
    let _bound = share("10.0.0.1:7", &other);
    a.receive(&udp_to_a("10.0.0.2:9", "10.0.0.1:7", b"2"));
    let connected = Arc::new(Mailbox::default());
    let binding = share("0.0.0.0:7", &connected);
    binding.connect("10.0.0.2:9".parse().unwrap()).unwrap();
    assert_eq!(binding.local(), "10.0.0.1:7".parse().unwrap());
    a.receive(&udp_to_a("10.0.0.2:9", "10.0.0.1:7", b"3"));
    a.receive(&udp_to_a("10.0.0.2:8", "10.0.0.1:7", b"4"));
    drop(binding);
    a.receive(&udp_to_a("10.0.0.2:9", "10.0.0.1:7", b"5"));
    assert_eq!(any.take(), [data("10.0.0.2:9", "10.0.0.1:7", b"1")]);
    assert_eq!(connected.take(), [data("10.0.0.2:9", "10.0.0.1:7", b"3")]);
    let bound = other.take();
    assert_eq!(bound[0], data("10.0.0.2:9", "10.0.0.1:7", b"2"));
    assert_eq!(bound[1], data("10.0.0.2:8", "10.0.0.1:7", b"4"));
    assert_eq!(bound[2], data("10.0.0.2:9", "10.0.0.1:7", b"5"));
    assert_eq!(a.count(Count::UdpInDatagrams), 5);
}

#[test]
fn a_datagram_like_the_last_one_is_looked_up_again_once_a_socket_has_changed() {
    let a = Station::a();
    let share = |local: &str, mailbox: &Arc<Mailbox>| {
        a.inet.udp_bind(local.parse().unwrap(), REUSE, mailbox.clone()).unwrap()
    };
    let [any, bound, connected] = [(); 3].map(|()| Arc::new(Mailbox::default()));
    let expected: Arc<dyn UdpEndpoint> = any.clone();
    // The second and third time without a lookup; neither depends on what comes in between.
    let receive = || {
        for from in ["10.0.0.2:9", "10.0.0.2:9", "10.0.0.2:8", "10.0.0.2:9"] {
            a.receive_for(&expected, &udp_to_a(from, "10.0.0.1:7", b"1"));
        }
        [&any, &bound, &connected].map(|mailbox| mailbox.take().len())
    };
    let _any = share("0.0.0.0:7", &any);
    assert_eq!(receive(), [4, 0, 0]);
    let binding = share("0.0.0.0:7", &connected);
    binding.connect("10.0.0.2:9".parse().unwrap()).unwrap();
    assert_eq!(receive(), [1, 0, 3]);
    let specific = share("10.0.0.1:7", &bound);
    assert_eq!(receive(), [0, 1, 3]);
    drop(binding);
    assert_eq!(receive(), [0, 4, 0]);
    drop(specific);
    assert_eq!(receive(), [4, 0, 0]);
}

#[test]
fn with_so_reuseaddr_the_newest_socket_gets_unicast_and_all_get_broadcast() {
    let a = Station::a();
    let boxes: Vec<_> = (0..3).map(|_| Arc::new(Mailbox::default())).collect();
    let mut bindings: Vec<_> = boxes
        .iter()
        .map(|mailbox| {
            a.inet.udp_bind("0.0.0.0:7".parse().unwrap(), REUSE, mailbox.clone()).unwrap()
        })
        .collect();
    let got = || boxes.iter().map(|mailbox| mailbox.take().len()).collect::<Vec<_>>();
    a.receive(&udp_to_a("10.0.0.2:9", "10.0.0.1:7", b""));
    assert_eq!(got(), [0, 0, 1]);
    let broadcast = udp_packet("10.0.0.2:9", "10.0.0.255:7", b"");
    a.receive(&frame_of(MacAddr::BROADCAST, MAC_B, EtherType::IPV4, &broadcast));
    assert_eq!(got(), [1, 1, 1]);
    bindings.pop();
    a.receive(&udp_to_a("10.0.0.2:9", "10.0.0.1:7", b""));
    assert_eq!(got(), [0, 1, 0]);
    bindings.remove(0);
    a.receive(&udp_to_a("10.0.0.2:9", "10.0.0.1:7", b""));
    assert_eq!(got(), [0, 1, 0]);
}

/// As in Linux: by a hash of both ends, so that all datagrams of a peer go to one socket.
#[test]
fn sockets_with_so_reuseport_share_the_peers() {
    let a = Station::a();
    let bind = |reuse_address, reuse_port| {
        let (options, mailbox) =
            (BindOptions { reuse_address, reuse_port, only_v6: false }, Arc::<Mailbox>::default());
        let binding = a.inet.udp_bind("0.0.0.0:7".parse().unwrap(), options, mailbox.clone());
        (binding.unwrap(), mailbox)
    };
    let send_from_100_peers = || {
        for port in 1000..1100 {
            a.receive(&udp_to_a(&format!("10.0.0.2:{port}"), "10.0.0.1:7", b""));
        }
    };
    let mut sockets: Vec<_> = (0..4).map(|_| bind(false, true)).collect();
    let senders = |mailbox: &Mailbox| {
        let from = |got: &Got| match got {
            Got::Data(from, ..) => from.port(),
            other => panic!("{other:?}"),
        };
        mailbox.take().iter().map(from).collect::<Vec<_>>()
    };
    send_from_100_peers();
    let first: Vec<_> = sockets.iter().map(|(_, mailbox)| senders(mailbox)).collect();
    assert!(first.iter().all(|peers| peers.len() > 5), "{first:?}");
    assert_eq!(first.iter().map(Vec::len).sum::<usize>(), 100);
    send_from_100_peers();
    let second: Vec<_> = sockets.iter().map(|(_, mailbox)| senders(mailbox)).collect();
    assert_eq!(first, second);
    // The remaining sockets share the peers of the closed one.
    sockets.remove(1);
    send_from_100_peers();
    let third: usize = sockets.iter().map(|(_, mailbox)| senders(mailbox).len()).sum();
    assert_eq!(third, 100);
    drop(sockets);
    // If the newest has SO_REUSEADDR only, it gets everything; if it has both, all sockets with both share.
    let (both, alone) = (bind(true, true), bind(true, false));
    send_from_100_peers();
    assert_eq!((senders(&both.1).len(), senders(&alone.1).len()), (0, 100));
    let newest = bind(true, true);
    send_from_100_peers();
    let [one, two] = [&both.1, &newest.1].map(|mailbox| senders(mailbox).len());
    assert!(one > 5 && two > 5 && one + two == 100, "{one} {two}");
}

#[test]
fn a_disconnected_socket_receives_from_all_peers_again() {
    let a = Station::a();
    let (binding, mailbox) = a.bind("0.0.0.0:7");
    binding.connect("10.0.0.2:9".parse().unwrap()).unwrap();
    a.receive(&udp_to_a("10.0.0.3:9", "10.0.0.1:7", b""));
    assert!(mailbox.take().is_empty());
    binding.disconnect();
    assert_eq!(binding.local(), "0.0.0.0:7".parse().unwrap());
    a.receive(&udp_to_a("10.0.0.3:9", "10.0.0.1:7", b""));
    assert_eq!(mailbox.take().len(), 1);
}

#[test]
fn binds_are_refused_as_linux_refuses_them() {
    let a = Station::a();
    assert_eq!(bind_error(&a, "10.0.0.9:7", false), Some(libc::EADDRNOTAVAIL));
    assert_eq!(bind_error(&a, "[fd00::9]:7", false), Some(libc::EADDRNOTAVAIL));
    let (binding, _) = a.bind("10.0.0.1:7");
    for other in ["10.0.0.1:7", "0.0.0.0:7"] {
        assert_eq!(bind_error(&a, other, false), Some(libc::EADDRINUSE), "{other}");
    }
    assert_eq!(bind_error(&a, "127.0.0.1:7", false), None);
    // A connected socket still occupies its address.
    binding.connect("10.0.0.2:9".parse().unwrap()).unwrap();
    assert_eq!(bind_error(&a, "0.0.0.0:7", false), Some(libc::EADDRINUSE));
    let out = binding.connect("192.0.2.1:9".parse().unwrap()).unwrap_err();
    assert_eq!(out.raw_os_error(), Some(libc::ENETUNREACH));
    drop(binding);
    assert_eq!(bind_error(&a, "0.0.0.0:7", false), None);
}

#[test]
fn port_0_takes_an_ephemeral_port() {
    let a = Station::a();
    let bindings: Vec<_> = (0..100).map(|_| a.bind("0.0.0.0:0").0).collect();
    let mut ports: Vec<u16> = bindings.iter().map(|binding| binding.local().port()).collect();
    assert!(ports.iter().all(|port| EPHEMERAL.contains(port)));
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 100);
}

/// The cost of a lookup is its number of probes, which does not depend on the size of the table.
#[test]
fn each_of_ten_thousand_sockets_is_found() {
    let a = Station::a();
    let sockets: Vec<_> =
        (0..10_000u16).map(|n| a.bind(&format!("0.0.0.0:{}", 10_000 + n))).collect();
    for (binding, mailbox) in &sockets {
        let to = format!("10.0.0.1:{}", binding.local().port());
        a.receive(&udp_to_a("10.0.0.2:9", &to, b"x"));
        assert_eq!(mailbox.take().len(), 1);
    }
    assert_eq!(a.inet.demux.kinds(), [0, 0, 10_000]);
    drop(sockets);
    assert_eq!(a.inet.demux.kinds(), [0, 0, 0]);
    a.receive(&udp_to_a("10.0.0.2:9", "10.0.0.1:10000", b"x"));
    assert_eq!(a.count(Count::UdpNoPorts), 1);
}

#[test]
fn a_socket_is_never_lost_while_it_connects_and_others_come_and_go() {
    let a = Station::a();
    let (binding, mailbox) = a.bind("0.0.0.0:7");
    let frame = udp_to_a("10.0.0.2:9", "10.0.0.1:7", b"x");
    let done = std::sync::atomic::AtomicBool::new(false);
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) {
                binding.connect("10.0.0.2:9".parse().unwrap()).unwrap();
                drop(a.bind("0.0.0.0:0"));
                binding.disconnect();
                rounds += 1;
            }
            rounds
        });
        (0..100_000).for_each(|_| a.receive(&frame));
        done.store(true, Ordering::Relaxed);
        rounds = changes.join().unwrap();
    });
    assert_eq!((a.count(Count::UdpNoPorts), mailbox.take().len()), (0, 100_000));
    assert!(rounds > 0);
}

#[test]
fn an_unbound_endpoint_is_released() {
    let a = Station::a();
    let (binding, mailbox) = a.bind("0.0.0.0:7");
    binding.connect("10.0.0.2:9".parse().unwrap()).unwrap();
    drop(binding);
    assert_eq!(Arc::strong_count(&mailbox), 1);
}

#[test]
fn a_datagram_to_a_full_socket_is_dropped_and_counted() {
    let a = Station::a();
    let full = Arc::new(Mailbox { full: true, ..Mailbox::default() });
    let _binding =
        a.inet.udp_bind("0.0.0.0:7".parse().unwrap(), BindOptions::default(), full).unwrap();
    a.receive(&udp_to_a("10.0.0.2:9", "10.0.0.1:7", b"x"));
    let counts = [Count::UdpRcvbufErrors, Count::UdpInErrors, Count::UdpInDatagrams];
    assert_eq!(counts.map(|count| a.count(count)), [1, 1, 0]);
}

#[test]
fn checksums_are_verified_as_the_nics_checksum_state_requires() {
    let a = Station::a();
    let (_binding, mailbox) = a.bind("0.0.0.0:7");
    let good = udp_packet("10.0.0.2:9", "10.0.0.1:7", b"x");
    let change = |change: fn(&mut udp::Packet<&mut [u8]>)| {
        let mut bytes = good.clone();
        change(&mut udp::Packet::new_checked(&mut bytes[20..]).unwrap());
        bytes
    };
    let none = change(|udp| udp.clear_checksum());
    let partial = change(|udp| udp.fill_partial_checksum(ipv4::address_sum(B, A)));
    let bad = change(|udp| udp.payload_mut()[0] ^= 1);
    use Checksum::{MaybePartial, Partial, Unverified};
    let cases = [
        (&good, Unverified, true),
        (&good, MaybePartial, true),
        (&none, Unverified, true),
        (&none, MaybePartial, true),
        (&none, Partial, true),
        (&partial, Unverified, false),
        (&partial, MaybePartial, true),
        (&partial, Partial, true),
        (&bad, Unverified, false),
        (&bad, MaybePartial, false),
        (&bad, Partial, true),
    ];
    for (packet, checksum, taken) in cases {
        a.receive_as(&to_a(packet), checksum);
        assert_eq!(mailbox.take().len(), usize::from(taken), "{packet:02x?} {checksum:?}");
    }
    assert_eq!(a.count(Count::UdpInCsumErrors), 3);
    // Over a link with partial checksums every datagram with a checksum counts as partial.
    assert_eq!(a.count(Count::UdpInPartialCsums), 3);
}
