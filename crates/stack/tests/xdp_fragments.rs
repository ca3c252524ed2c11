//! Datagrams in fragments over AF_XDP: all fragments of a datagram go to the same side, ours or the kernel's, whatever
//! their order; and the datagram arrives.

#[path = "xdp_support/fragments.rs"]
mod fragments;
mod xdp_support;

use busypoll_lab::{Lab, LabHost, needs_root};
use busypoll_stack::{Host, UdpSocket, nic::xdp::Xdp, wire::MacAddr};
use fragments::{Ends, fragment, fragments};
use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr, UdpSocket as KernelSocket},
    time::Duration,
};
use xdp_support::*;

/// A port that the kernel has.
const OTHER: u16 = PORT + 1;
const PATIENCE: Duration = Duration::from_secs(10);

/// The addresses of both hosts, family by family.
fn families(lab: &Lab) -> Vec<(IpAddr, IpAddr)> {
    let mut families = vec![(lab.client.ipv4().into(), lab.server.ipv4().into())];
    if let (Some(from), Some(to)) = (lab.client.ipv6(), lab.server.ipv6()) {
        families.push((from.into(), to.into()));
    }
    families
}

fn ends(lab: &Lab, (from, to): (IpAddr, IpAddr), port: u16) -> Ends {
    [
        (MacAddr(lab.client.mac()), SocketAddr::new(from, 4000)),
        (MacAddr(lab.server.mac()), SocketAddr::new(to, port)),
    ]
}

fn kernel(host: &LabHost, address: SocketAddr) -> KernelSocket {
    let socket = host.enter(|| KernelSocket::bind(address)).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// All orders of `n` things.
fn orders(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(n - 1);
    let insert = |order: &Vec<usize>, at: usize| {
        let mut order = order.clone();
        order.insert(at, n - 1);
        order
    };
    shorter.iter().flat_map(|order| (0..n).map(move |at| insert(order, at))).collect()
}

/// Each order of three fragments, and each with one of them twice, wherever the copy comes. The last fragment is as
/// short as can be.
#[test]
fn the_fragments_of_a_datagram_are_never_split() {
    needs_root!();
    let lab = lab();
    let (mut server, mut client) = (station(&lab.server), station(&lab.client));
    let mut ident = 0;
    for family in families(&lab) {
        let (ours, others) = (ends(&lab, family, PORT), ends(&lab, family, OTHER));
        server.steering.add(UDP, ours[1].1).unwrap();
        let [theirs, other] = [ours, others].map(|ends| kernel(&lab.server, ends[1].1));
        let mut cases: Vec<Vec<usize>> = orders(3);
        let doubled = |order: &Vec<usize>| {
            let order = order.clone();
            (0..3).flat_map(move |which| {
                let order = order.clone();
                (0..=3).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, which);
                    order
                })
            })
        };
        cases.extend(orders(3).iter().flat_map(doubled).collect::<Vec<_>>());
        for case in &cases {
            for (ends, kernels) in [(ours, &theirs), (others, &other)] {
                ident += 1;
                let payload = vec![ident as u8; 2800 - 8 + 1];
                let pieces = fragments(ends, ident, &payload, &[1400, 2800]);
                case.iter().for_each(|at| client.send(&pieces[*at]));
                // A frame after them.
                client.send(&marker(&lab));
                let mut seen = Vec::new();
                poll_until(&mut server.queue, "the marker", |bytes| {
                    seen.push(bytes.to_vec());
                    bytes == marker(&lab)
                });
                seen.pop();
                if ends == ours && case[0] == 0 {
                    let sent: Vec<_> = case.iter().map(|at| pieces[*at].clone()).collect();
                    assert!(seen == sent, "{ends:?} {case:?}: {} frames", seen.len());
                } else {
                    assert_eq!(seen.len(), 0, "{ends:?} {case:?}");
                    let mut buffer = [0; 4096];
                    let len = kernels.recv(&mut buffer).unwrap();
                    assert!(buffer[..len] == payload, "{ends:?} {case:?}");
                }
            }
        }
    }
}

