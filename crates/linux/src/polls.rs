//! Whether Linux can busy poll for a socket or an epoll instance, and if not, why. All rules are here. `busypoll
//! doctor` words them as findings, `busypoll attach` as reasons to leave a descriptor alone, or to warn.
//!
//! Kernel source: `include/net/busy_poll.h`, `net/core/dev.c` (`napi_busy_loop`), `fs/eventpoll.c` (`ep_busy_loop_on`,
//! `ep_set_busy_poll_napi_id`), `fs/select.c`, `net/tls/tls_sw.c`, `net/mptcp/protocol.c`.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

/// The kinds of socket that busy polling treats differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// TCP, connected or not yet.
    Tcp,
    /// TCP with kTLS.
    Ktls,
    /// A listener; accepted connections inherit its options.
    Listener,
    /// UDP with a peer.
    Connected,
    /// UDP without a peer.
    Unconnected,
    /// MPTCP.
    Mptcp,
    /// Raw, ICMP, AF_PACKET.
    Raw,
    /// AF_XDP.
    Xdp,
    /// A family without network packets: AF_UNIX and others.
    NoPackets,
    /// SCTP and others.
    Other,
}

impl Class {
    /// Whether such a socket learns from its packets which queue to poll.
    #[must_use]
    pub fn learns(self) -> bool {
        use Class::{Connected, Ktls, Tcp, Unconnected};
        matches!(self, Tcp | Ktls | Connected | Unconnected)
    }
}

/// The facts that decide a socket's class.
#[derive(Clone, Copy, Debug)]
pub struct Kind<'a> {
    /// `AF_…`.
    pub family: u32,
    /// `SOCK_…`.
    pub kind: u32,
    /// `IPPROTO_…`.
    pub protocol: u32,
    /// Whether it listens.
    pub listening: bool,
    /// Whether it is connected.
    pub connected: bool,
    /// The upper layer protocol on TCP: `tls`.
    pub ulp: &'a str,
}

/// The class of a socket.
#[must_use]
pub fn class(socket: Kind<'_>) -> Class {
    match i32::try_from(socket.family) {
        Ok(libc::AF_INET | libc::AF_INET6) => {}
        Ok(libc::AF_PACKET) => return Class::Raw,
        Ok(libc::AF_XDP) => return Class::Xdp,
        _ => return Class::NoPackets,
    }
    match (i32::try_from(socket.kind), i32::try_from(socket.protocol)) {
        (_, Ok(libc::IPPROTO_MPTCP)) => Class::Mptcp,
        (Ok(libc::SOCK_STREAM), Ok(libc::IPPROTO_TCP)) if socket.listening => Class::Listener,
        (Ok(libc::SOCK_STREAM), Ok(libc::IPPROTO_TCP)) if socket.ulp == "tls" => Class::Ktls,
        (Ok(libc::SOCK_STREAM), Ok(libc::IPPROTO_TCP)) => Class::Tcp,
        (Ok(libc::SOCK_DGRAM), Ok(libc::IPPROTO_UDP | libc::IPPROTO_UDPLITE)) => {
            if socket.connected { Class::Connected } else { Class::Unconnected }
        }
        (Ok(libc::SOCK_RAW | libc::SOCK_DGRAM), _) => Class::Raw,
        _ => Class::Other,
    }
}

/// Whether a socket's packets go over the loopback device, as far as its addresses show. A connection to another
/// local address has that address at both ends (`ip_route_output_key_hash_rcu`), unless it was bound to a third one.
#[must_use]
pub fn is_loopback(local: Option<SocketAddr>, peer: Option<SocketAddr>) -> bool {
    let [local, peer] = [local, peer].map(|end| end.map(|end| end.ip().to_canonical()));
    let own = |end: Option<IpAddr>| end.is_some_and(|ip| ip.is_loopback());
    own(local) || own(peer) || peer.is_some() && local == peer
}

/// The queue that a socket has learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// It has no NAPI id.
    None,
    /// Its NAPI instance is there.
    Alive,
    /// Its NAPI instance is gone.
    Dead,
    /// Not known.
    Unknown,
}

/// How threads wait for packets of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMethod {
    /// In receive calls, asleep or not.
    Receive,
    /// In an epoll instance that watches it.
    Epoll {
        /// The instance.
        fd: RawFd,
        /// Whether waits there poll; `None` where net.core.busy_poll decides it and cannot be seen.
        polls: Option<bool>,
        /// Threads wait in it only through this instance, which watches it.
        through: Option<RawFd>,
        /// Every wait there has a timeout of 0.
        spins: bool,
    },
    /// In poll or select.
    Poll,
    /// In an io_uring.
    Uring {
        /// Whether a ring of the program busy polls.
        polls: bool,
    },
    /// Not at all, as far as was seen.
    NotWaiting,
}

/// The facts about a socket that decide whether it is polled.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Its class.
    pub class: Class,
    /// Whether SO_BUSY_POLL or SO_PREFER_BUSY_POLL is set.
    pub option: bool,
    /// Whether its packets go over loopback.
    pub is_loopback: bool,
    /// The queue it has learnt.
    pub queue: Queue,
    /// How threads wait for it.
    pub wait_method: WaitMethod,
    /// net.core.busy_poll; `None` if it cannot be seen, which does not mean 0.
    pub host_busy_poll: Option<u32>,
}

