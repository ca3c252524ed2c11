//! The Internet layer, UDP and TCP ([`tcp`]): one [`Inet`] per Host. Frames enter through [`Inet::receive`]
//! and are delivered to a [`UdpEndpoint`] or a [`tcp::Flow`]. Datagrams leave through [`Inet::udp_send`]
//! over a [`Path`].
//!
//! It uses the NICs and NAPI passes below and knows nothing of sockets. It never reads a clock: time comes
//! with the [`Pass`]. All random numbers come from its seed. Any thread may call it, but only the owner of
//! a queue may hand in that queue's frames.
//!
//! An interface's addresses are either our own or the kernel's. For our own addresses this module does ARP,
//! neighbour discovery, ping and reassembly. For the kernel's it looks up the kernel's tables
//! ([`KernelTables`]) and leaves to the kernel what the kernel does better ([`SendError::UseKernel`]).
//!
//! Two hosts over a cable, driven by hand:
//!
//! ```
//! use busypoll_stack::{
//!     inet::{Addressing, BindOptions, Datagram, Inet, Pass, PathOptions, SocketError, UdpEndpoint},
//!     napi::PolledBy,
//!     nic::{Nic, cable},
//!     time::Instant,
//! };
//! use std::{net::SocketAddr, sync::{Arc, Mutex}};
//!
//! #[derive(Default)]
//! struct Mailbox(Mutex<Vec<u8>>);
//!
//! impl UdpEndpoint for Mailbox {
//!     fn datagram(&self, datagram: &Datagram<'_>, _: &mut Pass) -> bool {
//!         self.0.lock().unwrap().extend_from_slice(datagram.payload);
//!         true
//!     }
//!     fn error(&self, _: SocketError, _: SocketAddr, _: &mut Pass) {}
//! }
//!
//! let host = |mut nic: cable::Cable, address: &str| {
//!     let queue = nic.open(0)?;
//!     let inet = Inet::new(1, Box::new(|_deadline| {}));
//!     let own = Addressing::Own(vec![address.parse().unwrap()]);
//!     let iface = inet.add_interface(nic.info().clone(), vec![queue.tx], own);
//!     Ok::<_, std::io::Error>((inet, iface, queue.rx))
//! };
//! let (left, right) = cable::pair(cable::Config::default())?;
//! let mut hosts = [host(left, "10.0.0.1/24")?, host(right, "10.0.0.2/24")?];
//!
//! let mailbox = Arc::new(Mailbox::default());
//! let at = "10.0.0.2:7".parse().unwrap();
//! let _binding = hosts[1].0.udp_bind(at, BindOptions::default(), mailbox.clone())?;
//!
//! let mut pass = Pass::new(None, Instant::ZERO, PolledBy::Interrupt);
//! let (from, to) = ("0.0.0.0:4000".parse().unwrap(), "10.0.0.2:7".parse().unwrap());
//! let path = hosts[0].0.path(from, to, 0, PathOptions::default(), pass.now)?;
//! hosts[0].0.udp_send(&path, &b"hello"[..], &mut pass)?;
//! // The ARP request for 10.0.0.2, the reply, and the datagram that was queued for it.
//! for end in [1, 0, 1] {
//!     let (inet, iface, rx) = &mut hosts[end];
//!     rx.poll(8, &mut |frame| inet.receive(iface, 0, frame, &mut pass));
//! }
//! assert_eq!(*mailbox.0.lock().unwrap(), b"hello");
//! # Ok::<(), std::io::Error>(())
//! ```

use crate::{
    ledger::Ledger,
    nic::{self, TxQueue},
    sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, PoisonError},
    time::Instant,
    wire::MacAddr,
};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{RwLock, RwLockReadGuard},
};

mod arp;
mod binding;
mod cidr;
mod counters;
mod dad;
mod deadline;
mod demux;
mod dual;
mod error;
mod fragment;
mod hash;
mod icmp;
mod icmp6;
mod icmp_error;
mod iface;
mod input;
mod input6;
pub mod kernel;
mod last_packet;
mod ndp;
mod neighbour;
mod neighbour_queue;
mod output;
mod path;
mod payload;
mod pieces;
mod pmtu;
mod ports;
mod queues;
mod random;
mod rcu;
mod reassembly;
mod reply_path;
mod route;
mod segments;
pub mod tcp;
mod template;
#[cfg(test)]
mod tests;
mod udp;