fn marker(lab: &Lab) -> Vec<u8> {
    let mut frame = vec![0; 60];
    let [(from_mac, from), (to_mac, to)] =
        ends(lab, (lab.client.ipv4().into(), lab.server.ipv4().into()), PORT);
    write_udp(&mut frame, (from_mac, to_mac), from, to, 0xee);
    frame
}

/// The verdict of an earlier datagram does not hold for the next one with the same identification.
#[test]
fn an_identification_that_is_used_again_is_decided_again() {
    needs_root!();
    let lab = lab();
    let (mut server, mut client) = (station(&lab.server), station(&lab.client));
    for family in families(&lab) {
        let (ours, others) = (ends(&lab, family, PORT), ends(&lab, family, OTHER));
        server.steering.add(UDP, ours[1].1).unwrap();
        let other = kernel(&lab.server, others[1].1);
        for round in 0..3u8 {
            let mut taken = 0;
            let pieces = fragments(ours, 7, &[round; 2000], &[1400]);
            // Once the kernel has one of an identification, it has all.
            if round == 0 {
                pieces.iter().for_each(|piece| client.send(piece));
                poll_until(&mut server.queue, "both fragments", |_| {
                    taken += 1;
                    taken == 2
                });
            }
            let pieces = fragments(others, 7, &[round; 2000], &[1400]);
            pieces.iter().for_each(|piece| client.send(piece));
            let mut buffer = [0; 4096];
            assert_eq!(other.recv(&mut buffer).unwrap(), 2000);
            assert_eq!(buffer[..2000], [round; 2000]);
        }
    }
}

fn host(on: &LabHost) -> Host {
    let builder = || Host::builder().shared_interface(Xdp::open(on.interface()).unwrap()).build();
    on.enter(builder).unwrap().unwrap()
}

fn stack(on: &LabHost, host: &Host, address: SocketAddr) -> UdpSocket {
    let socket = on.enter(|| UdpSocket::bind(host, address)).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Reproducible, and of no other quality.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at + 1));
        }
    }
}

/// What the network does to the fragments.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Harm {
    Order,
    Copies,
    Loss,
    Overlap,
}

/// Fragments of several datagrams at once, for a reader of ours and for a plain one, mixed and harmed. All datagrams
/// arrive whose fragments have, and no other.
#[test]
fn datagrams_arrive_whatever_happens_to_the_order_of_their_fragments() {
    needs_root!();
    let lab = lab();
    let server = host(&lab.server);
    let mut client = station(&lab.client);
    let mut random = Random(1);
    let mut ident = 100;
    for family in families(&lab) {
        let (ours, others) = (ends(&lab, family, PORT), ends(&lab, family, OTHER));
        let reader = stack(&lab.server, &server, ours[1].1);
        let plain = kernel(&lab.server, others[1].1);
        for harm in [Harm::Order, Harm::Copies, Harm::Loss, Harm::Overlap] {
            for _ in 0..30 {
                let (mut in_order, mut frames) = (Vec::new(), Vec::new());
                let mut expected = [HashSet::new(), HashSet::new()];
                for n in 0..8 {
                    ident += 1;
                    let which = n % 2;
                    let len = 1473 + random.below(2900);
                    let payload = random.bytes(len);
                    let cuts: Vec<usize> =
                        (1..).map(|n| n * 1400).take_while(|at| *at < len + 8).collect();
                    let mut pieces = fragments([ours, others][which], ident, &payload, &cuts);
                    let victim = random.below(pieces.len());
                    let mut whole = true;
                    if n < 3 {
                        match harm {
                            Harm::Order => {}
                            Harm::Copies => pieces.push(pieces[victim].clone()),
                            Harm::Loss => {
                                pieces.remove(victim);
                                whole = false;
                            }
                            Harm::Overlap => {
                                // With its first fragment and beyond it.
                                let ends = [ours, others][which];
                                pieces.insert(1, fragment(ends, ident, (1392, &[0; 64]), true));
                                in_order.append(&mut pieces);
                                whole = false;
                            }
                        }
                    }
                    if whole {
                        expected[which].insert(payload);
                    }
                    frames.extend(pieces);
                }
                random.shuffle(&mut frames);
                in_order.iter().chain(&frames).for_each(|frame| client.send(frame));
                let mut buffer = vec![0; 65_536];
                while !expected[0].is_empty() {
                    let len = reader.recv(&mut buffer).unwrap_or_else(|e| panic!("{harm:?}: {e}"));
                    let known = expected[0].remove(&buffer[..len]);
                    assert!(known || harm == Harm::Copies, "{harm:?}");
                }
                while !expected[1].is_empty() {
                    let len = plain.recv(&mut buffer).unwrap_or_else(|e| panic!("{harm:?}: {e}"));
                    let known = expected[1].remove(&buffer[..len]);
                    assert!(known || harm == Harm::Copies, "{harm:?}");
                }
            }
            let stats = reader.stats();
            // Those whose first fragment came first, and the others.
            let by_us = stats.own_polls + stats.interrupts + stats.other_polls;
            assert!(stats.kernel > 0 && by_us > 0, "{stats:?}");
        }
    }
}

