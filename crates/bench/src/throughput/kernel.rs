//! The kernel's ends.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};

use busypoll_lab::LabHost;
use busypoll_linux::{ethtool::Ethtool, sockopt};
use socket2::{Domain, Socket, Type};

use super::{Place, Shot, pump};

/// All ports but the privileged ones: 10,000 connections must find one each.
const PORTS: &str = "1024 65535";

/// The features that cut or join segments, apart from those the lab sets itself.
const SEGMENTATION: &[&str] = &["tx-generic-segmentation"];

pub(super) fn stream(place: &Place<'_>) -> Result<Shot, String> {
    let lab = place.lab.ok_or("needs the lab")?;
    if !place.line.offloads {
        for host in [&lab.client, &lab.server] {
            without_segmentation(host)?;
        }
    }
    let at = SocketAddr::from((lab.server.ipv4(), 0));
    super::stream(
        place,
        |announce, gauge| {
            let listener = TcpListener::bind(at).map_err(|e| format!("listen: {e}"))?;
            announce.ready(listener.local_addr().map_err(|e| e.to_string())?);
            let (peer, _) = listener.accept().map_err(|e| format!("accept: {e}"))?;
            peer.set_read_timeout(Some(pump::PATIENCE)).map_err(|e| e.to_string())?;
            pump::drain(peer, gauge)
        },
        |to, gauge| {
            let peer = TcpStream::connect(to).map_err(|e| format!("connect: {e}"))?;
            peer.set_write_timeout(Some(pump::PATIENCE)).map_err(|e| e.to_string())?;
            pump::pour(peer, gauge)
        },
    )
}

fn without_segmentation(host: &LabHost) -> Result<(), String> {
    let name = host.interface();
    let off = || Ethtool::open(name)?.set_features(SEGMENTATION, false);
    host.enter(off).map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

pub(super) fn crr(place: &Place<'_>) -> Result<Shot, String> {
    let lab = place.lab.ok_or("needs the lab")?;
    let busy_poll = place.busy_poll_micros();
    super::connections(
        place,
        |announce, gauge| {
            let listener =
                TcpListener::bind((lab.server.ipv4(), 0)).map_err(|e| format!("listen: {e}"))?;
            // Accepted connections inherit it.
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
    socket.connect(&to.into())?;
    Ok(socket.into())
}
