//! The kernel's TCP sockets, read by sock_diag(7) (include/uapi/linux/inet_diag.h): the connections at a port that is
//! about to be steered to us, which stay with the kernel until they end; a connection with the same addresses as one
//! that we are about to make; and the listener that would get a connection. Changes nothing.

use crate::nic::xdp::netlink::{Request, Socket};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// The older form of a request, which asks for both families at once.
const TCPDIAG_GETSOCK: u16 = 18;
/// `inet_diag_req`: family, lengths, extensions, an `inet_diag_sockid`, states, and a field no longer used.
const REQUEST_OF_ALL: usize = 60;
const SOCKID_OF_ALL: usize = 4;
const STATES_OF_ALL: usize = 52;
/// `inet_diag_req_v2`: family, protocol, extensions, padding, states, and an `inet_diag_sockid`.
const REQUEST: usize = 56;
const SOCKID: usize = 8;
/// In `inet_diag_msg`, as in [`REQUEST`], the family comes first; then state, timer and retransmissions.
const MESSAGE_STATE: usize = 1;
const MESSAGE_SOCKID: usize = 4;
/// In an `inet_diag_sockid`, two ports and two addresses, in network order, and an interface come before the cookie.
const INTERFACE: usize = 36;
const COOKIE: usize = 40;
const TIME_WAIT: u8 = 6;
const LISTEN: u8 = 10;
/// The index of loopback in each network namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;
/// All states but LISTEN (10) and CLOSE (7), include/net/tcp_states.h.
const STATES: u32 = 0x1fff & !(1 << 10) & !(1 << 7);

/// The netlink socket, opened at the first request.
#[derive(Default)]
pub(super) struct KernelSockets(Option<Socket>);

impl KernelSockets {
    fn socket(&mut self) -> io::Result<&mut Socket> {
        match &mut self.0 {
            Some(socket) => Ok(socket),
            none => Ok(none.insert(Socket::of(libc::NETLINK_SOCK_DIAG)?)),
        }
    }

    /// The local and the remote address of each connection at the local `port`. The kernel walks over its whole table
    /// to find them, which takes milliseconds if the table is large.
    ///
    /// # Errors
    /// No netlink, or no sock_diag in this kernel.
    pub(super) fn connections(&mut self, port: u16) -> io::Result<Vec<(SocketAddr, SocketAddr)>> {
        let mut request = [0; REQUEST_OF_ALL];
        request[STATES_OF_ALL..STATES_OF_ALL + 4].copy_from_slice(&STATES.to_ne_bytes());
        request[SOCKID_OF_ALL..SOCKID_OF_ALL + 2].copy_from_slice(&port.to_be_bytes());
        let mut found = Vec::new();
        self.socket()?.request(Request::new(TCPDIAG_GETSOCK, &request).dump(), &mut |message| {
            let family = message.payload.first().copied().unwrap_or(0);
            let ends = message.payload.get(MESSAGE_SOCKID..).and_then(|id| ends(family.into(), id));
            found.extend(ends.filter(|(local, _)| local.port() == port));
        })?;
        Ok(found)
    }

    /// Whether there is a connection between these addresses, of one family, that is not in TIME_WAIT. The kernel looks
    /// it up in its hash table.
    pub(super) fn has(&mut self, local: SocketAddr, remote: SocketAddr) -> bool {
        let (family, request) = request_for(local, remote);
        let mut has = false;
        // On an error there is none, or it cannot be known: the connect will show it.
        let _ = self.socket().and_then(|socket| {
            socket.request(Request::new(SOCK_DIAG_BY_FAMILY, &request), &mut |message| {
                let found = message.payload.get(MESSAGE_SOCKID..).and_then(|id| ends(family, id));
                // Other addresses: the lookup found a listener.
                has |= found == Some((local, remote))
                    && message.payload.get(MESSAGE_STATE) != Some(&TIME_WAIT);
            })
        });
        has
    }

