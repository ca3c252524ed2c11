//! The receive path: Ethernet, then ARP, IPv4 or IPv6 (`input6.rs`), then reassembly, then UDP, TCP or ICMP. A bad
//! packet is dropped and counted by cause.

use super::{
    Inet,
    counters::Count,
    demux::{Address, Demux},
    iface::Interface,
    last_packet::Received,
    output::ethertype,
    reassembly::Frag,
};
use crate::{
    inet::Pass,
    nic::{self, Checksum},
    wire::{self, EtherType, MacAddr, Protocol, checksum::Sum, ethernet, ipv4},
};
use std::{net::Ipv4Addr, ops::Deref};

/// How a packet arrived.
#[derive(Clone, Copy)]
pub(super) struct Arrival<'a> {
    /// `None`: sent by this host to itself.
    pub(super) iface: Option<&'a Interface>,
    pub(super) queue: u32,
    /// The state of that queue; `None`: as above.
    pub(super) received: Option<&'a Received>,
    /// The frame, if it is one.
    pub(super) frame: &'a [u8],
    /// The frame was sent to our MAC address (`PACKET_HOST`), not to a broadcast or multicast one.
    pub(super) to_us: bool,
    pub(super) checksum: Checksum,
}

impl Arrival<'_> {
    /// The frame's source MAC address.
    pub(super) fn src_mac(&self) -> MacAddr {
        ethernet::Frame::new_checked(self.frame).map_or(MacAddr::BROADCAST, |frame| frame.src())
    }

    /// The link to a process of this machine that it came over, as [`PathOptions::link`](super::PathOptions::link).
    #[inline]
    pub(super) fn link(&self) -> u32 {
        self.iface.map_or(0, Interface::link)
    }

    /// Whether no connection is to begin on its interface.
    pub(super) fn is_closing(&self) -> bool {
        self.iface.is_some_and(Interface::has_ended)
    }

    /// The scope id of the packet's link-local addresses.
    #[inline]
    pub(super) fn scope(&self) -> u32 {
        self.iface.map_or(0, Interface::scope_id)
    }
}

/// A packet for us as the transport protocols see it: IPv4 and IPv6 look alike.
pub(super) trait Inbound<'a>: Copy {
    type Address: Address;
    /// A datagram may have no checksum.
    const CHECKSUM_OPTIONAL: bool;

    fn src(&self) -> Self::Address;
    fn dst(&self) -> Self::Address;
    /// The sum of the pseudo-header's addresses.
    fn address_sum(&self) -> Sum;
    /// IPv4's type of service, IPv6's traffic class.
    fn tos(&self) -> u8;
    /// The remaining hops.
    fn ttl(&self) -> u8;
    fn ecn(&self) -> u8 {
        self.tos() & 3
    }
    /// The transport header and its data.
    fn payload(&self) -> &'a [u8];
    /// The UDP socket table of this address family.
    fn demux(inet: &Inet) -> &Demux<Self::Address>;
    /// Sends a port unreachable error to the sender.
    fn port_unreachable(self, inet: &Inet, arrival: &Arrival<'_>, pass: &mut Pass);
}

/// A checked IPv4 packet and its bytes.
#[derive(Clone, Copy)]
pub(super) struct Inbound4<'a> {
    view: ipv4::Packet<&'a [u8]>,
    bytes: &'a [u8],
}

impl<'a> Inbound4<'a> {
    #[inline]
    pub(super) fn new(bytes: &'a [u8]) -> wire::Result<Inbound4<'a>> {
        Ok(Inbound4 { view: ipv4::Packet::new_checked(bytes)?, bytes })
    }

    /// A packet whose header is complete; it may be cut short.
    #[inline]
    pub(super) fn quoted(view: ipv4::Packet<&'a [u8]>, bytes: &'a [u8]) -> Inbound4<'a> {
        Inbound4 { view, bytes }
    }

    /// The whole packet, without the link's padding.
    pub(super) fn bytes(&self) -> &'a [u8] {
        &self.bytes[..self.view.total_len().min(self.bytes.len())]
    }
}