pub use binding::{BindOptions, Binding};
pub use cidr::{Cidr, Ipv4Cidr, ParseCidrError};
#[doc(hidden)]
pub use counters::list_id;
pub use counters::{Count, DROPS};
pub use error::{SendError, SocketError};
pub use iface::{Addressing, Hop, Interface, KernelTables};
pub use neighbour::NEIGHBOURS;
pub use neighbour_queue::QUEUED_PER_NEIGHBOUR;
pub use path::{Path, PathOptions, PmtuDiscover};
pub use payload::Payload;
pub use ports::EPHEMERAL;
pub(crate) use queues::{CONTEXTS, Source};
pub use queues::{Context, Input, Pass, Poller, Serving, by_id};
pub use udp::{Datagram, MAX_PAYLOAD, Meta, UdpEndpoint};

use counters::Counters;
use deadline::Deadline;
use demux::Demux;
use neighbour::earlier;
use pmtu::Pmtu;
use ports::Ports;
use random::Random;
use reassembly::Reassembly;
use route::{Route, Routes};
use segments::LocalPackets;

/// Called when a deadline is set outside of [`Inet::tick`]: the callee must call `tick` by then.
pub type WakeBy = Box<dyn Fn(Instant) + Send + Sync>;

/// The Internet layer of one Host.
pub struct Inet {
    topology: RwLock<Topology>,
    /// How many links to processes of this machine there were.
    links: AtomicU32,
    /// Incremented when the topology or a known path MTU changes: older paths must be looked up again.
    generation: AtomicU64,
    random: Random,
    counters: Arc<Counters>,
    demux: Demux<Ipv4Addr>,
    demux6: Demux<Ipv6Addr>,
    ports: Mutex<Ports>,
    bindings: AtomicU64,
    pmtu: Pmtu,
    reassembly: Mutex<Reassembly>,
    reassembly6: Mutex<Reassembly>,
    limiter: Mutex<icmp_error::Limiter>,
    local: LocalPackets,
    tcp: tcp::Tcp,
    deadline: Deadline,
    wake_by: WakeBy,
    /// Lists connections and listeners for other processes.
    ledger: Option<Arc<Ledger>>,
    idents: AtomicU64,
}

#[derive(Debug, Default)]
struct Topology {
    interfaces: Vec<Arc<Interface>>,
    /// The machine's addresses are the kernel's, also before an interface is shared with it.
    is_kernels: bool,
    /// The links to processes of this machine; they have no addresses and no routes of their own.
    links: Vec<Arc<Interface>>,
    routes: Routes,
}

impl Topology {
    /// Whether `address` is our own (not the kernel's) on any interface.
    fn has_own_address(&self, address: IpAddr) -> bool {
        let mut own = self.interfaces.iter().filter(|iface| iface.kernel().is_none());
        own.any(|iface| iface.has(address))
    }

    /// Whether `address` is our own, or the kernel's on an interface that it shares.
    fn has_address(&self, address: IpAddr) -> bool {
        self.interfaces.iter().any(|iface| iface.has(address))
    }
}

impl std::fmt::Debug for Inet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inet").field("topology", &self.topology).finish_non_exhaustive()
    }
}

impl Inet {
    /// An Internet layer without interfaces. Ports, ARP times and IP idents are drawn from `seed`, which must
    /// be unpredictable to others. `wake_by` is called, on any thread, when [`tick`](Inet::tick) must be called
    /// earlier than it last returned.
    pub fn new(seed: u128, wake_by: WakeBy) -> Arc<Inet> {
        Inet::with_tcp(seed, tcp::Config::default(), wake_by)
    }

    /// As [`new`](Inet::new), with settings for TCP.
    pub fn with_tcp(seed: u128, config: tcp::Config, wake_by: WakeBy) -> Arc<Inet> {
        Inet::with_ledger(seed, config, None, wake_by)
    }