    /// The address of the listener to which the kernel gives a connection that this machine makes to `remote`. `None`:
    /// no socket listens there, or it cannot be known.
    pub(super) fn listener(&mut self, remote: SocketAddr) -> Option<IpAddr> {
        let (_, mut request) = request_for(remote, (remote.ip(), 0).into());
        let interface = SOCKID + INTERFACE;
        request[interface..interface + 4].copy_from_slice(&LOOPBACK.to_ne_bytes());
        let mut found = None;
        let _ = self.socket().and_then(|socket| {
            socket.request(Request::new(SOCK_DIAG_BY_FAMILY, &request), &mut |message| {
                // A listener of IPv6 may get a connection of IPv4.
                let family = message.payload.first().copied().unwrap_or(0);
                let id = message.payload.get(MESSAGE_SOCKID..);
                let ends = id.and_then(|id| ends(family.into(), id));
                let is_listener = message.payload.get(MESSAGE_STATE) == Some(&LISTEN);
                found = ends.filter(|_| is_listener).map(|(local, _)| local.ip());
            })
        });
        found
    }
}

/// A request for the socket with these ends, of one family, and the family.
fn request_for(local: SocketAddr, remote: SocketAddr) -> (i32, [u8; REQUEST]) {
    let mut request = [0; REQUEST];
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    (request[0], request[1]) = (family as u8, libc::IPPROTO_TCP as u8);
    let id = &mut request[SOCKID..];
    id[..2].copy_from_slice(&local.port().to_be_bytes());
    id[2..4].copy_from_slice(&remote.port().to_be_bytes());
    for (at, address) in [(4, local.ip()), (20, remote.ip())] {
        match address {
            IpAddr::V4(v4) => id[at..at + 4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => id[at..at + 16].copy_from_slice(&v6.octets()),
        }
    }
    // Whatever its cookie (INET_DIAG_NOCOOKIE).
    id[COOKIE..COOKIE + 8].fill(0xff);
    (family, request)
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
    fn the_connections_of_a_port_and_no_others_are_found() {
        let listeners: Vec<_> = ["127.0.0.1:0", "127.0.0.1:0", "[::1]:0"]
            .iter()
            .filter_map(|at| TcpListener::bind(at).ok())
            .collect();
        let ends: Vec<_> = listeners.iter().map(|it| it.local_addr().unwrap()).collect();
        let two = |at: &SocketAddr| [at; 2].map(|at| TcpStream::connect(at).unwrap());
        let streams: Vec<_> = ends.iter().map(two).collect();
        let _accepted = listeners[0].accept().unwrap();
        for (at, streams) in ends.iter().zip(&streams) {
            let mut found = KernelSockets::default().connections(at.port()).unwrap();
            assert!(found.iter().all(|(near, _)| near.port() == at.port()));
            // Other programs may have connections at the port in the other family.
            found.retain(|(near, _)| near.ip() == at.ip());
            found.sort();
            let mut wanted = streams.each_ref().map(|stream| (*at, stream.local_addr().unwrap()));
            wanted.sort();
            assert_eq!(found, wanted);
        }
    }

    #[test]
    fn the_listener_that_gets_a_connection_is_found() {
        let mut sockets = KernelSockets::default();
        let any = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).unwrap();
        let any_address = any.local_addr().unwrap().ip();
        let at = SocketAddr::from(([127, 0, 0, 2], any.local_addr().unwrap().port()));
        assert_eq!(sockets.listener(at), Some(any_address));
        drop(any);
        assert_eq!(sockets.listener(at), None);
        let specific = TcpListener::bind("127.0.0.2:0").unwrap();
        let at = specific.local_addr().unwrap();
        assert_eq!(sockets.listener(at), Some(at.ip()));
        assert_eq!(sockets.listener(([127, 0, 0, 3], at.port()).into()), None);
        // A connection is no listener.
        let near = TcpStream::connect(at).unwrap();
        assert_eq!(sockets.listener(near.local_addr().unwrap()), None);
    }

    #[test]
    fn a_connection_is_found_until_it_is_in_time_wait() {
        let mut existing = KernelSockets::default();
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let far = listener.accept().unwrap().0;
            let (local, remote) = (near.local_addr().unwrap(), near.peer_addr().unwrap());
            assert!(existing.has(local, remote) && existing.has(remote, local));
            // A listener is no connection.
            assert!(!existing.has(remote, (remote.ip(), 9).into()));
            drop(near);
            drop(far);
            while existing.has(remote, local) {}
            while existing.has(local, remote) {}
            let ends = existing.connections(local.port()).unwrap();
            assert!(ends.contains(&(local, remote)), "TIME_WAIT is still there: {ends:?}");
        }
    }
}
