//! Malformed and hostile frames sent to a host with live sockets, over the cable and over AF_XDP: no panic, every frame
//! counted under its cause, bounded memory, and good traffic among them undisturbed.

mod wire_walk;
mod xdp_support;

use busypoll_lab::needs_root;
use busypoll_stack::{
    Host, UdpSocket,
    nic::{Nic, Queue, cable, xdp::Xdp},
    options::{SO_RCVBUF, SOL_SOCKET},
    wire::{EtherType, MacAddr, Protocol, arp, ethernet, icmp, ipv4, udp},
};
use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    time::{Duration, Instant},
};

const TIMEOUT: Duration = Duration::from_secs(20);
/// The destination port of the good datagrams, and of bad ones that parse so far.
const PORT: u16 = 7;

/// xorshift64: the same frames in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// The two ends of the wire.
#[derive(Clone, Copy)]
struct Ends {
    us: (MacAddr, Ipv4Addr),
    host: (MacAddr, Ipv4Addr),
}

impl Ends {
    fn frame(&self, ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; ethernet::HEADER_LEN + payload.len()];
        ethernet::Frame::init(&mut frame[..], self.host.0, self.us.0, ethertype)
            .unwrap()
            .payload_mut()
            .copy_from_slice(payload);
        frame
    }

    fn packet(&self, protocol: Protocol, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; ipv4::HEADER_LEN + payload.len()];
        ipv4::Packet::init(&mut packet[..], self.us.1, self.host.1, protocol, payload.len())
            .unwrap()
            .payload_mut()
            .copy_from_slice(payload);
        packet
    }

    fn ip(&self, protocol: Protocol, payload: &[u8]) -> Vec<u8> {
        self.frame(EtherType::IPV4, &self.packet(protocol, payload))
    }

    fn udp(&self, to: u16, payload: &[u8]) -> Vec<u8> {
        let mut datagram = vec![0; udp::HEADER_LEN + payload.len()];
        let mut view = udp::Packet::init(&mut datagram[..], 9, to, payload.len()).unwrap();
        view.payload_mut().copy_from_slice(payload);
        view.fill_checksum(ipv4::address_sum(self.us.1, self.host.1));
        self.ip(Protocol::UDP, &datagram)
    }

    fn ping(&self) -> Vec<u8> {
        let mut message = [0; 40];
        icmp::Packet::init_echo(&mut message[..], icmp::Type::ECHO_REQUEST, 1, 1)
            .unwrap()
            .fill_checksum();
        self.ip(Protocol::ICMP, &message)
    }

    /// "Your packet from `PORT` could not be delivered."
    fn unreachable(&self) -> Vec<u8> {
        let back = Ends { us: self.host, host: self.us };
        let mut quote = back.packet(Protocol::UDP, &[0; 16]);
        let mut inner = ipv4::Packet::new_checked(&mut quote[..]).unwrap();
        udp::Packet::init(inner.payload_mut(), PORT, 9, 8).unwrap();
        let mut message = [0; icmp::HEADER_LEN + 36];
        icmp::Packet::init_error(&mut message[..], icmp::Type::UNREACHABLE, 3, 0, &quote).unwrap();
        self.ip(Protocol::ICMP, &message)
    }

    /// Also fragments that no correct sender makes.
    fn fragment(&self, ident: u16, offset: usize, more: bool, bytes: usize) -> Vec<u8> {
        let word = (offset / 8) as u16 | if more { 0x2000 } else { 0 };
        let frame = changed(self.ip(Protocol::UDP, &vec![1; bytes]), 18, &ident.to_be_bytes());
        with_ip_checksum(changed(frame, 20, &word.to_be_bytes()))
    }

    fn arp(&self) -> Vec<u8> {
        let mut packet = [0; arp::LEN];
        let unspecified = (MacAddr::UNSPECIFIED, self.host.1);
        arp::Packet::init(&mut packet[..], arp::Operation::REQUEST, self.us, unspecified).unwrap();
        self.frame(EtherType::ARP, &packet)
    }
}

/// `frame` behind tags of these VLAN ids.
fn tagged(frame: &[u8], vids: &[u16]) -> Vec<u8> {
    let tags = vids.iter().flat_map(|vid| [0x81, 0, (vid >> 8) as u8, *vid as u8]);
    let mut out = frame[..12].to_vec();
    out.extend(tags);
    out.extend(&frame[12..]);
    out
}

fn changed(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// Fixes the IP header's checksum, if there is an IP header.
fn with_ip_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    if frame.len() >= 34
        && let Ok(mut packet) = ipv4::Packet::new_checked(&mut frame[14..])
    {
        packet.fill_checksum();
    }
    frame
}

