//! Our TCP against the kernel's on a link with faults: loss, duplication, reordering and corruption, both roles, both
//! families, over TAP and over AF_XDP. Every byte is compared.

use busypoll_lab::{Lab, Namespace, needs, needs_root};
use busypoll_stack::{
    Host, TcpListener, TcpStream,
    nic::{
        Nic,
        fault::{Config, Fault, Faults},
        tap::Tap,
        xdp::Xdp,
    },
};
use std::{
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream},
    thread,
    time::{Duration, Instant},
};

/// Bytes in each direction of one connection: more than both ends' buffers hold.
const TOTAL: usize = 20 << 20;

/// How long a stopping reader reads nothing: the buffers fill, and then the window is probed.
const STOPPED: Duration = Duration::from_secs(2);

const BAD: Faults = Faults {
    loss: 0.01,
    duplication: 0.01,
    reordering: 0.02,
    corruption: 0.01,
    delay: Duration::ZERO,
};

fn bad(nic: impl Nic + 'static, seed: u64) -> Fault {
    let config = Config { seed, receive: BAD, transmit: BAD, ..Config::default() };
    Fault::new(Box::new(nic), config).unwrap()
}

/// One end of a connection, ours or the kernel's.
trait Peer: Sync {
    fn receive(&self, into: &mut [u8]) -> io::Result<usize>;
    fn send(&self, data: &[u8]) -> io::Result<()>;
    fn end(&self) -> io::Result<()>;
}

macro_rules! peer {
    ($($stream:ty),+) => {$(
        impl Peer for $stream {
            fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
                let mut this = self;
                Read::read(&mut this, into)
            }
            fn send(&self, data: &[u8]) -> io::Result<()> {
                let mut this = self;
                this.write_all(data)
            }
            fn end(&self) -> io::Result<()> {
                self.shutdown(Shutdown::Write)
            }
        }
    )+};
}

peer!(TcpStream, KernelStream);

/// A pseudo-random stream of bytes.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn fill(&mut self, to: &mut [u8]) {
        for chunk in to.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// Writes of 1 byte to 16 MiB, small and large ones equally often.
fn pour(to: &impl Peer, seed: u64) {
    let mut all = vec![0; TOTAL];
    Noise(seed).fill(&mut all);
    let mut sizes = Noise(seed ^ 0xffff);
    let mut rest = &all[..];
    while !rest.is_empty() {
        let magnitude = sizes.next() % 25;
        let size = 1 + (sizes.next() % (1 << magnitude)) as usize;
        let (now, later) = rest.split_at(size.min(rest.len()));
        to.send(now).unwrap();
        rest = later;
    }
    to.end().unwrap();
}

fn drain(from: &impl Peer, seed: u64) {
    let mut reading = Reading::new(seed);
    while reading.go_on(from, 100_000) > 0 {}
    assert_eq!(reading.at, TOTAL, "the end came early");
}

/// The stream of a seed, read up to a position.
struct Reading {
    expected: Vec<u8>,
    at: usize,
}

impl Reading {
    fn new(seed: u64) -> Reading {
        let mut expected = vec![0; TOTAL];
        Noise(seed).fill(&mut expected);
        Reading { expected, at: 0 }
    }

    /// Reads at most `most` bytes, once; returns the number.
    fn go_on(&mut self, from: &impl Peer, most: usize) -> usize {
        let mut chunk = vec![0; most];
        let n = from.receive(&mut chunk).unwrap();
        let expected = self.expected.get(self.at..self.at + n);
        assert!(expected == Some(&chunk[..n]), "wrong bytes after {}", self.at);
        self.at += n;
        n
    }
}

/// Reads nothing for a while; then small pieces, so that the window opens and closes all the time; then the rest.
fn drain_reluctantly(from: &impl Peer, seed: u64) {
    let mut reading = Reading::new(seed);
    thread::sleep(STOPPED);
    while reading.at < TOTAL / 20 {
        reading.go_on(from, 700);
        thread::yield_now();
    }
    while reading.go_on(from, 100_000) > 0 {}
    assert_eq!(reading.at, TOTAL, "the end came early");
}

