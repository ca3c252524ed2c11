//! Busy Poll Sockets in user space: a thread that waits in `recv` drives the NIC's receive queue itself,
//! with no interrupt and no context switch.
//!
//! A [`Host`] is made of NICs ([`nic`]): two joined in memory ([`nic::cable`]), any Linux interface over
//! AF_XDP ([`nic::xdp`]), a TAP ([`nic::tap`]). Its sockets ([`UdpSocket`]) wait as Linux's do: they return
//! queued data, else busy poll for `SO_BUSY_POLL` microseconds, else sleep.
//!
//! The floors are [`socket`](UdpSocket), [`host`](Host), [`inet`], [`napi`], [`nic`] and [`wire`]. Each imports only those
//! below it.
//! Packets come up through callbacks that the upper floor hands down.
//!
//! Programs use the crate `busypoll`: what it re-exports as `busypoll::stack` is the interface. The rest is public for the
//! other crates of the command `busypoll`, and changes without notice.
//!
//! # The receive path
//!
//! 1. [`UdpSocket::recv`] or [`TcpStream`]'s `read` finds the socket's queue empty. The socket knows the
//!    [`NapiId`](napi::NapiId) of the queue that its last packet came from.
//! 2. With `SO_BUSY_POLL` set, the calling thread polls that queue itself:
//!    [`Context::busy_poll`](napi::Context::busy_poll). Otherwise it sleeps on the queue:
//!    [`Context::sleep`](napi::Context::sleep). The interrupt then wakes the sleeping leader or the interrupt thread
//!    (`napi/interrupt.rs`), which polls on behalf of the interrupt.
//! 3. Both take the ownership word (`napi/word.rs`) and run the same pass (`Context::drive`). The driver takes at most
//!    `budget` frames off its ring: [`RxQueue::poll`](nic::RxQueue::poll).
//! 4. Each [`Frame`](nic::Frame) goes up through [`Upper::receive`](napi::Upper::receive) to
//!    [`Inet::receive`](inet::Inet::receive): Ethernet, IP, reassembly, then UDP or TCP.
//! 5. UDP looks the datagram's socket up and delivers it: [`UdpEndpoint::datagram`](inet::UdpEndpoint::datagram). TCP
//!    changes the connection ([`tcp::Flow`](inet::tcp::Flow)) and reports it:
//!    [`TcpEndpoint::changed`](inet::tcp::TcpEndpoint::changed). A packet for the polling thread's own socket is copied
//!    straight into the caller's buffer.
//! 6. The socket adds its waiters to the pass's [`WakeList`](napi::WakeList). The thread wakes them after it has
//!    released the queue.

mod host;
mod icmp_sockets;
pub mod inet;
#[doc(hidden)]
pub mod lease;
#[doc(hidden)]
pub mod ledger;
mod lock;
#[doc(hidden)]
pub mod memory_pressure;
pub mod napi;
pub mod nic;
mod pool;
#[doc(hidden)]
pub mod process;
mod published;
pub mod signal;
mod socket;
#[doc(hidden)]
pub mod spin;
#[doc(hidden)]
pub mod stderr;
mod sync;
mod sys;
#[doc(hidden)]
pub mod thread;
pub mod time;
#[doc(hidden)]
pub mod unix;
pub mod wire;
#[doc(hidden)]
pub mod word_hash;

#[doc(hidden)]
pub use host::reuse::{set_priority, set_priority_by};
#[doc(hidden)]
pub use host::{
    Asked, Leave, LeaveStream, MoveStream, StreamOffer, is_stream_offered, offers, peer_inode,
    serve_local_streams, stream_ends, stream_names,
};
pub use host::{Builder, HandOver, Host, Link, before_fork, is_published};
#[doc(hidden)]
pub use host::{
    Containers, KernelBinding, PublishedUdp, firewall, is_in_directory, is_udp_published,
    share_address,
};
#[doc(hidden)]
pub use icmp_sockets::IcmpSockets;
#[doc(hidden)]
pub use inet::tcp::Left;
pub use inet::tcp::{
    Algorithm as Congestion, BufferSizes, Config as TcpConfig, Ecn, info::TcpInfo,
};
pub use socket::{
    Direction, Epoll, EpollEvent, EpollParams, Events, Groups, Incoming, IncomingStreams, Message,
    Outgoing, PollFd, PollerTask, ReadyFd, ReceiveFlags, SendFlags, Socket, SocketStats, Sources,
    TaskWait, TcpListener, TcpStream, UdpSocket, options, poll,
};
// For the preload library, whose sockets these are to move between processes, and whose waits mix descriptors.
#[doc(hidden)]
pub use socket::{
    Accepted, Entry, Owner, Source, WakeSource, Watch, end_frozen, poll_with_kernel_fds, repair,
    set_repair,
};
