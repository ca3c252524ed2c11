//! The transmit path of whole IP packets: neighbour resolution, queueing until it is done, and fragmentation.
//! Datagrams over a [`Path`](super::Path) whose neighbour is resolved do not come through here.

use super::{
    Inet, SendError, SocketError,
    counters::Count,
    icmp_error::Quoted,
    iface::{Interface, KERNEL_RETRY, Resolved},
    neighbour,
    neighbour_queue::QueuedPacket,
    route::{NextHop, RouteResult},
};
use crate::{
    inet::Pass,
    sync::lock,
    time::Instant,
    wire::{EtherType, MacAddr, Protocol, ipv4},
};
use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

/// How long packets are queued for a neighbour that the kernel resolves. The kernel itself gives up by then.
const KERNEL_NEIGHBOUR_TIMEOUT: Duration = Duration::from_secs(3);

impl Inet {
    /// Builds and sends an IP packet from `src`, our address, to `dst`; `fill` writes the payload. For replies: a
    /// packet that cannot be sent is only counted.
    pub(super) fn output(
        &self,
        (src, dst, protocol): (Ipv4Addr, Ipv4Addr, Protocol),
        len: usize,
        queue: u32,
        pass: &mut Pass,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let mut packet = vec![0; ipv4::HEADER_LEN + len];
        let Ok(mut ip) = ipv4::Packet::init(&mut packet[..], src, dst, protocol, len) else {
            self.counters.add(Count::IpFragFails);
            return false;
        };
        fill(ip.payload_mut());
        self.send_whole((src.into(), dst.into(), 0), &packet, queue, pass)
    }

    /// Sends a whole IP packet that this stack has built from `src` to `dst`. `scope` is the scope id of a
    /// link-local `dst`.
    pub(super) fn send_whole(
        &self,
        (src, dst, scope): (IpAddr, IpAddr, u32),
        packet: &[u8],
        queue: u32,
        pass: &mut Pass,
    ) -> bool {
        let route = match self.look_up_route(src, dst, scope) {
            Ok(route) => route,
            Err(_) => {
                self.counters.add(Count::IpOutNoRoutes);
                return false;
            }
        };
        match route {
            RouteResult::Local => self.local_input(packet, pass),
            RouteResult::Link(link) => {
                let sent =
                    self.link_output(&link.iface, queue, link.next_hop, packet, link.mtu, pass.now);
                if sent.is_err() {
                    self.counters.add(Count::IpOutDiscards);
                    return false;
                }
            }
        }
        true
    }

    /// Sends a whole IP packet to `next_hop`, or queues it until the neighbour is resolved.
    pub(super) fn link_output(
        &self,
        iface: &Interface,
        queue: u32,
        next_hop: NextHop,
        packet: &[u8],
        mtu: usize,
        now: Instant,
    ) -> Result<(), SendError> {
        match (self.resolve(iface, queue, next_hop, now), next_hop) {
            (Resolved::To(mac, _), _) => self.send_packet(iface, queue, mac, packet, mtu),
            (Resolved::Unknown(_), NextHop::Unicast(address)) => {
                let queued = QueuedPacket { packet: packet.into(), queue, mtu };
                self.queue_packet(iface, address, queued, now);
                Ok(())
            }
            (Resolved::Unknown(_), _) => Err(SendError::HostUnreachable),
        }
    }