/// Both ends send and receive at once.
fn exchange(one: &impl Peer, other: &impl Peer) {
    thread::scope(|scope| {
        scope.spawn(|| pour(one, 1));
        scope.spawn(|| pour(other, 2));
        scope.spawn(|| drain(one, 2));
        drain(other, 1);
    });
}

/// Both ends send at once, and both read reluctantly.
fn exchange_reluctantly(one: &impl Peer, other: &impl Peer) {
    let begun = Instant::now();
    let poured = || assert!(begun.elapsed() > STOPPED, "all of it went into the buffers");
    thread::scope(|scope| {
        scope.spawn(|| {
            pour(one, 1);
            poured();
        });
        scope.spawn(|| {
            pour(other, 2);
            poured();
        });
        scope.spawn(|| drain_reluctantly(one, 2));
        drain_reluctantly(other, 1);
    });
}

/// Our host is in `here`, the kernel's socket in `there`: each connects once to the other.
fn both_roles(
    host: &Host,
    (here, ours): (&Namespace, SocketAddr),
    (there, theirs): (&Namespace, SocketAddr),
) {
    let listener = here.enter(|| TcpListener::bind(host, ours)).unwrap().unwrap();
    let kernel = there.enter(|| KernelStream::connect(ours)).unwrap().unwrap();
    let (stream, _) = listener.accept().unwrap();
    exchange(&stream, &kernel);

    let listener = there.enter(|| KernelListener::bind(theirs)).unwrap().unwrap();
    let stream = here.enter(|| TcpStream::connect(host, theirs)).unwrap().unwrap();
    let (kernel, _) = listener.accept().unwrap();
    exchange(&stream, &kernel);
}

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

#[test]
fn every_byte_arrives_over_a_faulty_tap() {
    needs_root!();
    let namespace = Lab::single().unwrap();
    let host = namespace
        .enter(|| {
            let tap = Tap::builder("tap0").kernel_address("10.0.0.1/24").open()?;
            Host::builder().interface(bad(tap, 3), "10.0.0.2/24").build()
        })
        .unwrap()
        .unwrap();
    both_roles(&host, (&namespace, at("10.0.0.2:7")), (&namespace, at("10.0.0.1:7")));
}

/// Our host on the lab's server, over AF_XDP.
fn shared(lab: &Lab) -> Host {
    let build = || {
        let xdp = Xdp::open(lab.server.interface())?;
        Host::builder().shared_interface(bad(xdp, 4)).build()
    };
    lab.server.enter(build).unwrap().unwrap()
}

/// Addresses of the server and of the client, by family.
fn families(lab: &Lab) -> impl Iterator<Item = (SocketAddr, SocketAddr)> {
    let four = (lab.server.ipv4().into(), lab.client.ipv4().into());
    let six = lab.server.ipv6().zip(lab.client.ipv6()).map(|(a, b)| (a.into(), b.into()));
    if six.is_none() {
        needs::skipped(module_path!(), "IPv6");
    }
    let at =
        |(ours, theirs): (IpAddr, IpAddr)| (SocketAddr::new(ours, 7), SocketAddr::new(theirs, 7));
    [Some(four), six].into_iter().flatten().map(at)
}

#[test]
fn every_byte_arrives_over_faulty_af_xdp_in_both_families() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let host = shared(&lab);
    for (ours, theirs) in families(&lab) {
        both_roles(&host, (&lab.server, ours), (&lab.client, theirs));
    }
}

#[test]
#[ignore = "long: ten seconds"]
fn every_byte_arrives_in_packets_of_every_size() {
    needs_root!();
    for mtu in [1280, 3600, 9000, 65_535] {
        let lab = Lab::builder().mtu(mtu).build().unwrap();
        let host = shared(&lab);
        for (ours, theirs) in families(&lab) {
            both_roles(&host, (&lab.server, ours), (&lab.client, theirs));
        }
    }
}

#[test]
fn readers_that_stop_and_slow_readers_get_every_byte() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let host = shared(&lab);
    for (ours, _) in families(&lab) {
        let listener = lab.server.enter(|| TcpListener::bind(&host, ours)).unwrap().unwrap();
        let kernel = lab.client.enter(|| KernelStream::connect(ours)).unwrap().unwrap();
        exchange_reluctantly(&listener.accept().unwrap().0, &kernel);
    }
}
