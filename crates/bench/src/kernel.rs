//! The kernel plane's endpoints: UDP and TCP sockets that sleep, busy poll or spin.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use busypoll_linux::sockopt;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::SockRef;

use crate::arm::{Arm, Mode, Protocol};
use crate::clock::Clock;
use crate::fix::{Acceptor, Initiator};
use crate::open;
use crate::slot::{self, Announce, Plan, Slot};
use crate::workload::{self, Endpoint, GIVE_UP, Load, Polling, RECEIVE_TIMEOUT};

/// The server's port in a lab host.
const PORT: u16 = 7000;

/// Runs a kernel arm once.
///
/// # Errors
/// A message of one line.
pub fn run(arm: &Arm, plan: &Plan<'_>) -> Result<Slot, String> {
    let server = plan.lab.map_or(Ipv4Addr::LOCALHOST, |lab| lab.server.ipv4());
    let wait = Wait::of(arm.mode, plan.busy_poll);
    // The open loop's client never sleeps, in any arm: only the server's waiting differs.
    let client_wait = match plan.load {
        Load::Closed { .. } => wait,
        Load::Open { .. } => Wait::Spin,
    };
    if let Some(count) = plan.open {
        return among(arm, plan, (server, PORT).into(), count);
    }
    if let Some(remote) = plan.remote {
        return match arm.protocol {
            Protocol::Udp => {
                slot::run_remote(plan, arm, remote, |a| Udp::client(a, client_wait, plan.clock))
            }
            Protocol::Tcp => {
                slot::run_remote(plan, arm, remote, |a| Tcp::client(a, client_wait, plan.clock))
            }
        };
    }
    match arm.protocol {
        Protocol::Udp => slot::run(
            plan,
            |announce| {
                let socket = UdpSocket::bind((server, 0)).map_err(one_line("bind"))?;
                announce.ready(socket.local_addr().map_err(one_line("getsockname"))?);
                Udp::server(socket, wait, plan.clock)
            },
            |address| Udp::client(address, client_wait, plan.clock),
        ),
        Protocol::Tcp if plan.fix => slot::run(
            plan,
            |announce| {
                let end = Tcp::server((server, 0).into(), wait, plan.clock, announce, None)?;
                Ok(Acceptor::new(end, plan.clock))
            },
            |address| {
                let end = Tcp::client(address, client_wait, plan.clock)?;
                Initiator::logon(end, plan.clock).map_err(one_line("FIX logon"))
            },
        ),
        Protocol::Tcp => slot::run(
            plan,
            |announce| Tcp::server((server, 0).into(), wait, plan.clock, announce, None),
            |address| Tcp::client(address, client_wait, plan.clock),
        ),
    }
}

/// Runs a kernel arm once on the last of `count` connections or sockets.
fn among(arm: &Arm, plan: &Plan<'_>, at: SocketAddr, count: usize) -> Result<Slot, String> {
    let (wait, clock) = (Wait::of(arm.mode, plan.busy_poll), plan.clock);
    match arm.protocol {
        Protocol::Udp => {
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            open::run(
                plan,
                [count, 1],
                |announce, party| {
                    announce.ready(at);
                    party.open(|last| {
                        let socket = UdpSocket::bind(if last { at } else { any });
                        Udp::server(socket.map_err(one_line("bind"))?, wait, clock)
                    })
                },
                |to, party| party.open(|_| Udp::client(to, wait, clock)),
            )
        }
        Protocol::Tcp => open::run(
            plan,
            [count; 2],
            |announce, party| {
                let listener = Tcp::listen(at, announce)?;
                party.open(|_| {
                    let mut end = Tcp::accept(&listener, wait, clock, None)?;
                    open::answer(&mut end).map(|()| end)
                })
            },
            |to, party| {
                party.open(|_| {
                    let mut end = Tcp::client(to, wait, clock)?;
                    open::ask(&mut end).map(|()| end)
                })
            },
        ),
    }
}

pub(crate) fn one_line(doing: &'static str) -> impl Fn(io::Error) -> String {
    move |e| format!("{doing}: {e}")
}

/// How a thread waits on a kernel socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Asleep in recv(2).
    Sleep,
    /// recv(2) with `SO_BUSY_POLL`, in microseconds.
    BusyPoll(u32),
    /// recv(2) with `MSG_DONTWAIT`, in a loop.
    Spin,
}