    /// The link-layer address of `next_hop`. Solicits an unknown neighbour, unless the kernel keeps the table.
    pub(super) fn resolve(
        &self,
        iface: &Interface,
        queue: u32,
        next_hop: NextHop,
        now: Instant,
    ) -> Resolved {
        let address = match next_hop {
            // RFC 1112 section 6.4, RFC 2464 section 7; a broadcast goes to the link's broadcast address.
            NextHop::Multicast(IpAddr::V4(group)) => {
                return Resolved::To(MacAddr::of_group(group), None);
            }
            NextHop::Multicast(IpAddr::V6(group)) => {
                return Resolved::To(MacAddr::of_group6(group), None);
            }
            NextHop::Broadcast => return Resolved::To(MacAddr::BROADCAST, None),
            NextHop::Unicast(address) => address,
        };
        if let Some(peer) = iface.same_host() {
            return Resolved::To(peer, None);
        }
        if let Some(tables) = iface.kernel() {
            // An unknown neighbour is resolved when a packet is queued for it.
            let Some(mac) = tables.neighbour(address) else { return Resolved::Unknown(None) };
            iface.mark_neighbour_used(address, now);
            return Resolved::To(mac, None);
        }
        let mut neighbours = lock(&iface.neighbours);
        let (lookup, evicted) = neighbours.table.look_up(address, now);
        let dropped = evicted.map_or(0, |victim| neighbours.queues.take_all(victim).len());
        let next = neighbours.table.next();
        drop(neighbours);
        self.counters.add_n(Count::NeighDropped, dropped as u64);
        self.tick_by(next);
        if lookup.solicit {
            self.solicit_neighbour(iface, queue, address, None);
        }
        let version = Some((lookup.version, lookup.seen));
        match lookup.mac {
            Some(mac) => Resolved::To(mac, version),
            None => Resolved::Unknown(version),
        }
    }

    /// Queues a packet for its neighbour, or sends it if the neighbour was resolved meanwhile.
    fn queue_packet(&self, iface: &Interface, address: IpAddr, queued: QueuedPacket, now: Instant) {
        let mut neighbours = lock(&iface.neighbours);
        let was_queued = neighbours.queues.contains(address);
        let mut dropped = neighbours.queues.push(address, queued, now);
        let first = !was_queued && neighbours.queues.contains(address);
        let known = match iface.kernel() {
            Some(tables) => tables.neighbour(address).ok_or(true),
            None => neighbours.table.known(address),
        };
        let mut ready = Default::default();
        match known {
            Ok(_) => ready = neighbours.queues.take_all(address),
            Err(true) => {}
            // The neighbour has failed or was evicted: no resolution is going on.
            Err(false) => dropped += neighbours.queues.take_all(address).len() as u64,
        }
        drop(neighbours);
        self.counters.add_n(Count::NeighDropped, dropped);
        match (known, iface.kernel()) {
            (Ok(mac), _) => self.send_queued(iface, mac, ready),
            (Err(_), Some(tables)) if first => {
                tables.resolve(address);
                self.tick_by(Some(now + KERNEL_RETRY));
            }
            (Err(_), _) => {}
        }
    }

    /// Calls `update` on the neighbour table and sends the packets queued for `address` if it is resolved now.
    /// `update` returns whether they can be sent, and the neighbour it evicted.
    pub(super) fn update_neighbour(
        &self,
        iface: &Interface,
        address: IpAddr,
        update: impl FnOnce(&mut neighbour::Table) -> (bool, Option<IpAddr>),
    ) {
        let mut neighbours = lock(&iface.neighbours);
        let (now_known, evicted) = update(&mut neighbours.table);
        let known = neighbours.table.known(address).ok().filter(|_| now_known);
        let ready = known.map(|mac| (mac, neighbours.queues.take_all(address)));
        let dropped = evicted.map_or(0, |victim| neighbours.queues.take_all(victim).len());
        let next = neighbours.table.next();
        drop(neighbours);
        self.counters.add_n(Count::NeighDropped, dropped as u64);
        self.tick_by(next);
        if let Some((mac, ready)) = ready {
            self.send_queued(iface, mac, ready);
        }
    }

    pub(super) fn send_queued(
        &self,
        iface: &Interface,
        mac: MacAddr,
        ready: impl IntoIterator<Item = QueuedPacket>,
    ) {
        for queued in ready {
            if self.send_packet(iface, queued.queue, mac, &queued.packet, queued.mtu).is_err() {
                self.counters.add(Count::IpOutDiscards);
            }
        }
    }

