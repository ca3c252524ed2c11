//! An interface: the NIC's description, the transmit halves of its queues, and its addresses, which are our own or
//! the kernel's.
//!
//! Owns the lock of each transmit half and the per-queue counters.

use super::{
    cidr::{Cidr, Ipv4Cidr},
    counters::Count,
    dad::{self, IfAddr6},
    last_packet::Received,
    neighbour::{self, Version},
    neighbour_queue::NeighbourQueues,
};
use crate::{
    lock::{Lock, Locked},
    napi::{Counter, NapiId},
    nic::{self, RingFull, TxQueue},
    sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, lock},
    time::Instant,
    wire::{EtherType, MacAddr, ethernet},
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    sync::OnceLock,
    time::Duration,
};

/// Values of [`Interface::ended`].
const OPEN: u32 = 0;
/// No connection is to begin on it.
const CLOSING: u32 = 1;
/// Its link has ended for good.
const ENDED: u32 = 2;

/// How often a neighbour of the kernel's table is marked as used (`NTF_USE`) while we send to it.
pub(super) const MARK_USED_INTERVAL: Duration = Duration::from_secs(10);

/// How often the kernel is asked again for a neighbour that is stale or has packets queued. Once would be enough if
/// `ip neigh flush` could not delete the entry while it is being resolved.
pub(super) const KERNEL_RETRY: Duration = Duration::from_millis(200);

/// The kernel's route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The next hop on the link: a gateway, or the destination itself.
    pub next_hop: IpAddr,
    /// The source address of the lookup, or the kernel's preferred source for this route.
    pub source: IpAddr,
    /// The path MTU in bytes, if it is below the interface's.
    pub mtu: Option<u32>,
}

/// The kernel's tables for one shared interface. All calls are cheap and never block.
pub trait KernelTables: Send + Sync {
    /// Incremented when an answer below may have changed.
    fn generation(&self) -> u64;
    /// Whether `is` returns true for one of the interface's addresses and its prefix length.
    fn has_address(&self, is: &mut dyn FnMut(IpAddr, u8) -> bool) -> bool;
    /// The route to `destination`, from `source` if given; `None` unless it leaves through this interface.
    fn route(&self, destination: IpAddr, source: Option<IpAddr>) -> Option<Hop>;
    /// The link-layer address of a neighbour, even if it is stale.
    fn neighbour(&self, address: IpAddr) -> Option<MacAddr>;
    /// Whether the neighbour's entry is stale: the next packet to it starts a verification.
    fn is_stale(&self, address: IpAddr) -> bool;
    /// Makes the kernel resolve or verify the neighbour (`NTF_USE`).
    fn resolve(&self, address: IpAddr);
    /// Tells the kernel that the neighbour is reachable.
    fn confirm(&self, address: IpAddr);
    /// The interface's MAC address, which an administrator may change, in the lower six bytes of a word, in wire
    /// order.
    fn link_address(&self) -> Option<Arc<AtomicU64>> {
        None
    }
}

/// A MAC address in one word.
pub(super) fn mac_word(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

#[inline]
fn mac_of(word: u64) -> MacAddr {
    let [_, _, mac @ ..] = word.to_be_bytes();
    MacAddr(mac)
}

/// Whether this stack or the kernel manages an interface's addresses.
#[derive(Clone)]
pub enum Addressing {
    /// This stack, for either family: inet answers ARP, neighbour solicitations and ping for them. With an IPv6
    /// address the interface gets a link-local one as well.
    Own(Vec<Cidr>),
    /// The kernel, which shares the interface and keeps its routes and neighbours.
    Kernel(Arc<dyn KernelTables>),
    /// A process of this machine is at the other end, with this link-layer address: both have all addresses of the
    /// machine, loopback included. Only connections that name the link take it ([`PathOptions::link`]).
    ///
    /// [`PathOptions::link`]: super::PathOptions::link
    SameHost(MacAddr),
}

/// An interface: a NIC, its addresses and its neighbours.
pub struct Interface {
    info: nic::Info,
    mac: Arc<AtomicU64>,
    scope: u32,
    kernel: Option<Arc<dyn KernelTables>>,
    /// The only other end, if that is a process of this machine.
    same_host: Option<MacAddr>,
    addresses4: Box<[Ipv4Cidr]>,
    /// Each IPv4 address with its subnet's broadcast address, or 255.255.255.255 if the subnet has none: checked
    /// for every packet.
    with_broadcast: Box<[(Ipv4Addr, Ipv4Addr)]>,
    addresses6: Box<[IfAddr6]>,
    queues: Box<[QueuePair]>,
    /// Of the copies of packets that the kernel receives.
    pub(super) copies: Received,
    pub(super) neighbours: Mutex<Neighbours>,
    /// Whether connections may begin on it.
    ended: AtomicU32,
}

/// The neighbour table of an interface and the packets queued for its neighbours.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    /// Unused on a shared interface, where the kernel keeps the table.
    pub(super) table: neighbour::Table,
    pub(super) queues: NeighbourQueues,
    /// When each neighbour of the kernel's table was last marked as used.
    marked_used: BTreeMap<IpAddr, Instant>,
    /// When duplicate address detection ends; `None` before it begins and after it.
    pub(super) dad_until: Option<Instant>,
}

