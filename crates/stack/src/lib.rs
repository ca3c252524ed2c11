//! Busy Poll Sockets in user space: a thread that waits in `recv` drives the NIC's receive queue itself,
//! with no interrupt and no context switch.
//!
//! A [`Host`] is made of NICs ([`nic`]): two joined in memory ([`nic::cable`]), any Linux interface over
//! AF_XDP ([`nic::xdp`]), a TAP ([`nic::tap`]). Its sockets ([`UdpSocket`]) wait as Linux's do: what is
//! there, else busy poll for `SO_BUSY_POLL` microseconds, else sleep.
//!
//! The floors, each knowing those below it only: [`socket`](UdpSocket), [`inet`], [`napi`], [`nic`],
//! [`wire`]. Packets come up through what the upper floor hands down.

mod host;
pub mod inet;
pub mod lease;
pub mod ledger;
pub mod napi;
pub mod nic;
mod pool;
pub mod process;
pub mod say;
pub mod scarce;
pub mod signal;
mod socket;
pub mod spin;
mod sync;
mod sys;
pub mod thread;
pub mod time;
pub mod unix;
pub mod wire;

pub use host::{Builder, Host, IcmpSockets, firewall};
pub use inet::tcp::{
    Algorithm as Congestion, BufferSizes, Config as TcpConfig, Ecn, info::TcpInfo,
};
pub use socket::{
    Accepted, Beside, Entry, Epoll, EpollEvent, EpollParams, Events, Groups, Incoming,
    IncomingStreams, Message, Outgoing, Owner, PollFd, PortTaken, ReceiveFlags, SendFlags, Socket,
    SocketStats, Source, Sources, TcpListener, TcpStream, UdpSocket, Watch, options, poll,
    poll_beside, repair,
};