/// A frame with some fault; by chance it may be correct.
fn bad_frame(ends: &Ends, noise: &mut Noise) -> Vec<u8> {
    let len = noise.below(1400);
    let payload = noise.bytes(len);
    let mut frame = match noise.below(8) {
        0 => {
            let len = noise.below(1500);
            return noise.bytes(len);
        }
        1 => ends.frame(EtherType::IPV4, &payload),
        2 => ends.udp(PORT, &payload),
        3 => ends.udp(PORT + 1, &payload[..len.min(40)]),
        4 => ends.udp(noise.next() as u16, &[]),
        5 => ends.ping(),
        6 => ends.unreachable(),
        _ => {
            let (ident, more) = (noise.below(64) as u16, !noise.one_in(3));
            let offset = noise.below(400) * 8;
            ends.fragment(ident, offset, more, noise.below(100) * 8)
        }
    };
    for _ in 0..noise.below(4) {
        // Mostly in the headers. The low bytes of the addresses stay, or few frames would get further.
        let at = noise.below(frame.len().min(60));
        if at >= 12 {
            frame[at] = noise.next() as u8;
        }
    }
    if noise.one_in(3) {
        // Contradicting lengths: of the packet, or of the datagram.
        let at = if noise.one_in(2) { 16 } else { 38 };
        if frame.len() > at + 1 {
            frame[at] = noise.below(8) as u8;
            frame[at + 1] = noise.next() as u8;
        }
    }
    if noise.one_in(2) {
        frame = with_ip_checksum(frame);
    }
    if noise.one_in(4) {
        let vids: Vec<u16> = (0..=noise.below(4)).map(|_| noise.below(3) as u16).collect();
        frame = tagged(&frame, &vids);
    }
    if noise.one_in(4) {
        frame.truncate(noise.below(frame.len() + 1));
    }
    frame
}

/// Sends raw frames. All frames that come back are read and must be well-formed.
struct Sender {
    queue: Queue,
    sent: u64,
}

impl Sender {
    fn send(&mut self, frame: &[u8]) {
        let deadline = Instant::now() + TIMEOUT;
        let fill = &mut |room: &mut [u8]| room.copy_from_slice(frame);
        while self.queue.tx.push(frame.len(), false, fill).is_err() {
            assert!(Instant::now() < deadline, "the host has stopped receiving");
            self.queue.tx.flush();
            std::thread::yield_now();
        }
        self.queue.tx.flush();
        self.sent += 1;
        self.queue.rx.poll(64, &mut |frame| {
            assert_eq!(wire_walk::frame(frame.bytes), Ok(()), "{:02x?}", frame.bytes);
        });
    }
}

fn good(number: u32) -> Vec<u8> {
    [b"good".as_slice(), &number.to_be_bytes()].concat()
}

/// Receives up to the good datagram `number`; bad datagrams that were delivered are skipped.
fn expect(socket: &UdpSocket, number: u32) {
    let mut buffer = [0; 2048];
    loop {
        let len = socket.recv(&mut buffer).unwrap_or_else(|e| panic!("good {number} is lost: {e}"));
        if buffer[..len].starts_with(b"good") {
            return assert_eq!(buffer[..len], good(number));
        }
    }
}

/// `rounds` of some bad frames and one good one.
fn storm(ends: &Ends, sender: &mut Sender, socket: &UdpSocket, rounds: u32, noise: &mut Noise) {
    for number in 0..rounds {
        for _ in 0..noise.below(30) {
            let frame = bad_frame(ends, noise);
            // Bad ARP has its own test: correct ARP frames have no counter.
            if ![12, 16, 20].iter().any(|at| frame.get(*at..at + 2) == Some(&[8, 6])) {
                sender.send(&frame);
            }
        }
        sender.send(&ends.udp(PORT, &good(number)));
        expect(socket, number);
    }
}

fn cabled() -> (Ends, Sender, Host) {
    let (mut a, b) = cable::pair(cable::Config::default()).unwrap();
    let ends = Ends {
        us: (a.info().mac, Ipv4Addr::new(10, 0, 0, 1)),
        host: (b.info().mac, Ipv4Addr::new(10, 0, 0, 2)),
    };
    let host = Host::builder().interface(b, "10.0.0.2/24").build().unwrap();
    let mut sender = Sender { queue: a.open(0).unwrap(), sent: 0 };
    sender.send(&ends.arp());
    sender.sent = 0;
    (ends, sender, host)
}

