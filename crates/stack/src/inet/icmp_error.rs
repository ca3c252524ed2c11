//! Parsed ICMP errors of either version: which conversation an error is about, whether to accept it, and which socket
//! gets it. Also the rate limit of the errors we send.

use super::{Inet, SocketError, UdpEndpoint, counters::Count, dad::needs_scope, random::Random};
use crate::{
    inet::Pass,
    time::Instant,
    wire::{
        Protocol,
        extension::{Content, Fragment},
        ipv4, ipv6, udp,
    },
};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

/// The rate per second and the burst of sent errors (Linux's `icmp_msgs_per_sec`, `icmp_msgs_burst`).
const RATE: u64 = 1000;
const BURST: u64 = 50;

/// A token bucket; an error costs one token on average.
///
/// All peers share the bucket. A peer that counts the errors it can still get must not learn whether others got any:
/// that would reveal open ports (CVE-2020-25705). So each error takes zero, one or two tokens at random
/// (`icmp_global_consume`).
#[derive(Debug, Default)]
pub(super) struct Limiter {
    /// The bucket has been filling since this time, in nanoseconds.
    empty: u64,
}

impl Limiter {
    pub(super) fn allow(&mut self, now: Instant, random: &Random) -> bool {
        const COST: u64 = 1_000_000_000 / RATE;
        let now = now.nanos().saturating_add(BURST * COST);
        let empty = self.empty.max(now - BURST * COST);
        let allowed = empty + COST <= now;
        if allowed {
            self.empty = (empty + u64::from(random.below(3)) * COST).min(now);
        }
        allowed
    }
}

/// The addresses and ports of the packet an error quotes: one of ours, if the error is valid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quoted<'a> {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// The first 8 bytes of a TCP segment; `None` for a UDP datagram.
    segment: Option<&'a [u8; 8]>,
}

impl<'a> Quoted<'a> {
    pub(super) fn is_segment(&self) -> bool {
        self.segment.is_some()
    }

    /// Parses a packet of either version, which may be cut short. `None` if it is neither UDP nor TCP, or is cut
    /// before the ports. `scope` is the scope id of link-local addresses.
    pub(super) fn new(packet: &'a [u8], scope: u32) -> Option<Quoted<'a>> {
        match ipv4::Packet::new_quoted(packet) {
            Ok(packet) => Quoted::v4(&packet),
            Err(_) => Quoted::v6(&ipv6::Packet::new_quoted(packet).ok()?, scope),
        }
    }

    pub(super) fn v4(packet: &ipv4::Packet<&'a [u8]>) -> Option<Quoted<'a>> {
        let first = packet.fragment_offset() == 0;
        let (head, is_segment) = head(packet.protocol(), packet.payload()).filter(|_| first)?;
        let (local, remote) = udp::ports(head).ok()?;
        Some(Quoted {
            local: SocketAddrV4::new(packet.src(), local).into(),
            remote: SocketAddrV4::new(packet.dst(), remote).into(),
            segment: is_segment.then_some(head),
        })
    }

    pub(super) fn v6(packet: &ipv6::Packet<&'a [u8]>, scope: u32) -> Option<Quoted<'a>> {
        let (protocol, data) = match packet.content().ok()? {
            Content::Whole(upper) => (upper.protocol, upper.payload),
            Content::Fragment(Fragment { offset: 0, next, data, .. }) => (next, data),
            Content::Fragment(_) => return None,
        };
        let (head, is_segment) = head(protocol, data)?;
        let (local, remote) = udp::ports(head).ok()?;
        let end = |address, port| {
            let scope = if needs_scope(address) { scope } else { 0 };
            SocketAddrV6::new(address, port, 0, scope).into()
        };
        Some(Quoted {
            local: end(packet.src(), local),
            remote: end(packet.dst(), remote),
            segment: is_segment.then_some(head),
        })
    }
}

/// The first bytes of a UDP datagram or a TCP segment, and whether it is TCP. RFC 792: "The internet header plus the
/// first 64 bits of the original datagram's data."
fn head(protocol: Protocol, data: &[u8]) -> Option<(&[u8; 8], bool)> {
    let known = matches!(protocol, Protocol::UDP | Protocol::TCP);
    data.first_chunk().filter(|_| known).map(|head| (head, protocol == Protocol::TCP))
}

impl Inet {
    /// Processes an error about `quoted`: if a socket may have sent that packet, counts the error and reports it to
    /// the socket. Returns whether it was accepted. `mtu` is the MTU the error reports, if any.
    pub(super) fn accept_icmp_error(
        &self,
        quoted: Option<Quoted<'_>>,
        (mut error, count): (SocketError, Count),
        mtu: Option<u32>,
        pass: &mut Pass,
    ) -> bool {
        let Some(quoted) = quoted.filter(|quoted| self.matches_a_socket(quoted)) else {
            return false;
        };
        self.counters.add(count);
        if error.errno == libc::EMSGSIZE {
            let destination = quoted.remote.ip();
            match self.pmtu.update(destination, mtu, pass.now) {
                Some(path_mtu) => {
                    error.mtu = Some(path_mtu.mtu);
                    self.invalidate_paths();
                    self.tick_by(Some(path_mtu.expires()));
                }
                None => error.mtu = self.pmtu.get(destination).map(|path_mtu| path_mtu.mtu),
            }
        }
        self.report_to_socket(&quoted, error, pass);
        true
    }

    /// Whether one of our sockets may have sent the quoted packet. Any host can send errors, so an error is
    /// accepted only for an existing conversation (RFC 5927 section 4.1).
    fn matches_a_socket(&self, quoted: &Quoted<'_>) -> bool {
        match quoted.segment {
            None => self.udp_find(quoted.local, quoted.remote, |_| ()).is_some(),
            Some(head) => self.tcp_has_sent(quoted.local, quoted.remote, head),
        }
    }

    /// Reports an error to the socket that sent the quoted packet.
    pub(super) fn report_to_socket(
        &self,
        quoted: &Quoted<'_>,
        error: SocketError,
        pass: &mut Pass,
    ) {
        let (local, remote) = (quoted.local, quoted.remote);
        match quoted.segment {
            None => {
                let report = |endpoint: &dyn UdpEndpoint| endpoint.error(error, remote, pass);
                self.udp_find(local, remote, report);
            }
            Some(head) => self.tcp_error(local, remote, head, error, pass),
        }
    }
}
