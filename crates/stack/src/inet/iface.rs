//! An interface as inet sees it: a NIC's description, its transmit halves and whose the addresses are.
//!
//! Owns the lock of each transmit half and what is counted per queue.

use super::{
    cidr::{Cidr, Ipv4Cidr},
    counters::Count,
    dad::{self, IfAddr6},
    neighbour::{self, Version},
    neighbour_queue::NeighbourQueues,
};
use crate::{
    napi::{Counter, NapiId},
    nic::{self, RingFull, TxQueue},
    sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, lock},
    time::Instant,
    wire::{EtherType, MacAddr, ethernet},
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    sync::OnceLock,
    time::Duration,
};

/// How often the kernel is told that a neighbour it keeps for us is in use.
pub(super) const MARK_USED_INTERVAL: Duration = Duration::from_secs(10);

/// How often it is asked for one that packets wait for, or that is in doubt. Once would do, did nobody make it forget
/// that it was asked (`ip neigh flush`).
pub(super) const KERNEL_RETRY: Duration = Duration::from_millis(200);

/// The way the kernel would take to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Whom on the link to hand the packet to: a gateway, or the destination.
    pub next_hop: IpAddr,
    /// The source address that was asked about, else the one the kernel prefers on that way.
    pub source: IpAddr,
    /// The path's MTU in bytes where it is below the interface's.
    pub mtu: Option<u32>,
}

/// The kernel's tables for one interface that it shares with us. All calls are cheap and never block.
pub trait KernelTables: Send + Sync {
    /// Moves with every change of the answers below.
    fn generation(&self) -> u64;
    /// Whether one of the interface's addresses, with its prefix length, is what `is` asks for.
    fn has_address(&self, is: &mut dyn FnMut(IpAddr, u8) -> bool) -> bool;
    /// The way to `destination`, from `source` if one is named, if it leads out of this interface.
    fn route(&self, destination: IpAddr, source: Option<IpAddr>) -> Option<Hop>;
    /// The link-layer address of a neighbour, also one that is stale.
    fn neighbour(&self, address: IpAddr) -> Option<MacAddr>;
    /// Whether what is known of a neighbour is to be verified with the next packet that goes there.
    fn is_stale(&self, address: IpAddr) -> bool;
    /// Has the kernel see to the neighbour: find it, or make sure of it (`NTF_USE`).
    fn resolve(&self, address: IpAddr);
    /// Tells the kernel that the neighbour hears us.
    fn confirm(&self, address: IpAddr);
    /// Where the interface's address on the link stands, which an administrator may change: its octets, in the order
    /// of the wire, are the lower ones.
    fn link_address(&self) -> Option<Arc<AtomicU64>> {
        None
    }
}

/// A link address in one word.
pub(super) fn mac_word(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

#[inline]
fn mac_of(word: u64) -> MacAddr {
    let [_, _, mac @ ..] = word.to_be_bytes();
    MacAddr(mac)
}

/// Whose an interface's addresses are.
#[derive(Clone)]
pub enum Addressing {
    /// Ours, of either family: inet answers ARP, neighbour solicitations and ping for them. With an IPv6
    /// address among them the interface has a link-local one as well.
    Own(Vec<Cidr>),
    /// The kernel's, who shares the interface and keeps its routes and neighbours.
    Kernel(Arc<dyn KernelTables>),
}

/// One interface.
pub struct Interface {
    info: nic::Info,
    mac: Arc<AtomicU64>,
    scope: u32,
    kernel: Option<Arc<dyn KernelTables>>,
    addresses4: Box<[Ipv4Cidr]>,
    /// Each with its broadcast address, for every packet to be compared with; without one, everybody's.
    with_broadcast: Box<[(Ipv4Addr, Ipv4Addr)]>,
    addresses6: Box<[IfAddr6]>,
    queues: Box<[QueuePair]>,
    pub(super) neighbours: Mutex<Neighbours>,
}

/// What is known of, and waits for, the hosts on the link.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    /// Unused where the kernel keeps the table.
    pub(super) table: neighbour::Table,
    pub(super) queues: NeighbourQueues,
    /// When the kernel was last told that a neighbour of its table is in use.
    marked_used: BTreeMap<IpAddr, Instant>,
    /// When duplicate address detection is over; `None` before it begins and after it.
    pub(super) dad_until: Option<Instant>,
}

/// What belongs to queue pair n. The halves are on cache lines of their own.
struct QueuePair {
    received: Received,
    sent: Sent,
    /// The context that polls the receive half.
    napi: OnceLock<NapiId>,
}

/// Raised by the owner of the receive queue.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Received {
    pub(super) udp_datagrams: Counter,
    pub(super) udp_partial: Counter,
    pub(super) tcp_segments: Counter,
    pub(super) tcp_partial: Counter,
}

#[repr(align(128))]
struct Sent {
    tx: Mutex<Box<dyn TxQueue>>,
    /// Raised under the lock of `tx`.
    udp_datagrams: Counter,
    tcp_segments: Counter,
}

