//! Tests of inet: packets in, packets out, with a simulated clock.

use super::*;
use crate::sync::lock;
use crate::{
    napi::PolledBy,
    nic::{Checksum, Frame, Info, RingFull},
    wire::{
        Data, EtherType, MacAddr, Protocol, Rest, arp, checksum::Sum, ethernet, icmp, ipv4, udp,
    },
};
use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

mod arp_rules;
mod cost;
mod demux_rules;
mod errors;
mod fragments;
mod fuzz;
mod in_pieces;
mod kernel_shared;
mod oracle;
mod segments;
mod sending;
mod v6;

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const MAC_A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const MAC_B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);

/// A transmit queue that records the frames sent, in order, and is full at `room` frames.
#[derive(Clone)]
struct Tape {
    frames: Arc<Mutex<VecDeque<Vec<u8>>>>,
    room: usize,
}

impl TxQueue for Tape {
    fn push(
        &mut self,
        len: usize,
        partial: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        let mut frames = self.frames.lock().unwrap();
        if frames.len() >= self.room {
            return Err(RingFull);
        }
        let mut frame = vec![0xee; len];
        fill(&mut frame);
        if partial {
            let ip = &mut frame[14..];
            let (protocol, transport) = if ip[0] >> 4 == 4 { (ip[9], 20) } else { (ip[6], 40) };
            let at = transport + if protocol == Protocol::TCP.0 { 16 } else { 6 };
            let sum = Sum::of(&ip[transport..]).checksum();
            ip[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        frames.push_back(frame);
        Ok(())
    }

    fn flush(&mut self) {}

    fn has_room(&mut self, frames: usize) -> bool {
        self.frames.lock().unwrap().len() + frames <= self.room
    }
}

/// What an endpoint has received.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Got {
    Data(SocketAddr, SocketAddr, Vec<u8>),
    Error(SocketError, SocketAddr),
}

#[derive(Default)]
struct Mailbox {
    got: Mutex<Vec<Got>>,
    /// Whether data has come in pieces.
    in_pieces: AtomicBool,
    full: bool,
}

impl Mailbox {
    fn take(&self) -> Vec<Got> {
        std::mem::take(&mut self.got.lock().unwrap())
    }
}

impl UdpEndpoint for Mailbox {
    fn datagram(&self, datagram: &Datagram<'_>, _: &mut Pass) -> bool {
        let got = Got::Data(datagram.from, datagram.to, datagram.payload.to_vec());
        if !self.full {
            self.got.lock().unwrap().push(got);
        }
        !self.full
    }

    fn datagram_in_pieces(&self, datagram: &Datagram<'_>, rest: Rest<'_>, pass: &mut Pass) -> bool {
        self.in_pieces.store(true, Ordering::Relaxed);
        let payload = Data { first: datagram.payload, rest }.to_vec();
        self.datagram(&Datagram { payload: &payload, ..*datagram }, pass)
    }

    fn error(&self, error: SocketError, remote: SocketAddr, _: &mut Pass) {
        self.got.lock().unwrap().push(Got::Error(error, remote));
    }
}

/// One host: inet over a [`Tape`], and its clock.
struct Station {
    inet: Arc<Inet>,
    iface: Arc<Interface>,
    tape: Tape,
    now: Instant,
    wakes: Arc<Mutex<Vec<Instant>>>,
}

fn info(mac: MacAddr) -> Info {
    Info {
        name: "test0".into(),
        mode: "test".into(),
        mac,
        mtu: 1500,
        queues: 1,
        tx_checksum: false,
        ifindex: None,
    }
}

impl Station {
    fn new(address: &str, mac: MacAddr) -> Station {
        Station::with(info(mac), Addressing::Own(vec![address.parse().unwrap()]))
    }

    fn a() -> Station {
        Station::new("10.0.0.1/24", MAC_A)
    }

    fn with(info: Info, addressing: Addressing) -> Station {
        let wakes: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let heard = wakes.clone();
        let inet = Inet::new(7, Box::new(move |at| heard.lock().unwrap().push(at)));
        let tape = Tape { frames: Arc::default(), room: 1000 };
        let iface = inet.add_interface(info, vec![Box::new(tape.clone())], addressing);
        Station { inet, iface, tape, now: Instant::from_millis(1000), wakes }
    }

    fn pass(&self) -> Pass<'static> {
        Pass::new(None, self.now, PolledBy::Interrupt)
    }

    fn receive(&self, frame: &[u8]) {
        self.receive_as(frame, Checksum::Unverified);
    }

    fn receive_as(&self, frame: &[u8], checksum: Checksum) {
        let frame = Frame::whole(frame, checksum);
        self.inet.receive(&self.iface, 0, frame, &mut self.pass());
    }

