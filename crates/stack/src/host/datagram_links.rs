//! Datagrams between processes of this machine over links. Each process says in the memory of its links at which
//! addresses it takes datagrams ([`Ports`]); a sender reads there, for each datagram, whether that still holds. A process
//! to which there is no link yet is found by the name of the address, as a listener is.

use super::{
    Host,
    peers::{UDP, is_found, name_of, names_for},
};
use crate::{
    inet::SendError,
    nic::cable::{Found, Ports, Receives, Rendezvous},
    sync::lock,
    time::{self, Instant},
    word_hash::WordMap,
};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::Duration,
};

/// How long an address at which no process was found is the kernel's without another look.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The same, if there is a process, which may not have entered its addresses yet.
const SOON: Duration = Duration::from_millis(1);

/// How many such addresses are remembered.
const MOST_REMEMBERED: usize = 64;

/// How long a sender waits for a ring that is full, a non-blocking one and any other, before the datagram is dropped.
const SHORT_WAIT: Duration = Duration::from_micros(100);
const WAIT: Duration = Duration::from_millis(1);

/// How long after that no sender waits.
const FULL: Duration = Duration::from_millis(10);

/// Where this process takes datagrams, and the links that say so.
#[derive(Debug, Default)]
pub(crate) struct DatagramLinks {
    state: Mutex<State>,
    /// There was a link, or a name was looked up.
    is_used: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    links: Vec<(u32, Arc<Ports>)>,
    sockets: WordMap<u64, Socket>,
    next: u64,
    /// Addresses at which no process was found, each with the time of the next look.
    kernels: Vec<(SocketAddr, Instant)>,
}

#[derive(Debug)]
struct Socket {
    receives: Receives,
    /// Its entries, each with the number of the link.
    entries: Vec<(u32, usize)>,
}

/// The address of a socket that takes datagrams over links, or will if it is asked to. Dropping it withdraws the address.
#[derive(Debug)]
#[doc(hidden)]
pub struct PublishedUdp {
    links: Arc<DatagramLinks>,
    id: u64,
    name: Option<(Host, Arc<Rendezvous>)>,
}

/// How a datagram gets to an address of this machine.
#[derive(Debug)]
pub(crate) enum DatagramWay {
    /// Over the link of this number.
    Link(u32, Accepted),
    /// By the kernel, until the process that was asked takes it over the link.
    Later,
    /// By the kernel.
    Kernel,
}

/// A process takes datagrams at an address.
#[derive(Debug)]
pub(crate) struct Accepted {
    ports: Arc<Ports>,
    at: usize,
    word: u32,
}

impl Accepted {
    /// Whether it still does.
    #[inline]
    pub(crate) fn is_still(&self) -> bool {
        self.ports.is_still(self.at, self.word)
    }

    /// The ring is full. Calls `send` for a moment until it has sent, or the process takes nothing here any more, which
    /// makes it `None`. After that the datagram is dropped, as the kernel drops one for which a receive buffer has no
    /// room.
    #[cold]
    pub(crate) fn send_later(
        &self,
        is_nonblocking: bool,
        mut send: impl FnMut() -> Option<Result<(), SendError>>,
    ) -> Option<Result<(), SendError>> {
        let full_until = &self.ports.full_until;
        let begun = time::now();
        if begun.nanos() < full_until.load(Ordering::Relaxed) {
            return Some(Ok(()));
        }
        let until = begun + if is_nonblocking { SHORT_WAIT } else { WAIT };
        while self.is_still() {
            match send() {
                None | Some(Err(SendError::RingFull)) => {}
                sent => return sent,
            }
            let now = time::now();
            if now >= until {
                full_until.store((now + FULL).nanos(), Ordering::Relaxed);
                return Some(Ok(()));
            }
            sleep(Duration::from_micros(20));
        }
        None
    }
}

