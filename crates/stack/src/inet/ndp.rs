//! Neighbour discovery on interfaces with addresses of our own (RFC 4861), and duplicate address detection
//! (RFC 4862 section 5.4).
//!
//! There is no router discovery and no address autoconfiguration: the user configures routes, as for IPv4. Group
//! membership is not reported (MLD): behind a switch with MLD snooping, solicitations may not arrive.

use super::{
    Inet,
    counters::Count,
    dad::{self, IfAddr6},
    iface::Interface,
    input::{Arrival, Inbound},
    input6::Inbound6,
    neighbour::UpdateKind,
    route::NextHop,
};
use crate::{
    inet::Pass,
    sync::lock,
    time::Instant,
    wire::{
        EtherType, MacAddr, Protocol, icmpv6, ipv6,
        ndp::{self, Message, NEIGHBOR_LEN},
    },
};
use std::{net::Ipv6Addr, time::Duration};

/// How long to wait for an answer to a DAD probe (RFC 4861 section 10, RETRANS_TIMER).
const DAD_WAIT: Duration = Duration::from_secs(1);

impl Inet {
    /// Processes an ICMPv6 message that is neither an error nor an echo request.
    #[cold]
    pub(super) fn ndp_input(
        &self,
        arrival: &Arrival<'_>,
        packet: &Inbound6<'_>,
        message: &icmpv6::Packet<&[u8]>,
        pass: &mut Pass,
    ) {
        let Some(iface) = arrival.iface else { return };
        match ndp::parse(&packet.view, message) {
            Ok(Some(Message::NeighborSolicitation { target, source })) => {
                self.counters.add(Count::Icmp6InNeighborSolicits);
                self.solicited(iface, arrival.queue, packet.src(), target, source, pass);
            }
            Ok(Some(Message::NeighborAdvertisement {
                target, mac, solicited, overrides, ..
            })) => {
                self.counters.add(Count::Icmp6InNeighborAdvertisements);
                if let Some(own) = iface.addresses6().iter().find(|own| own.address == target) {
                    return self.address_conflict(own);
                }
                let fields = (mac, solicited, overrides);
                self.update_neighbour(iface, target.into(), |table| {
                    (table.advertisement(target.into(), fields, pass.now, &self.random), None)
                });
            }
            Ok(_) => {}
            Err(_) => self.counters.add(Count::Icmp6InErrors),
        }
    }

    /// Processes a neighbour solicitation for `target` from `src`.
    fn solicited(
        &self,
        iface: &Interface,
        queue: u32,
        src: Ipv6Addr,
        target: Ipv6Addr,
        mac: Option<MacAddr>,
        pass: &mut Pass,
    ) {
        let own = iface.addresses6().iter().find(|own| own.address == target && own.is_usable());
        let is_dad = src.is_unspecified();
        if let Some(own) = own.filter(|own| is_dad && own.is_tentative()) {
            // RFC 4862 section 5.4.3: two hosts that probe for one address at once both give it up.
            return self.address_conflict(own);
        }
        // An off-link sender gets an answer but no entry: such senders could fill the table.
        let on_link = iface.addresses6().iter().any(|own| own.contains(src));
        if let Some(mac) = mac.filter(|_| on_link) {
            // RFC 4861 section 7.2.3: "the recipient SHOULD create or update the Neighbor Cache entry" of the sender
            // of a solicitation for our address. Other solicitations create no entry.
            let kind = if own.is_some() { UpdateKind::Solicitation } else { UpdateKind::Other };
            self.update_neighbour(iface, src.into(), |table| {
                table.update(src.into(), mac, kind, pass.now, &self.random)
            });
        }
        let Some(own) = own else { return };
        // "If the source of the solicitation is the unspecified address, the node MUST set the Solicited flag to
        // zero and multicast the advertisement to the all-nodes address."
        let dst = if is_dad { ipv6::ALL_NODES } else { src };
        let mut packet = [0; ipv6::HEADER_LEN + NEIGHBOR_LEN];
        let written = write(&mut packet, (own.address, dst), NEIGHBOR_LEN, |room, addresses| {
            // RFC 4429 section 3.3: a tentative address overrides no entry.
            let overrides = !own.is_tentative();
            let (target, mac) = (own.address, iface.info().mac);
            ndp::put_neighbor_advertisement(room, addresses, target, mac, !is_dad, overrides)
        });
        let next_hop =
            if is_dad { NextHop::Multicast(dst.into()) } else { NextHop::Unicast(dst.into()) };
        let mtu = iface.info().mtu;
        let sent = written.is_some()
            && self.link_output(iface, queue, next_hop, &packet, mtu, pass.now).is_ok();
        self.count_sent(sent, Count::Icmp6OutNeighborAdvertisements);
    }