/// A transmit ring, its lock held. Dropping it rings the doorbell and releases it.
pub(super) struct Transmit<'a> {
    tx: MutexGuard<'a, Box<dyn TxQueue>>,
    sent: &'a Sent,
    /// Nothing has come to the ring since the doorbell rang.
    rung: bool,
}

impl Transmit<'_> {
    #[inline]
    pub(super) fn ring(&mut self) -> &mut dyn TxQueue {
        self.rung = false;
        &mut **self.tx
    }

    /// Rings the doorbell now.
    #[inline]
    pub(super) fn doorbell(&mut self) {
        self.tx.flush();
        self.rung = true;
    }

    /// The doorbell rings later for what has come to the ring.
    #[inline]
    pub(super) fn ring_later(&mut self) {
        self.rung = true;
    }

    #[inline]
    pub(super) fn count_datagram(&mut self) {
        self.sent.udp_datagrams.add(1);
    }

    #[inline]
    pub(super) fn count_segment(&mut self) {
        self.sent.tcp_segments.add(1);
    }
}

impl Drop for Transmit<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.rung {
            self.tx.flush();
        }
    }
}

/// Where a packet goes on the link.
#[derive(Clone, Debug)]
pub(super) enum Resolved {
    /// To this address for as long as the version, if there is one, stands at the number.
    To(MacAddr, Option<(Arc<Version>, u32)>),
    /// Not known yet. Park it; the version moves when it is.
    Unknown(Option<(Arc<Version>, u32)>),
}

