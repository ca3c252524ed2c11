//! The receive path of IPv6: whether a packet is for us, its extension headers, its fragments, and the ICMPv6 error for
//! a rejected packet (RFC 8200, RFC 4443).

use super::{
    Inet,
    counters::Count,
    demux::Demux,
    input::{Arrival, Cast, Inbound},
    reassembly::Frag,
};
use crate::{
    inet::Pass,
    nic::Checksum,
    wire::{
        self, Protocol,
        checksum::Sum,
        ethernet,
        extension::{Content, Refused, Upper},
        icmpv6::{self, code},
        ipv6,
    },
};
use std::net::Ipv6Addr;

/// A checked IPv6 packet and its upper-layer payload.
#[derive(Clone, Copy)]
pub(super) struct Inbound6<'a> {
    pub(super) view: ipv6::Packet<&'a [u8]>,
    pub(super) payload: &'a [u8],
}

impl<'a> Inbound6<'a> {
    /// A packet whose extension headers are not parsed.
    pub(super) fn new(bytes: &'a [u8]) -> wire::Result<Inbound6<'a>> {
        let view = ipv6::Packet::new_checked(bytes)?;
        Ok(Inbound6 { view, payload: view.payload() })
    }
}

impl<'a> Inbound<'a> for Inbound6<'a> {
    type Address = Ipv6Addr;
    // RFC 8200 section 8.1: "IPv6 receivers must discard UDP packets containing a zero checksum"; the exceptions
    // of RFC 6936 are for tunnels.
    const CHECKSUM_OPTIONAL: bool = false;

    #[inline]
    fn src(&self) -> Ipv6Addr {
        self.view.src()
    }

    #[inline]
    fn dst(&self) -> Ipv6Addr {
        self.view.dst()
    }

    #[inline]
    fn address_sum(&self) -> Sum {
        self.view.address_sum()
    }

    #[inline]
    fn tos(&self) -> u8 {
        self.view.traffic_class()
    }

    #[inline]
    fn ttl(&self) -> u8 {
        self.view.hop_limit()
    }

    #[inline]
    fn payload(&self) -> &'a [u8] {
        self.payload
    }

    #[inline]
    fn demux(inet: &Inet) -> &Demux<Ipv6Addr> {
        &inet.demux6
    }

    fn port_unreachable(self, inet: &Inet, arrival: &Arrival<'_>, pass: &mut Pass) {
        inet.send_unreachable6(arrival, &self, code::PORT_UNREACHABLE, pass);
    }
}

impl Inet {
    /// Processes an IPv6 packet in a frame. Not inlined, to keep the IPv4 path short.
    #[inline(never)]
    pub(super) fn ipv6_frame_input(
        &self,
        arrival: &Arrival<'_>,
        frame: ethernet::Frame<&[u8]>,
        bytes: &[u8],
        pass: &mut Pass,
    ) {
        let Some(iface) = arrival.iface else { return };
        let has_v6 = iface.kernel().is_some() || iface.same_host().is_some();
        if !has_v6 && iface.addresses6().is_empty() {
            return self.counters.add(Count::LinkInUnknownProtos);
        }
        // Our own multicast solicitation, looped back, does not mean that another host has our address.
        if arrival.to_us || frame.src() != iface.mac() {
            self.ipv6_input(arrival, bytes, pass);
        }
    }

    #[inline]
    pub(super) fn ipv6_input(&self, arrival: &Arrival<'_>, bytes: &[u8], pass: &mut Pass) {
        let view = match ipv6::Packet::new_checked(bytes) {
            Ok(view) => view,
            Err(wire::Error::Truncated) => return self.counters.add(Count::Ip6InTruncatedPkts),
            Err(_) => {
                self.counters.add(Count::Ip6InBadVersion);
                return self.counters.add(Count::Ip6InHdrErrors);
            }
        };
        let Some(cast) = self.accept6(arrival, view.src(), view.dst()) else { return };
        match view.content() {
            Ok(Content::Whole(upper)) => self.deliver6(arrival, view, upper, cast, pass),
            Ok(Content::Fragment(fragment)) => {
                self.fragment_input6(arrival, &Frag::v6(&view, &fragment), cast, pass);
            }
            Err(refused) => self.refused6(arrival, view, refused, pass),
        }
    }

