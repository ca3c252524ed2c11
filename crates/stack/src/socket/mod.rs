//! What an application holds: sockets, their options, and waiting for many of them.
//!
//! The rules by which a socket waits are in [`udp`]'s receive path: what is there; else busy poll; else
//! sleep. [`busy`] is the busy loop, [`endpoint`] is where packets meet receivers.

mod buffer;
mod busy;
mod crowd;
mod endpoint;
mod epoll;
pub mod options;
mod poll;
mod readiness;
mod udp;

pub use endpoint::SocketStats;
pub use epoll::{Epoll, EpollEvent, EpollParams};
pub use poll::{PollFd, poll};
pub use readiness::Events;
pub use udp::{Incoming, Outgoing, UdpSocket};
