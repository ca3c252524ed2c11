//! ICMP for IPv6 (RFC 4443): replies to pings, errors about packets we cannot deliver, and received errors, which go to
//! their sockets.

use super::{
    Inet, SocketError,
    counters::Count,
    dad,
    icmp_error::Quoted,
    input::{Arrival, Cast, Inbound},
    input6::Inbound6,
};
use crate::{
    inet::Pass,
    sync::lock,
    wire::{
        Protocol,
        icmpv6::{self, Type, code},
        ipv6,
    },
};
use std::net::{IpAddr, Ipv6Addr};

/// Redirect: a router names a better first hop (RFC 4861 section 4.5).
const REDIRECT: Type = Type(137);

impl Inet {
    /// Processes an ICMPv6 message in a packet that is for us.
    #[cold]
    pub(super) fn icmpv6_input(
        &self,
        arrival: &Arrival<'_>,
        packet: Inbound6<'_>,
        cast: Cast,
        pass: &mut Pass,
    ) {
        self.counters.add(Count::Icmp6InMsgs);
        let message = match icmpv6::Packet::new_checked(packet.payload) {
            Ok(message) if message.verify_checksum(packet.address_sum()).is_ok() => message,
            Ok(_) => {
                self.counters.add(Count::Icmp6InCsumErrors);
                return self.counters.add(Count::Icmp6InErrors);
            }
            Err(_) => return self.counters.add(Count::Icmp6InErrors),
        };
        let shared = arrival.iface.is_some_and(|iface| iface.kernel().is_some());
        match message.kind() {
            Type::ECHO_REQUEST => {
                self.counters.add(Count::Icmp6InEchos);
                if !shared {
                    self.echo_reply6(arrival, packet, cast, pass);
                }
            }
            kind if kind.is_error() => {
                self.icmpv6_error(packet.dst(), message, arrival.scope(), pass);
            }
            // RFC 4443 section 2.4 (b): "If an ICMPv6 informational message of unknown type is received, it MUST be
            // silently discarded." Echo replies are dropped as there are no raw sockets. Redirects are ignored (RFC
            // 4861 section 8.3 says a host SHOULD NOT): only the user configures routes.
            _ if !shared => self.ndp_input(arrival, &packet, &message, pass),
            _ => {}
        }
    }

    fn echo_reply6(
        &self,
        arrival: &Arrival<'_>,
        packet: Inbound6<'_>,
        cast: Cast,
        pass: &mut Pass,
    ) {
        // RFC 4443 section 4.2: the reply's source is the pinged address, or one of ours if a group was pinged.
        // A request from the unspecified address gets no reply.
        let (src, dst) = (self.answer_source(arrival, &packet, cast), packet.src());
        let Some(src) = src.filter(|_| !dst.is_unspecified()) else { return };
        let message = packet.payload;
        let sent =
            self.output6((src, dst, arrival.scope()), message.len(), arrival.queue, pass, |room| {
                room.copy_from_slice(message);
                if let Ok(mut reply) = icmpv6::Packet::new_checked(room) {
                    reply.turn_into_reply();
                    reply.fill_checksum(ipv6::address_sum(src, dst));
                }
            });
        if sent {
            self.counters.add(Count::Icmp6OutEchoReplies);
        }
    }

    /// The source address for an answer to a packet.
    fn answer_source(
        &self,
        arrival: &Arrival<'_>,
        packet: &Inbound6<'_>,
        cast: Cast,
    ) -> Option<Ipv6Addr> {
        match (cast, arrival.iface) {
            (Cast::Unicast, _) => Some(packet.dst()),
            (Cast::Multicast, Some(iface)) => dad::source(iface.addresses6().iter(), packet.src()),
            (Cast::Multicast, None) => None,
        }
    }

