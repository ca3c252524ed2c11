//! Two hosts, each an [`Inet`], joined by tapes, in virtual time: the base of the glue's tests.
//!
//! ```text
//! let mut net = Net::new();
//! let server = net.listen(B, "10.0.0.2:80", ListenOptions::default());
//! let client = net.connect("10.0.0.1:0", "10.0.0.2:80").unwrap();
//! net.settle();                        // delivers frames until there are none
//! let served = server.accept().unwrap();
//! net.send(&client, b"hello");         // the application of one end writes, and the frames are delivered
//! assert_eq!(net.recv(&served), b"hello");
//! net.advance(secs(60));               // timers fire, when they are due
//! ```

use crate::{
    inet::{
        Addressing, Count, Inet, Interface, Pass,
        tcp::{
            Config, ConnectOptions, Flow, ListenOptions, Listening, PortHolder, Ready, TcpEndpoint,
            parse,
            segment::{Flags, Segment},
            tuple::Tuple,
        },
    },
    napi::{NapiId, PolledBy},
    nic::{Checksum, Frame, Info, RingFull, TxQueue},
    time::Instant,
    wire::{Data, EtherType, MacAddr, Protocol, Rest, arp, ethernet, ipv4, tcp},
};
use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// The hosts: 10.0.0.1 and 10.0.0.2.
pub(super) const A: usize = 0;
pub(super) const B: usize = 1;

pub(super) const ADDRESSES: [Ipv4Addr; 2] =
    [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
const MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 0xa]), MacAddr([2, 0, 0, 0, 0, 0xb])];

pub(super) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// The frames sent, in order, and how often the doorbell rang.
#[derive(Clone, Default)]
pub(super) struct Tape {
    pub(super) frames: Arc<Mutex<VecDeque<Vec<u8>>>>,
    doorbells: Arc<AtomicU64>,
    pub(super) room: Arc<AtomicU64>,
}

impl Tape {
    /// How often the doorbell rang since the last call.
    pub(super) fn doorbells(&self) -> u64 {
        self.doorbells.swap(0, Ordering::Relaxed)
    }
}

impl TxQueue for Tape {
    fn push(
        &mut self,
        len: usize,
        _partial: bool,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        let mut frames = self.frames.lock().unwrap();
        if frames.len() as u64 >= self.room.load(Ordering::Relaxed) {
            return Err(RingFull);
        }
        let mut frame = vec![0xee; len];
        fill(&mut frame);
        frames.push_back(frame);
        Ok(())
    }

