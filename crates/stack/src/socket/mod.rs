//! The sockets of an application, their options, and waiting for many of them.
//!
//! [`waiting`] is how a call waits: it returns at once if there is data; else it busy polls ([`busy`]); else it sleeps.
//! The endpoints (`udp::endpoint`, `tcp::endpoint`) connect the receive path with the waiters. [`poll`] and [`epoll`]
//! see every socket as a [`Source`](source::Source) of events. A thread that waits in the kernel uses
//! [`ready_fd`], a task of an async runtime [`task_wait`]; a [`poller_task`] polls for such tasks.

mod busy;
mod common;
mod epoll;
mod kernel_fds;
pub mod options;
pub(crate) mod per_cpu_spinner;
mod poll;
mod poller_task;
mod readiness;
mod ready_fd;
mod source;
mod task_wait;
mod tcp;
mod udp;
mod waiting;
mod wake_source;
mod yield_policy;

pub use epoll::{Epoll, EpollEvent, EpollParams};
pub use poll::{Entry, PollFd, poll, poll_with_kernel_fds};
pub use poller_task::PollerTask;
pub use readiness::{Events, Watch};
pub use ready_fd::ReadyFd;
pub use source::{Socket, Source};
pub use task_wait::{Direction, TaskWait};
pub use tcp::{
    Accepted, IncomingStreams, Owner, SendFlags, TcpListener, TcpStream, end_frozen, repair,
    set_repair,
};
pub use udp::{Groups, Incoming, Message, Outgoing, ReceiveFlags, SocketStats, Sources, UdpSocket};
pub use wake_source::WakeSource;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
};

/// 0.0.0.0:0.
const UNSPECIFIED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The unspecified address of the family of `like`, with port 0.
fn unspecified(like: SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => UNSPECIFIED,
        SocketAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
    }
}

/// Calls `attempt` with each of `addresses` until it succeeds.
fn try_each(
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
