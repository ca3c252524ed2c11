//! Our TCP and the kernel's as peers on a bad link: loss, duplication, reordering and corruption, both roles,
//! both families, over TAP and over AF_XDP. Every byte is compared.

use busypoll_lab::{Lab, Namespace, needs_root};
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
    net::{Shutdown, SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream},
    thread,
};

/// Bytes each way of one connection.
const TOTAL: usize = 20 << 20;

const BAD: Faults = Faults {
    loss: 0.01,
    duplication: 0.01,
    reordering: 0.02,
    corruption: 0.01,
    delay: std::time::Duration::ZERO,
};

fn bad(nic: impl Nic + 'static, seed: u64) -> Fault {
    let config = Config { seed, receive: BAD, transmit: BAD, ..Config::default() };
    Fault::new(Box::new(nic), config).unwrap()
}

/// Either's end of a connection.
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

/// A stream of bytes that repeats nowhere near.
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

/// Writes of 1 byte to 16 MiB, as many small as large ones.
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
    let mut expected = vec![0; TOTAL];
    Noise(seed).fill(&mut expected);
    let mut chunk = vec![0; 100_000];
    let mut at = 0;
    loop {
        let n = from.receive(&mut chunk).unwrap();
        if n == 0 {
            break;
        }
        assert!(expected.get(at..at + n) == Some(&chunk[..n]), "wrong bytes after {at}");
        at += n;
    }
    assert_eq!(at, TOTAL, "the end came early");
}

/// Both send and both receive, at once.
fn exchange(one: &impl Peer, other: &impl Peer) {
    thread::scope(|scope| {
        scope.spawn(|| pour(one, 1));
        scope.spawn(|| pour(other, 2));
        scope.spawn(|| drain(one, 2));
        drain(other, 1);
    });
}

/// Our host, which lives in `here`, and the kernel `there`: each connects once to the other.
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
fn over_a_tap() {
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

#[test]
fn over_af_xdp_both_families() {
    needs_root!();
    let lab = Lab::builder().build().unwrap();
    let host = lab
        .server
        .enter(|| {
            let xdp = Xdp::open(lab.server.interface())?;
            Host::builder().shared_interface(bad(xdp, 4)).build()
        })
        .unwrap()
        .unwrap();
    let four = (lab.server.ipv4().into(), lab.client.ipv4().into());
    let six = lab.server.ipv6().zip(lab.client.ipv6()).map(|(a, b)| (a.into(), b.into()));
    for (ours, theirs) in [Some(four), six].into_iter().flatten() {
        let (ours, theirs) = (SocketAddr::new(ours, 7), SocketAddr::new(theirs, 7));
        both_roles(&host, (&lab.server, ours), (&lab.client, theirs));
    }
}