impl std::fmt::Debug for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interface").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Interface {
    pub(super) fn new(
        info: nic::Info,
        number: u32,
        tx: Vec<Box<dyn TxQueue>>,
        addressing: Addressing,
    ) -> Interface {
        let queues = tx
            .into_iter()
            .map(|tx| QueuePair {
                received: Received::default(),
                sent: Sent {
                    tx: Mutex::new(tx),
                    udp_datagrams: Counter::default(),
                    tcp_segments: Counter::default(),
                },
                napi: OnceLock::new(),
            })
            .collect();
        let (kernel, addresses) = match addressing {
            Addressing::Own(addresses) => (None, addresses),
            Addressing::Kernel(tables) => (Some(tables), Vec::new()),
        };
        let addresses4: Box<[Ipv4Cidr]> = addresses.iter().filter_map(|cidr| cidr.v4()).collect();
        let broadcast = |own: &Ipv4Cidr| own.broadcast().unwrap_or(Ipv4Addr::BROADCAST);
        let with_broadcast = addresses4.iter().map(|own| (own.address(), broadcast(own))).collect();
        let mut addresses6: Vec<_> = addresses.iter().filter_map(|cidr| cidr.v6()).collect();
        // RFC 4291 section 2.1: "All interfaces are required to have at least one Link-Local unicast address".
        if !addresses6.is_empty()
            && !addresses6.iter().any(|(address, _)| address.is_unicast_link_local())
        {
            addresses6.push((dad::link_local(info.mac), 64));
        }
        let addresses6 =
            addresses6.into_iter().map(|(address, prefix)| IfAddr6::new(address, prefix)).collect();
        let scope = info.ifindex.unwrap_or(number);
        let told = kernel.as_ref().and_then(|tables| tables.link_address());
        let mac = told.unwrap_or_else(|| Arc::new(AtomicU64::new(mac_word(info.mac))));
        Interface {
            info,
            mac,
            scope,
            kernel,
            addresses4,
            with_broadcast,
            addresses6,
            queues,
            neighbours: Mutex::default(),
        }
    }

    /// The number by which link-local addresses name it, as `sin6_scope_id` does: the kernel's where it shares
    /// the interface, else the place in which it was added, from 1.
    pub fn scope_id(&self) -> u32 {
        self.scope
    }

    /// The NIC's description.
    #[inline]
    pub fn info(&self) -> &nic::Info {
        &self.info
    }

    /// Our own IPv4 addresses; none where they are the kernel's.
    #[inline]
    pub(super) fn addresses4(&self) -> &[Ipv4Cidr] {
        &self.addresses4
    }

    /// Our own IPv4 addresses, each with everybody's on its network.
    #[inline]
    pub(super) fn with_broadcast(&self) -> &[(Ipv4Addr, Ipv4Addr)] {
        &self.with_broadcast
    }

    /// Our own IPv6 addresses, those that are duplicates included.
    #[inline]
    pub(super) fn addresses6(&self) -> &[IfAddr6] {
        &self.addresses6
    }

    /// The networks of our own addresses, of both families.
    pub(super) fn networks(&self) -> impl Iterator<Item = Cidr> {
        let v6 = self.addresses6.iter().filter_map(|own| Cidr::new(own.address.into(), own.prefix));
        self.addresses4.iter().map(|&own| own.into()).chain(v6)
    }

    /// The kernel's tables where it shares the interface.
    #[inline]
    pub(super) fn kernel(&self) -> Option<&Arc<dyn KernelTables>> {
        self.kernel.as_ref()
    }

    /// The kernel's generation; 0 where the addresses are ours.
    #[inline]
    pub(super) fn kernel_generation(&self) -> u64 {
        self.kernel().map_or(0, |tables| tables.generation())
    }

    /// Has the kernel see to its neighbour `address`, if that was not asked of it within the last
    /// [`MARK_USED_INTERVAL`], or [`KERNEL_RETRY`] for one that is stale: it is a system call.
    pub(super) fn mark_neighbour_used(&self, address: IpAddr, now: Instant) {
        let Some(tables) = self.kernel() else { return };
        let mut neighbours = lock(&self.neighbours);
        let marked_used = &mut neighbours.marked_used;
        let pause = if tables.is_stale(address) { KERNEL_RETRY } else { MARK_USED_INTERVAL };
        if marked_used.get(&address).is_some_and(|last| now < *last + pause) {
            return;
        }
        if marked_used.len() >= neighbour::NEIGHBOURS {
            // Rare, and costs no more than a system call for each of them.
            marked_used.clear();
        }
        marked_used.insert(address, now);
        drop(neighbours);
        tables.resolve(address);
    }

    /// Whether `address` is an address of this interface.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        match (&self.kernel, address) {
            (Some(tables), _) => tables.has_address(&mut |mine, _| mine == address),
            (None, IpAddr::V4(address)) => {
                self.addresses4.iter().any(|own| own.address() == address)
            }
            (None, IpAddr::V6(address)) => {
                self.addresses6.iter().any(|own| own.address == address && own.is_usable())
            }
        }
    }

    /// Whether `address` is everybody on one of this interface's networks.
    pub(super) fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        match &self.kernel {
            None => self.addresses4.iter().any(|cidr| cidr.broadcast() == Some(address)),
            Some(tables) => tables.has_address(&mut |mine, prefix| {
                let IpAddr::V4(mine) = mine else { return false };
                Ipv4Cidr::new(mine, prefix).and_then(Ipv4Cidr::broadcast) == Some(address)
            }),
        }
    }

    /// Tells which context polls queue `queue`. The first word counts.
    pub fn set_napi(&self, queue: u32, napi: NapiId) {
        let _ = self.pair(queue).napi.set(napi);
    }

    /// The context whose queue lies beside transmit queue `queue`.
    pub(super) fn napi(&self, queue: u32) -> Option<NapiId> {
        self.pair(queue).napi.get().copied()
    }

    fn pair(&self, queue: u32) -> &QueuePair {
        // Whoever made the interface gave it at least one queue.
        self.queues.get(queue as usize).unwrap_or(&self.queues[0])
    }

    #[inline]
    pub(super) fn received(&self, queue: u32) -> &Received {
        &self.pair(queue).received
    }

    /// What is counted per queue, all queues together.
    pub(super) fn totals(&self) -> [(Count, u64); 6] {
        let sum =
            |of: fn(&QueuePair) -> &Counter| self.queues.iter().map(|pair| of(pair).get()).sum();
        [
            (Count::UdpInDatagrams, sum(|pair| &pair.received.udp_datagrams)),
            (Count::UdpInPartialCsums, sum(|pair| &pair.received.udp_partial)),
            (Count::UdpOutDatagrams, sum(|pair| &pair.sent.udp_datagrams)),
            (Count::TcpInSegs, sum(|pair| &pair.received.tcp_segments)),
            (Count::TcpInPartialCsums, sum(|pair| &pair.received.tcp_partial)),
            (Count::TcpOutSegs, sum(|pair| &pair.sent.tcp_segments)),
        ]
    }

    /// Takes the lock of transmit queue `queue`.
    #[inline]
    pub(super) fn transmit(&self, queue: u32) -> Transmit<'_> {
        let sent = &self.pair(queue).sent;
        Transmit { tx: lock(&sent.tx), sent, rung: false }
    }

    /// Rings the doorbell of transmit queue `queue`.
    #[cold]
    pub(crate) fn ring(&self, queue: u32) {
        self.transmit(queue).doorbell();
    }

    /// Our address on the link, as it is now.
    #[inline]
    pub(super) fn mac(&self) -> MacAddr {
        mac_of(self.mac.load(Ordering::Relaxed))
    }

    /// Sends one frame: an Ethernet header before `len` bytes of packet that `fill` writes.
    pub(super) fn transmit_frame(
        &self,
        queue: u32,
        to: (MacAddr, EtherType),
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        self.push_frame(self.transmit(queue).ring(), to, len, fill)
    }

    pub(super) fn push_frame(
        &self,
        tx: &mut dyn TxQueue,
        (to, ethertype): (MacAddr, EtherType),
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), RingFull> {
        push(tx, ethernet::HEADER_LEN + len, false, &mut |frame| {
            if let Ok(mut frame) = ethernet::Frame::init(frame, to, self.mac(), ethertype) {
                fill(frame.payload_mut());
            }
        })
    }
}

/// Puts one frame on the ring. If the ring is full it rings the doorbell and tries once more: some
/// drivers only take back sent frames then.
#[inline]
pub(super) fn push(
    tx: &mut dyn TxQueue,
    len: usize,
    partial: bool,
    fill: &mut dyn FnMut(&mut [u8]),
) -> Result<(), RingFull> {
    tx.push(len, partial, fill).or_else(|RingFull| {
        tx.flush();
        tx.push(len, partial, fill)
    })
}
