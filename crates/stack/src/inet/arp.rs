//! ARP on interfaces with addresses of our own (RFC 826, RFC 5227).

use super::{Inet, counters::Count, iface::Interface, neighbour::UpdateKind};
use crate::{
    inet::Pass,
    wire::{EtherType, MacAddr, arp},
};
use std::net::Ipv4Addr;

impl Inet {
    #[cold]
    pub(super) fn arp_input(
        &self,
        iface: &Interface,
        queue: u32,
        to_us: bool,
        bytes: &[u8],
        pass: &mut Pass,
    ) {
        if iface.kernel().is_some() {
            return;
        }
        let Ok(arp) = arp::Packet::new_checked(bytes) else {
            return self.counters.add(Count::ArpInErrors);
        };
        let (mac, sender, target) = (arp.sender_mac(), arp.sender_ip(), arp.target_ip());
        let known = matches!(arp.operation(), arp::Operation::REQUEST | arp::Operation::REPLY);
        if !known || !mac.is_unicast() || sender.is_multicast() || sender.is_broadcast() {
            return self.counters.add(Count::ArpInErrors);
        }
        if mac == iface.info().mac {
            // Our own broadcast, looped back.
            return;
        }
        let for_us = arp.operation() == arp::Operation::REQUEST && iface.has(target.into());
        if iface.has(sender.into()) {
            // RFC 5227 section 2.4 (c): a host that needs its address keeps it despite the conflict.
            return self.counters.add(Count::ArpInConflicts);
        }
        if !sender.is_unspecified() {
            let kind = match arp.operation() {
                _ if for_us => UpdateKind::Request,
                arp::Operation::REPLY if to_us && iface.has(target.into()) => UpdateKind::Reply,
                _ => UpdateKind::Other,
            };
            // An off-link sender gets an answer but no entry: such senders could fill the table.
            if iface.addresses4().iter().any(|own| own.contains(sender)) {
                self.update_neighbour(iface, sender.into(), |table| {
                    table.update(sender.into(), mac, kind, pass.now, &self.random)
                });
            }
        }
        if for_us {
            let to = (mac, sender);
            self.arp_send(iface, queue, arp::Operation::REPLY, mac, target, to);
        }
    }

    /// Sends an ARP request for `address`: a broadcast, or a unicast probe to `neighbour`.
    pub(super) fn arp_request(
        &self,
        iface: &Interface,
        queue: u32,
        address: Ipv4Addr,
        neighbour: Option<MacAddr>,
    ) {
        let own = iface.addresses4();
        let Some(source) = own.iter().find(|own| own.contains(address)).or(own.first()) else {
            return;
        };
        let to = neighbour.unwrap_or(MacAddr::BROADCAST);
        let target = (MacAddr::UNSPECIFIED, address);
        self.arp_send(iface, queue, arp::Operation::REQUEST, to, source.address(), target);
    }

    fn arp_send(
        &self,
        iface: &Interface,
        queue: u32,
        operation: arp::Operation,
        to: MacAddr,
        source: Ipv4Addr,
        target: (MacAddr, Ipv4Addr),
    ) {
        let sender = (iface.info().mac, source);
        let sent = iface.transmit_frame(queue, (to, EtherType::ARP), arp::LEN, &mut |room| {
            // The buffer has the packet's length: this cannot fail.
            let _ = arp::Packet::init(room, operation, sender, target);
        });
        // A dropped packet needs no retry here: requests are retransmitted, ours by our timer, a peer's by its own.
        self.counters.add(if sent.is_ok() { Count::ArpOutPackets } else { Count::IpOutDiscards });
    }
}
