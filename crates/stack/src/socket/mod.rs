//! What an application holds: sockets, their options, and waiting for many of them.
//!
//! How a call waits is in [`waiting`]: what is there; else the busy loop of [`busy`]; else sleep. The
//! endpoints (`udp::endpoint`) are where packets meet those who wait; [`poll`] and [`epoll`] see every
//! socket as a [`Source`](source::Source) of events.

mod beside;
mod busy;
mod common;
mod courtesy;
pub(crate) mod crowd;
mod epoll;
pub mod options;
mod poll;
mod readiness;
mod source;
mod tcp;
mod udp;
mod waiting;

pub use beside::Beside;
pub use epoll::{Epoll, EpollEvent, EpollParams};
pub use poll::{Entry, PollFd, poll, poll_beside};
pub use readiness::{Events, Watch};
pub use source::{Socket, Source};
pub use tcp::{
    Accepted, IncomingStreams, Owner, PortTaken, SendFlags, TcpListener, TcpStream, repair,
};
pub use udp::{Groups, Incoming, Message, Outgoing, ReceiveFlags, SocketStats, Sources, UdpSocket};

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
};

/// No address.
const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// No address of the family of `like`.
fn nobody(like: SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => NOBODY,
        SocketAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
    }
}

/// The first of `addresses` that `attempt` succeeds with.
fn each(
    addresses: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<()>,
) -> io::Result<()> {
    let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "no address given");
    for address in addresses.to_socket_addrs()? {
        match attempt(address) {
            Ok(()) => return Ok(()),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