    /// Delivers a whole packet to its protocol.
    #[inline]
    fn deliver6(
        &self,
        arrival: &Arrival<'_>,
        view: ipv6::Packet<&[u8]>,
        upper: Upper<'_>,
        cast: Cast,
        pass: &mut Pass,
    ) {
        let packet = Inbound6 { view, payload: upper.payload };
        match upper.protocol {
            Protocol::UDP => self.udp_input(arrival, packet, cast, pass),
            Protocol::TCP => self.tcp_input(arrival, packet, cast, pass),
            Protocol::ICMPV6 => self.icmpv6_input(arrival, packet, cast, pass),
            // RFC 8200 section 4.7: "there is nothing following that header".
            Protocol::NO_NEXT_HEADER => {}
            _ => {
                self.counters.add(Count::Ip6InUnknownProtos);
                let problem = upper.unknown();
                let kind = (icmpv6::Type::PARAMETER_PROBLEM, problem.code, problem.pointer);
                self.answer_with_error6(arrival, kind, &packet, pass);
            }
        }
    }

    /// Whether the packet's destination is ours and its source valid. If not, counts the cause.
    #[inline]
    pub(super) fn accept6(
        &self,
        arrival: &Arrival<'_>,
        src: Ipv6Addr,
        dst: Ipv6Addr,
    ) -> Option<Cast> {
        let Some(iface) = arrival.iface else { return Some(Cast::Unicast) };
        if iface.same_host().is_some() {
            return self.accept_from_process(arrival, !src.is_multicast() && !dst.is_multicast());
        }
        // RFC 4291 sections 2.5.3 and 2.7: a loopback address must not arrive over a link, a group must not be a
        // source. IPv4-mapped addresses are dropped too (`ip6_rcv_core` in net/ipv6/ip6_input.c): a socket would
        // take them for IPv4 peers.
        let mapped = |address: Ipv6Addr| address.to_ipv4_mapped().is_some();
        let mut martian = src.is_multicast() || src.is_loopback() || mapped(src) || mapped(dst);
        let mut cast = None;
        for own in iface.addresses6() {
            // While our address is tentative, a host that already has it may send from it.
            martian |= own.address == src && !own.is_tentative();
            if own.address == dst && own.is_usable() {
                cast = Some(Cast::Unicast);
            } else if own.solicited_node == dst {
                cast = Some(Cast::Multicast);
            }
        }
        if martian {
            self.counters.add(Count::Ip6InMartians);
            return None;
        }
        if cast.is_none() {
            cast = match dst {
                // RFC 4291 section 2.8: every host is in this group.
                ipv6::ALL_NODES if iface.kernel().is_none() => Some(Cast::Multicast),
                // The steering program redirects only packets to an address of the kernel's on this host, or to a
                // group that our sockets have joined.
                _ if dst.is_multicast() && iface.kernel().is_some() => Some(Cast::Multicast),
                _ if dst.is_multicast() || dst.is_loopback() => None,
                _ if iface.kernel().is_some() => Some(Cast::Unicast),
                // The weak host model, as in IPv4.
                _ if self.topology().has_own_address(dst.into()) => Some(Cast::Unicast),
                _ => None,
            };
        }
        // A unicast packet in a multicast or broadcast frame is dropped (`ip6_input_finish` leaves that to the upper
        // layers; RFC 1122 section 3.3.6 says it of IPv4).
        match cast {
            Some(Cast::Unicast) if !arrival.to_us => {}
            Some(cast) => return Some(cast),
            None => {}
        }
        self.counters.add(Count::Ip6InAddrErrors);
        None
    }

    #[cold]
    fn fragment_input6(&self, arrival: &Arrival<'_>, frag: &Frag<'_>, cast: Cast, pass: &mut Pass) {
        let Some(whole) = self.reassemble(frag, pass) else { return };
        let Ok(view) = ipv6::Packet::new_checked(&whole[..]) else { return };
        // A NIC completes no checksum of a fragmented datagram: the sender computed it before fragmenting.
        let arrival = Arrival { checksum: Checksum::Unverified, ..*arrival };
        match view.content() {
            Ok(Content::Whole(upper)) => self.deliver6(&arrival, view, upper, cast, pass),
            // A fragment header inside a reassembled packet: no valid sender produces this.
            Ok(Content::Fragment(_)) => self.counters.add(Count::Ip6InHdrErrors),
            Err(refused) => self.refused6(&arrival, view, refused, pass),
        }
    }

    #[cold]
    fn refused6(
        &self,
        arrival: &Arrival<'_>,
        view: ipv6::Packet<&[u8]>,
        refused: Refused,
        pass: &mut Pass,
    ) {
        self.counters.add(match refused.error {
            wire::Error::Truncated => Count::Ip6InTruncatedPkts,
            _ => Count::Ip6InHdrErrors,
        });
        if let Some(problem) = refused.problem {
            let kind = (icmpv6::Type::PARAMETER_PROBLEM, problem.code, problem.pointer);
            let packet = Inbound6 { view, payload: view.payload() };
            self.answer_with_error6(arrival, kind, &packet, pass);
        }
    }
}