    /// Another host claims one of our addresses.
    fn address_conflict(&self, own: &IfAddr6) {
        self.counters.add(Count::Ip6AddrConflicts);
        if own.dad_failed() {
            self.counters.add(Count::Ip6AddrDuplicates);
            self.invalidate_paths();
        }
    }

    /// Sends a neighbour solicitation for `address`: by multicast, or a unicast probe to `neighbour`.
    pub(super) fn solicit(
        &self,
        iface: &Interface,
        queue: u32,
        address: Ipv6Addr,
        neighbour: Option<MacAddr>,
    ) {
        let Some(src) = dad::source(iface.addresses6().iter(), address) else { return };
        self.send_solicitation(iface, queue, src, address, neighbour);
    }

    fn send_solicitation(
        &self,
        iface: &Interface,
        queue: u32,
        src: Ipv6Addr,
        target: Ipv6Addr,
        neighbour: Option<MacAddr>,
    ) {
        let group = ipv6::solicited_node(target);
        let (dst, to) = match neighbour {
            Some(mac) => (target, mac),
            None => (group, MacAddr::of_group6(group)),
        };
        // RFC 4861 section 4.3: with an unspecified source there is no link-layer address option.
        let mac = Some(iface.info().mac).filter(|_| !src.is_unspecified());
        let len = if mac.is_some() { NEIGHBOR_LEN } else { NEIGHBOR_LEN - 8 };
        let mut packet = [0; ipv6::HEADER_LEN + NEIGHBOR_LEN];
        let packet = &mut packet[..ipv6::HEADER_LEN + len];
        let written = write(packet, (src, dst), len, |room, addresses| {
            ndp::put_neighbor_solicitation(room, addresses, target, mac)
        });
        let to = (to, EtherType::IPV6);
        let sent = written.is_some()
            && iface
                .transmit_frame(queue, to, packet.len(), &mut |room| room.copy_from_slice(packet))
                .is_ok();
        self.count_sent(sent, Count::Icmp6OutNeighborSolicits);
    }

    /// Counts a sent or dropped message. A drop needs no retry: solicitations are retransmitted, by us or the peer.
    fn count_sent(&self, sent: bool, count: Count) {
        self.counters.add(if sent { count } else { Count::IpOutDiscards });
    }

    /// Runs duplicate address detection: sends one probe for each of our addresses, which passes if no host answers
    /// within a second. Returns when it must run next.
    pub(super) fn tick_dad(&self, iface: &Interface, now: Instant) -> Option<Instant> {
        let tentative = || iface.addresses6().iter().filter(|own| own.is_tentative());
        let mut neighbours = lock(&iface.neighbours);
        match neighbours.dad_until {
            Some(until) if now < until => Some(until),
            Some(_) => {
                neighbours.dad_until = None;
                tentative().for_each(IfAddr6::dad_passed);
                None
            }
            None if tentative().next().is_none() => None,
            None => {
                neighbours.dad_until = Some(now + DAD_WAIT);
                drop(neighbours);
                // RFC 4862 section 5.4.2: DupAddrDetectTransmits 1, from the unspecified address.
                for own in tentative() {
                    self.send_solicitation(iface, 0, Ipv6Addr::UNSPECIFIED, own.address, None);
                }
                Some(now + DAD_WAIT)
            }
        }
    }
}

/// Writes a neighbour discovery message and its IP header. `packet` has their length, so this cannot fail.
fn write(
    packet: &mut [u8],
    (src, dst): (Ipv6Addr, Ipv6Addr),
    len: usize,
    put: impl FnOnce(&mut [u8], crate::wire::checksum::Sum) -> crate::wire::Result<usize>,
) -> Option<()> {
    let mut ip = ipv6::Packet::init(packet, src, dst, Protocol::ICMPV6, len).ok()?;
    ip.set_hop_limit(ndp::HOP_LIMIT);
    put(ip.payload_mut(), ipv6::address_sum(src, dst)).ok().map(drop)
}