    fn flush(&mut self) {
        self.doorbells.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a test holds for a port.
#[derive(Debug)]
pub(super) struct Held;

impl PortHolder for Held {
    fn mark_handed_over(&self) {}
}

/// Records the last notification and their number; takes data that fits its room, if it has any.
#[derive(Default)]
pub(super) struct TestEndpoint {
    pub(super) ready: Mutex<Ready>,
    pub(super) notifications: AtomicU64,
    pub(super) room: AtomicUsize,
    pub(super) taken: Mutex<Vec<u8>>,
    /// How often data was offered in pieces.
    pub(super) in_pieces: AtomicU64,
    pub(super) ack_left: AtomicU64,
    pub(super) receives: AtomicBool,
}

impl TcpEndpoint for TestEndpoint {
    fn changed(&self, ready: Ready, _: Option<NapiId>, _: &mut Pass<'_>) {
        *self.ready.lock().unwrap() = ready;
        self.notifications.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self, _: Option<NapiId>, data: &[u8], _: &mut Pass<'_>) -> bool {
        let fits = data.len() <= self.room.load(Ordering::Relaxed);
        if fits {
            self.taken.lock().unwrap().extend_from_slice(data);
        }
        fits
    }

    fn take_pieces(&self, napi: Option<NapiId>, data: &Data<'_>, pass: &mut Pass<'_>) -> bool {
        self.in_pieces.fetch_add(1, Ordering::Relaxed);
        self.take(napi, &data.to_vec(), pass)
    }

    fn receives(&self, _: &Pass<'_>) -> bool {
        self.receives.load(Ordering::Relaxed)
    }

    fn ack_deferred_to_reader(&self) {
        self.ack_left.fetch_add(1, Ordering::Relaxed);
    }
}

pub(super) struct Host {
    pub(super) inet: Arc<Inet>,
    pub(super) iface: Arc<Interface>,
    pub(super) tape: Tape,
    /// How often the host asked for a tick at a deadline.
    pub(super) calls: Arc<AtomicU64>,
}

impl Host {
    fn new(which: usize, config: Config) -> Host {
        let calls = Arc::new(AtomicU64::new(0));
        let called = calls.clone();
        let wake_by = move |_| _ = called.fetch_add(1, Ordering::Relaxed);
        let inet = Inet::with_tcp(which as u128 + 7, config, Box::new(wake_by));
        let tape = Tape::default();
        tape.room.store(u64::MAX, Ordering::Relaxed);
        let info = Info {
            name: format!("test{which}"),
            mode: "test".into(),
            mac: MACS[which],
            mtu: 1500,
            queues: 1,
            tx_checksum: false,
            ifindex: None,
        };
        let own = Addressing::Own(vec![format!("{}/24", ADDRESSES[which]).parse().unwrap()]);
        let iface = inet.add_interface(info, vec![Box::new(tape.clone())], own);
        Host { inet, iface, tape, calls }
    }

    pub(super) fn sent(&self) -> Vec<Vec<u8>> {
        self.tape.frames.lock().unwrap().drain(..).collect()
    }

    pub(super) fn count(&self, count: Count) -> u64 {
        self.inet.count(count)
    }

    pub(super) fn doorbells(&self) -> u64 {
        self.tape.doorbells()
    }
}

type Lose = Box<dyn FnMut(usize, &[u8]) -> bool>;

pub(super) struct Net {
    pub(super) hosts: [Host; 2],
    pub(super) now: Instant,
    /// Whether a frame from this host is lost.
    pub(super) lose: Lose,
    /// Frames come in buffers of that many bytes.
    pub(super) buffer: usize,
}

impl Net {
    pub(super) fn new() -> Net {
        Net::with(Config::default())
    }

    /// Both hosts have these settings, and know each other's link address.
    pub(super) fn with(config: Config) -> Net {
        let hosts = [Host::new(A, config.clone()), Host::new(B, config)];
        let net = Net {
            hosts,
            now: Instant::from_millis(600_000),
            lose: Box::new(|_, _| false),
            buffer: usize::MAX,
        };
        for (host, other) in [(A, B), (B, A)] {
            let mut packet = [0; arp::LEN];
            let (from, to) = ((MACS[other], ADDRESSES[other]), (MACS[host], ADDRESSES[host]));
            arp::Packet::init(&mut packet, arp::Operation::REQUEST, from, to).unwrap();
            net.receive(host, &frame_of(other, EtherType::ARP, &packet));
            net.hosts[host].sent();
        }
        net
    }

    pub(super) fn pass(&self) -> Pass<'static> {
        Pass::new(None, self.now, PolledBy::Interrupt)
    }

    /// One frame comes in, in a pass of its own.
    pub(super) fn receive(&self, host: usize, frame: &[u8]) {
        self.receive_all(host, &[frame.to_vec()]);
    }

    /// These frames come in, in one pass.
    pub(super) fn receive_all(&self, host: usize, frames: &[Vec<u8>]) {
        self.receive_in(host, frames, None);
    }

    /// The same, in a pass of a thread that polls for `flow`.
    pub(super) fn receive_for(&self, flow: &Flow, host: usize, frames: &[Vec<u8>]) {
        self.receive_in(host, frames, Some(flow));
    }

    fn receive_in(&self, host: usize, frames: &[Vec<u8>], waited_for: Option<&Flow>) {
        let Host { inet, iface, .. } = &self.hosts[host];
        let mut pass =
            Pass { batched: true, expected_flow: waited_for, direct: None, ..self.pass() };
        for frame in frames {
            let buffers: Vec<&[u8]> = frame.chunks(self.buffer).collect();
            let more = &buffers[1..];
            let (bytes, rest) = (buffers[0], Rest::of(&more));
            let frame = Frame { bytes, rest, checksum: Checksum::Unverified };
            inet.receive(iface, 0, frame, &mut pass);
        }
        inet.end_of_pass(&mut pass);
    }

    /// Delivers frames in both directions, up to 64 in a pass, until there are none.
    pub(super) fn settle(&mut self) {
        loop {
            let mut moved = false;
            for (from, to) in [(A, B), (B, A)] {
                let mut frames = self.hosts[from].sent();
                moved |= !frames.is_empty();
                frames.retain(|frame| !(self.lose)(from, frame));
                frames.chunks(64).for_each(|frames| self.receive_all(to, frames));
            }
            if !moved {
                return;
            }
        }
    }

    /// Lets time pass: timers fire when they are due, and frames are delivered.
    pub(super) fn advance(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            let next = self.hosts.iter().filter_map(|host| host.inet.tick(&mut self.pass())).min();
            self.settle();
            match next {
                Some(next) if next <= end && self.now < end => {
                    self.now = next.max(self.now + Duration::from_micros(100)).min(end);
                }
                _ if self.now < end => self.now = end,
                _ => return,
            }
        }
    }

    pub(super) fn listen(&self, host: usize, at: &str, options: ListenOptions) -> Listening {
        self.try_listen(host, at, options).unwrap()
    }

    pub(super) fn try_listen(
        &self,
        host: usize,
        at: &str,
        options: ListenOptions,
    ) -> io::Result<Listening> {
        let endpoint = Arc::new(TestEndpoint::default());
        self.hosts[host].inet.tcp_listen(at.parse().unwrap(), options, None, endpoint)
    }

    pub(super) fn connect(&self, from: &str, to: &str) -> io::Result<Flow> {
        self.connect_with(A, from, to, &ConnectOptions::default(), Arc::default())
    }

