//! The class of a socket, and its short description.

use busypoll_linux::bpf::files::Socket;
pub(crate) use busypoll_linux::polls::Class;
use busypoll_linux::polls::{self, Kind};

const TCP_LISTEN: u32 = 10;

pub(crate) fn class(socket: &Socket) -> Class {
    if socket.protocol_name.starts_with("MPTCP") {
        return Class::Mptcp;
    }
    polls::class(Kind {
        family: socket.family,
        kind: socket.kind,
        protocol: socket.protocol,
        listening: socket.state == TCP_LISTEN,
        connected: socket.peer.is_some(),
        ulp: &socket.ulp,
    })
}

/// `udp 10.0.0.1:53`, `tcp 10.0.0.1:22 -> 10.0.0.2:4711`.
pub(crate) fn describe(socket: &Socket) -> String {
    let protocol = match class(socket) {
        Class::Tcp => "tcp",
        Class::Ktls => "tcp with kTLS",
        Class::Listener => "tcp listener",
        Class::Connected | Class::Unconnected => "udp",
        Class::Mptcp => "mptcp",
        Class::Raw if socket.family == libc::AF_PACKET as u32 => return "packet socket".into(),
        Class::Raw => "raw",
        Class::Xdp => return "AF_XDP socket".into(),
        Class::NoPackets | Class::Other => &socket.protocol_name.to_lowercase(),
    };
    match (socket.local.filter(|a| a.port() != 0), socket.peer) {
        (Some(local), Some(peer)) => format!("{protocol} {local} -> {peer}"),
        (Some(local), None) => format!("{protocol} {local}"),
        _ => protocol.into(),
    }
}