    /// As [`with_tcp`](Inet::with_tcp), with a ledger that lists connections and listeners and counts for other
    /// processes.
    pub fn with_ledger(
        seed: u128,
        config: tcp::Config,
        ledger: Option<Arc<Ledger>>,
        wake_by: WakeBy,
    ) -> Arc<Inet> {
        let random = Random::new(seed);
        let counters = match &ledger {
            Some(ledger) => Counters::at(ledger.counts(list_id())),
            None => Counters::new(),
        };
        let counters = Arc::new(counters);
        let tcp = tcp::Tcp::new(config, counters.clone(), &random);
        Arc::new(Inet {
            topology: RwLock::default(),
            links: AtomicU32::new(0),
            generation: AtomicU64::new(0),
            counters,
            demux: Demux::new(&random),
            demux6: Demux::new(&random),
            ports: Mutex::default(),
            bindings: AtomicU64::new(0),
            pmtu: Pmtu::default(),
            reassembly: Mutex::new(Reassembly::v4()),
            reassembly6: Mutex::new(Reassembly::v6()),
            limiter: Mutex::default(),
            local: LocalPackets::default(),
            tcp,
            deadline: Deadline::never(),
            idents: AtomicU64::new(random.next()),
            random,
            wake_by,
            ledger,
        })
    }

    /// The machine's addresses are the kernel's: what no interface and no link carries is sent by it.
    pub(crate) fn share_machine(&self) {
        self.change(|topology| topology.is_kernels = true);
    }

    #[inline]
    pub(crate) fn ledger(&self) -> Option<&Arc<Ledger>> {
        self.ledger.as_ref()
    }

    /// Adds an interface and the routes to the networks of its own addresses. `tx` holds the transmit half of
    /// each queue, indexed by queue number.
    ///
    /// # Panics
    /// If `tx` is empty.
    pub fn add_interface(
        &self,
        info: nic::Info,
        tx: Vec<Box<dyn TxQueue>>,
        addressing: Addressing,
    ) -> Arc<Interface> {
        assert!(!tx.is_empty(), "{}: an interface needs at least one transmit queue", info.name);
        let iface = self.change(|topology| {
            let number = topology.interfaces.len() as u32 + 1;
            let iface = Arc::new(Interface::new(info, number, tx, addressing));
            topology.interfaces.push(iface.clone());
            for to in iface.networks() {
                let route = Route { to, iface: iface.clone(), gateway: None, source: to.address() };
                topology.routes.add(route);
            }
            iface
        });
        if !iface.addresses6().is_empty() {
            // Duplicate address detection starts with the first tick.
            self.tick_by(Some(Instant::ZERO));
        }
        iface
    }

    /// Adds a link to the process of this machine whose link-layer address is `peer`. It may be added at any time.
    pub fn add_link(
        &self,
        info: nic::Info,
        tx: Vec<Box<dyn TxQueue>>,
        peer: MacAddr,
    ) -> Arc<Interface> {
        let number = self.links.fetch_add(1, Ordering::Relaxed) + 1;
        let link = Arc::new(Interface::new(info, number, tx, Addressing::SameHost(peer)));
        self.topology.write().unwrap_or_else(PoisonError::into_inner).links.push(link.clone());
        link
    }

    /// Whether there is a link to a process of this machine with this number.
    pub(crate) fn has_link(&self, number: u32) -> bool {
        self.topology().links.iter().any(|link| link.link() == number)
    }

    fn link(&self, number: u32) -> Option<Arc<Interface>> {
        self.topology().links.iter().find(|link| link.link() == number).cloned()
    }

    /// How many packets the link of that number has carried; `None`: there is none.
    pub(crate) fn packets_over(&self, number: u32) -> Option<u64> {
        Some(self.link(number)?.totals().iter().map(|(_, total)| total).sum())
    }

    /// No connection is to begin on the link of that number from now on, or again after all.
    pub(crate) fn set_link_closing(&self, number: u32, closing: bool) {
        self.link(number).into_iter().for_each(|link| link.set_closing(closing));
    }

