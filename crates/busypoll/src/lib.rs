//! Sockets that poll the NIC instead of waiting for it.
//!
//! Waiting for a packet usually means: sleep, interrupt, wake up. Busy polling lets the thread that
//! wants the packet drive the device's receive queue itself, and pays for it with CPU time. There are
//! two ways to do this here, with the same terms:
//!
//! * the **kernel plane**, on this page: Linux's own busy polling, switched on for existing
//!   sockets;
//! * the **stack plane**, [`stack`]: Busy Poll Sockets in user space, blocking or, with the feature `tokio`, for tokio.
//!
//! `examples/` of this crate has a program to start from for each: `udp_echo`, `tcp_client`, `multicast_receiver`,
//! `tokio_server` and `same_host` on the stack plane, `mio_server` on the kernel plane.
//!
//! # Which switch
//!
//! It depends on where your thread waits:
//!
//! | it waits in | switch | permission |
//! |---|---|---|
//! | a blocking receive: `recv`, `read`, on UDP or TCP | [`set_busy_poll`](BusyPollExt::set_busy_poll) | none (Linux 6.1 and older: `CAP_NET_ADMIN`) |
//! | epoll: mio, tokio, most servers | [`set_busy_poll_params`](EpollBusyPollExt::set_busy_poll_params) on the epoll instance (Linux 6.9) | none up to a budget of 64 |
//! | `poll`, `select` | `set_busy_poll` **and** `net.core.busy_poll`, see [`linux::sysctl`] | root |
//!
//! `SO_BUSY_POLL` alone does nothing for a thread that waits in epoll, poll or select; and nothing polls
//! in `accept` or `connect`.
//!
//! # Requirements
//!
//! * The socket must know its NAPI id: [`incoming_napi_id`](BusyPollExt::incoming_napi_id) is `None`
//!   before the first packet, and always on loopback, on veth without GRO, and with drivers that give
//!   their packets no id. Without an id there is no busy polling, and the kernel does not report that.
//! * An unconnected UDP socket keeps the first id it saw, even after a device reset has retired it.
//! * One epoll instance polls one queue at a time, that of the last member that had data.
//! * One spinning thread per CPU. Two on one CPU are far slower than no busy polling at all.
//! * Each end gains separately: polling at one end saves only that end's wake-up.
//! * The proof is a counter: [`linux::stat::busy_poll_rx_packets`] in the namespace of the device.
//!
//! # std
//!
//! ```
//! use busypoll::BusyPollExt;
//! use std::net::UdpSocket;
//!
//! let socket = UdpSocket::bind("127.0.0.1:0")?;
//! socket.set_busy_poll(50)?; // recv polls up to 50 us before it sleeps
//! assert_eq!(socket.busy_poll()?, 50);
//!
//! socket.send_to(b"ping", socket.local_addr()?)?;
//! socket.recv(&mut [0; 8])?;
//! match socket.incoming_napi_id()? {
//!     Some(id) => println!("polls NAPI instance {id}"),
//!     None => println!("cannot busy poll: no NAPI id (loopback has none)"),
//! }
//! # assert!(socket.incoming_napi_id()?.is_none());
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # socket2
//!
//! Set on a listener, it applies to every connection accepted from it. socket2 has a `set_busy_poll` of its own that
//! does the same, but not the other options.
//!
//! ```
//! use busypoll::BusyPollExt;
//! use socket2::{Domain, Socket, Type};
//!
//! let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
//! BusyPollExt::set_busy_poll(&listener, 50)?;
//! listener.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
//! listener.listen(16)?;
//! // Masking the interrupt between polls is the administrator's: CAP_NET_ADMIN.
//! if let Err(e) = listener.set_prefer_busy_poll(true) {
//!     eprintln!("{e}");
//! }
//! # let client = std::net::TcpStream::connect(listener.local_addr()?.as_socket().unwrap())?;
//! assert_eq!(BusyPollExt::busy_poll(&listener.accept()?.0)?, 50);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # mio
//!
//! The sockets are members of an epoll instance, and it is the instance that polls.
//!
//! ```
//! use busypoll::{EpollBusyPollExt, EpollParams};
//!
//! let poll = mio::Poll::new()?;
//! let params = EpollParams { busy_poll_usecs: 50, ..Default::default() };
//! poll.registry().set_busy_poll_params(params)?; // poll.poll() polls up to 50 us before it sleeps
//! assert_eq!(poll.registry().busy_poll_params()?, params);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # tokio
//!
//! This is the kernel plane, for tokio's own sockets. Those of the stack plane are in `busypoll::tokio`.
//!
//! tokio does not expose its epoll instance: find it once the runtime is running.
//!
//! ```
//! use busypoll::{BusyPollExt, EpollBusyPollExt, EpollParams};
//!
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
//! for epoll in busypoll::epoll_instances()? {
//!     epoll.set_busy_poll_params(EpollParams { busy_poll_usecs: 50, ..Default::default() })?;
//! }
//! runtime.block_on(async {
//!     let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await?;
//!     println!("NAPI instance: {:?}", socket.incoming_napi_id()?);
//!     # assert!(socket.incoming_napi_id()?.is_none());
//!     Ok::<(), std::io::Error>(())
//! })?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::os::fd::{AsFd, OwnedFd};