/// What keeps a socket from being busy polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Its family has no receive queue.
    NoPackets,
    /// MPTCP accepts the option but never polls.
    Mptcp,
    /// Such sockets learn no NAPI instance.
    LearnsNothing,
    /// Its packets come over loopback.
    Loopback,
    /// Receiving through kTLS does not poll.
    Ktls,
    /// Threads wait in an epoll instance that does not poll.
    EpollSilent(RawFd),
    /// Threads wait through an epoll instance that watches another, which no setting makes poll.
    Nested {
        /// The instance that watches the socket.
        inner: RawFd,
        /// The instance that threads wait in.
        outer: RawFd,
    },
    /// epoll_wait with a timeout of 0 does not poll.
    EpollSpins(RawFd),
    /// Waits in poll or select poll only with net.core.busy_poll.
    PollSilent,
    /// Whether poll, select or this epoll instance poll depends on net.core.busy_poll, which cannot be seen.
    HostUnseen,
    /// The program's io_urings do not poll.
    UringSilent,
    /// It has learnt no NAPI id.
    NoId,
    /// The NAPI instance it has learnt is gone; the next packet brings another id.
    Dead,
    /// The same, but it keeps that id, as it learns only from its first packet.
    DeadForever,
}

/// The obstacle that no setting removes.
#[must_use]
pub fn kind_obstacle(class: Class, is_loopback: bool) -> Option<Obstacle> {
    match class {
        Class::NoPackets => Some(Obstacle::NoPackets),
        Class::Mptcp => Some(Obstacle::Mptcp),
        Class::Raw | Class::Other => Some(Obstacle::LearnsNothing),
        // A listener on any address may accept connections from other hosts.
        _ if is_loopback && class != Class::Listener => Some(Obstacle::Loopback),
        _ => None,
    }
}

/// The obstacle in how threads wait for the socket.
#[must_use]
pub fn of_waiting(facts: &Facts) -> Option<Obstacle> {
    match facts.wait_method {
        WaitMethod::Receive if facts.class == Class::Ktls => Some(Obstacle::Ktls),
        WaitMethod::Receive | WaitMethod::NotWaiting => None,
        WaitMethod::Epoll { fd, through: Some(outer), .. } => {
            Some(Obstacle::Nested { inner: fd, outer })
        }
        WaitMethod::Epoll { fd, polls: Some(false), .. } => Some(Obstacle::EpollSilent(fd)),
        WaitMethod::Epoll { polls: None, .. } => Some(Obstacle::HostUnseen),
        WaitMethod::Epoll { fd, spins: true, .. } => Some(Obstacle::EpollSpins(fd)),
        WaitMethod::Epoll { .. } => None,
        WaitMethod::Poll => match facts.host_busy_poll {
            Some(0) => Some(Obstacle::PollSilent),
            Some(_) => None,
            None => Some(Obstacle::HostUnseen),
        },
        WaitMethod::Uring { polls } => (!polls).then_some(Obstacle::UringSilent),
    }
}

/// The obstacle in the queue it would poll.
#[must_use]
pub fn of_queue(class: Class, queue: Queue) -> Option<Obstacle> {
    match queue {
        Queue::None => Some(Obstacle::NoId),
        Queue::Dead if class == Class::Unconnected => Some(Obstacle::DeadForever),
        Queue::Dead => Some(Obstacle::Dead),
        Queue::Alive | Queue::Unknown => None,
    }
}

impl std::fmt::Display for Obstacle {
    /// The words of `busypoll attach`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = match self {
            Obstacle::NoPackets => "has no receive queue",
            Obstacle::Mptcp => "MPTCP accepts the option but never polls",
            Obstacle::LearnsNothing => "this protocol learns no NAPI instance",
            Obstacle::Loopback => "loopback: its packets come from no device's queue",
            Obstacle::Ktls => "a receive through kernel TLS does not poll",
            Obstacle::EpollSilent(fd) => {
                return write!(f, "is waited for in epoll {fd}, which polls by its own parameters");
            }
            Obstacle::Nested { inner, outer } => {
                return write!(
                    f,
                    "is waited for in epoll {outer} through epoll {inner}, and no nested instance is polled"
                );
            }
            Obstacle::EpollSpins(fd) => {
                return write!(
                    f,
                    "is checked in epoll {fd} with a timeout of 0, which never polls"
                );
            }
            Obstacle::PollSilent => {
                "waits in poll or select, which poll the queue only with net.core.busy_poll; `busypoll run` needs no \
                 such setting"
            }
            Obstacle::HostUnseen => {
                "whether its waits poll depends on net.core.busy_poll, which cannot be seen from this network \
                 namespace"
            }
            Obstacle::UringSilent => "the program waits in an io_uring that does not busy poll",
            Obstacle::NoId => {
                "no packet has brought it a NAPI id yet: until one does it polls nothing (`busypoll doctor --pid` \
                 shows whether its device gives any)"
            }
            Obstacle::Dead => {
                "the NAPI instance it learnt is gone; it polls nothing until it learns another"
            }
            Obstacle::DeadForever => {
                "the NAPI instance it learnt is gone, and a socket that is not connected learns no other"
            }
        };
        f.write_str(words)
    }
}