impl Wait {
    /// The wait of a mode on a kernel socket.
    pub fn of(mode: Mode, busy_poll: Duration) -> Self {
        match mode {
            Mode::Blocking | Mode::Interrupt => Self::Sleep,
            Mode::Spin => Self::Spin,
            Mode::BusyPoll => {
                Self::BusyPoll(u32::try_from(busy_poll.as_micros()).unwrap_or(i32::MAX as u32))
            }
        }
    }

    pub(crate) fn apply(self, socket: impl AsFd) -> Result<(), String> {
        let socket = socket.as_fd();
        // Also for 0: net.core.busy_read may have set another value.
        let micros = if let Self::BusyPoll(micros) = self { micros } else { 0 };
        match sockopt::set_busy_poll(socket, micros) {
            // A kernel without busy polling does not poll anyway.
            Err(busypoll_linux::Error::Unsupported { .. }) if micros == 0 => {}
            other => other.map_err(|e| e.to_string())?,
        }
        SockRef::from(&socket)
            .set_read_timeout(Some(RECEIVE_TIMEOUT))
            .map_err(one_line("SO_RCVTIMEO"))
    }

    /// Receives once with this wait; none after [`RECEIVE_TIMEOUT`].
    pub(crate) fn recv(
        self,
        socket: impl AsFd,
        buffer: &mut [u8],
        clock: &Clock,
    ) -> io::Result<Option<usize>> {
        if self != Self::Spin {
            return once(socket, buffer, RecvFlags::empty());
        }
        let give_up = clock.now() + clock.ticks(RECEIVE_TIMEOUT);
        loop {
            if let Some(n) = once(&socket, buffer, RecvFlags::DONTWAIT)? {
                return Ok(Some(n));
            }
            if clock.now() > give_up {
                return Ok(None);
            }
        }
    }
}

/// Sends all of a message on a stream, or a datagram.
///
/// # Errors
/// Those of send(2); one of its own where a part takes too long.
pub(crate) fn send_all(socket: &impl AsFd, mut message: &[u8]) -> io::Result<()> {
    while !message.is_empty() {
        let sent = rustix::net::send(socket, message, SendFlags::NOSIGNAL);
        let n = sent.map_err(|e| match e {
            Errno::AGAIN => workload::unfinished(),
            _ => e.into(),
        })?;
        message = message.get(n..).unwrap_or_default();
    }
    Ok(())
}

