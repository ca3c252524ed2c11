//! ICMP for IPv4: replies to pings, errors about packets we cannot deliver, and received errors, which go to their
//! sockets.

use super::{
    Inet, SocketError,
    counters::Count,
    icmp_error::Quoted,
    input::{Arrival, Cast, Inbound4},
};
use crate::{
    inet::Pass,
    sync::lock,
    wire::{
        Protocol,
        icmp::{self, Type, code},
        ipv4,
    },
};
use std::net::Ipv4Addr;

/// The longest IP packet of an error, bytes (RFC 1812 section 4.3.2.3).
const MAX_ERROR: usize = 576;

impl Inet {
    /// Processes an ICMP message in an IP packet that is for us.
    #[cold]
    pub(super) fn icmp_input(
        &self,
        arrival: &Arrival<'_>,
        packet: Inbound4<'_>,
        cast: Cast,
        pass: &mut Pass,
    ) {
        self.counters.add(Count::IcmpInMsgs);
        let message = match icmp::Packet::new_checked(packet.payload()) {
            Ok(message) if message.verify_checksum().is_ok() => message,
            Ok(_) => {
                self.counters.add(Count::IcmpInCsumErrors);
                return self.counters.add(Count::IcmpInErrors);
            }
            Err(_) => return self.counters.add(Count::IcmpInErrors),
        };
        match message.kind() {
            Type::ECHO_REQUEST => {
                self.counters.add(Count::IcmpInEchos);
                // RFC 1122 section 3.2.2.6: an echo request to a broadcast or multicast address "MAY be silently
                // discarded", as Linux does.
                let shared = arrival.iface.is_some_and(|iface| iface.kernel().is_some());
                if cast == Cast::Unicast && !shared {
                    self.echo_reply(arrival, packet, pass);
                }
            }
            kind if kind.is_error() => self.icmp_error(packet.dst(), message, pass),
            // RFC 1122 section 3.2.2: "If an ICMP message of unknown type is received, it MUST be silently
            // discarded." Echo replies are dropped as there are no raw sockets.
            _ => {}
        }
    }

    fn echo_reply(&self, arrival: &Arrival<'_>, packet: Inbound4<'_>, pass: &mut Pass) {
        // RFC 1122 section 3.2.2.6: the reply's source is the pinged address, its data that of the request.
        let to = (packet.dst(), packet.src(), Protocol::ICMP);
        let message = packet.payload();
        let sent = self.output(to, message.len(), arrival.queue, pass, |room| {
            room.copy_from_slice(message);
            if let Ok(mut reply) = icmp::Packet::new_checked(room) {
                reply.turn_into_reply();
            }
        });
        if sent {
            self.counters.add(Count::IcmpOutEchoReps);
        }
    }

    /// Processes an ICMP error that the kernel received: an IPv4 packet as a raw socket returns it. A message
    /// that is no error, or quotes no packet of our sockets, is counted and has no effect.
    pub fn icmp_error_input(&self, packet: &[u8], pass: &mut Pass) {
        let packet = match ipv4::Packet::new_checked(packet) {
            Ok(packet) => packet,
            Err(error) => return self.malformed(error),
        };
        if packet.protocol() != Protocol::ICMP || packet.is_fragment() {
            return;
        }
        self.counters.add(Count::IcmpInMsgs);
        match icmp::Packet::new_checked(packet.payload()) {
            Ok(message) if message.verify_checksum().is_err() => {
                self.counters.add(Count::IcmpInCsumErrors);
                self.counters.add(Count::IcmpInErrors);
            }
            Ok(message) if message.kind().is_error() => {
                self.icmp_error(packet.dst(), message, pass);
            }
            Ok(_) => {}
            Err(_) => self.counters.add(Count::IcmpInErrors),
        }
    }

    /// Processes an error sent to `local`, one of our addresses.
    fn icmp_error(&self, local: Ipv4Addr, message: icmp::Packet<&[u8]>, pass: &mut Pass) {
        let accepted = message.quoted().is_ok_and(|quoted| {
            // RFC 1122 section 3.2.2: errors go to the source of the quoted packet.
            let quoted = Quoted::v4(&quoted).filter(|_| quoted.src() == local);
            let mtu = message.next_hop_mtu().map(u32::from);
            self.accept_icmp_error(quoted, to_socket_error(message), mtu, pass)
        });
        if !accepted {
            self.counters.add(Count::IcmpInErrors);
        }
    }

