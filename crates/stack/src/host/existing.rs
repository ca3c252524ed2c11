//! The kernel's TCP connections of a port that is about to come to us: they are the kernel's to the end. Asks by
//! sock_diag(7) (include/uapi/linux/inet_diag.h); changes nothing.

use crate::nic::xdp::netlink::{Request, Socket};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `inet_diag_req_v2`: family, protocol, extensions, padding, states, and an `inet_diag_sockid`.
const REQUEST: usize = 56;
const SOCKID: usize = 8;
/// In `inet_diag_msg` the sockid follows family, state, timer and retransmissions.
const MESSAGE_SOCKID: usize = 4;
/// All states but LISTEN (10) and CLOSE (7), include/net/tcp_states.h.
const STATES: u32 = 0x1fff & !(1 << 10) & !(1 << 7);

/// Both ends of each connection at the local `port`, the nearer first.
///
/// # Errors
/// No netlink, or no sock_diag in this kernel.
pub(super) fn connections(port: u16) -> io::Result<Vec<(SocketAddr, SocketAddr)>> {
    let mut socket = Socket::of(libc::NETLINK_SOCK_DIAG)?;
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut request = [0; REQUEST];
        request[0] = family as u8;
        request[1] = libc::IPPROTO_TCP as u8;
        request[4..8].copy_from_slice(&STATES.to_ne_bytes());
        request[SOCKID..SOCKID + 2].copy_from_slice(&port.to_be_bytes());
        socket.request(Request::new(SOCK_DIAG_BY_FAMILY, &request).dump(), &mut |message| {
            let ends = message.payload.get(MESSAGE_SOCKID..).and_then(|id| ends(family, id));
            found.extend(ends.filter(|(local, _)| local.port() == port));
        })?;
    }
    Ok(found)
}

fn ends(family: i32, id: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let port = |at: usize| Some(u16::from_be_bytes([*id.get(at)?, *id.get(at + 1)?]));
    let address = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = id.get(at..at + 16)?.try_into().ok()?;
        Some(match family {
            libc::AF_INET => Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into(),
            _ => IpAddr::from(Ipv6Addr::from(bytes)).to_canonical(),
        })
    };
    Some(((address(4)?, port(0)?).into(), (address(20)?, port(2)?).into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn connections_of_a_port_are_found_and_others_are_not() {
        let listeners: Vec<_> = ["127.0.0.1:0", "127.0.0.1:0", "[::1]:0"]
            .iter()
            .filter_map(|at| TcpListener::bind(at).ok())
            .collect();
        let ends: Vec<_> = listeners.iter().map(|it| it.local_addr().unwrap()).collect();
        let two = |at: &SocketAddr| [at; 2].map(|at| TcpStream::connect(at).unwrap());
        let streams: Vec<_> = ends.iter().map(two).collect();
        let _accepted = listeners[0].accept().unwrap();
        for (at, streams) in ends.iter().zip(&streams) {
            let mut found = connections(at.port()).unwrap();
            assert!(found.iter().all(|(near, _)| near.port() == at.port()));
            // The other family may have connections of others at the port.
            found.retain(|(near, _)| near.ip() == at.ip());
            found.sort();
            let mut wanted = streams.each_ref().map(|stream| (*at, stream.local_addr().unwrap()));
            wanted.sort();
            assert_eq!(found, wanted);
        }
    }
}
