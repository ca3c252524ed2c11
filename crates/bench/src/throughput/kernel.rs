//! The kernel's ends.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

use busypoll_lab::LabHost;
use busypoll_linux::{ethtool::Ethtool, sockopt};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use socket2::{Domain, Socket, Type};

use super::place::{self, Place, RunResult};
use super::pump;

/// All unprivileged ports: 10,000 connections need one each.
const PORTS: &str = "1024 65535";

/// The features that cut or join segments, apart from those the lab sets itself.
const SEGMENTATION: &[&str] = &["tx-generic-segmentation"];

pub(super) fn stream(place: &Place<'_>) -> Result<RunResult, String> {
    let lab = place.lab.ok_or("needs the lab")?;
    if !place.line.offloads {
        for host in [&lab.client, &lab.server] {
            without_segmentation(host)?;
        }
    }
    let at = SocketAddr::from((lab.server.ipv4(), 0));
    place::stream(
        place,
        |announce, gauge| {
            let listener = listen(at)?;
            announce.ready(listener.local_addr().map_err(|e| e.to_string())?);
            let Some((peer, _)) = pump::accept(gauge, || listener.accept())? else { return Ok(()) };
            pump::drain(peer, gauge)
        },
        |to, gauge| {
            let peer = TcpStream::connect_timeout(&to, pump::SILENCE)
                .map_err(|e| format!("connect: {e}"))?;
            peer.set_write_timeout(Some(pump::SOCKET_TIMEOUT)).map_err(|e| e.to_string())?;
            pump::send_until_over(peer, gauge)
        },
    )
}

/// Listens; accepts wait for [`pump::SOCKET_TIMEOUT`], as do reads of accepted sockets, which inherit it.
pub(super) fn listen(at: SocketAddr) -> Result<TcpListener, String> {
    let listener = TcpListener::bind(at).map_err(|e| format!("listen: {e}"))?;
    set_socket_timeout(&listener, Timeout::Recv, Some(pump::SOCKET_TIMEOUT))
        .map_err(|e| e.to_string())?;
    Ok(listener)
}

fn without_segmentation(host: &LabHost) -> Result<(), String> {
    let name = host.interface();
    let off = || Ethtool::open(name)?.set_features(SEGMENTATION, false);
    host.enter(off).map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

pub(super) fn crr(place: &Place<'_>) -> Result<RunResult, String> {
    let lab = place.lab.ok_or("needs the lab")?;
    let busy_poll = place.busy_poll_micros();
    place::connections(
        place,
        |announce, gauge| {
            let listener = listen((lab.server.ipv4(), 0).into())?;
            // Accepted connections inherit SO_BUSY_POLL.
            sockopt::set_busy_poll(&listener, busy_poll).map_err(|e| e.to_string())?;
            announce.ready(listener.local_addr().map_err(|e| e.to_string())?);
            pump::answers(gauge, || Ok(listener.accept()?.0))
        },
        |to, gauge| {
            fs::write("/proc/sys/net/ipv4/ip_local_port_range", PORTS)
                .map_err(|e| format!("ip_local_port_range: {e}"))?;
            pump::connections(place, gauge, || connect(to, busy_poll))
        },
    )
}

fn connect(to: SocketAddr, busy_poll: u32) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    sockopt::set_busy_poll(&socket, busy_poll).map_err(|e| io::Error::other(e.to_string()))?;
    // For connect(2) and writes, and for reads.
    for side in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, side, Some(pump::SILENCE))?;
    }
    socket.connect(&to.into())?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::super::lines::LINES;
    use super::super::place::Gauge;
    use super::*;
    use std::net::Ipv4Addr;
    use std::time::Duration;

    #[test]
    fn both_ends_of_a_connection_time_out() {
        let line = LINES.iter().find(|l| l.arm.name == "kernel-tcp-crr").expect("in the table");
        let place = Place {
            line,
            lab: None,
            client_cpu: 0,
            server_cpu: 0,
            busy_poll: Duration::ZERO,
            mtu: crate::units::LAB_MTU,
            warm_up: Duration::ZERO,
            measure: Duration::ZERO,
        };
        let gauge = Gauge::default();
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
        let to = listener.local_addr().expect("an address");
        // The kernel's backlog accepts the connections, but no thread does.
        let why = pump::connections(&place, &gauge, || connect(to, 0)).expect_err("no server");
        assert_eq!(why, "connection: no answer in 2s");
        let (peer, _) = listener.accept().expect("the client");
        assert_eq!(peer.read_timeout().expect("inherited"), Some(pump::SOCKET_TIMEOUT));
    }
}