pub(crate) fn once(
    socket: impl AsFd,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> io::Result<Option<usize>> {
    match rustix::net::recv(socket, buffer, flags) {
        Ok((n, _)) => Ok(Some(n)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn polling(socket: impl AsFd) -> Polling {
    let id = sockopt::incoming_napi_id(socket).ok().flatten();
    Polling { napi_id: id.map_or(0, sockopt::NapiId::get), ..Polling::default() }
}

/// A UDP socket.
pub struct Udp<'a> {
    socket: UdpSocket,
    wait: Wait,
    clock: &'a Clock,
    connected: bool,
    only_from: Option<IpAddr>,
}

impl<'a> Udp<'a> {
    /// Connects to the server.
    ///
    /// # Errors
    /// A message of one line.
    pub fn client(server: SocketAddr, wait: Wait, clock: &'a Clock) -> Result<Self, String> {
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).map_err(one_line("bind"))?;
        socket.connect(server).map_err(|e| format!("no route to {server}: {e}"))?;
        wait.apply(&socket)?;
        Ok(Self { socket, wait, clock, connected: true, only_from: None })
    }

    /// Serves on a bound socket. Connects to the first sender, because only a connected UDP
    /// socket follows the NAPI id of its packets.
    ///
    /// # Errors
    /// A message of one line.
    pub fn server(socket: UdpSocket, wait: Wait, clock: &'a Clock) -> Result<Self, String> {
        wait.apply(&socket)?;
        Ok(Self { socket, wait, clock, connected: false, only_from: None })
    }

    /// Ignores messages that are not from `peer`.
    pub fn only_from(self, peer: IpAddr) -> Self {
        Self { only_from: Some(peer), ..self }
    }
}

impl Endpoint for Udp<'_> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.socket, message, SendFlags::empty())?;
        Ok(())
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        if self.connected {
            return self.wait.recv(&self.socket, buffer, self.clock);
        }
        match self.socket.recv_from(buffer) {
            Ok((_, peer)) if self.only_from.is_some_and(|only| only != peer.ip()) => Ok(None),
            Ok((n, peer)) => {
                self.socket.connect(peer)?;
                self.connected = true;
                Ok(Some(n))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn try_recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        once(&self.socket, buffer, RecvFlags::DONTWAIT)
    }

    fn polling(&self) -> Polling {
        polling(&self.socket)
    }
}

/// A TCP connection with `TCP_NODELAY`.
pub struct Tcp<'a> {
    stream: TcpStream,
    wait: Wait,
    clock: &'a Clock,
}

impl<'a> Tcp<'a> {
    /// Connects to the server.
    ///
    /// # Errors
    /// A message of one line.
    pub fn client(server: SocketAddr, wait: Wait, clock: &'a Clock) -> Result<Self, String> {
        let stream = TcpStream::connect_timeout(&server, Duration::from_secs(2))
            .map_err(|e| format!("cannot connect to {server}: {e}"))?;
        Self::new(stream, wait, clock)
    }

    /// Listens, announces the address, and accepts the first connection.
    ///
    /// # Errors
    /// A message of one line; also if no client connects within five seconds.
    pub fn server(
        at: SocketAddr,
        wait: Wait,
        clock: &'a Clock,
        announce: &Announce,
        only_from: Option<IpAddr>,
    ) -> Result<Self, String> {
        Self::accept(&Self::listen(at, announce)?, wait, clock, only_from)
    }

    /// Listens, and announces the address.
    fn listen(at: SocketAddr, announce: &Announce) -> Result<TcpListener, String> {
        let listener = TcpListener::bind(at).map_err(one_line("bind"))?;
        announce.ready(listener.local_addr().map_err(one_line("getsockname"))?);
        // SO_RCVTIMEO ends accept(2) too.
        SockRef::from(&listener)
            .set_read_timeout(Some(RECEIVE_TIMEOUT))
            .map_err(one_line("SO_RCVTIMEO"))?;
        Ok(listener)
    }

    /// Accepts the next connection.
    fn accept(
        listener: &TcpListener,
        wait: Wait,
        clock: &'a Clock,
        only_from: Option<IpAddr>,
    ) -> Result<Self, String> {
        let give_up = Instant::now() + GIVE_UP;
        loop {
            match listener.accept() {
                Ok((_, peer)) if only_from.is_some_and(|only| only != peer.ip()) => {}
                Ok((stream, _)) => return Self::new(stream, wait, clock),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < give_up => {}
                Err(e) => return Err(format!("no client connected: {e}")),
            }
        }
    }

    pub(crate) fn new(stream: TcpStream, wait: Wait, clock: &'a Clock) -> Result<Self, String> {
        stream.set_nodelay(true).map_err(one_line("TCP_NODELAY"))?;
        wait.apply(&stream)?;
        stream.set_write_timeout(Some(GIVE_UP)).map_err(one_line("SO_SNDTIMEO"))?;
        Ok(Self { stream, wait, clock })
    }
}

impl Endpoint for Tcp<'_> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        send_all(&self.stream, message)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        workload::fill(buffer, |rest| match self.wait.recv(&self.stream, rest, self.clock)? {
            Some(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            other => Ok(other),
        })
    }

    fn recv_some(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.wait.recv(&self.stream, buffer, self.clock)? {
            Some(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            other => Ok(other),
        }
    }

    fn try_recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match once(&self.stream, buffer, RecvFlags::DONTWAIT)? {
            Some(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            other => Ok(other),
        }
    }

    fn abandon(&mut self) {
        let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    fn polling(&self) -> Polling {
        polling(&self.stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::thread;

    #[test]
    fn a_peer_that_goes_silent_in_the_middle_of_a_message_is_an_error() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let at = listener.local_addr().expect("an address");
        let clock = Clock::default();
        thread::scope(|scope| {
            let client = || Tcp::client(at, Wait::Sleep, &clock).expect("connected");
            // More than all buffers take, to a peer that does not read.
            let sender = scope.spawn(move || {
                let mut client = client();
                // Each send that finds some room waits as long again.
                client.stream.set_write_timeout(Some(Duration::from_secs(1))).expect("set");
                client.send(&vec![0; 64 << 20])
            });
            let receiver = scope.spawn(move || client().recv(&mut [0; 2]));
            let mut peers = [(); 2].map(|()| listener.accept().expect("a peer").0);
            peers.iter_mut().for_each(|peer| peer.write_all(&[0]).expect("half a message"));
            let sent = sender.join().expect("no panic").expect_err("the peer does not read");
            let received = receiver.join().expect("no panic").expect_err("half a message");
            assert_eq!([sent.kind(), received.kind()], [io::ErrorKind::TimedOut; 2]);
        });
    }
}
