//! The way out for whole IP packets: the neighbour, waiting for it, and cutting what is too big. Datagrams
//! over a ready [`Path`](super::Path) do not come this way.

use super::{
    Inet, SendError, SocketError,
    counters::Count,
    iface::{Interface, Resolved},
    park::Parked,
    path::KERNEL_REMINDER,
    route::{NextHop, Way},
};
use crate::{
    napi::Pass,
    sync::{Ordering, lock},
    time::Instant,
    wire::{EtherType, MacAddr, Protocol, ipv4},
};
use std::{net::Ipv4Addr, time::Duration};

/// How long packets wait for a neighbour the kernel is to find; it gives up itself by then.
const KERNEL_PATIENCE: Duration = Duration::from_secs(3);

/// How often the kernel is asked for a neighbour it does not know.
const KERNEL_RETRY: Duration = Duration::from_secs(1);

impl Inet {
    /// Sends an IP packet of our own making, from `src`, which is ours, to `dst`; `fill` gets the payload's
    /// room. For answers: what does not go is counted.
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
        let way = match self.way(src, dst) {
            Ok(way) => way,
            Err(_) => {
                self.counters.add(Count::IpOutNoRoutes);
                return false;
            }
        };
        match way {
            Way::Local => self.local_input(&packet, pass),
            Way::Link(link) => {
                let sent = self.link_output(
                    &link.iface,
                    queue,
                    link.next_hop,
                    &packet,
                    link.mtu,
                    pass.now,
                );
                if sent.is_err() {
                    self.counters.add(Count::IpOutDiscards);
                    return false;
                }
            }
        }
        true
    }

    /// Sends a whole IP packet to `next_hop`, or parks it until the neighbour is known.
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
            (Resolved::Unknown(_), NextHop::One(address)) => {
                let parked = Parked { packet: packet.into(), queue, mtu };
                self.park(iface, address, parked, now);
                Ok(())
            }
            (Resolved::Unknown(_), _) => Err(SendError::HostUnreachable),
        }
    }

    /// The link-layer address of `next_hop`; asks for it if need be.
    pub(super) fn resolve(
        &self,
        iface: &Interface,
        queue: u32,
        next_hop: NextHop,
        now: Instant,
    ) -> Resolved {
        let address = match next_hop {
            // RFC 1112 section 6.4; broadcast is the link's own.
            NextHop::Group(group) => return Resolved::To(MacAddr::of_group(group), None),
            NextHop::Everybody => return Resolved::To(MacAddr::BROADCAST, None),
            NextHop::One(address) => address,
        };
        if let Some(tables) = iface.kernel() {
            let mac = tables.neighbour(address);
            let pause = if mac.is_some() { KERNEL_REMINDER } else { KERNEL_RETRY };
            iface.remind_kernel(address, pause, now);
            return mac.map_or(Resolved::Unknown(None), |mac| Resolved::To(mac, None));
        }
        let mut neighbours = lock(&iface.neighbours);
        let (lookup, displaced) = neighbours.table.look_up(address, now);
        let dropped = displaced.map_or(0, |victim| neighbours.parking.take(victim).len());
        let next = neighbours.table.next();
        drop(neighbours);
        self.counters.add_n(Count::ArpDropped, dropped as u64);
        self.tick_by(next);
        if lookup.ask {
            self.arp_request(iface, queue, address, None);
        }
        let version = Some((lookup.version, lookup.seen));
        match lookup.mac {
            Some(mac) => Resolved::To(mac, version),
            None => Resolved::Unknown(version),
        }
    }

    /// Lets a packet wait for its neighbour, unless that has become known in between.
    fn park(&self, iface: &Interface, address: Ipv4Addr, parked: Parked, now: Instant) {
        let mut neighbours = lock(&iface.neighbours);
        let mut dropped = neighbours.parking.push(address, parked, now);
        let known = match iface.kernel() {
            Some(tables) => tables.neighbour(address).ok_or(true),
            None => neighbours.table.known(address),
        };
        let mut ready = Default::default();
        match known {
            Ok(_) => ready = neighbours.parking.take(address),
            Err(true) => {}
            // Nobody asks for it any more.
            Err(false) => dropped += neighbours.parking.take(address).len() as u64,
        }
        drop(neighbours);
        self.counters.add_n(Count::ArpDropped, dropped);
        match known {
            Ok(mac) => self.send_parked(iface, mac, ready),
            Err(_) if iface.kernel().is_some() => self.tick_by(Some(now + KERNEL_PATIENCE)),
            Err(_) => {}
        }
    }

    pub(super) fn send_parked(
        &self,
        iface: &Interface,
        mac: MacAddr,
        ready: impl IntoIterator<Item = Parked>,
    ) {
        for parked in ready {
            if self.send_packet(iface, parked.queue, mac, &parked.packet, parked.mtu).is_err() {
                self.counters.add(Count::IpOutDiscards);
            }
        }
    }

    /// The kernel's tables for `iface` have changed: sends what waited for neighbours now known, and gives
    /// up on what has waited too long. Paths notice by themselves.
    pub fn neighbours_changed(&self, iface: &Interface, pass: &mut Pass) {
        let Some(tables) = iface.kernel() else { return };
        let waiting = lock(&iface.neighbours).parking.neighbours();
        for address in waiting {
            if let Some(mac) = tables.neighbour(address) {
                let ready = lock(&iface.neighbours).parking.take(address);
                self.send_parked(iface, mac, ready);
            }
        }
        let next = self.tick_neighbours(iface, pass);
        self.tick_by(next);
    }

    pub(super) fn confirm_neighbour(&self, iface: &Interface, address: Ipv4Addr, now: Instant) {
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

    /// Asks again, lets states end, and gives up on neighbours that do not answer. When it has to look
    /// again.
    pub(super) fn tick_neighbours(&self, iface: &Interface, pass: &mut Pass) -> Option<Instant> {
        let mut neighbours = lock(&iface.neighbours);
        let mut due = neighbours.table.tick(pass.now);
        let mut next = neighbours.table.next();
        if iface.kernel().is_some() {
            let (overdue, later) = neighbours.parking.overdue(pass.now, KERNEL_PATIENCE);
            due.failed = overdue;
            next = later;
        }
        let undeliverable: Vec<Parked> =
            due.failed.iter().flat_map(|&address| neighbours.parking.take(address)).collect();
        drop(neighbours);
        for (address, mac) in due.ask {
            self.arp_request(iface, 0, address, mac);
        }
        self.counters.add_n(Count::ArpFailed, due.failed.len() as u64);
        for parked in undeliverable {
            self.counters.add(Count::ArpDropped);
            if let Ok(packet) = ipv4::Packet::new_quoted(&parked.packet[..]) {
                // Hard, unlike a router's word for it: this we have seen ourselves.
                self.tell_socket(packet, SocketError::hard(libc::EHOSTUNREACH), pass);
            }
        }
        next
    }

    /// Sends a whole IP packet to a known address, in fragments if it must be.
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
        let to = (mac, EtherType::IPV4);
        iface
            .transmit_frame(queue, to, packet.len(), &mut |room| room.copy_from_slice(packet))
            .map_err(|_| SendError::RingFull)
    }

    /// RFC 791 section 3.2: all fragments but the last carry a multiple of 8 bytes.
    fn send_fragments(
        &self,
        iface: &Interface,
        queue: u32,
        mac: MacAddr,
        packet: &[u8],
        mtu: usize,
    ) -> Result<(), SendError> {
        let failed = |error| {
            self.counters.add(Count::IpFragFails);
            Err(error)
        };
        let Ok(whole) = ipv4::Packet::new_checked(packet) else {
            return failed(SendError::TooBig);
        };
        let most = mtu.saturating_sub(ipv4::HEADER_LEN) & !7;
        if most == 0 {
            return failed(SendError::TooBig);
        }
        let ident = self.idents.fetch_add(1, Ordering::Relaxed) as u16;
        let pieces = whole.payload().chunks(most);
        let last = pieces.len() - 1;
        let mut tx = iface.transmit(queue);
        for (n, piece) in pieces.enumerate() {
            let len = ipv4::HEADER_LEN + piece.len();
            let mut fill = |room: &mut [u8]| {
                let (src, dst) = (whole.src(), whole.dst());
                let ip = ipv4::Packet::init(room, src, dst, whole.protocol(), piece.len());
                let Ok(mut ip) = ip else { return };
                ip.set_ttl(whole.ttl());
                ip.set_tos(whole.dscp() << 2 | whole.ecn());
                ip.set_ident(ident);
                // Offset and length come from a packet that has been checked: this cannot fail.
                let _ = ip.set_fragment(n * most, n < last);
                ip.payload_mut().copy_from_slice(piece);
            };
            if iface.push_frame(tx.ring(), (mac, EtherType::IPV4), len, &mut fill).is_err() {
                return failed(SendError::RingFull);
            }
        }
        self.counters.add(Count::IpFragOKs);
        self.counters.add_n(Count::IpFragCreates, last as u64 + 1);
        Ok(())
    }
}