    /// Processes an ICMPv6 error that the kernel received: the message as a raw socket returns it, without the IPv6
    /// header, its checksum checked by the kernel (RFC 3542 section 3.1). It was sent to `local` on the interface
    /// `scope`. A message that is no error, or quotes no packet of our sockets, is counted and has no effect.
    pub fn icmpv6_error_input(&self, message: &[u8], local: Ipv6Addr, scope: u32, pass: &mut Pass) {
        self.counters.add(Count::Icmp6InMsgs);
        match icmpv6::Packet::new_checked(message) {
            Ok(message) if message.kind().is_error() => {
                self.icmpv6_error(local, message, scope, pass);
            }
            Ok(_) => {}
            Err(_) => self.counters.add(Count::Icmp6InErrors),
        }
    }

    /// Processes an error sent to `local`, one of our addresses.
    fn icmpv6_error(
        &self,
        local: Ipv6Addr,
        message: icmpv6::Packet<&[u8]>,
        scope: u32,
        pass: &mut Pass,
    ) {
        let accepted = message.quoted().is_ok_and(|quoted| {
            // RFC 4443 section 2.2: errors go to the source of the quoted packet.
            let quoted = Quoted::v6(&quoted, scope).filter(|_| quoted.src() == local);
            self.accept_icmp_error(quoted, to_socket_error(message), message.mtu(), pass)
        });
        if !accepted {
            self.counters.add(Count::Icmp6InErrors);
        }
    }

    /// Sends a destination unreachable error to the sender of a packet.
    #[cold]
    pub(super) fn send_unreachable6(
        &self,
        arrival: &Arrival<'_>,
        packet: &Inbound6<'_>,
        code: u8,
        pass: &mut Pass,
    ) {
        self.answer_with_error6(arrival, (Type::UNREACHABLE, code, 0), packet, pass);
    }

    /// Sends an error of this type, code and second word about a received packet, unless RFC 4443 forbids it.
    #[cold]
    pub(super) fn answer_with_error6(
        &self,
        arrival: &Arrival<'_>,
        kind: (Type, u8, u32),
        packet: &Inbound6<'_>,
        pass: &mut Pass,
    ) {
        // On a shared interface the kernel answers for its ports, but it has not seen the extension headers of our
        // packets. RFC 4443 section 2.4 (e): no error about "a packet destined to an IPv6 multicast address" except for
        // unrecognized options, nor about "a packet sent as a link-layer multicast" or broadcast, with the same
        // exception.
        let shared = kind.0 != Type::PARAMETER_PROBLEM
            && arrival.iface.is_some_and(|iface| iface.kernel().is_some());
        let many = packet.dst().is_multicast() || !arrival.to_us;
        let option = (kind.0, kind.1) == (Type::PARAMETER_PROBLEM, code::UNRECOGNIZED_OPTION);
        if shared || (many && !option) {
            return;
        }
        let cast = if packet.dst().is_multicast() { Cast::Multicast } else { Cast::Unicast };
        let Some(src) = self.answer_source(arrival, packet, cast) else { return };
        self.send_error_from(src, kind, packet, (arrival.scope(), arrival.queue), pass);
    }

    /// Sends an error about a packet to one of our addresses, to its sender.
    pub(super) fn send_error6(
        &self,
        kind: (Type, u8, u32),
        packet: &Inbound6<'_>,
        queue: u32,
        pass: &mut Pass,
    ) {
        self.send_error_from(packet.dst(), kind, packet, (0, queue), pass);
    }

    fn send_error_from(
        &self,
        src: Ipv6Addr,
        (kind, code, word): (Type, u8, u32),
        packet: &Inbound6<'_>,
        (scope, queue): (u32, u32),
        pass: &mut Pass,
    ) {
        // RFC 4443 section 2.4 (e), continued: no error about "an ICMPv6 error message", "an ICMPv6 redirect message",
        // "a packet whose source address does not uniquely identify a single node".
        let dst = packet.src();
        if dst.is_unspecified() || dst.is_multicast() || carries_error(&packet.view) {
            return;
        }
        // (f): "an IPv6 node MUST limit the rate of ICMPv6 error messages it originates."
        if !lock(&self.limiter).allow(pass.now, &self.random) {
            return self.counters.add(Count::Icmp6OutRateLimited);
        }
        let quote = packet.view.bytes();
        let len = icmpv6::error_len(quote.len());
        let sent = self.output6((src, dst, scope), len, queue, pass, |room| {
            let addresses = ipv6::address_sum(src, dst);
            // There is room for a header and 8 bytes of the quote: this cannot fail.
            let _ = icmpv6::Packet::init_error(room, addresses, kind, code, word, quote);
        });
        if sent {
            self.counters.add(match kind {
                Type::TIME_EXCEEDED => Count::Icmp6OutTimeExcds,
                Type::PARAMETER_PROBLEM => Count::Icmp6OutParmProblems,
                _ => Count::Icmp6OutDestUnreachs,
            });
        }
    }

