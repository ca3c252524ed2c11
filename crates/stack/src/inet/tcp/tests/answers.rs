//! Answers to packets from many sources, on an interface shared with the kernel: their cost.

use super::hosts::{Tape, TestEndpoint, ms};
use crate::{
    inet::{
        Addressing, Count, Inet, Interface, Pass,
        iface::{Hop, KernelTables, mac_word},
        tcp::{ListenOptions, Listening},
    },
    napi::PolledBy,
    nic::{Checksum, Frame, Info},
    time::Instant,
    wire::{EtherType, MacAddr, Protocol, ethernet, ipv4, ipv6, tcp},
};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const GATEWAY: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const SUCCESSOR: MacAddr = MacAddr([2, 0, 0, 0, 0, 8]);

fn own(v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into()
    } else {
        Ipv4Addr::new(10, 0, 0, 1).into()
    }
}

fn gateway(v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9).into()
    } else {
        Ipv4Addr::new(10, 0, 0, 9).into()
    }
}

/// A host behind the gateway.
fn source(v6: bool, n: u32) -> IpAddr {
    if v6 {
        Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(n)).into()
    } else {
        Ipv4Addr::from_bits(0x2000_0000 + n).into()
    }
}

/// A kernel with one gateway, which leads to all other hosts.
struct Kernel {
    generation: AtomicU64,
    /// Route queries.
    asked: AtomicU64,
    gateway: Mutex<MacAddr>,
    mac: Arc<AtomicU64>,
}

impl KernelTables for Kernel {
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn has_address(&self, is: &mut dyn FnMut(IpAddr, u8) -> bool) -> bool {
        is(own(false), 24) || is(own(true), 64)
    }

    fn route(&self, destination: IpAddr, _: Option<IpAddr>) -> Option<Hop> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let v6 = destination.is_ipv6();
        Some(Hop { next_hop: gateway(v6), source: own(v6), mtu: None })
    }

    fn neighbour(&self, address: IpAddr) -> Option<MacAddr> {
        (address == gateway(address.is_ipv6())).then(|| *self.gateway.lock().unwrap())
    }

    fn is_stale(&self, _: IpAddr) -> bool {
        false
    }

    fn resolve(&self, _: IpAddr) {}

    fn confirm(&self, _: IpAddr) {}

    fn link_address(&self) -> Option<Arc<AtomicU64>> {
        Some(self.mac.clone())
    }
}

struct Server {
    inet: Arc<Inet>,
    iface: Arc<Interface>,
    kernel: Arc<Kernel>,
    tape: Tape,
    now: Instant,
    _listening: [Listening; 2],
}

impl Server {
    fn new() -> Server {
        let inet = Inet::new(7, Box::new(|_| ()));
        let tape = Tape::default();
        tape.room.store(u64::MAX, Ordering::Relaxed);
        let info = Info {
            name: "test0".into(),
            mode: "test".into(),
            mac: OURS,
            mtu: 1500,
            queues: 1,
            tx_checksum: false,
            ifindex: Some(2),
        };
        let kernel = Arc::new(Kernel {
            generation: AtomicU64::new(1),
            asked: AtomicU64::new(0),
            gateway: Mutex::new(GATEWAY),
            mac: Arc::new(AtomicU64::new(mac_word(OURS))),
        });
        let addressing = Addressing::Kernel(kernel.clone());
        let iface = inet.add_interface(info, vec![Box::new(tape.clone())], addressing);
        let listening = [false, true].map(|v6| {
            let options = ListenOptions { backlog: 8, ..ListenOptions::default() };
            let endpoint = Arc::new(TestEndpoint::default());
            inet.tcp_listen(SocketAddr::new(own(v6), 80), options, None, endpoint).unwrap()
        });
        Server {
            inet,
            iface,
            kernel,
            tape,
            now: Instant::from_millis(1_000),
            _listening: listening,
        }
    }

    /// These frames come in one pass; returns the frames sent, and how often the doorbell rang.
    fn receive(&self, frames: &[Vec<u8>]) -> (Vec<Vec<u8>>, u64) {
        let mut pass = Pass::new(None, self.now, PolledBy::Interrupt);
        pass.batched = true;
        self.tape.doorbells();
        for frame in frames {
            let frame = Frame::whole(frame, Checksum::Unverified);
            self.inet.receive(&self.iface, 0, frame, &mut pass);
        }
        self.inet.end_of_pass(&mut pass);
        if pass.doorbell_pending {
            self.iface.ring(0);
        }
        (self.tape.frames.lock().unwrap().drain(..).collect(), self.tape.doorbells())
    }

    fn asked(&self) -> u64 {
        self.kernel.asked.swap(0, Ordering::Relaxed)
    }
}