impl<'a> Inbound<'a> for Inbound4<'a> {
    type Address = Ipv4Addr;
    const CHECKSUM_OPTIONAL: bool = true;

    #[inline]
    fn src(&self) -> Ipv4Addr {
        self.view.src()
    }

    #[inline]
    fn dst(&self) -> Ipv4Addr {
        self.view.dst()
    }

    #[inline]
    fn address_sum(&self) -> Sum {
        self.view.address_sum()
    }

    #[inline]
    fn tos(&self) -> u8 {
        self.view.dscp() << 2 | self.view.ecn()
    }

    #[inline]
    fn ttl(&self) -> u8 {
        self.view.ttl()
    }

    #[inline]
    fn payload(&self) -> &'a [u8] {
        self.view.payload()
    }

    #[inline]
    fn demux(inet: &Inet) -> &Demux<Ipv4Addr> {
        &inet.demux
    }

    fn port_unreachable(self, inet: &Inet, arrival: &Arrival<'_>, pass: &mut Pass) {
        inet.icmp_port_unreachable(arrival, self, pass);
    }
}

impl<'a> Deref for Inbound4<'a> {
    type Target = ipv4::Packet<&'a [u8]>;

    #[inline]
    fn deref(&self) -> &ipv4::Packet<&'a [u8]> {
        &self.view
    }
}

/// What kind of address a packet was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cast {
    Unicast,
    /// Multicast or broadcast.
    Multicast,
}

/// The source routing options (RFC 791 section 3.1).
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;

impl Inet {
    /// Processes one frame from queue `queue` of `iface`. Only the owner of that queue may call it.
    #[inline]
    pub fn receive(&self, iface: &Interface, queue: u32, frame: nic::Frame<'_>, pass: &mut Pass) {
        let received = iface.received(queue);
        if self.tcp_predicted_frame(iface, received, &frame, pass) {
            return;
        }
        if !frame.rest.is_empty() {
            return self.receive_pieces(iface, received, queue, &frame, pass);
        }
        self.receive_any(iface, received, queue, frame, pass);
    }

    /// Processes a frame that the kernel has received as well. Only the owner of the queue of such frames may call it.
    #[inline(never)]
    pub(crate) fn receive_copy(&self, iface: &Interface, frame: nic::Frame<'_>, pass: &mut Pass) {
        self.receive_any(iface, &iface.copies, 0, frame, pass);
    }

    /// The general path, for a frame in one buffer.
    #[inline(always)]
    pub(super) fn receive_any(
        &self,
        iface: &Interface,
        received: &Received,
        queue: u32,
        frame: nic::Frame<'_>,
        pass: &mut Pass,
    ) {
        let Ok(ethernet) = ethernet::Frame::new_checked(frame.bytes) else {
            return self.counters.add(Count::LinkInTruncated);
        };
        let to = ethernet.dst();
        let to_us = to == iface.mac();
        if !to_us && !to.is_multicast() {
            return self.counters.add(Count::LinkInOtherHost);
        }
        let arrival = Arrival {
            iface: Some(iface),
            queue,
            received: Some(received),
            frame: frame.bytes,
            to_us,
            checksum: frame.checksum,
        };
        if ethernet.ethertype() == EtherType::IPV4 {
            return self.ipv4_input(&arrival, ethernet.payload(), pass);
        }
        self.other_input(&arrival, ethernet, iface, pass);
    }

