//! The stack's ends.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use busypoll_lab::Lab;
use busypoll_stack::nic::{self, Info, Nic as _, Queue, cable, xdp::Xdp};
use busypoll_stack::{Host, TcpListener, TcpStream};

use super::place::{self, Gauge, Place, RunResult};
use super::pump;
use crate::arm::Nic;
use crate::stack::{host, one_line};

const PORT: u16 = 7000;
/// Frames of the cable, the same as for smoltcp.
const RING: u32 = 1024;

/// A stream over the cable or AF_XDP.
pub(super) fn stream(place: &Place<'_>) -> Result<RunResult, String> {
    if place.line.arm.nic == Nic::Cable {
        let config = cable::Config { mtu: place.mtu, ring: RING, ..cable::Config::default() };
        let (ours, theirs) = cable::pair(config).map_err(one_line)?;
        let [one, two] = [1, 2].map(|last| Ipv4Addr::new(10, 0, 0, last));
        return between(
            place,
            (two, PORT).into(),
            || host(theirs, Some(two), place.server_cpu),
            || host(ours, Some(one), place.client_cpu),
        );
    }
    let lab = place.lab.ok_or("needs the lab")?;
    between(place, at(lab), || server(place, lab), || client(place, lab))
}

fn at(lab: &Lab) -> SocketAddr {
    (lab.server.ipv4(), PORT).into()
}

fn server(place: &Place<'_>, lab: &Lab) -> Result<Host, String> {
    host(Xdp::open(lab.server.interface()).map_err(one_line)?, None, place.server_cpu)
}

fn client(place: &Place<'_>, lab: &Lab) -> Result<Host, String> {
    host(Xdp::open(lab.client.interface()).map_err(one_line)?, None, place.client_cpu)
}

fn between(
    place: &Place<'_>,
    at: SocketAddr,
    server: impl FnOnce() -> Result<Host, String> + Send,
    client: impl FnOnce() -> Result<Host, String> + Send,
) -> Result<RunResult, String> {
    let busy_poll = place.busy_poll_micros();
    place::stream(
        place,
        |announce, gauge| {
            let host = server()?;
            gauge.watch(&host);
            let listener = listen(&host, at)?;
            announce.ready(at);
            let Some((peer, _)) = pump::accept(gauge, || listener.accept())? else { return Ok(()) };
            peer.set_busy_poll(busy_poll).map_err(one_line)?;
            peer.set_read_timeout(Some(pump::SOCKET_TIMEOUT)).map_err(one_line)?;
            pump::drain(&peer, gauge)
        },
        |to, gauge| {
            let host = client()?;
            gauge.watch(&host);
            let peer = TcpStream::connect_timeout(&host, &to, pump::SILENCE);
            send_until_over(&peer.map_err(|e| format!("connect: {e}"))?, busy_poll, gauge)
        },
    )
}

/// Listens; accepts wait for [`pump::SOCKET_TIMEOUT`].
fn listen(host: &Host, at: SocketAddr) -> Result<TcpListener, String> {
    let listener = TcpListener::bind(host, at).map_err(|e| format!("listen: {e}"))?;
    listener.set_accept_timeout(Some(pump::SOCKET_TIMEOUT)).map_err(one_line)?;
    Ok(listener)
}

fn send_until_over(peer: &TcpStream, busy_poll: u32, gauge: &Gauge) -> Result<(), String> {
    peer.set_busy_poll(busy_poll).map_err(one_line)?;
    peer.set_write_timeout(Some(pump::SOCKET_TIMEOUT)).map_err(one_line)?;
    pump::send_until_over(peer, gauge)
}

/// A sender with one address over a cable, and the cable's other end.
pub(super) struct Sender {
    host: Host,
    far: Queue,
}

impl Sender {
    pub(super) fn new(address: Ipv4Addr, cpu: u32) -> Result<Self, String> {
        let config = cable::Config { ring: RING, ..cable::Config::default() };
        let (ours, mut theirs) = cable::pair(config).map_err(one_line)?;
        let far = theirs.open(0).map_err(one_line)?;
        Ok(Self { host: host(Complete::new(ours), Some(address), cpu)?, far })
    }

    /// The far end of the cable, and a function that sends a stream into it if it connects in time.
    pub(super) fn split(
        self,
        timeout: Duration,
    ) -> (Queue, impl FnOnce(SocketAddr, &Gauge) -> Result<(), String> + Send) {
        let host = self.host;
        let send = move |to: SocketAddr, gauge: &Gauge| {
            gauge.watch(&host);
            let peer = TcpStream::connect_timeout(&host, &to, timeout);
            send_until_over(&peer.map_err(|e| pump::unconnected(&e, timeout))?, 0, gauge)
        };
        (self.far, send)
    }
}

/// A cable to a peer that does not accept partial checksums.
struct Complete {
    cable: cable::Cable,
    info: Info,
}

impl Complete {
    fn new(cable: cable::Cable) -> Self {
        let info = Info { tx_checksum: false, ..cable.info().clone() };
        Self { cable, info }
    }
}

impl nic::Nic for Complete {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open(&mut self, index: u32) -> io::Result<Queue> {
        self.cable.open(index)
    }
}

/// One connection after another over AF_XDP.
pub(super) fn crr(place: &Place<'_>) -> Result<RunResult, String> {
    let lab = place.lab.ok_or("needs the lab")?;
    let busy_poll = place.busy_poll_micros();
    place::connections(
        place,
        |announce, gauge| {
            let host = server(place, lab)?;
            gauge.watch(&host);
            let listener = listen(&host, at(lab))?;
            // Accepted connections inherit SO_BUSY_POLL.
            listener.set_busy_poll(busy_poll).map_err(one_line)?;
            announce.ready(at(lab));
            pump::answers(gauge, || {
                let (peer, _) = listener.accept()?;
                peer.set_read_timeout(Some(pump::SOCKET_TIMEOUT))?;
                Ok(peer)
            })
        },
        |to, gauge| {
            let host = client(place, lab)?;
            gauge.watch(&host);
            pump::connections(place, gauge, || connect(&host, to, busy_poll))
        },
    )
}

fn connect(host: &Host, to: SocketAddr, busy_poll: u32) -> io::Result<TcpStream> {
    let stream = TcpStream::new(host);
    stream.set_busy_poll(busy_poll)?;
    // For the handshake and writes, and for reads.
    stream.set_write_timeout(Some(pump::SILENCE))?;
    stream.set_read_timeout(Some(pump::SILENCE))?;
    stream.connect_to(to)?;
    Ok(stream)
}