    /// Builds and sends an ICMPv6 message, as [`output`](Inet::output) does for IPv4; `scope` is the scope id of
    /// link-local addresses.
    pub(super) fn output6(
        &self,
        (src, dst, scope): (Ipv6Addr, Ipv6Addr, u32),
        len: usize,
        queue: u32,
        pass: &mut Pass,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let mut packet = vec![0; ipv6::HEADER_LEN + len];
        let Ok(mut ip) = ipv6::Packet::init(&mut packet[..], src, dst, Protocol::ICMPV6, len)
        else {
            self.counters.add(Count::Ip6FragFails);
            return false;
        };
        fill(ip.payload_mut());
        self.send_whole((IpAddr::V6(src), IpAddr::V6(dst), scope), &packet, queue, pass)
    }
}

/// Whether a packet is an ICMPv6 error or redirect, with or without extension headers.
fn carries_error(view: &ipv6::Packet<&[u8]>) -> bool {
    let (mut next, mut rest) = (view.next_header(), view.payload());
    loop {
        let len = match (next, rest) {
            (Protocol::ICMPV6, [kind, ..]) => {
                return Type(*kind).is_error() || Type(*kind) == REDIRECT;
            }
            (
                Protocol::HOP_BY_HOP | Protocol::DESTINATION_OPTIONS | Protocol::ROUTING,
                [_, len, ..],
            ) => (usize::from(*len) + 1) * 8,
            (Protocol::FRAGMENT, [_, _, ..]) => 8,
            _ => return false,
        };
        next = Protocol(rest[0]);
        match rest.get(len..) {
            Some(behind) => rest = behind,
            None => return false,
        }
    }
}

/// The socket error for an ICMPv6 error: Linux's `icmpv6_err_convert` and `tab_unreach`.
fn to_socket_error(message: icmpv6::Packet<&[u8]>) -> (SocketError, Count) {
    match (message.kind(), message.code()) {
        (Type::PACKET_TOO_BIG, _) => (SocketError::soft(libc::EMSGSIZE), Count::Icmp6InPktTooBigs),
        (Type::TIME_EXCEEDED, _) => {
            (SocketError::soft(libc::EHOSTUNREACH), Count::Icmp6InTimeExcds)
        }
        (Type::PARAMETER_PROBLEM, _) => {
            (SocketError::hard(libc::EPROTO), Count::Icmp6InParmProblems)
        }
        (Type::UNREACHABLE, code) => {
            let error = match code {
                code::NO_ROUTE => SocketError::soft(libc::ENETUNREACH),
                code::PROHIBITED | code::SOURCE_POLICY | code::REJECT_ROUTE => {
                    SocketError::hard(libc::EACCES)
                }
                code::BEYOND_SCOPE | code::ADDRESS_UNREACHABLE => {
                    SocketError::soft(libc::EHOSTUNREACH)
                }
                code::PORT_UNREACHABLE => SocketError::hard(libc::ECONNREFUSED),
                _ => SocketError::hard(libc::EPROTO),
            };
            (error, Count::Icmp6InDestUnreachs)
        }
        // RFC 4443 section 2.4 (a): an error "of unknown type" goes to the upper layer as well.
        _ => (SocketError::soft(libc::EPROTO), Count::Icmp6InUnknownErrors),
    }
}