impl DatagramLinks {
    /// A link has been made.
    pub(super) fn add(&self, number: u32, ports: Ports) {
        let mut state = lock(&self.state);
        for socket in state.sockets.values_mut() {
            socket.enter(number, &ports);
        }
        state.links.push((number, Arc::new(ports)));
        self.is_used.store(true, Ordering::Release);
    }

    /// A link ends: no datagram is sent over it any more, at either end.
    pub(super) fn remove(&self, number: u32) {
        let mut state = lock(&self.state);
        let State { links, sockets, .. } = &mut *state;
        let ports = links.extract_if(.., |link| link.0 == number).next();
        for socket in sockets.values_mut() {
            socket.entries.retain(|(link, at)| {
                let stays = *link != number;
                if !stays && let Some((_, ports)) = &ports {
                    ports.remove(*at);
                }
                stays
            });
        }
    }

    fn publish(&self, receives: Receives) -> u64 {
        let mut state = lock(&self.state);
        let State { links, sockets, next, .. } = &mut *state;
        *next += 1;
        let mut socket = Socket { receives, entries: Vec::new() };
        links.iter().for_each(|(number, ports)| socket.enter(*number, ports));
        sockets.insert(*next, socket);
        *next
    }

    /// The way over the links that there are.
    fn find(&self, to: SocketAddr, from: SocketAddr) -> Option<DatagramWay> {
        let state = lock(&self.state);
        let found = state.links.iter().find_map(|link| Some((link, link.1.find(to, from)?)))?;
        Some(match found {
            (_, Found::Later) => DatagramWay::Later,
            ((number, ports), Found::Ready(at, word)) => {
                DatagramWay::Link(*number, Accepted { ports: ports.clone(), at, word })
            }
        })
    }

    /// Whether `to` is the kernel's without a look. Otherwise it is from now on, for a while.
    fn is_kernels(&self, to: SocketAddr) -> bool {
        let now = time::now();
        let is_known = |(known, until): &(SocketAddr, Instant)| *known == to && now < *until;
        let is_kernels = lock(&self.state).kernels.iter().any(is_known);
        if !is_kernels {
            self.set_kernels(to, LOOK_AGAIN);
        }
        is_kernels
    }

    fn set_kernels(&self, to: SocketAddr, span: Duration) {
        let kernels = &mut lock(&self.state).kernels;
        kernels.retain(|(known, _)| *known != to);
        if kernels.len() >= MOST_REMEMBERED {
            kernels.remove(0);
        }
        kernels.push((to, time::now() + span));
    }
}

impl Socket {
    fn enter(&mut self, number: u32, ports: &Ports) {
        self.entries.extend(ports.enter(&self.receives).map(|at| (number, at)));
    }
}

impl PublishedUdp {
    fn with_entries(&self, mut with: impl FnMut(&mut Socket, &Ports, usize)) {
        let mut state = lock(&self.links.state);
        let State { links, sockets, .. } = &mut *state;
        let Some(socket) = sockets.get_mut(&self.id) else { return };
        for (number, at) in socket.entries.clone() {
            if let Some((_, ports)) = links.iter().find(|link| link.0 == number) {
                with(socket, ports, at);
            }
        }
    }

    /// Whether another process has asked for a datagram to be taken over a link.
    pub fn is_asked(&self) -> bool {
        let mut is_asked = false;
        if self.links.is_used.load(Ordering::Acquire) {
            self.with_entries(|_, ports, at| is_asked |= ports.is_asked(at));
        }
        is_asked
    }

    /// The socket has these addresses now, and takes datagrams over links if `is_ready`.
    pub(crate) fn set(&self, at: SocketAddr, from: Option<SocketAddr>, is_ready: bool) {
        {
            let mut state = lock(&self.links.state);
            let Some(socket) = state.sockets.get_mut(&self.id) else { return };
            let receives = Receives { at, from, is_ready, ..socket.receives };
            let receives = canonical_ends(receives);
            if receives == socket.receives {
                return;
            }
            // An entry's place depends on the port, which stays.
            socket.receives = receives;
        }
        self.with_entries(|socket, ports, at| ports.change(at, &socket.receives));
    }
}