/// A segment from a host behind the gateway to our port 80, in a frame of the gateway.
fn frame(v6: bool, to: MacAddr, source_number: u32, flags: u8) -> Vec<u8> {
    let (src, dst) = (source(v6, source_number), own(v6));
    let header =
        tcp::Header { src_port: 1234, dst_port: 80, seq: 100, flags, ..tcp::Header::default() };
    let (ethertype, ip_len) =
        if v6 { (EtherType::IPV6, ipv6::HEADER_LEN) } else { (EtherType::IPV4, ipv4::HEADER_LEN) };
    let mut bytes = vec![0; ethernet::HEADER_LEN + ip_len + tcp::HEADER_LEN];
    let mut frame = ethernet::Frame::init(&mut bytes[..], to, GATEWAY, ethertype).unwrap();
    let len = tcp::HEADER_LEN;
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut ip =
                ipv4::Packet::init(frame.payload_mut(), src, dst, Protocol::TCP, len).unwrap();
            ip.fill_checksum();
            let mut segment = tcp::Packet::init(ip.payload_mut(), &header, 0).unwrap();
            segment.fill_checksum(ipv4::address_sum(src, dst));
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut ip =
                ipv6::Packet::init(frame.payload_mut(), src, dst, Protocol::TCP, len).unwrap();
            let mut segment = tcp::Packet::init(ip.payload_mut(), &header, 0).unwrap();
            segment.fill_checksum(ipv6::address_sum(src, dst));
        }
        _ => unreachable!("one family"),
    }
    bytes
}

const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// The flags of an outgoing segment, which must be complete.
fn flags(v6: bool, frame: &[u8]) -> u8 {
    let frame = ethernet::Frame::new_checked(frame).unwrap().untag().unwrap();
    let (addresses, payload) = if v6 {
        let ip = ipv6::Packet::new_checked(frame.payload).unwrap();
        (ip.address_sum(), ip.payload())
    } else {
        let ip = ipv4::Packet::new_checked(frame.payload).unwrap();
        ip.verify_checksum().unwrap();
        (ip.address_sum(), ip.payload())
    };
    let segment = tcp::Packet::new_checked(payload).unwrap();
    segment.verify_checksum(addresses).unwrap();
    segment.flags()
}

#[test]
fn a_flood_from_many_sources_makes_few_route_queries_to_the_kernel() {
    for v6 in [false, true] {
        let server = Server::new();
        for round in 0..100 {
            let syns: Vec<_> = (0..64).map(|n| frame(v6, OURS, round * 64 + n, SYN)).collect();
            let (sent, doorbells) = server.receive(&syns);
            assert_eq!(sent.len(), 64, "each SYN is answered");
            for frame in &sent {
                assert_eq!((&frame[..6], &frame[6..12]), (&GATEWAY.0[..], &OURS.0[..]));
                assert_eq!(flags(v6, frame), SYN | ACK);
            }
            assert!(round == 0 || doorbells <= 1, "{doorbells} doorbells for one pass");
        }
        assert!(server.inet.count(Count::TcpExtSyncookiesSent) > 6_000);
        let asked = server.asked();
        assert!(asked <= 64, "{asked} questions for 6,400 sources");
        // Stray ACKs: of no connection, and no cookie.
        for round in 0..100 {
            let acks: Vec<_> =
                (0..64).map(|n| frame(v6, OURS, (1 << 20) + round * 64 + n, ACK)).collect();
            let (sent, doorbells) = server.receive(&acks);
            assert_eq!((sent.len(), doorbells), (64, 1));
            assert!(sent.iter().all(|frame| flags(v6, frame) == RST && frame[..6] == GATEWAY.0));
        }
        assert_eq!(server.asked(), 0);
    }
}

#[test]
fn a_handshake_continues_over_a_gateway_that_took_over() {
    for v6 in [false, true] {
        let mut server = Server::new();
        let syn = [frame(v6, OURS, 1, SYN)];
        assert_eq!(server.receive(&syn).0[0][..6], GATEWAY.0);
        *server.kernel.gateway.lock().unwrap() = SUCCESSOR;
        server.kernel.generation.fetch_add(1, Ordering::Release);
        // The peer sends its SYN again, a second later.
        server.now = server.now + ms(1_000);
        let (sent, _) = server.receive(&syn);
        assert_eq!((sent.len(), &sent[0][..6]), (1, &SUCCESSOR.0[..]));
    }
}

#[test]
fn a_change_of_our_mac_address_is_followed() {
    const NEW: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);
    let server = Server::new();
    assert_eq!(server.receive(&[frame(false, OURS, 1, SYN)]).0.len(), 1);
    server.kernel.mac.store(mac_word(NEW), Ordering::Relaxed);
    server.kernel.generation.fetch_add(1, Ordering::Release);
    assert!(server.receive(&[frame(false, OURS, 2, SYN)]).0.is_empty(), "it is another's now");
    // A connection that began before, and a new one.
    for n in [1, 3] {
        let (sent, _) = server.receive(&[frame(false, NEW, n, SYN)]);
        assert_eq!((sent.len(), &sent[0][6..12]), (1, &NEW.0[..]));
    }
}
