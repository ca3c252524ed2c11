//! Shared by the AF_XDP tests: a lab with the driver on the server's interface, raw frames and an echo, and a kernel
//! socket with a time limit.
#![allow(dead_code)] // each test file uses its own part

use busypoll_lab::{Lab, LabHost};
use busypoll_stack::{
    nic::{Nic, Queue, Steering, xdp::Xdp},
    wire::{
        MacAddr,
        ethernet::{EtherType, Frame},
        ipv4, udp,
    },
};
use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub const UDP: u8 = 17;
pub const PORT: u16 = 9000;

/// The driver on `host`, queue 0 open, taking UDP for `PORT`.
pub struct Station {
    pub nic: Xdp,
    pub queue: Queue,
    pub steering: Arc<dyn Steering>,
    pub address: SocketAddr,
}

impl Station {
    /// Sends one frame.
    pub fn send(&mut self, frame: &[u8]) {
        let fill = &mut |to: &mut [u8]| to.copy_from_slice(frame);
        self.queue.tx.push(frame.len(), false, fill).unwrap();
        self.queue.tx.flush();
    }
}

pub fn station(host: &LabHost) -> Station {
    let mut nic = host.enter(|| Xdp::open(host.interface())).unwrap().unwrap();
    let queue = nic.open(0).unwrap();
    let steering = nic.steering().unwrap();
    let address = SocketAddr::from((host.ipv4(), PORT));
    steering.add(UDP, address).unwrap();
    Station { nic, queue, steering, address }
}

pub fn lab() -> Lab {
    Lab::builder().build().unwrap()
}

/// A kernel socket on `host` with a receive timeout.
pub fn kernel_socket(host: &LabHost, port: u16) -> UdpSocket {
    let socket = host.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Binds to a port that was released just now: a child process that another test is starting has copies of our
/// descriptors, and so the port, until its exec.
pub fn once_free<T>(bind: impl Fn() -> io::Result<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match bind() {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(1));
            }
            bound => return bound.unwrap(),
        }
    }
}

/// IPv6 options without the next-header byte: padding, which has no effect.
pub const PADDING: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];

/// Makes the kernel put options without effect into the header of every packet from `socket` to `to`: as many as fit
/// over IPv4, two extension headers over IPv6.
pub fn add_options(socket: &impl AsRawFd, to: IpAddr) {
    if to.is_ipv4() {
        return add_header(socket, (libc::IPPROTO_IP, libc::IP_OPTIONS), &[1; 40]);
    }
    let header = [&[0], &PADDING[..]].concat();
    for name in [libc::IPV6_HOPOPTS, libc::IPV6_DSTOPTS] {
        add_header(socket, (libc::IPPROTO_IPV6, name), &header);
    }
}

/// Makes the kernel put `header` into every packet from `socket`, by the option (level, name).
pub fn add_header(socket: &impl AsRawFd, (level, name): (i32, i32), header: &[u8]) {
    let (value, len) = (header.as_ptr().cast(), header.len() as libc::socklen_t);
    // SAFETY: the header is valid for its length.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, len) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Polls until `done` returns true, or panics.
pub fn poll_until(queue: &mut Queue, what: &str, mut done: impl FnMut(&[u8]) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut finished = false;
    while !finished {
        assert!(Instant::now() < deadline, "waited for {what}");
        queue.rx.poll(64, &mut |frame| finished |= done(&frame.data().to_vec()));
        thread::yield_now();
    }
}

/// Swaps source and destination of a UDP frame; the checksum is left out, as RFC 768 allows.
pub fn swap_addresses(frame: &mut [u8]) {
    frame[0..12].rotate_left(6);
    frame[26..34].rotate_left(4);
    frame[34..38].rotate_left(2);
    frame[40..42].fill(0);
}

/// Echoes until `stop`; returns the number of frames.
pub fn echo(queue: &mut Queue, stop: &AtomicBool) -> usize {
    let mut echoed = 0;
    let Queue { rx, tx, .. } = queue;
    while !stop.load(Ordering::Relaxed) {
        let n = rx.poll(64, &mut |frame| {
            let answer = &mut |to: &mut [u8]| {
                frame.data().copy_to(to);
                swap_addresses(to);
            };
            tx.push(frame.data().len(), false, answer).unwrap();
        });
        if n > 0 {
            tx.flush();
        } else {
            thread::yield_now();
        }
        echoed += n;
    }
    echoed
}

/// Writes an Ethernet/IPv4/UDP frame into `to`, its payload `to.len() - 42` bytes of `fill`.
pub fn write_udp(
    to: &mut [u8],
    macs: (MacAddr, MacAddr),
    from: SocketAddr,
    dest: SocketAddr,
    fill: u8,
) {
    let (SocketAddr::V4(from), SocketAddr::V4(dest)) = (from, dest) else {
        panic!("IPv4 frames only")
    };
    let mut frame = Frame::init(to, macs.1, macs.0, EtherType::IPV4).unwrap();
    let ip_payload = frame.payload_mut();
    let length = ip_payload.len() - 20;
    let mut packet =
        ipv4::Packet::init(ip_payload, *from.ip(), *dest.ip(), ipv4::Protocol::UDP, length)
            .unwrap();
    packet.fill_checksum();
    let mut datagram =
        udp::Packet::init(packet.payload_mut(), from.port(), dest.port(), length - 8).unwrap();
    datagram.payload_mut().fill(fill);
    datagram.fill_checksum(ipv4::address_sum(*from.ip(), *dest.ip()));
}