    pub(super) fn connect_with(
        &self,
        host: usize,
        from: &str,
        to: &str,
        options: &ConnectOptions,
        endpoint: Arc<TestEndpoint>,
    ) -> io::Result<Flow> {
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        let mut pass = self.pass();
        let flow =
            self.hosts[host].inet.tcp_connect(from, to, options, None, endpoint, &mut pass)?;
        flow.send_syn(&mut pass);
        Ok(flow)
    }

    /// A connection from A to a listener, accepted by B.
    pub(super) fn joined(&mut self) -> (Flow, Flow, Listening) {
        let server = self.listen(B, "10.0.0.2:80", ListenOptions::default());
        let client = self.connect("10.0.0.1:0", "10.0.0.2:80").unwrap();
        self.settle();
        let served = server.accept().expect("a connection");
        (client, served, server)
    }

    pub(super) fn send(&mut self, flow: &Flow, data: &[u8]) -> usize {
        let sent = flow.send(&[IoSlice::new(data)], false, &mut self.pass()).unwrap();
        self.settle();
        sent
    }

    /// All there is to read.
    pub(super) fn recv(&mut self, flow: &Flow) -> Vec<u8> {
        let (mut all, mut some) = (Vec::new(), [0; 4096]);
        loop {
            match flow.recv(&mut [IoSliceMut::new(&mut some)], false, &mut self.pass()) {
                Ok(0) => break,
                Ok(n) => all.extend_from_slice(&some[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        self.settle();
        all
    }

    pub(super) fn close(&mut self, flow: &Flow) {
        flow.close(&mut self.pass());
        self.settle();
    }

    /// Injects a segment that looks like one of the other host's.
    pub(super) fn inject(&self, host: usize, from: &str, to: &str, segment: &Segment<'_>) {
        self.receive(host, &frame(1 - host, from, to, segment));
    }

    /// The segments that `host` has sent.
    pub(super) fn segments(&self, host: usize) -> Vec<Sent> {
        self.hosts[host].sent().iter().filter_map(|frame| Sent::read(frame)).collect()
    }
}

/// A segment that was sent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sent {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) header: Segment<'static>,
    pub(super) len: usize,
}

impl Sent {
    pub(super) fn read(frame: &[u8]) -> Option<Sent> {
        let ethernet = ethernet::Frame::new_checked(frame).unwrap().untag().unwrap();
        if ethernet.ethertype != EtherType::IPV4 {
            return None;
        }
        let ip = ipv4::Packet::new_checked(ethernet.payload).unwrap();
        ip.verify_checksum().unwrap();
        let packet = tcp::Packet::new_checked(ip.payload()).ok()?;
        packet.verify_checksum(ip.address_sum()).unwrap();
        let len = packet.payload().len();
        let header = without_data(parse::parse(&packet, false));
        Some(Sent {
            from: SocketAddrV4::new(ip.src(), packet.src_port()).into(),
            to: SocketAddrV4::new(ip.dst(), packet.dst_port()).into(),
            len,
            header,
        })
    }

    pub(super) fn is(&self, flags: Flags) -> bool {
        let mask = Flags::SYN | Flags::ACK | Flags::FIN | Flags::RST;
        self.header.flags.0 & mask.0 == flags.0
    }
}

fn without_data(segment: Segment<'_>) -> Segment<'static> {
    let Segment { seq, ack, flags, window, urgent, options, congested, .. } = segment;
    Segment { seq, ack, flags, window, urgent, options, congested, ..Segment::default() }
}

fn frame_of(from: usize, ethertype: EtherType, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 14 + packet.len()];
    let to = MACS[1 - from];
    let mut view = ethernet::Frame::init(&mut frame[..], to, MACS[from], ethertype).unwrap();
    view.payload_mut().copy_from_slice(packet);
    frame
}

/// An IP packet of `host` in a frame to the other.
pub(super) fn ip_frame(
    host: usize,
    (src, dst): (Ipv4Addr, Ipv4Addr),
    protocol: Protocol,
    payload: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![0; 20 + payload.len()];
    let mut ip = ipv4::Packet::init(&mut bytes[..], src, dst, protocol, payload.len()).unwrap();
    ip.payload_mut().copy_from_slice(payload);
    frame_of(host, EtherType::IPV4, &bytes)
}

/// A segment of `host` in a frame to the other.
pub(super) fn frame(host: usize, from: &str, to: &str, segment: &Segment<'_>) -> Vec<u8> {
    let tuple = Tuple::new(from.parse().unwrap(), to.parse().unwrap());
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (tuple.local(), tuple.remote()) else {
        panic!("IPv4 only")
    };
    let mut bytes = vec![0; parse::header_len(&segment.options) + segment.payload.len()];
    let room = parse::write_header(&mut bytes, (from.port(), to.port()), segment).unwrap();
    room.copy_from_slice(segment.payload);
    let mut packet = tcp::Packet::new_checked(&mut bytes[..]).unwrap();
    packet.fill_checksum(ipv4::address_sum(*from.ip(), *to.ip()));
    ip_frame(host, (*from.ip(), *to.ip()), Protocol::TCP, &bytes)
}
