//! The same scripts on the kernel's UDP sockets over loopback and on ours over the cable: every result and every errno
//! must be the same. Linux is the oracle; no expected values stand here.

mod common;

use busypoll_stack::{Events, Host, PollFd, UdpSocket, poll};
use common::{hosts, sockets};
use std::{
    io::{self, ErrorKind},
    net::{Shutdown, SocketAddr, UdpSocket as KernelSocket},
    os::fd::AsRawFd,
    time::Duration,
};

/// Longer than any expected event takes.
const SOON: Option<Duration> = Some(Duration::from_secs(10));
/// Long enough to conclude that nothing comes.
const SHORT: Option<Duration> = Some(Duration::from_millis(30));

/// The calls that a script may make on a socket.
trait Udp {
    fn connect(&self, to: SocketAddr) -> io::Result<()>;
    fn send(&self, payload: &[u8]) -> io::Result<usize>;
    fn send_to(&self, payload: &[u8], to: SocketAddr) -> io::Result<usize>;
    fn recv(&self, buffer: &mut [u8]) -> io::Result<usize>;
    fn peek(&self, buffer: &mut [u8]) -> io::Result<usize>;
    fn local_addr(&self) -> io::Result<SocketAddr>;
    fn peer_addr(&self) -> io::Result<SocketAddr>;
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;
    fn take_error(&self) -> io::Result<Option<io::Error>>;
    fn set_nonblocking(&self, on: bool) -> io::Result<()>;
    fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
    /// poll(2) with no requested events: returns the events that are always reported.
    fn wait_for_trouble(&self) -> u32;
}

macro_rules! same_names {
    ($shutdown:expr) => {
        fn connect(&self, to: SocketAddr) -> io::Result<()> {
            Self::connect(self, to)
        }
        fn send(&self, payload: &[u8]) -> io::Result<usize> {
            Self::send(self, payload)
        }
        fn send_to(&self, payload: &[u8], to: SocketAddr) -> io::Result<usize> {
            Self::send_to(self, payload, to)
        }
        fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
            Self::recv(self, buffer)
        }
        fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
            Self::peek_from(self, buffer).map(|(len, _)| len)
        }
        fn local_addr(&self) -> io::Result<SocketAddr> {
            Self::local_addr(self)
        }
        fn peer_addr(&self) -> io::Result<SocketAddr> {
            Self::peer_addr(self)
        }
        fn shutdown(&self, how: Shutdown) -> io::Result<()> {
            $shutdown(self, how)
        }
        fn take_error(&self) -> io::Result<Option<io::Error>> {
            Self::take_error(self)
        }
        fn set_nonblocking(&self, on: bool) -> io::Result<()> {
            Self::set_nonblocking(self, on)
        }
        fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
            Self::set_read_timeout(self, timeout)
        }
    };
}

