//! Whether Linux can busy poll for a socket or an epoll instance, and if not, why: the one place that knows. `busypoll
//! doctor` words it as findings, `busypoll attach` as reasons to leave a descriptor alone, or to warn.
//!
//! Kernel source: `include/net/busy_poll.h`, `net/core/dev.c` (`napi_busy_loop`), `fs/eventpoll.c` (`ep_busy_loop_on`,
//! `ep_set_busy_poll_napi_id`), `fs/select.c`, `net/tls/tls_sw.c`, `net/mptcp/protocol.c`.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

/// The kinds of socket that busy polling treats differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
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
    /// Of no family that packets reach: AF_UNIX and others.
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

/// What of a socket decides its class.
#[derive(Clone, Copy, Debug)]
pub struct Kind<'a> {
    /// `AF_…`.
    pub family: u32,
    /// `SOCK_…`.
    pub kind: u32,
    /// `IPPROTO_…`.
    pub protocol: u32,
    /// It listens.
    pub listening: bool,
    /// It is connected.
    pub connected: bool,
    /// What is stacked on TCP: `tls`.
    pub ulp: &'a str,
}

/// What a socket is.
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

/// Whether a socket's packets go over the loopback device, as far as its addresses tell. A connection to any other
/// address of this host has that address at both ends (`ip_route_output_key_hash_rcu`), unless it was bound to a third.
#[must_use]
pub fn loops(local: Option<SocketAddr>, peer: Option<SocketAddr>) -> bool {
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
    /// It cannot be told.
    Unknown,
}

/// How packets of a socket are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In receive calls, asleep or not.
    Receive,
    /// In an epoll instance that watches it.
    Epoll {
        /// The instance.
        fd: RawFd,
        /// Whether waits there poll; `None` where net.core.busy_poll decides it and cannot be seen.
        polls: Option<bool>,
        /// Nobody waits in it but through this one, which watches it.
        through: Option<RawFd>,
        /// Its waits have a timeout of 0.
        spins: bool,
    },
    /// In poll or select.
    Poll,
    /// In an io_uring.
    Uring {
        /// Whether a ring of the program busy polls.
        polls: bool,
    },
    /// Not at all, as far as is seen.
    Nobody,
}

/// A socket as it stands.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// What it is.
    pub class: Class,
    /// SO_BUSY_POLL or SO_PREFER_BUSY_POLL is set.
    pub option: bool,
    /// Its packets do not leave the host.
    pub loops: bool,
    /// The queue it has learnt.
    pub queue: Queue,
    /// How it is waited for.
    pub way: Way,
    /// net.core.busy_poll; `None` where it cannot be seen, which is not 0.
    pub host_busy_poll: Option<u32>,
}

/// What keeps a socket from being busy polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Its family has no receive queue.
    NoPackets,
    /// MPTCP takes the option and never polls.
    Mptcp,
    /// Such sockets learn no NAPI instance.
    LearnsNothing,
    /// Its packets come over loopback.
    Loops,
    /// Receiving through kTLS does not poll.
    Ktls,
    /// It is waited for in an epoll instance, which does not poll.
    EpollSilent(RawFd),
    /// It is waited for through an epoll instance that watches another, which nothing can poll.
    Nested {
        /// Watches the socket.
        inner: RawFd,
        /// Is waited in.
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
    /// The NAPI instance it has learnt is gone, until the next packet.
    Dead,
    /// The same, and it keeps that id: it learns from its first packet only.
    DeadForever,
}

/// What nature forbids: such a socket cannot be busy polled whatever is set.
#[must_use]
pub fn by_nature(class: Class, loops: bool) -> Option<Obstacle> {
    match class {
        Class::NoPackets => Some(Obstacle::NoPackets),
        Class::Mptcp => Some(Obstacle::Mptcp),
        Class::Raw | Class::Other => Some(Obstacle::LearnsNothing),
        // What a listener accepts may come from anywhere.
        _ if loops && class != Class::Listener => Some(Obstacle::Loops),
        _ => None,
    }
}

/// What is in the way of its way of waiting.
#[must_use]
pub fn of_waiting(facts: &Facts) -> Option<Obstacle> {
    match facts.way {
        Way::Receive if facts.class == Class::Ktls => Some(Obstacle::Ktls),
        Way::Receive | Way::Nobody => None,
        Way::Epoll { fd, through: Some(outer), .. } => Some(Obstacle::Nested { inner: fd, outer }),
        Way::Epoll { fd, polls: Some(false), .. } => Some(Obstacle::EpollSilent(fd)),
        Way::Epoll { polls: None, .. } => Some(Obstacle::HostUnseen),
        Way::Epoll { fd, spins: true, .. } => Some(Obstacle::EpollSpins(fd)),
        Way::Epoll { .. } => None,
        Way::Poll => match facts.host_busy_poll {
            Some(0) => Some(Obstacle::PollSilent),
            Some(_) => None,
            None => Some(Obstacle::HostUnseen),
        },
        Way::Uring { polls } => (!polls).then_some(Obstacle::UringSilent),
    }
}

/// What is in the way of the queue it would poll.
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
    /// As `busypoll attach` says it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = match self {
            Obstacle::NoPackets => "has no receive queue",
            Obstacle::Mptcp => "MPTCP takes the option and never polls",
            Obstacle::LearnsNothing => "this protocol learns no NAPI instance",
            Obstacle::Loops => "loopback: its packets come from no device's queue",
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
                    "is looked at in epoll {fd} with a timeout of 0, which never polls"
                );
            }
            Obstacle::PollSilent => {
                "waits in poll or select, which poll the queue only with net.core.busy_poll; `busypoll run` needs no \
                 such setting"
            }
            Obstacle::HostUnseen => {
                "whether its waits poll is for net.core.busy_poll to say, which cannot be seen from this network \
                 namespace"
            }
            Obstacle::UringSilent => "the program waits in an io_uring that does not busy poll",
            Obstacle::NoId => {
                "no packet has brought it a NAPI id yet: until one does it polls nothing (`busypoll doctor --pid` \
                 tells whether its device gives any)"
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