    /// A frame that is tagged or not of IPv4.
    fn other_input(
        &self,
        arrival: &Arrival<'_>,
        ethernet: ethernet::Frame<&[u8]>,
        iface: &Interface,
        pass: &mut Pass,
    ) {
        let inner = match ethernet.untag() {
            Ok(inner) => inner,
            Err(wire::Error::TooManyTags) => {
                return self.counters.add(Count::LinkInTooManyTags);
            }
            Err(_) => return self.counters.add(Count::LinkInTruncated),
        };
        // VLAN id 0 means a priority tag without a VLAN (IEEE 802.1Q section 9.6).
        if inner.offset > ethernet::HEADER_LEN && inner.tags().any(|tag| tag.vid() != 0) {
            return self.counters.add(Count::LinkInVlan);
        }
        match inner.ethertype {
            EtherType::IPV4 => self.ipv4_input_apart(arrival, inner.payload, pass),
            EtherType::IPV6 => self.ipv6_frame_input(arrival, ethernet, inner.payload, pass),
            EtherType::ARP => {
                self.arp_input(iface, arrival.queue, arrival.to_us, inner.payload, pass);
            }
            _ => self.counters.add(Count::LinkInUnknownProtos),
        }
    }

    /// Processes an IP packet this host has sent to itself.
    pub(super) fn local_input(&self, packet: &[u8], pass: &mut Pass) {
        // The packet never left memory, so its checksum needs no check.
        let checksum = Checksum::Partial;
        let (frame, to_us) = (&[][..], true);
        let arrival = Arrival { iface: None, queue: 0, received: None, frame, to_us, checksum };
        match ethertype(packet) {
            EtherType::IPV6 => self.ipv6_input(&arrival, packet, pass),
            _ => self.ipv4_input_apart(&arrival, packet, pass),
        }
    }

    #[inline(never)]
    fn ipv4_input_apart(&self, arrival: &Arrival<'_>, bytes: &[u8], pass: &mut Pass) {
        self.ipv4_input(arrival, bytes, pass);
    }

    #[inline(always)]
    fn ipv4_input(&self, arrival: &Arrival<'_>, bytes: &[u8], pass: &mut Pass) {
        let packet = match Inbound4::new(bytes) {
            Ok(packet) => packet,
            Err(error) => return self.malformed(error),
        };
        if packet.verify_checksum().is_err() {
            self.counters.add(Count::IpInCsumErrors);
            return self.counters.add(Count::IpInHdrErrors);
        }
        if packet.header_len() > ipv4::HEADER_LEN && !self.options_are_allowed(packet.options()) {
            return;
        }
        let (src, dst) = (packet.src(), packet.dst());
        let cast = match arrival.received {
            Some(received) if arrival.to_us && received.has_accepted(src, dst) => Cast::Unicast,
            _ => match self.accept(arrival, src, dst) {
                Some(cast) => cast,
                None => return,
            },
        };
        if packet.is_fragment() {
            return self.fragment_input(arrival, packet, cast, pass);
        }
        self.deliver(arrival, packet, cast, pass);
    }

    #[cold]
    pub(super) fn malformed(&self, error: wire::Error) {
        let cause = match error {
            wire::Error::Truncated => return self.counters.add(Count::IpExtInTruncatedPkts),
            wire::Error::BadVersion => Count::IpInBadVersion,
            wire::Error::BadFragment => Count::IpInBadFragment,
            _ => Count::IpInBadLength,
        };
        self.counters.add(cause);
        self.counters.add(Count::IpInHdrErrors);
    }

    /// Delivers a whole packet to its protocol.
    #[inline(always)]
    fn deliver(&self, arrival: &Arrival<'_>, packet: Inbound4<'_>, cast: Cast, pass: &mut Pass) {
        match packet.protocol() {
            Protocol::UDP => self.udp_input(arrival, packet, cast, pass),
            Protocol::TCP => self.tcp_input(arrival, packet, cast, pass),
            Protocol::ICMP => self.icmp_input(arrival, packet, cast, pass),
            _ => {
                self.counters.add(Count::IpInUnknownProtos);
                self.icmp_protocol_unreachable(arrival, packet, pass);
            }
        }
    }

