//! Which local ports are taken, by Linux's rules (`udp_lib_get_port`, `inet_rcv_saddr_equal`): two sockets
//! may not share a port if their addresses are equal or one is the wildcard, unless both set
//! `SO_REUSEADDR`.

use super::random::Random;
use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddrV4},
    ops::RangeInclusive,
};

/// Ports for sockets that named none (`ip_local_port_range`).
pub const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

/// The sockets at one address of one port.
#[derive(Debug)]
struct Holders {
    address: Ipv4Addr,
    sockets: u32,
    /// Of these: without `SO_REUSEADDR`.
    exclusive: u32,
}

#[derive(Debug, Default)]
pub(super) struct Ports(HashMap<u16, Vec<Holders>>);

impl Ports {
    /// Whether `local` is taken for a socket that sets `SO_REUSEADDR` or not.
    pub(super) fn is_taken(&self, local: SocketAddrV4, reuse: bool) -> bool {
        let Some(holders) = self.0.get(&local.port()) else { return false };
        let any = Ipv4Addr::UNSPECIFIED;
        let meets =
            |h: &&Holders| *local.ip() == any || h.address == any || h.address == *local.ip();
        holders.iter().filter(meets).any(|holders| !reuse || holders.exclusive > 0)
    }

    pub(super) fn claim(&mut self, local: SocketAddrV4, reuse: bool) {
        let port = self.0.entry(local.port()).or_default();
        let exclusive = u32::from(!reuse);
        match port.iter_mut().find(|holders| holders.address == *local.ip()) {
            Some(holders) => {
                holders.sockets += 1;
                holders.exclusive += exclusive;
            }
            None => port.push(Holders { address: *local.ip(), sockets: 1, exclusive }),
        }
    }

    pub(super) fn release(&mut self, local: SocketAddrV4, reuse: bool) {
        let Some(port) = self.0.get_mut(&local.port()) else { return };
        if let Some(holders) = port.iter_mut().find(|holders| holders.address == *local.ip()) {
            holders.sockets -= 1;
            holders.exclusive -= u32::from(!reuse);
        }
        port.retain(|holders| holders.sockets > 0);
        if port.is_empty() {
            self.0.remove(&local.port());
        }
    }

    /// A free ephemeral port, hard to guess (RFC 6056 section 3.3.2: random, then the next ones).
    pub(super) fn ephemeral(&self, address: Ipv4Addr, reuse: bool, random: &Random) -> Option<u16> {
        let count = EPHEMERAL.end() - EPHEMERAL.start() + 1;
        let first = random.below(count.into()) as u16;
        (0..count)
            .map(|step| {
                EPHEMERAL.start() + ((u32::from(first) + u32::from(step)) % u32::from(count)) as u16
            })
            .find(|port| !self.is_taken(SocketAddrV4::new(address, *port), reuse))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddrV4 {
        text.parse().unwrap()
    }

    #[test]
    fn a_wildcard_meets_every_address() {
        let mut ports = Ports::default();
        ports.claim(at("10.0.0.1:7"), false);
        assert!(ports.is_taken(at("10.0.0.1:7"), true));
        assert!(ports.is_taken(at("0.0.0.0:7"), true));
        assert!(!ports.is_taken(at("10.0.0.2:7"), false));
        assert!(!ports.is_taken(at("10.0.0.1:8"), false));
        ports.release(at("10.0.0.1:7"), false);
        assert!(ports.0.is_empty());
    }

    #[test]
    fn a_port_is_shared_only_if_all_agree() {
        let mut ports = Ports::default();
        ports.claim(at("0.0.0.0:7"), true);
        assert!(ports.is_taken(at("0.0.0.0:7"), false));
        assert!(!ports.is_taken(at("0.0.0.0:7"), true));
        ports.claim(at("10.0.0.1:7"), true);
        ports.claim(at("0.0.0.0:7"), true);
        ports.release(at("0.0.0.0:7"), true);
        assert!(ports.is_taken(at("10.0.0.2:7"), false));
    }

    #[test]
    fn ephemeral_ports_are_scattered_and_run_out() {
        let (mut ports, random) = (Ports::default(), Random::new(1));
        let any = Ipv4Addr::UNSPECIFIED;
        let mut seen = Vec::new();
        while let Some(port) = ports.ephemeral(any, false, &random) {
            ports.claim(SocketAddrV4::new(any, port), false);
            seen.push(port);
        }
        assert!(seen.windows(2).take(100).filter(|w| w[1] == w[0] + 1).count() < 5);
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(EPHEMERAL));
    }
}