    #[cold]
    pub(super) fn icmp_port_unreachable(
        &self,
        arrival: &Arrival<'_>,
        packet: Inbound4<'_>,
        pass: &mut Pass,
    ) {
        self.unreachable(arrival, packet, code::PORT_UNREACHABLE, pass);
    }

    #[cold]
    pub(super) fn icmp_protocol_unreachable(
        &self,
        arrival: &Arrival<'_>,
        packet: Inbound4<'_>,
        pass: &mut Pass,
    ) {
        self.unreachable(arrival, packet, code::PROTOCOL_UNREACHABLE, pass);
    }

    fn unreachable(&self, arrival: &Arrival<'_>, packet: Inbound4<'_>, code: u8, pass: &mut Pass) {
        // On a shared interface the kernel sends the errors. RFC 1122 section 3.2.2: "An ICMP error message MUST
        // NOT be sent as the result of receiving: [...] a datagram destined to an IP broadcast or IP multicast
        // address; a datagram sent as a link-layer broadcast".
        let shared = arrival.iface.is_some_and(|iface| iface.kernel().is_some());
        if shared || !arrival.to_us || !self.is_ours(packet.dst()) {
            return;
        }
        if self.send_error((Type::UNREACHABLE, code), packet, arrival.queue, pass) {
            self.counters.add(Count::IcmpOutDestUnreachs);
        }
    }

    /// Sends an error about `packet`, which was sent to one of our addresses, to its sender. Returns whether it
    /// was sent.
    pub(super) fn send_error(
        &self,
        (kind, code): (Type, u8),
        packet: Inbound4<'_>,
        queue: u32,
        pass: &mut Pass,
    ) -> bool {
        // RFC 1122 section 3.2.2, continued: nor "an ICMP error message" or "a non-initial fragment". Packets
        // whose source is not a single host were dropped on receive.
        let about_icmp = packet.protocol() == Protocol::ICMP;
        if about_icmp || packet.fragment_offset() > 0 {
            return false;
        }
        if !lock(&self.limiter).allow(pass.now, &self.random) {
            self.counters.add(Count::IcmpOutRateLimited);
            return false;
        }
        // RFC 1812 section 4.3.2.3: "as much of the original datagram as possible" in 576 bytes.
        let quote = packet.bytes();
        let room = MAX_ERROR - ipv4::HEADER_LEN - icmp::HEADER_LEN;
        let len = icmp::HEADER_LEN + quote.len().min(room);
        let to = (packet.dst(), packet.src(), Protocol::ICMP);
        self.output(to, len, queue, pass, |room| {
            // There is room for a header and 8 bytes of the quote: this cannot fail.
            let _ = icmp::Packet::init_error(room, kind, code, 0, quote);
        })
    }

    fn is_ours(&self, address: Ipv4Addr) -> bool {
        address.is_loopback() || self.topology().has_own_address(address.into())
    }
}

/// The socket error for an ICMP error: Linux's `icmp_err_convert`, and `__udp4_lib_err` for the other types.
fn to_socket_error(message: icmp::Packet<&[u8]>) -> (SocketError, Count) {
    let error = match (message.kind(), message.code()) {
        (Type::TIME_EXCEEDED, _) => {
            return (SocketError::soft(libc::EHOSTUNREACH), Count::IcmpInTimeExcds);
        }
        (Type::PARAMETER_PROBLEM, _) => {
            return (SocketError::hard(libc::EPROTO), Count::IcmpInParmProbs);
        }
        (_, code::NET_UNREACHABLE | 11) => SocketError::soft(libc::ENETUNREACH),
        (_, code::HOST_UNREACHABLE | 12) => SocketError::soft(libc::EHOSTUNREACH),
        (_, code::PROTOCOL_UNREACHABLE) => SocketError::hard(libc::ENOPROTOOPT),
        (_, code::PORT_UNREACHABLE) => SocketError::hard(libc::ECONNREFUSED),
        (_, code::FRAGMENTATION_NEEDED) => SocketError::soft(libc::EMSGSIZE),
        // Source route failed (RFC 792).
        (_, 5) => SocketError::soft(libc::EOPNOTSUPP),
        // Destination network unknown; network prohibited (RFC 1122 section 3.2.2.1).
        (_, 6 | code::NET_PROHIBITED) => SocketError::hard(libc::ENETUNREACH),
        // Destination host unknown; source host isolated.
        (_, 7) => SocketError::hard(libc::EHOSTDOWN),
        (_, 8) => SocketError::hard(libc::ENONET),
        _ => SocketError::hard(libc::EHOSTUNREACH),
    };
    (error, Count::IcmpInDestUnreachs)
}