    /// Whether the packet's destination is ours and its source valid. If not, counts the cause.
    #[cold]
    pub(super) fn accept(
        &self,
        arrival: &Arrival<'_>,
        src: Ipv4Addr,
        dst: Ipv4Addr,
    ) -> Option<Cast> {
        let Some(iface) = arrival.iface else { return Some(Cast::Unicast) };
        if iface.same_host().is_some() {
            let is_unicast = |address: Ipv4Addr| !address.is_multicast() && !address.is_broadcast();
            let cast = self.accept_from_process(arrival, is_unicast(src) && is_unicast(dst));
            if cast.is_some() {
                arrival.received.into_iter().for_each(|received| received.accept(src, dst));
            }
            return cast;
        }
        // RFC 1122 section 3.2.1.3: "When a host sends any datagram, the IP source address MUST be one of
        // its own IP addresses (but not a broadcast or multicast address)"; 127/8 and 0/8 must not arrive over a link.
        // An interface shared with the kernel has no list of our addresses: this packet's destination is one.
        let mut martian = src == dst || matches!(src.octets()[0], 0 | 127 | 224..);
        let mut unicast_dst = false;
        let mut broadcast_dst = dst.is_broadcast();
        for &(own, broadcast) in iface.with_broadcast() {
            unicast_dst |= own == dst;
            broadcast_dst |= broadcast == dst;
            martian |= own == src || broadcast == src;
        }
        if martian {
            self.counters.add(Count::IpInMartians);
            return None;
        }
        if unicast_dst {
            // RFC 1122 section 3.3.6: "A host SHOULD silently discard a datagram that is received via a
            // link-layer broadcast [...] but does not specify an IP multicast or broadcast destination
            // address."
            if arrival.to_us {
                arrival.received.into_iter().for_each(|received| received.accept(src, dst));
                return Some(Cast::Unicast);
            }
        } else if broadcast_dst {
            return Some(Cast::Multicast);
        } else if iface.kernel().is_some() {
            // The steering program redirects only packets to an address of the kernel's on this host, or to
            // a group that our sockets have joined.
            if arrival.to_us && !dst.is_multicast() && !dst.is_loopback() {
                arrival.received.into_iter().for_each(|received| received.accept(src, dst));
                return Some(Cast::Unicast);
            }
            if !arrival.to_us && dst.is_multicast() {
                return Some(Cast::Multicast);
            }
        } else if arrival.to_us && self.topology().has_own_address(dst.into()) {
            // RFC 1122 section 3.3.4.2, the weak host model, as in Linux.
            return Some(Cast::Unicast);
        }
        self.counters.add(Count::IpInAddrErrors);
        None
    }

    /// Whether a packet from a process of this machine is accepted: both have the same addresses, loopback included.
    pub(super) fn accept_from_process(
        &self,
        arrival: &Arrival<'_>,
        is_unicast: bool,
    ) -> Option<Cast> {
        let accepted = (is_unicast && arrival.to_us).then_some(Cast::Unicast);
        if accepted.is_none() {
            self.counters.add(Count::IpInAddrErrors);
        }
        accepted
    }

    /// Whether a header's options can be skipped (RFC 1122 section 3.2.1.8: unknown ones are ignored). If not,
    /// counts the cause.
    #[cold]
    fn options_are_allowed(&self, mut options: &[u8]) -> bool {
        loop {
            options = match options {
                // The end of the list.
                [] | [0, ..] => return true,
                // No operation.
                [1, rest @ ..] => rest,
                [LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE, ..] => {
                    self.counters.add(Count::IpInSourceRoutes);
                    return false;
                }
                [_, len, ..] if *len >= 2 && usize::from(*len) <= options.len() => {
                    &options[usize::from(*len)..]
                }
                _ => {
                    self.counters.add(Count::IpInHdrErrors);
                    return false;
                }
            };
        }
    }

    #[cold]
    fn fragment_input(
        &self,
        arrival: &Arrival<'_>,
        packet: Inbound4<'_>,
        cast: Cast,
        pass: &mut Pass,
    ) {
        let Some(whole) = self.reassemble(&Frag::v4(&packet), pass) else { return };
        if let Ok(packet) = Inbound4::new(&whole) {
            // A NIC completes no checksum of a fragmented datagram: the sender computed it before fragmenting.
            let arrival = Arrival { checksum: Checksum::Unverified, ..*arrival };
            self.deliver(&arrival, packet, cast, pass);
        }
    }
}