impl Drop for PublishedUdp {
    fn drop(&mut self) {
        if let Some((host, name)) = self.name.take() {
            host.peers().into_iter().for_each(|peers| peers.withdraw_name(&name));
        }
        self.with_entries(|_, ports, at| ports.remove(at));
        lock(&self.links.state).sockets.remove(&self.id);
    }
}

/// Mapped IPv4 addresses become IPv4 addresses.
fn canonical_ends(receives: Receives) -> Receives {
    let canonical = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
    Receives { at: canonical(receives.at), from: receives.from.map(canonical), ..receives }
}

impl Host {
    /// From now on a socket at `at`, connected to `from`, takes datagrams over links, or if it is not `is_ready`, can be
    /// asked to. If `is_named`, processes that no link leads to find it.
    #[doc(hidden)]
    pub fn publish_udp(
        &self,
        at: SocketAddr,
        from: Option<SocketAddr>,
        (only_v6, is_named, is_ready): (bool, bool, bool),
    ) -> Option<PublishedUdp> {
        let peers = self.peers()?;
        let receives = canonical_ends(Receives { at, only_v6, from, is_ready });
        let links = self.inner.datagram_links.clone();
        let id = links.publish(receives);
        // Without the name only processes that have a link find it.
        let name = is_named.then(|| peers.publish_name(&name_of(UDP, receives.at)).ok()).flatten();
        let name = name.map(|name| (self.clone(), name));
        Some(PublishedUdp { links, id, name })
    }

    /// How a datagram from `from`, whose address may be unspecified, gets to `to`, an address of this machine. If
    /// `looks` is false, only processes to which there is a link are asked.
    pub(crate) fn datagram_way(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        looks: bool,
    ) -> DatagramWay {
        let links = &self.inner.datagram_links;
        let Some(peers) = self.peers() else { return DatagramWay::Kernel };
        if !looks && !links.is_used.load(Ordering::Acquire) {
            return DatagramWay::Kernel;
        }
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        // Its scope would be that of the link.
        if matches!(to.ip(), IpAddr::V6(address) if address.is_unicast_link_local()) {
            return DatagramWay::Kernel;
        }
        let from_ip = match (from.ip().to_canonical(), to.ip()) {
            (from, IpAddr::V4(to)) if from.is_unspecified() && to.is_loopback() => {
                Ipv4Addr::LOCALHOST.into()
            }
            (from, to) if from.is_unspecified() => to,
            (from, _) => from,
        };
        let from = SocketAddr::new(from_ip, from.port());
        if let Some(way) = links.find(to, from) {
            return way;
        }
        if !looks || links.is_kernels(to) || peers.look_up(self, names_for(UDP, to)).is_none() {
            return DatagramWay::Kernel;
        }
        links.find(to, from).unwrap_or_else(|| {
            // The other process has not entered its addresses yet.
            links.set_kernels(to, SOON);
            DatagramWay::Later
        })
    }

    /// Whether a datagram to `to`, an address of this machine, goes over a link now; false: it will in a moment. `None`:
    /// it is the kernel's.
    #[doc(hidden)]
    pub fn sends_over_link(&self, from: SocketAddr, to: SocketAddr, looks: bool) -> Option<bool> {
        match self.datagram_way(from, to, looks) {
            DatagramWay::Link(..) => Some(true),
            DatagramWay::Later => Some(false),
            DatagramWay::Kernel => None,
        }
    }
}

/// Whether a process takes datagrams to `to`, an address of this machine, over links. For a process without a host.
#[doc(hidden)]
pub fn is_udp_published(to: SocketAddr) -> bool {
    let to = SocketAddr::new(to.ip().to_canonical(), to.port());
    is_found(names_for(UDP, to))
}