    /// Call when the kernel's tables for `iface` have changed: sends the packets queued for neighbours that are
    /// resolved now and drops those queued for too long. Paths check the generation themselves.
    pub fn neighbours_changed(&self, iface: &Interface, pass: &mut Pass) {
        let Some(tables) = iface.kernel() else { return };
        let waiting = lock(&iface.neighbours).queues.neighbours();
        for address in waiting {
            if let Some(mac) = tables.neighbour(address) {
                let ready = lock(&iface.neighbours).queues.take_all(address);
                self.send_queued(iface, mac, ready);
            }
        }
        let next = self.tick_neighbours(iface, pass);
        self.tick_by(next);
    }

    pub(super) fn confirm_neighbour(&self, iface: &Interface, address: IpAddr, now: Instant) {
        match iface.kernel() {
            Some(tables) => tables.confirm(address),
            None => {
                let mut neighbours = lock(&iface.neighbours);
                neighbours.table.confirm(address, now);
                let next = neighbours.table.next();
                drop(neighbours);
                self.tick_by(next);
            }
        }
    }

    /// Solicits `address`: by broadcast or multicast, or with a unicast probe to `neighbour`.
    fn solicit_neighbour(
        &self,
        iface: &Interface,
        queue: u32,
        address: IpAddr,
        neighbour: Option<MacAddr>,
    ) {
        match address {
            IpAddr::V4(address) => self.arp_request(iface, queue, address, neighbour),
            IpAddr::V6(address) => self.solicit(iface, queue, address, neighbour),
        }
    }

    /// Retransmits solicitations, times out states, and drops what is queued for neighbours that do not answer.
    /// Returns when it must run next.
    pub(super) fn tick_neighbours(&self, iface: &Interface, pass: &mut Pass) -> Option<Instant> {
        let mut neighbours = lock(&iface.neighbours);
        let mut due = neighbours.table.tick(pass.now);
        let mut next = neighbours.table.next();
        let mut solicit_by_kernel = Vec::new();
        if iface.kernel().is_some() {
            let queues = neighbours.queues.tick(pass.now, KERNEL_NEIGHBOUR_TIMEOUT, KERNEL_RETRY);
            (due.failed, solicit_by_kernel, next) = (queues.expired, queues.solicit, queues.next);
        }
        let undeliverable: Vec<QueuedPacket> =
            due.failed.iter().flat_map(|&address| neighbours.queues.take_all(address)).collect();
        drop(neighbours);
        for (address, mac) in due.solicit {
            self.solicit_neighbour(iface, 0, address, mac);
        }
        if let Some(tables) = iface.kernel() {
            solicit_by_kernel.into_iter().for_each(|address| tables.resolve(address));
        }
        self.counters.add_n(Count::NeighFailed, due.failed.len() as u64);
        for queued in undeliverable {
            self.counters.add(Count::NeighDropped);
            if let Some(quoted) = Quoted::new(&queued.packet, iface.scope_id()) {
                // A hard error for TCP, unlike a router's unreachable: our own resolution has failed. For UDP it is
                // soft, as if a router had sent it (`ipv4_link_failure`).
                let error = match quoted.is_segment() {
                    true => SocketError::hard(libc::EHOSTUNREACH),
                    false => SocketError::soft(libc::EHOSTUNREACH),
                };
                self.report_to_socket(&quoted, error, pass);
            }
        }
        next
    }

    /// Sends a whole IP packet to a resolved neighbour, in fragments if it exceeds `mtu`.
    fn send_packet(
        &self,
        iface: &Interface,
        queue: u32,
        mac: MacAddr,
        packet: &[u8],
        mtu: usize,
    ) -> Result<(), SendError> {
        if packet.len() > mtu {
            return self.send_fragments(iface, queue, mac, packet, mtu);
        }
        let to = (mac, ethertype(packet));
        iface
            .transmit_frame(queue, to, packet.len(), &mut |room| room.copy_from_slice(packet))
            .map_err(|_| SendError::RingFull)
    }
}

/// The EtherType of a frame that carries this IP packet.
pub(super) fn ethertype(packet: &[u8]) -> EtherType {
    // RFC 8200 section 3, RFC 791 section 3.1: the version is the first four bits.
    match packet.first().map(|first| first >> 4) {
        Some(6) => EtherType::IPV6,
        _ => EtherType::IPV4,
    }
}
