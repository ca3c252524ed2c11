//! Which local ports are taken, by Linux's rules (`udp_lib_get_port`, `inet_rcv_saddr_equal`): two sockets
//! may not share a port if their addresses are equal or one is the wildcard, unless both set
//! `SO_REUSEADDR`, or both `SO_REUSEPORT`.

use super::random::Random;
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    ops::RangeInclusive,
};

/// Ports for sockets that named none (`ip_local_port_range`).
pub const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

/// What a socket binds to, apart from the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// Never a mapped one: who binds to `::ffff:10.0.0.1` claims 10.0.0.1.
    pub(super) address: IpAddr,
    /// The address is `::`, and IPv4 is claimed as well.
    pub(super) dual: bool,
}

impl Claim {
    /// Of an address, with `IPV6_V6ONLY` or without.
    pub(super) fn new(address: IpAddr, only_v6: bool) -> Claim {
        let address = address.to_canonical();
        let dual = address == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && !only_v6;
        Claim { address, dual }
    }

    /// Whether two cannot have the same port each to itself (`inet_rcv_saddr_equal` with wildcards matching in
    /// net/ipv4/inet_connection_sock.c).
    pub(super) fn meets(&self, other: &Claim) -> bool {
        let (a, b) = (self.address, other.address);
        let both = a.is_ipv4() == b.is_ipv4() || self.dual || other.dual;
        both && (a == b || a.is_unspecified() || b.is_unspecified())
    }
}

/// With whom a socket shares its port: with others of the same flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sharing {
    /// `SO_REUSEADDR`.
    pub(super) address: bool,
    /// `SO_REUSEPORT`.
    pub(super) port: bool,
}

/// The sockets with one claim to one port.
#[derive(Debug)]
struct Holders {
    claim: Claim,
    sockets: u32,
    /// Of these: with `SO_REUSEADDR`.
    address: u32,
    /// Of these: with `SO_REUSEPORT`.
    port: u32,
}

impl Holders {
    fn share(&self, with: Sharing) -> bool {
        with.address && self.address == self.sockets || with.port && self.port == self.sockets
    }
}

#[derive(Debug, Default)]
pub(super) struct Ports(HashMap<u16, Vec<Holders>>);

impl Ports {
    /// Whether `port` is taken for a socket that shares it so.
    pub(super) fn is_taken(&self, claim: Claim, port: u16, sharing: Sharing) -> bool {
        let Some(holders) = self.0.get(&port) else { return false };
        let mut met = holders.iter().filter(|holders| holders.claim.meets(&claim));
        met.any(|holders| !holders.share(sharing))
    }

    pub(super) fn claim(&mut self, claim: Claim, port: u16, sharing: Sharing) {
        let port = self.0.entry(port).or_default();
        let (by_address, by_port) = (u32::from(sharing.address), u32::from(sharing.port));
        match port.iter_mut().find(|holders| holders.claim == claim) {
            Some(holders) => {
                holders.sockets += 1;
                holders.address += by_address;
                holders.port += by_port;
            }
            None => port.push(Holders { claim, sockets: 1, address: by_address, port: by_port }),
        }
    }

    pub(super) fn release(&mut self, claim: Claim, port: u16, sharing: Sharing) {
        let Some(holders) = self.0.get_mut(&port) else { return };
        if let Some(holders) = holders.iter_mut().find(|holders| holders.claim == claim) {
            holders.sockets -= 1;
            holders.address -= u32::from(sharing.address);
            holders.port -= u32::from(sharing.port);
        }
        holders.retain(|holders| holders.sockets > 0);
        if holders.is_empty() {
            self.0.remove(&port);
        }
    }