impl Udp for KernelSocket {
    same_names!(|socket: &KernelSocket, how| {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        // SAFETY: a plain system call on our own socket.
        match unsafe { libc::shutdown(socket.as_raw_fd(), how) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    });

    fn wait_for_trouble(&self) -> u32 {
        let mut fd = libc::pollfd { fd: self.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one entry, valid for the call.
        unsafe { libc::poll(&raw mut fd, 1, 10_000) };
        fd.revents as u32
    }
}

impl Udp for UdpSocket {
    same_names!(UdpSocket::shutdown);

    fn wait_for_trouble(&self) -> u32 {
        let mut fds = [PollFd { socket: self, events: Events(0), revents: Events(0) }];
        poll(&mut fds, SOON).unwrap();
        fds[0].revents.0
    }
}

/// Two hosts on which sockets can be bound.
trait World {
    type Socket: Udp;
    fn bind(&self, host: usize, port: u16) -> io::Result<Self::Socket> {
        self.bind_to(SocketAddr::new(self.network()[host].into(), port))
    }
    fn bind_to(&self, local: SocketAddr) -> io::Result<Self::Socket>;
    fn network(&self) -> [[u8; 4]; 2];
    fn broadcast(&self) -> SocketAddr;
}

struct Kernel;

impl World for Kernel {
    type Socket = KernelSocket;
    fn bind_to(&self, local: SocketAddr) -> io::Result<KernelSocket> {
        KernelSocket::bind(local)
    }
    fn network(&self) -> [[u8; 4]; 2] {
        [[127, 0, 0, 1], [127, 0, 0, 2]]
    }
    fn broadcast(&self) -> SocketAddr {
        "127.255.255.255:9".parse().unwrap()
    }
}

struct Cable([Host; 2]);

impl World for Cable {
    type Socket = UdpSocket;
    fn bind_to(&self, local: SocketAddr) -> io::Result<UdpSocket> {
        let host = usize::from(local.ip() == SocketAddr::from((self.network()[1], 0)).ip());
        UdpSocket::bind(&self.0[host], local)
    }
    fn network(&self) -> [[u8; 4]; 2] {
        [[10, 0, 0, 1], [10, 0, 0, 2]]
    }
    fn broadcast(&self) -> SocketAddr {
        "10.0.0.255:9".parse().unwrap()
    }
}

/// The results of a script, line by line.
#[derive(Default, PartialEq, Eq)]
struct Log(Vec<String>);

impl Log {
    fn note<T: std::fmt::Debug>(&mut self, step: &str, result: io::Result<T>) -> Option<T> {
        self.0.push(match &result {
            Ok(value) => format!("{step}: {value:?}"),
            Err(error) => match (error.raw_os_error(), error.kind()) {
                (_, ErrorKind::WouldBlock) => format!("{step}: EAGAIN"),
                (Some(errno), _) => format!("{step}: errno {errno}"),
                (None, kind) => format!("{step}: {kind:?}"),
            },
        });
        result.ok()
    }

    fn recv(&mut self, step: &str, socket: &impl Udp) {
        let mut buffer = [0; 64];
        let got = socket.recv(&mut buffer);
        self.note(step, got.map(|len| String::from_utf8_lossy(&buffer[..len]).into_owned()));
    }
}

fn same(kernel: impl FnOnce(&Kernel, &mut Log), ours: impl FnOnce(&Cable, &mut Log)) {
    let (mut theirs, mut mine) = (Log::default(), Log::default());
    kernel(&Kernel, &mut theirs);
    let (one, two) = hosts();
    // The hosts have each other's neighbour entry from here on, as the kernel needs none for itself.
    drop(sockets(&one, &two));
    ours(&Cable([one, two]), &mut mine);
    for (theirs, mine) in theirs.0.iter().zip(&mine.0) {
        println!("{theirs:50} | {mine}");
    }
    assert!(theirs == mine, "left the kernel, right ours:\n{:#?}\n{:#?}", theirs.0, mine.0);
}

/// Runs a script in both worlds.
macro_rules! script {
    ($name:ident, $script:ident) => {
        #[test]
        fn $name() {
            same($script, $script);
        }
    };
}

fn pair<W: World>(world: &W) -> (W::Socket, W::Socket) {
    let (left, right) = (world.bind(0, 0).unwrap(), world.bind(1, 0).unwrap());
    left.connect(right.local_addr().unwrap()).unwrap();
    right.connect(left.local_addr().unwrap()).unwrap();
    left.set_read_timeout(SOON).unwrap();
    right.set_read_timeout(SOON).unwrap();
    (left, right)
}

/// An address of host 1 without a socket.
fn closed_port<W: World>(world: &W) -> SocketAddr {
    world.bind(1, 0).unwrap().local_addr().unwrap()
}

script!(datagrams_go_where_linux_sends_them, addressing);
fn addressing<W: World>(world: &W, log: &mut Log) {
    let socket = world.bind(0, 0).unwrap();
    let (peer, other) = (world.bind(1, 0).unwrap(), world.bind(1, 0).unwrap());
    peer.set_read_timeout(SOON).unwrap();
    other.set_read_timeout(SOON).unwrap();
    let (to_peer, to_other) = (peer.local_addr().unwrap(), other.local_addr().unwrap());
    log.note("peer of unconnected", socket.peer_addr());
    log.note("send unconnected", socket.send(b"x"));
    log.note("send_to", socket.send_to(b"to other", to_other));
    log.recv("other", &other);
    log.note("a send_to does not connect", socket.send(b"x"));
    log.note("port 0", socket.send_to(b"x", SocketAddr::new(to_peer.ip(), 0)));
    log.note("IPv6", socket.send_to(b"x", "[::1]:9".parse().unwrap()));
    log.note("IPv6", socket.connect("[::1]:9".parse().unwrap()));
    log.note("broadcast", socket.send_to(b"x", world.broadcast()));
    log.note("connect", socket.connect(to_peer));
    log.note("peer", socket.peer_addr().map(|address| address == to_peer));
    log.note("send", socket.send(b"1"));
    log.recv("peer", &peer);
    log.note("elsewhere", socket.send_to(b"2", to_other));
    log.recv("other", &other);
    log.note("still connected", socket.send(b"3"));
    log.recv("peer", &peer);
    log.note("connect again", socket.connect(to_other));
    log.note("send", socket.send(b"4"));
    log.recv("other", &other);
    socket.set_read_timeout(SHORT).unwrap();
    log.note("another sender", peer.send_to(b"5", socket.local_addr().unwrap()));
    log.recv("receives from its peer only", &socket);
}

script!(truncation_matches_linux, sizes);
fn sizes<W: World>(world: &W, log: &mut Log) {
    let (left, right) = pair(world);
    log.note("empty", left.send(b""));
    log.recv("empty", &right);
    log.note("long", left.send(b"0123456789"));
    log.note("next", left.send(b"next"));
    let mut short = [0; 4];
    log.note("peek", right.peek(&mut short));
    log.note("cut", right.recv(&mut short));
    log.recv("next", &right);
    log.note("next", left.send(b"to an empty buffer"));
    log.note("no room", right.recv(&mut []));
    for len in [65_507, 65_508, 70_000] {
        log.note("large", left.send(&vec![0; len]));
    }
    let to = right.local_addr().unwrap();
    log.note("large", left.send_to(&vec![0; 65_508], to));
}

script!(receive_timeouts_match_linux, waiting);
fn waiting<W: World>(world: &W, log: &mut Log) {
    let (left, right) = pair(world);
    right.set_read_timeout(SHORT).unwrap();
    log.recv("timeout", &right);
    log.note("no time", right.set_read_timeout(Some(Duration::ZERO)));
    right.set_nonblocking(true).unwrap();
    log.recv("non-blocking", &right);
    let mut room = [0; 4];
    log.note("peek", right.peek(&mut room));
    drop(left);
    log.recv("a closing peer sends nothing", &right);
}

script!(a_closed_port_is_reported, refusal);
fn refusal<W: World>(world: &W, log: &mut Log) {
    let socket = world.bind(0, 0).unwrap();
    socket.set_read_timeout(SOON).unwrap();
    let to = closed_port(world);
    log.note("unconnected", socket.send_to(b"x", to));
    socket.set_read_timeout(SHORT).unwrap();
    log.recv("gets no error", &socket);
    socket.set_read_timeout(SOON).unwrap();
    socket.connect(to).unwrap();
    log.note("send", socket.send(b"x"));
    log.recv("refused", &socket);
    socket.set_read_timeout(SHORT).unwrap();
    log.recv("once", &socket);
    log.note("send", socket.send(b"x"));
    let trouble = libc::POLLERR as u32;
    log.note("poll", Ok(socket.wait_for_trouble() & trouble == trouble));
    log.note("taken", socket.take_error().map(|error| error.map(|error| error.kind())));
    log.note("taken", socket.take_error().map(|error| error.map(|error| error.kind())));
    log.note("send", socket.send(b"x"));
    socket.wait_for_trouble();
    log.note("a send returns the error too", socket.send(b"y"));
    log.recv("once", &socket);
    log.note("send", socket.send(b"x"));
    socket.wait_for_trouble();
    log.note("a send_to returns the error too", socket.send_to(b"y", to));
    log.recv("once", &socket);
    let taken = world.bind_to(socket.local_addr().unwrap());
    log.note("a port that is taken", taken.map(drop));
    let foreign = world.bind_to("192.0.2.1:0".parse().unwrap());
    log.note("an address that is not ours", foreign.map(drop));
}

script!(an_error_comes_before_data, error_first);
fn error_first<W: World>(world: &W, log: &mut Log) {
    let (left, right) = pair(world);
    log.note("send", right.send(b"last words"));
    let mut room = [0; 16];
    log.note("peek", left.peek(&mut room));
    drop(right);
    log.note("send", left.send(b"x"));
    left.wait_for_trouble();
    log.recv("error", &left);
    log.recv("data", &left);
}

script!(udp_shutdown_matches_linux, shutdown);
fn shutdown<W: World>(world: &W, log: &mut Log) {
    let socket = world.bind(0, 0).unwrap();
    log.note("unconnected", socket.shutdown(Shutdown::Read));
    log.recv("is shut down all the same", &socket);
    let (left, right) = pair(world);
    log.note("writing", left.shutdown(Shutdown::Write));
    log.note("send", left.send(b"x"));
    log.note("send_to", left.send_to(b"x", right.local_addr().unwrap()));
    log.note("the peer may still send", right.send(b"answer"));
    log.recv("answer", &left);
    log.note("left", right.send(b"left over"));
    let mut room = [0; 16];
    log.note("peek", left.peek(&mut room));
    log.note("reading", left.shutdown(Shutdown::Read));
    log.recv("queued data", &left);
    log.recv("the end", &left);
    log.recv("again the end", &left);
    let trouble = libc::POLLHUP as u32;
    log.note("poll", Ok(left.wait_for_trouble() & trouble == trouble));
    log.note("peer", left.peer_addr().map(|address| address == right.local_addr().unwrap()));
}