/// Requests and responses of every size, by our stack and by the kernel in both roles. None passes through a companion.
#[test]
fn large_datagrams_are_exchanged_over_the_queue() {
    needs_root!();
    let lab = lab();
    let (near, far) = (host(&lab.client), host(&lab.server));
    let mut random = Random(2);
    let mut buffer = vec![0; 65_536];
    for (from, to) in families(&lab) {
        let most = if to.is_ipv4() { 65_507 } else { 65_527 };
        let to = SocketAddr::new(to, PORT);
        let server = stack(&lab.server, &far, to);
        let plain_server = kernel(&lab.server, SocketAddr::new(to.ip(), OTHER));
        let client = stack(&lab.client, &near, SocketAddr::new(from, 0));
        let plain_client = kernel(&lab.client, SocketAddr::new(from, 0));
        for busy_poll in [0, 100_000] {
            client.set_busy_poll(busy_poll).unwrap();
            server.set_busy_poll(busy_poll).unwrap();
            for size in [1452, 1453, 1472, 1473, 1474, 1481, 2952, 2953, 4096, 9000, 30_000, most] {
                let request = random.bytes(size);
                // The kernel asks.
                plain_client.send_to(&request, to).unwrap();
                let (len, peer) = server.recv_from(&mut buffer).unwrap();
                assert!(buffer[..len] == request, "{size}");
                server.send_to(&buffer[..len], peer).unwrap();
                let len = plain_client.recv(&mut buffer).unwrap();
                assert!(buffer[..len] == request, "{size}");
                // Our stack asks, the kernel and our stack.
                client.send_to(&request, plain_server.local_addr().unwrap()).unwrap();
                let (len, peer) = plain_server.recv_from(&mut buffer).unwrap();
                assert!(buffer[..len] == request, "{size}");
                plain_server.send_to(&buffer[..len], peer).unwrap();
                let len = client.recv(&mut buffer).unwrap();
                assert!(buffer[..len] == request, "{size}");
                client.send_to(&request, to).unwrap();
                let (len, peer) = server.recv_from(&mut buffer).unwrap();
                assert!(buffer[..len] == request, "{size}");
                server.send_to(&buffer[..len], peer).unwrap();
                let len = client.recv(&mut buffer).unwrap();
                assert!(buffer[..len] == request, "{size}");
            }
        }
        assert_eq!((client.stats().kernel, server.stats().kernel), (0, 0), "{to}");
        let sent = |host: &Host| {
            let name = if to.is_ipv4() { "IpFragOKs" } else { "Ip6FragOKs" };
            host.counters().iter().find(|(known, _)| *known == name).unwrap().1
        };
        assert!(sent(&near) > 0 && sent(&far) > 0);
    }
}