    /// A free ephemeral port, hard to guess (RFC 6056 section 3.3.2: random, then the next ones).
    pub(super) fn ephemeral(&self, claim: Claim, sharing: Sharing, random: &Random) -> Option<u16> {
        let count = EPHEMERAL.end() - EPHEMERAL.start() + 1;
        let first = random.below(count.into()) as u16;
        (0..count)
            .map(|step| {
                EPHEMERAL.start() + ((u32::from(first) + u32::from(step)) % u32::from(count)) as u16
            })
            .find(|port| !self.is_taken(claim, *port, sharing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Sharing = Sharing { address: false, port: false };
    const BY_ADDRESS: Sharing = Sharing { address: true, port: false };
    const BY_PORT: Sharing = Sharing { address: false, port: true };

    fn at(text: &str) -> Claim {
        Claim::new(text.parse().unwrap(), false)
    }

    #[test]
    fn a_wildcard_meets_every_address() {
        let mut ports = Ports::default();
        ports.claim(at("10.0.0.1"), 7, ALONE);
        assert!(ports.is_taken(at("10.0.0.1"), 7, BY_ADDRESS));
        assert!(ports.is_taken(at("0.0.0.0"), 7, BY_ADDRESS));
        assert!(!ports.is_taken(at("10.0.0.2"), 7, ALONE));
        assert!(!ports.is_taken(at("10.0.0.1"), 8, ALONE));
        ports.release(at("10.0.0.1"), 7, ALONE);
        assert!(ports.0.is_empty());
    }

    /// As tried on Linux: rows against columns.
    #[test]
    fn families_meet_in_the_dual_wildcard_alone() {
        let only = Claim::new("::".parse().unwrap(), true);
        let all =
            [at("10.0.0.1"), at("0.0.0.0"), at("fd00::1"), only, at("::"), at("::ffff:10.0.0.1")];
        let table = ["xx..xx", "xx..xx", "..xxx.", "..xxx.", "xxxxxx", "xx..xx"];
        for (a, row) in all.iter().zip(table) {
            for (b, mark) in all.iter().zip(row.chars()) {
                assert_eq!(a.meets(b), mark == 'x', "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn a_port_is_shared_only_if_all_agree() {
        let mut ports = Ports::default();
        ports.claim(at("0.0.0.0"), 7, BY_ADDRESS);
        assert!(ports.is_taken(at("0.0.0.0"), 7, ALONE));
        assert!(!ports.is_taken(at("0.0.0.0"), 7, BY_ADDRESS));
        ports.claim(at("10.0.0.1"), 7, BY_ADDRESS);
        ports.claim(at("0.0.0.0"), 7, BY_ADDRESS);
        ports.release(at("0.0.0.0"), 7, BY_ADDRESS);
        assert!(ports.is_taken(at("10.0.0.2"), 7, ALONE));
    }

    #[test]
    fn those_that_agree_agree_on_the_same_thing() {
        let mut ports = Ports::default();
        ports.claim(at("0.0.0.0"), 7, BY_PORT);
        assert!(ports.is_taken(at("0.0.0.0"), 7, BY_ADDRESS));
        assert!(!ports.is_taken(at("10.0.0.1"), 7, BY_PORT));
        let both = Sharing { address: true, port: true };
        ports.claim(at("0.0.0.0"), 7, both);
        ports.release(at("0.0.0.0"), 7, BY_PORT);
        assert!(!ports.is_taken(at("0.0.0.0"), 7, BY_ADDRESS));
        assert!(!ports.is_taken(at("0.0.0.0"), 7, BY_PORT));
        assert!(ports.is_taken(at("0.0.0.0"), 7, ALONE));
    }

    #[test]
    fn ephemeral_ports_are_scattered_and_run_out() {
        let (mut ports, random) = (Ports::default(), Random::new(1));
        let any = at("::");
        let mut seen = Vec::new();
        while let Some(port) = ports.ephemeral(any, ALONE, &random) {
            ports.claim(any, port, ALONE);
            seen.push(port);
        }
        assert!(seen.windows(2).take(100).filter(|w| w[1] == w[0] + 1).count() < 5);
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(EPHEMERAL));
    }
}
