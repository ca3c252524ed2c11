//! What a socket is, in a few words.

use busypoll_linux::bpf::files::Socket;

const TCP_LISTEN: u32 = 10;

/// The kinds of socket that busy polling treats differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// TCP, a connection or about to be one.
    Tcp,
    /// TCP with kTLS.
    Ktls,
    /// Accepts connections; they inherit its options.
    Listener,
    /// UDP with a peer.
    Connected,
    /// UDP without.
    Unconnected,
    /// MPTCP.
    Mptcp,
    /// Raw, ICMP, AF_PACKET.
    Raw,
    /// AF_XDP.
    Xdp,
    /// SCTP and others.
    Other,
}

pub(crate) fn class(socket: &Socket) -> Class {
    match i32::try_from(socket.family) {
        Ok(libc::AF_PACKET) => return Class::Raw,
        Ok(libc::AF_XDP) => return Class::Xdp,
        _ => {}
    }
    let name = socket.protocol_name.as_str();
    if name.starts_with("MPTCP") || socket.protocol == libc::IPPROTO_MPTCP as u32 {
        return Class::Mptcp;
    }
    match (i32::try_from(socket.kind), i32::try_from(socket.protocol)) {
        (Ok(libc::SOCK_STREAM), Ok(libc::IPPROTO_TCP)) if socket.state == TCP_LISTEN => {
            Class::Listener
        }
        (Ok(libc::SOCK_STREAM), Ok(libc::IPPROTO_TCP)) if socket.ulp == "tls" => Class::Ktls,
        (Ok(libc::SOCK_STREAM), Ok(libc::IPPROTO_TCP)) => Class::Tcp,
        (Ok(libc::SOCK_DGRAM), Ok(libc::IPPROTO_UDP | libc::IPPROTO_UDPLITE)) => {
            match socket.peer {
                Some(_) => Class::Connected,
                None => Class::Unconnected,
            }
        }
        (Ok(libc::SOCK_RAW | libc::SOCK_DGRAM), _) => Class::Raw,
        _ => Class::Other,
    }
}

/// `udp 10.0.0.1:53`, `tcp 10.0.0.1:22 -> 10.0.0.2:4711`.
pub(crate) fn words(socket: &Socket) -> String {
    let protocol = match class(socket) {
        Class::Tcp => "tcp",
        Class::Ktls => "tcp with kTLS",
        Class::Listener => "tcp listener",
        Class::Connected | Class::Unconnected => "udp",
        Class::Mptcp => "mptcp",
        Class::Raw if socket.family == libc::AF_PACKET as u32 => return "packet socket".into(),
        Class::Raw => "raw",
        Class::Xdp => return "AF_XDP socket".into(),
        Class::Other => &socket.protocol_name.to_lowercase(),
    };
    match (socket.local.filter(|a| a.port() != 0), socket.peer) {
        (Some(local), Some(peer)) => format!("{protocol} {local} -> {peer}"),
        (Some(local), None) => format!("{protocol} {local}"),
        _ => protocol.into(),
    }
}