fn bound(host: &Host, address: &str, receive_buffer: i32) -> UdpSocket {
    let socket = UdpSocket::bind(host, address).unwrap();
    socket.setsockopt(SOL_SOCKET, SO_RCVBUF, receive_buffer).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

fn count(host: &Host, name: &str) -> u64 {
    let counters = host.counters();
    counters.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no {name}")).1
}

/// The places where a received frame can end, each with its counter; a reassembled packet ends a second time.
fn accounted_for(host: &Host) -> u64 {
    let ends = [
        "LinkInTruncated",
        "LinkInOtherHost",
        "LinkInVlan",
        "LinkInTooManyTags",
        "LinkInUnknownProtos",
        "IpInHdrErrors",
        "IpExtInTruncatedPkts",
        "IpInSourceRoutes",
        "IpInAddrErrors",
        "IpInMartians",
        "IpInUnknownProtos",
        "IpReasmReqds",
        "IcmpInMsgs",
        "UdpInDatagrams",
        "UdpNoPorts",
        "UdpInErrors",
        "TcpInSegs",
        "TcpInErrs",
    ];
    ends.iter().map(|name| count(host, name)).sum::<u64>() - count(host, "IpReasmOKs")
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn every_malformed_frame_over_the_cable_is_counted() {
    let (ends, mut sender, host) = cabled();
    let socket = bound(&host, "10.0.0.2:7", 1 << 20);
    // Two sockets without a reader: they fill up.
    let wildcard = bound(&host, "0.0.0.0:8", 10_000);
    let connected = bound(&host, "10.0.0.2:9", 10_000);
    connected.connect("10.0.0.1:9").unwrap();
    let mut noise = Noise(0x5eed);
    storm(&ends, &mut sender, &socket, 1_000, &mut noise);
    let before = resident_kib();
    for busy_poll in [0, 50] {
        socket.set_busy_poll(busy_poll).unwrap();
        storm(&ends, &mut sender, &socket, 15_000, &mut noise);
    }
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 16 << 10, "{grown} KiB more after {} frames", sender.sent);
    assert_eq!(accounted_for(&host), sender.sent, "{:?}", host.counters());
    assert_eq!(socket.stats().drops, 0);
    assert!(wildcard.stats().drops > 0 && wildcard.waiting().0 <= 200);
    for cause in [
        "LinkInTruncated",
        "LinkInVlan",
        "LinkInUnknownProtos",
        "IpInHdrErrors",
        "IpInCsumErrors",
        "IpInAddrErrors",
        "IpInUnknownProtos",
        "IpReasmOverlaps",
        "IcmpInErrors",
        "IcmpInCsumErrors",
        "UdpNoPorts",
        "UdpInErrors",
        "UdpInCsumErrors",
        "UdpRcvbufErrors",
    ] {
        assert!(count(&host, cause) > 0, "no {cause}: {:?}", host.counters());
    }
}

#[test]
fn every_fault_has_its_own_count() {
    let (ends, mut sender, host) = cabled();
    let socket = bound(&host, "10.0.0.2:7", 1 << 20);
    let good_frame = ends.udp(PORT, b"victim");
    let stranger = changed(good_frame.clone(), 0, &[2, 9, 9, 9, 9, 9]);
    let elsewhere = with_ip_checksum(changed(good_frame.clone(), 30, &[10, 9, 9, 9]));
    let martian = with_ip_checksum(changed(good_frame.clone(), 26, &[127, 0, 0, 1]));
    let longer = with_ip_checksum(changed(ends.udp(PORT, b"victim"), 38, &[0, 200]));
    let shorter = with_ip_checksum(changed(ends.udp(PORT, b"victim"), 38, &[0, 7]));
    let beyond = changed(good_frame.clone(), 16, &[0x40, 0]);
    let source_route = {
        let mut packet = vec![0x47, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0, 0];
        packet.extend(ends.us.1.octets());
        packet.extend(ends.host.1.octets());
        packet.extend([131, 7, 4, 10, 0, 0, 9, 0]);
        packet.extend([0; 8]);
        with_ip_checksum(ends.frame(EtherType::IPV4, &packet))
    };
    let half = changed(ends.arp(), 14 + 6, &[9, 9]);
    for (what, frames, cause) in [
        ("a cut header", vec![good_frame[..13].to_vec()], "LinkInTruncated"),
        ("an empty frame", vec![Vec::new()], "LinkInTruncated"),
        ("another station's", vec![stranger], "LinkInOtherHost"),
        ("a VLAN that is not ours", vec![tagged(&good_frame, &[5])], "LinkInVlan"),
        ("three tags", vec![tagged(&good_frame, &[0, 0, 0])], "LinkInTooManyTags"),
        ("a cut tag", vec![tagged(&good_frame, &[0])[..16].to_vec()], "LinkInTruncated"),
        (
            "an unknown protocol",
            vec![changed(good_frame.clone(), 12, &[0x12, 0x34])],
            "LinkInUnknownProtos",
        ),
        ("an unknown ARP operation", vec![half], "ArpInErrors"),
        ("an unknown version", vec![changed(good_frame.clone(), 14, &[0x55])], "IpInBadVersion"),
        ("a header too short", vec![changed(good_frame.clone(), 14, &[0x44])], "IpInBadLength"),
        ("a length beyond the frame", vec![beyond], "IpExtInTruncatedPkts"),
        (
            "a fragment of a length that is no multiple of 8",
            vec![ends.fragment(2, 0, true, 63)],
            "IpInBadFragment",
        ),
        (
            "a wrong header checksum",
            vec![changed(good_frame.clone(), 24, &[1, 2])],
            "IpInCsumErrors",
        ),
        ("a source route", vec![source_route], "IpInSourceRoutes"),
        ("an address that is not ours", vec![elsewhere], "IpInAddrErrors"),
        ("a sender from loopback", vec![martian], "IpInMartians"),
        ("a protocol without a handler", vec![ends.ip(Protocol(200), b"?")], "IpInUnknownProtos"),
        (
            "fragments that overlap",
            vec![ends.fragment(1, 0, true, 64), ends.fragment(1, 32, true, 64)],
            "IpReasmOverlaps",
        ),
        ("ICMP with a wrong checksum", vec![changed(ends.ping(), 36, &[1, 2])], "IcmpInCsumErrors"),
        ("cut ICMP", vec![ends.ip(Protocol::ICMP, &[8, 0, 0])], "IcmpInErrors"),
        ("a cut datagram", vec![ends.ip(Protocol::UDP, &[0; 7])], "UdpInTruncated"),
        ("a datagram longer than its packet", vec![longer], "UdpInTruncated"),
        ("a datagram shorter than its header", vec![shorter], "UdpInBadLength"),
        ("a wrong UDP checksum", vec![changed(good_frame.clone(), 44, b"b")], "UdpInCsumErrors"),
        ("a port without a socket", vec![ends.udp(99, b"?")], "UdpNoPorts"),
    ] {
        let before = count(&host, cause);
        frames.iter().for_each(|frame| sender.send(frame));
        // Frames keep their order: when the good one has come, so have the others.
        sender.send(&ends.udp(PORT, &good(1)));
        let mut buffer = [0; 64];
        assert_eq!(socket.recv(&mut buffer).unwrap(), 8, "{what}");
        assert_eq!(buffer[..8], good(1), "{what} was delivered");
        assert_eq!(count(&host, cause) - before, 1, "{what}: {:?}", host.counters());
    }
    assert_eq!(socket.stats().drops, 0);
}

/// On a shared interface: what the steering program cannot parse goes to the kernel.
#[test]
fn malformed_frames_over_af_xdp_do_no_harm() {
    needs_root!();
    let lab = xdp_support::lab();
    let ends = Ends {
        us: (MacAddr(lab.client.mac()), lab.client.ipv4()),
        host: (MacAddr(lab.server.mac()), lab.server.ipv4()),
    };
    let build = || {
        let host = Host::builder().shared_interface(Xdp::open(lab.server.interface())?).build()?;
        let socket = UdpSocket::bind(&host, ("0.0.0.0", PORT))?;
        Ok::<_, std::io::Error>((host, socket))
    };
    let (host, socket) = lab.server.enter(build).unwrap().unwrap();
    socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 1 << 20).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut sender = Sender { queue: xdp_support::station(&lab.client).queue, sent: 0 };
    let mut noise = Noise(0x5eed);
    for busy_poll in [0, 50] {
        socket.set_busy_poll(busy_poll).unwrap();
        storm(&ends, &mut sender, &socket, 2_000, &mut noise);
    }
    assert!(count(&host, "UdpInErrors") > 0, "{:?}", host.counters());
    // Both kernels and the host still work: an answer comes back, and other ports are the kernel's.
    let client = xdp_support::kernel_socket(&lab.client, 0);
    let to = SocketAddr::V4(SocketAddrV4::new(lab.server.ipv4(), PORT));
    client.send_to(&good(0), to).unwrap();
    let mut buffer = [0; 64];
    let (len, from) = loop {
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        if buffer[..len] == good(0) {
            break (len, from);
        }
    };
    socket.send_to(&buffer[..len], from).unwrap();
    assert_eq!(client.recv_from(&mut buffer).unwrap(), (8, to));
    let other = xdp_support::kernel_socket(&lab.server, PORT + 1);
    client.send_to(b"other", (lab.server.ipv4(), PORT + 1)).unwrap();
    assert_eq!(other.recv(&mut buffer).unwrap(), 5);
}
