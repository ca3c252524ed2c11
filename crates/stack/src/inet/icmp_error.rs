//! ICMP errors of either version, once they are read: about which conversation one is, whether it is believed, and
//! who is told. And the rate at which our own are sent.

use super::{Inet, SocketError, UdpEndpoint, counters::Count, dad::needs_scope, random::Random};
use crate::{
    napi::Pass,
    time::Instant,
    wire::{
        Protocol,
        extension::{Content, Fragment},
        ipv4, ipv6, udp,
    },
};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

/// Errors sent per second, and at once (Linux's `icmp_msgs_per_sec`, `icmp_msgs_burst`).
const RATE: u64 = 1000;
const BURST: u64 = 50;

/// A bucket of tokens, one per error on average.
///
/// It is everybody's, so who counts the errors that are left to him must not learn from it whether others have drawn
/// any, which would show what ports are open to whom (CVE-2020-25705): each error takes none, one or two, at random
/// (`icmp_global_consume`).
#[derive(Debug, Default)]
pub(super) struct Limiter {
    /// When the bucket would have been empty, in nanoseconds.
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

/// A packet of ours that an error quotes, as far as it says who talked to whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quoted<'a> {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// Of a segment the head; of a datagram nothing.
    segment: Option<&'a [u8; 8]>,
}

impl<'a> Quoted<'a> {
    pub(super) fn is_segment(&self) -> bool {
        self.segment.is_some()
    }

    /// Of a packet of either version, perhaps cut short; `None` if it is of no socket's protocol, or does not
    /// reach to the ports. Link-local addresses are meant on the interface `scope`.
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

/// The first bytes of a datagram or a segment, and whether it is the latter. RFC 792: "The internet header plus the
/// first 64 bits of the original datagram's data."
fn head(protocol: Protocol, data: &[u8]) -> Option<(&[u8; 8], bool)> {
    let known = matches!(protocol, Protocol::UDP | Protocol::TCP);
    data.first_chunk().filter(|_| known).map(|head| (head, protocol == Protocol::TCP))
}

impl Inet {
    /// An error about `quoted` has come: if it is believed, counts it and tells the socket. `mtu`: what the path
    /// takes, if the error is about that.
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

    /// Whether a socket of ours may have sent the packet an error quotes. Anybody can send errors: one is
    /// believed only about a conversation there is (RFC 5927 section 4.1).
    fn matches_a_socket(&self, quoted: &Quoted<'_>) -> bool {
        match quoted.segment {
            None => self.udp_find(quoted.local, quoted.remote, |_| ()).is_some(),
            Some(head) => self.tcp_has_sent(quoted.local, quoted.remote, head),
        }
    }

    /// Tells the socket that has sent a packet what became of it.
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