/// The state of one queue pair. Each half has its own cache lines.
struct QueuePair {
    received: Received,
    sent: Sent,
    /// The NAPI context that polls the receive half.
    napi: OnceLock<NapiId>,
}

#[repr(align(128))]
struct Sent {
    tx: Lock<Box<dyn TxQueue>>,
    /// Written under the lock of `tx`.
    udp_datagrams: Counter,
    tcp_segments: Counter,
}

/// A locked transmit ring. Dropping it rings the doorbell and releases the lock.
pub(super) struct Transmit<'a> {
    tx: Locked<'a, Box<dyn TxQueue>>,
    sent: &'a Sent,
    /// Nothing was pushed to the ring since the doorbell last rang.
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

    /// The caller rings the doorbell later for what was pushed.
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
    #[inline(always)]
    fn drop(&mut self) {
        if !self.rung {
            self.tx.flush();
        }
    }
}

/// The result of resolving a next hop.
#[derive(Clone, Debug)]
pub(super) enum Resolved {
    /// Resolved: valid while the version, if any, has this number.
    To(MacAddr, Option<(Arc<Version>, u32)>),
    /// Not resolved yet: queue the packet. The version changes when the neighbour is resolved.
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
                    tx: Lock::new(tx),
                    udp_datagrams: Counter::default(),
                    tcp_segments: Counter::default(),
                },
                napi: OnceLock::new(),
            })
            .collect();
        let (kernel, same_host, addresses) = match addressing {
            Addressing::Own(addresses) => (None, None, addresses),
            Addressing::Kernel(tables) => (Some(tables), None, Vec::new()),
            Addressing::SameHost(peer) => (None, Some(peer), Vec::new()),
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
        let shared_mac = kernel.as_ref().and_then(|tables| tables.link_address());
        let mac = shared_mac.unwrap_or_else(|| Arc::new(AtomicU64::new(mac_word(info.mac))));
        Interface {
            info,
            mac,
            scope,
            kernel,
            same_host,
            addresses4,
            with_broadcast,
            addresses6,
            queues,
            copies: Received::default(),
            neighbours: Mutex::default(),
            ended: AtomicU32::new(0),
        }
    }

    /// Whether its link has ended for good, or no connection is to begin on it.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst) != OPEN
    }

    pub(super) fn end(&self) {
        self.ended.store(ENDED, Ordering::SeqCst);
    }

    /// No connection is to begin on it from now on, or again after all; unless it has ended.
    pub(super) fn set_closing(&self, closing: bool) {
        let (from, to) = if closing { (OPEN, CLOSING) } else { (CLOSING, OPEN) };
        let _ = self.ended.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Whether one of its queues is polled by this context.
    pub(super) fn has_napi(&self, napi: NapiId) -> bool {
        self.queues.iter().any(|pair| pair.napi.get() == Some(&napi))
    }

    /// The interface's number in `sin6_scope_id`: the ifindex if the NIC has one, else its position in the
    /// order of addition, from 1.
    pub fn scope_id(&self) -> u32 {
        self.scope
    }

    /// The NIC's description.
    #[inline]
    pub fn info(&self) -> &nic::Info {
        &self.info
    }

    /// Our own IPv4 addresses; none on a shared interface.
    #[inline]
    pub(super) fn addresses4(&self) -> &[Ipv4Cidr] {
        &self.addresses4
    }

    /// Our own IPv4 addresses, each with its broadcast address.
    #[inline]
    pub(super) fn with_broadcast(&self) -> &[(Ipv4Addr, Ipv4Addr)] {
        &self.with_broadcast
    }

    /// Our own IPv6 addresses, including duplicates.
    #[inline]
    pub(super) fn addresses6(&self) -> &[IfAddr6] {
        &self.addresses6
    }

    /// The networks of our own addresses, of both families.
    pub(super) fn networks(&self) -> impl Iterator<Item = Cidr> {
        let v6 = self.addresses6.iter().filter_map(|own| Cidr::new(own.address.into(), own.prefix));
        self.addresses4.iter().map(|&own| own.into()).chain(v6)
    }

    /// The kernel's tables; `None` unless the interface is shared.
    #[inline]
    pub(super) fn kernel(&self) -> Option<&Arc<dyn KernelTables>> {
        self.kernel.as_ref()
    }

    /// The link-layer address of the process of this machine at the other end, if there is one.
    #[inline]
    pub(super) fn same_host(&self) -> Option<MacAddr> {
        self.same_host
    }

    /// Its number in [`PathOptions::link`](super::PathOptions::link); 0 unless it leads to a process of this machine.
    #[inline]
    pub(crate) fn link(&self) -> u32 {
        self.same_host.map_or(0, |_| self.scope)
    }

    /// The generation of the kernel's tables; 0 unless the interface is shared.
    #[inline]
    pub(super) fn kernel_generation(&self) -> u64 {
        self.kernel().map_or(0, |tables| tables.generation())
    }

    /// Marks the kernel's neighbour `address` as used, a system call: at most once per [`MARK_USED_INTERVAL`],
    /// or per [`KERNEL_RETRY`] while it is stale.
    pub(super) fn mark_neighbour_used(&self, address: IpAddr, now: Instant) {
        let Some(tables) = self.kernel() else { return };
        let mut neighbours = lock(&self.neighbours);
        let marked_used = &mut neighbours.marked_used;
        let pause = if tables.is_stale(address) { KERNEL_RETRY } else { MARK_USED_INTERVAL };
        if marked_used.get(&address).is_some_and(|last| now < *last + pause) {
            return;
        }
        if marked_used.len() >= neighbour::NEIGHBOURS {
            // Rare; it costs at most one more system call for each neighbour.
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

    /// Whether `address` is the broadcast address of one of this interface's networks.
    pub(super) fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        match &self.kernel {
            None => self.addresses4.iter().any(|cidr| cidr.broadcast() == Some(address)),
            Some(tables) => tables.has_address(&mut |mine, prefix| {
                let IpAddr::V4(mine) = mine else { return false };
                Ipv4Cidr::new(mine, prefix).and_then(Ipv4Cidr::broadcast) == Some(address)
            }),
        }
    }

    /// Sets the NAPI context that polls queue `queue`. Only the first call has an effect.
    pub fn set_napi(&self, queue: u32, napi: NapiId) {
        let _ = self.pair(queue).napi.set(napi);
    }

    /// The NAPI context of the queue pair that transmit queue `queue` belongs to.
    pub(super) fn napi(&self, queue: u32) -> Option<NapiId> {
        self.pair(queue).napi.get().copied()
    }

    #[inline(always)]
    fn pair(&self, queue: u32) -> &QueuePair {
        // `add_interface` checks that there is at least one queue.
        self.queues.get(queue as usize).unwrap_or(&self.queues[0])
    }

    #[inline]
    pub(super) fn received(&self, queue: u32) -> &Received {
        &self.pair(queue).received
    }

    /// The per-queue counters, summed over all queues.
    pub(super) fn totals(&self) -> [(Count, u64); 6] {
        let sum = |of: fn(&QueuePair) -> &Counter| {
            self.queues.iter().map(|pair| of(pair).get()).sum::<u64>()
        };
        let datagrams = sum(|pair| &pair.received.udp_datagrams) + self.copies.udp_datagrams.get();
        [
            (Count::UdpInDatagrams, datagrams),
            (Count::UdpInPartialCsums, sum(|pair| &pair.received.udp_partial)),
            (Count::UdpOutDatagrams, sum(|pair| &pair.sent.udp_datagrams)),
            (Count::TcpInSegs, sum(|pair| &pair.received.tcp_segments)),
            (Count::TcpInPartialCsums, sum(|pair| &pair.received.tcp_partial)),
            (Count::TcpOutSegs, sum(|pair| &pair.sent.tcp_segments)),
        ]
    }

    /// Takes the lock of transmit queue `queue`.
    #[inline(always)]
    pub(super) fn transmit(&self, queue: u32) -> Transmit<'_> {
        let sent = &self.pair(queue).sent;
        Transmit { tx: sent.tx.lock(), sent, rung: false }
    }

    /// Whether all packets have left: none waits for its neighbour to be resolved, or for the NIC.
    #[cold]
    pub(super) fn has_sent_all(&self) -> bool {
        let is_empty = |queue| {
            let mut transmit = self.transmit(queue);
            transmit.doorbell();
            transmit.tx.has_room(usize::MAX)
        };
        lock(&self.neighbours).queues.is_empty() && (0..self.queues.len() as u32).all(is_empty)
    }

    /// Rings the doorbell of transmit queue `queue`.
    #[cold]
    pub(crate) fn ring(&self, queue: u32) {
        self.transmit(queue).doorbell();
    }

    /// The interface's current MAC address.
    #[inline]
    pub(super) fn mac(&self) -> MacAddr {
        mac_of(self.mac.load(Ordering::Relaxed))
    }

    /// Whether the frame that begins with `head` was sent to that address.
    #[inline(always)]
    pub(super) fn is_to_us(&self, head: &[u8]) -> bool {
        let first = head.first_chunk::<8>().map_or(0, |first| u64::from_be_bytes(*first));
        first >> 16 == self.mac.load(Ordering::Relaxed)
    }

    /// Sends one frame: an Ethernet header and `len` bytes of packet that `fill` writes.
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
/// drivers reclaim sent frames only then.
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