pub use busypoll_linux::{EpollParams, Error, NapiId, Result};

pub mod stack;
#[cfg(feature = "tokio")]
pub mod tokio;

/// The kernel's interfaces that busy polling is set up and observed with.
pub mod linux {
    #[doc(inline)]
    pub use busypoll_linux::{epoll, netdev, sockopt, stat, sysctl};
}

/// The busy-poll options of any socket: std, socket2, mio, tokio, or a plain descriptor.
///
/// Errors are one line each, name a missing capability, and turn into [`std::io::Error`] with `?`.
/// The options in full: [`linux::sockopt`].
pub trait BusyPollExt: AsFd {
    /// `SO_BUSY_POLL`: a receive on an empty queue polls the device for this many microseconds before it
    /// sleeps; 0 = off. A non-blocking receive makes one pass. Has no effect on epoll, poll and select.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] above `i32::MAX`; [`Error::Denied`] on Linux 6.1 and older without
    /// `CAP_NET_ADMIN`; [`Error::Unsupported`] on kernels built without busy polling.
    fn set_busy_poll(&self, micros: u32) -> Result<()> {
        linux::sockopt::set_busy_poll(self, micros)
    }

    /// `SO_BUSY_POLL`, in microseconds. New sockets start with `net.core.busy_read`.
    fn busy_poll(&self) -> Result<u32> {
        linux::sockopt::busy_poll(self)
    }

    /// `SO_PREFER_BUSY_POLL`: keep the queue's interrupt masked between polls. Without effect unless the
    /// NAPI instance has `defer-hard-irqs` and `gro-flush-timeout` set ([`linux::netdev`]).
    ///
    /// # Errors
    /// [`Error::Denied`] without `CAP_NET_ADMIN` in the initial user namespace.
    fn set_prefer_busy_poll(&self, on: bool) -> Result<()> {
        linux::sockopt::set_prefer_busy_poll(self, on)
    }

    /// `SO_PREFER_BUSY_POLL`.
    fn prefer_busy_poll(&self) -> Result<bool> {
        linux::sockopt::prefer_busy_poll(self)
    }

    /// `SO_BUSY_POLL_BUDGET`: the most packets one pass may take; 0 = the kernel's 8. Cannot be read back.
    ///
    /// # Errors
    /// [`Error::Denied`] when raised without `CAP_NET_ADMIN` in the initial user namespace.
    fn set_busy_poll_budget(&self, packets: u16) -> Result<()> {
        linux::sockopt::set_busy_poll_budget(self, packets)
    }

    /// `SO_INCOMING_NAPI_ID`: the queue this socket's packets came from, which is the queue it polls; `None`
    /// if it has none and cannot busy poll.
    fn incoming_napi_id(&self) -> Result<Option<NapiId>> {
        linux::sockopt::incoming_napi_id(self)
    }
}

impl<T: AsFd + ?Sized> BusyPollExt for T {}

/// The busy-poll parameters of an epoll instance: mio's `Registry`, or any epoll descriptor.
pub trait EpollBusyPollExt: AsFd {
    /// `EPIOCSPARAMS`: how waits on this instance poll before they sleep.
    ///
    /// # Errors
    /// [`Error::NotEpoll`]; [`Error::Unsupported`] before Linux 6.9; [`Error::Denied`] for a budget above
    /// 64 without `CAP_NET_ADMIN`; [`Error::OutOfRange`] above `i32::MAX` microseconds.
    fn set_busy_poll_params(&self, params: EpollParams) -> Result<()> {
        linux::epoll::set_params(self, params)
    }

    /// `EPIOCGPARAMS`.
    ///
    /// # Errors
    /// [`Error::NotEpoll`]; [`Error::Unsupported`] before Linux 6.9.
    fn busy_poll_params(&self) -> Result<EpollParams> {
        linux::epoll::params(self)
    }
}

impl<T: AsFd + ?Sized> EpollBusyPollExt for T {}

/// Every epoll instance of this process, as duplicated descriptors: a way to reach a runtime's own.
///
/// Parameters set through a duplicate belong to the instance and stay when the duplicate is closed.
///
/// # Errors
/// [`Error::Os`] if `/proc` or pidfd_getfd(2) (Linux 5.6) is not available.
pub fn epoll_instances() -> Result<Vec<OwnedFd>> {
    linux::epoll::instances()
}

/// The examples of docs/rust.md are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct FromRust;