    /// Adds a route over `iface`, which must have addresses of our own. Without a gateway the destination is
    /// on-link.
    ///
    /// # Errors
    /// `InvalidInput` if the interface has no address of its own, or the gateway is on none of its networks.
    pub fn add_route(
        &self,
        iface: &Arc<Interface>,
        to: Cidr,
        gateway: Option<IpAddr>,
    ) -> std::io::Result<()> {
        let name = &iface.info().name;
        let invalid = |why: String| std::io::Error::new(std::io::ErrorKind::InvalidInput, why);
        let family = |own: &Cidr| own.address().is_ipv4() == to.address().is_ipv4();
        let networks: Vec<_> = iface.networks().filter(family).collect();
        let source = match gateway {
            None => networks.first().ok_or_else(|| {
                invalid(format!("{name}: no address of its own; the kernel keeps its routes"))
            })?,
            Some(gateway) => {
                networks.iter().find(|own| own.contains(gateway)).ok_or_else(|| {
                    invalid(format!("{name}: gateway {gateway} is on none of its networks"))
                })?
            }
        };
        let source = source.address();
        self.change(|topology| {
            topology.routes.add(Route { to, iface: iface.clone(), gateway, source });
        });
        Ok(())
    }

    /// The link of `iface` has ended for good, and with it the host at its other end: the interface has no routes any
    /// more, and its TCP connections are reset. What they have received can still be read.
    pub fn end_link(&self, iface: &Arc<Interface>, pass: &mut Pass<'_>) {
        // First: a connection that is begun with the old route looks at this once it is in the table.
        iface.end();
        self.change(|topology| {
            topology.routes.remove(iface);
            topology.links.retain(|link| !Arc::ptr_eq(link, iface));
        });
        self.tcp_end_link(iface, pass);
        self.deliver_local(pass);
    }

    /// The interfaces, in the order they were added.
    pub fn interfaces(&self) -> Vec<Arc<Interface>> {
        self.topology().interfaces.clone()
    }

    /// Whether all packets have left: none waits for its neighbour to be resolved, or for a NIC.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.interfaces().iter().all(|iface| iface.has_sent_all())
    }

    fn topology(&self) -> RwLockReadGuard<'_, Topology> {
        self.topology.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<R>(&self, change: impl FnOnce(&mut Topology) -> R) -> R {
        let result = change(&mut self.topology.write().unwrap_or_else(PoisonError::into_inner));
        self.invalidate_paths();
        result
    }

    fn invalidate_paths(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    #[inline]
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Call after all frames of a pass marked [`batched`](Pass::batched) went to [`receive`](Inet::receive):
    /// sends what was deferred to the end of the pass.
    #[inline]
    pub fn end_of_pass(&self, pass: &mut Pass) {
        // Local delivery below must not defer: nothing runs after it that would send what it deferred.
        pass.batched = false;
        if pass.deferred.is_some() {
            self.tcp_end_of_pass(pass);
        }
        self.deliver_local(pass);
    }

    /// Runs the timers due at `pass.now` and returns when to call it next. A call too early costs two loads.
    pub fn tick(&self, pass: &mut Pass) -> Option<Instant> {
        if self.deadline.begin(pass.now) {
            let next = self.run_timers(pass);
            self.deadline.end(next);
        }
        self.deadline.next()
    }

    #[cold]
    fn run_timers(&self, pass: &mut Pass) -> Option<Instant> {
        self.deliver_local(pass);
        let mut next = None;
        for iface in self.interfaces() {
            next = earlier(next, self.tick_neighbours(&iface, pass));
            next = earlier(next, self.tick_dad(&iface, pass.now));
        }
        next = earlier(next, self.tick_reassembly(pass));
        next = earlier(next, self.tcp_tick(pass));
        let (expired, expiry) = self.pmtu.tick(pass.now);
        if expired {
            self.invalidate_paths();
        }
        earlier(next, expiry)
    }

    /// Makes [`tick`](Inet::tick) run by `deadline`.
    fn tick_by(&self, deadline: Option<Instant>) {
        if let Some(deadline) = deadline
            && self.deadline.set(deadline)
        {
            (self.wake_by)(deadline);
        }
    }

    /// All counters by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.counters.all();
        for (count, total) in self.totals() {
            all[count as usize] += total;
        }
        Counters::names().iter().copied().zip(all).collect()
    }

    /// The value of one counter.
    pub fn count(&self, count: Count) -> u64 {
        let totals = self.totals();
        let per_queue = totals.iter().filter(|(of, _)| *of == count).map(|(_, total)| total);
        self.counters.get(count) + per_queue.sum::<u64>()
    }

    /// The per-queue counters of all interfaces.
    fn totals(&self) -> Vec<(Count, u64)> {
        let topology = self.topology();
        topology.interfaces.iter().chain(&topology.links).flat_map(|iface| iface.totals()).collect()
    }
}