    /// Receives a frame in a pass for the socket of `expected`.
    fn receive_for(&self, expected: &Arc<dyn UdpEndpoint>, frame: &[u8]) {
        let frame = Frame::whole(frame, Checksum::Unverified);
        let mut pass = Pass { direct: None, expected_socket: Some(expected), ..self.pass() };
        self.inet.receive(&self.iface, 0, frame, &mut pass);
    }

    fn sent(&self) -> Vec<Vec<u8>> {
        self.tape.frames.lock().unwrap().drain(..).collect()
    }

    /// The IP packet of the only frame sent.
    fn sent_packet(&self) -> Vec<u8> {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:02x?}");
        ip_of(&sent[0])
    }

    fn wait(&mut self, span: Duration) -> Option<Instant> {
        self.now = self.now + span;
        self.inet.tick(&mut self.pass())
    }

    fn bind(&self, local: &str) -> (Binding, Arc<Mailbox>) {
        let mailbox = Arc::new(Mailbox::default());
        let binding = self
            .inet
            .udp_bind(local.parse().unwrap(), BindOptions::default(), mailbox.clone())
            .unwrap();
        (binding, mailbox)
    }

    fn path(&self, local: &str, remote: &str) -> Path {
        self.path_with(local, remote, PathOptions::default()).unwrap()
    }

    fn path_with(&self, l: &str, r: &str, options: PathOptions) -> Result<Path, SendError> {
        self.inet.path(l.parse().unwrap(), r.parse().unwrap(), 0, options, self.now)
    }

    fn send(&self, path: &Path, payload: &[u8]) -> Result<(), SendError> {
        self.inet.udp_send(path, payload, &mut self.pass())
    }

    /// Makes `address` a known neighbour with the MAC address `mac`.
    fn learn_neighbour(&self, address: Ipv4Addr, mac: MacAddr) {
        let own = (self.iface.info().mac, self.iface.addresses4()[0].address());
        self.receive(&arp_frame(arp::Operation::REQUEST, (mac, address), own));
        self.sent();
    }

    fn count(&self, count: Count) -> u64 {
        self.inet.count(count)
    }
}

fn frame_of(to: MacAddr, from: MacAddr, ethertype: EtherType, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 14 + packet.len()];
    let mut view = ethernet::Frame::init(&mut frame[..], to, from, ethertype).unwrap();
    view.payload_mut().copy_from_slice(packet);
    frame
}

fn ip_of(frame: &[u8]) -> Vec<u8> {
    let inner = ethernet::Frame::new_checked(frame).unwrap().untag().unwrap();
    assert_eq!(inner.ethertype, EtherType::IPV4, "{frame:02x?}");
    let packet = ipv4::Packet::new_checked(inner.payload).unwrap();
    packet.verify_checksum().unwrap();
    inner.payload[..packet.total_len()].to_vec()
}

fn arp_frame(
    operation: arp::Operation,
    sender: (MacAddr, Ipv4Addr),
    target: (MacAddr, Ipv4Addr),
) -> Vec<u8> {
    let mut packet = [0; arp::LEN];
    arp::Packet::init(&mut packet, operation, sender, target).unwrap();
    let to = if operation == arp::Operation::REPLY { target.0 } else { MacAddr::BROADCAST };
    frame_of(to, sender.0, EtherType::ARP, &packet)
}

/// An IP packet.
fn packet(src: Ipv4Addr, dst: Ipv4Addr, protocol: Protocol, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 20 + payload.len()];
    let mut ip = ipv4::Packet::init(&mut bytes[..], src, dst, protocol, payload.len()).unwrap();
    ip.payload_mut().copy_from_slice(payload);
    bytes
}

/// A UDP datagram in an IP packet.
fn udp_packet(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
    let (from, to): (std::net::SocketAddrV4, std::net::SocketAddrV4) =
        (from.parse().unwrap(), to.parse().unwrap());
    let mut bytes = vec![0; 8 + payload.len()];
    let mut udp = udp::Packet::init(&mut bytes[..], from.port(), to.port(), payload.len()).unwrap();
    udp.payload_mut().copy_from_slice(payload);
    udp.fill_checksum(ipv4::address_sum(*from.ip(), *to.ip()));
    packet(*from.ip(), *to.ip(), Protocol::UDP, &bytes)
}

/// A frame from B to A.
fn to_a(packet: &[u8]) -> Vec<u8> {
    frame_of(MAC_A, MAC_B, EtherType::IPV4, packet)
}

fn udp_to_a(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
    to_a(&udp_packet(from, to, payload))
}

fn data(from: &str, to: &str, payload: &[u8]) -> Got {
    Got::Data(from.parse().unwrap(), to.parse().unwrap(), payload.to_vec())
}
