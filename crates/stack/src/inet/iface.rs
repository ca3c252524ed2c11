//! An interface as inet sees it: a NIC's description, its transmit halves and whose the addresses are.
//!
//! Owns the lock of each transmit half and what is counted per queue.

use super::{
    cidr::Ipv4Cidr,
    counters::Count,
    neighbour::{self, Version},
    park::Parking,
};
use crate::{
    napi::Counter,
    nic::{self, RingFull, TxQueue},
    sync::{Arc, Mutex, MutexGuard, lock},
    time::Instant,
    wire::{EtherType, MacAddr, ethernet},
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

/// The way the kernel would take to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Whom on the link to hand the packet to: a gateway, or the destination.
    pub next_hop: Ipv4Addr,
    /// The source address the kernel prefers on that way.
    pub source: Ipv4Addr,
    /// The path's MTU in bytes where it is below the interface's.
    pub mtu: Option<u32>,
}

/// The kernel's tables for one interface that it shares with us. All calls are cheap and never block.
pub trait KernelTables: Send + Sync {
    /// Moves with every change of the answers below.
    fn generation(&self) -> u64;
    /// The interface's addresses and prefix lengths.
    fn addresses(&self) -> Vec<(IpAddr, u8)>;
    /// The way to `destination` if it leads out of this interface.
    fn route(&self, destination: Ipv4Addr) -> Option<Hop>;
    /// The link-layer address of a neighbour, also one that is stale.
    fn neighbour(&self, address: Ipv4Addr) -> Option<MacAddr>;
    /// Has the kernel see to the neighbour: find it, or make sure of it (`NTF_USE`).
    fn resolve(&self, address: Ipv4Addr);
    /// Tells the kernel that the neighbour hears us.
    fn confirm(&self, address: Ipv4Addr);
}

/// Whose an interface's addresses are.
#[derive(Clone)]
pub enum Addressing {
    /// Ours: inet answers ARP and ping for them.
    Own(Vec<Ipv4Cidr>),
    /// The kernel's, who shares the interface and keeps its routes and neighbours.
    Kernel(Arc<dyn KernelTables>),
}

/// One interface.
pub struct Interface {
    info: nic::Info,
    addressing: Addressing,
    queues: Box<[QueuePair]>,
    pub(super) neighbours: Mutex<Neighbours>,
}

/// What is known of, and waits for, the hosts on the link.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    /// Unused where the kernel keeps the table.
    pub(super) table: neighbour::Table,
    pub(super) parking: Parking,
    /// When the kernel was last told that a neighbour of its table is in use.
    reminded: BTreeMap<Ipv4Addr, Instant>,
}

/// What belongs to queue pair n. The halves are on cache lines of their own.
struct QueuePair {
    received: Received,
    sent: Sent,
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
}

impl Transmit<'_> {
    #[inline]
    pub(super) fn ring(&mut self) -> &mut dyn TxQueue {
        &mut **self.tx
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
        self.tx.flush();
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
            })
            .collect();
        Interface { info, addressing, queues, neighbours: Mutex::default() }
    }

    /// The NIC's description.
    #[inline]
    pub fn info(&self) -> &nic::Info {
        &self.info
    }

    /// Our own addresses; none where they are the kernel's.
    #[inline]
    pub(super) fn own(&self) -> &[Ipv4Cidr] {
        match &self.addressing {
            Addressing::Own(addresses) => addresses,
            Addressing::Kernel(_) => &[],
        }
    }

    /// The kernel's tables where it shares the interface.
    #[inline]
    pub(super) fn kernel(&self) -> Option<&Arc<dyn KernelTables>> {
        match &self.addressing {
            Addressing::Own(_) => None,
            Addressing::Kernel(tables) => Some(tables),
        }
    }

    /// The kernel's generation; 0 where the addresses are ours.
    #[inline]
    pub(super) fn kernel_generation(&self) -> u64 {
        self.kernel().map_or(0, |tables| tables.generation())
    }

    /// Has the kernel see to its neighbour `address`, if that was not asked of it within the last
    /// `pause`: it is a system call.
    pub(super) fn remind_kernel(&self, address: Ipv4Addr, pause: Duration, now: Instant) {
        let Some(tables) = self.kernel() else { return };
        let mut neighbours = lock(&self.neighbours);
        let reminded = &mut neighbours.reminded;
        if reminded.get(&address).is_some_and(|last| now < *last + pause) {
            return;
        }
        if reminded.len() >= neighbour::NEIGHBOURS {
            // Rare, and costs no more than a system call for each of them.
            reminded.clear();
        }
        reminded.insert(address, now);
        drop(neighbours);
        tables.resolve(address);
    }

    /// Whether `address` is an address of this interface.
    pub(super) fn has(&self, address: Ipv4Addr) -> bool {
        match &self.addressing {
            Addressing::Own(own) => own.iter().any(|cidr| cidr.address() == address),
            Addressing::Kernel(tables) => {
                tables.addresses().iter().any(|(mine, _)| *mine == IpAddr::V4(address))
            }
        }
    }

    /// Whether `address` is everybody on one of this interface's networks.
    pub(super) fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        match &self.addressing {
            Addressing::Own(own) => own.iter().any(|cidr| cidr.broadcast() == Some(address)),
            Addressing::Kernel(tables) => tables.addresses().iter().any(|(mine, prefix)| {
                let IpAddr::V4(mine) = mine else { return false };
                Ipv4Cidr::new(*mine, *prefix).and_then(Ipv4Cidr::broadcast) == Some(address)
            }),
        }
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
        Transmit { tx: lock(&sent.tx), sent }
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
            if let Ok(mut frame) = ethernet::Frame::init(frame, to, self.info.mac, ethertype) {
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
