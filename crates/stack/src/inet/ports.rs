//! Which local UDP ports are taken, by Linux's rules (`udp_lib_get_port`, `inet_rcv_saddr_equal`): two sockets
//! may not share a port if their addresses are equal or one is the wildcard, unless both set
//! `SO_REUSEADDR`, or both `SO_REUSEPORT`.

use super::random::Random;
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    ops::RangeInclusive,
};

/// The ports for sockets bound to port 0 (`ip_local_port_range`).
pub const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

/// What a socket binds to, apart from the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BindAddress {
    /// Never an IPv4-mapped address: a bind to `::ffff:10.0.0.1` is one to 10.0.0.1.
    pub(super) address: IpAddr,
    /// The address is `::`, and the socket takes the IPv4 port as well.
    pub(super) dual: bool,
}

impl BindAddress {
    /// The bind address of a socket, with or without `IPV6_V6ONLY`.
    pub(super) fn new(address: IpAddr, only_v6: bool) -> BindAddress {
        let address = address.to_canonical();
        let dual = address == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && !only_v6;
        BindAddress { address, dual }
    }

    /// Whether two sockets with these addresses need a reuse option for the same port (`inet_rcv_saddr_equal` with
    /// `match_wildcard` in net/ipv4/inet_connection_sock.c).
    pub(super) fn conflicts_with(&self, other: &BindAddress) -> bool {
        let (a, b) = (self.address, other.address);
        let both = a.is_ipv4() == b.is_ipv4() || self.dual || other.dual;
        both && (a == b || a.is_unspecified() || b.is_unspecified())
    }
}

/// The reuse options of a socket: it shares its port with sockets that have the same option set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reuse {
    /// `SO_REUSEADDR`.
    pub(super) address: bool,
    /// `SO_REUSEPORT`.
    pub(super) port: bool,
}

/// The sockets bound to one address on one port.
#[derive(Debug)]
struct BindBucket {
    address: BindAddress,
    sockets: u32,
    /// Of these: with `SO_REUSEADDR`.
    reuse_address: u32,
    /// Of these: with `SO_REUSEPORT`.
    reuse_port: u32,
}

impl BindBucket {
    fn shares_with(&self, with: Reuse) -> bool {
        with.address && self.reuse_address == self.sockets
            || with.port && self.reuse_port == self.sockets
    }
}

#[derive(Debug, Default)]
pub(super) struct Ports(HashMap<u16, Vec<BindBucket>>);

impl Ports {
    /// Whether `port` is taken for a socket with these reuse options.
    pub(super) fn is_taken(&self, address: BindAddress, port: u16, reuse: Reuse) -> bool {
        let Some(buckets) = self.0.get(&port) else { return false };
        let mut conflicts = buckets.iter().filter(|bucket| bucket.address.conflicts_with(&address));
        conflicts.any(|bucket| !bucket.shares_with(reuse))
    }

    pub(super) fn add(&mut self, address: BindAddress, port: u16, reuse: Reuse) {
        let port = self.0.entry(port).or_default();
        let (by_address, by_port) = (u32::from(reuse.address), u32::from(reuse.port));
        match port.iter_mut().find(|bucket| bucket.address == address) {
            Some(bucket) => {
                bucket.sockets += 1;
                bucket.reuse_address += by_address;
                bucket.reuse_port += by_port;
            }
            None => port.push(BindBucket {
                address,
                sockets: 1,
                reuse_address: by_address,
                reuse_port: by_port,
            }),
        }
    }

    pub(super) fn remove(&mut self, address: BindAddress, port: u16, reuse: Reuse) {
        let Some(buckets) = self.0.get_mut(&port) else { return };
        if let Some(bucket) = buckets.iter_mut().find(|bucket| bucket.address == address) {
            bucket.sockets -= 1;
            bucket.reuse_address -= u32::from(reuse.address);
            bucket.reuse_port -= u32::from(reuse.port);
        }
        buckets.retain(|bucket| bucket.sockets > 0);
        if buckets.is_empty() {
            self.0.remove(&port);
        }
    }

    /// A free ephemeral port, unpredictable (RFC 6056 section 3.3.2: a random start, then the next ones).
    pub(super) fn ephemeral(
        &self,
        address: BindAddress,
        reuse: Reuse,
        random: &Random,
    ) -> Option<u16> {
        let count = EPHEMERAL.end() - EPHEMERAL.start() + 1;
        let first = random.below(count.into()) as u16;
        (0..count)
            .map(|step| {
                EPHEMERAL.start() + ((u32::from(first) + u32::from(step)) % u32::from(count)) as u16
            })
            .find(|port| !self.is_taken(address, *port, reuse))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXCLUSIVE: Reuse = Reuse { address: false, port: false };
    const BY_ADDRESS: Reuse = Reuse { address: true, port: false };
    const BY_PORT: Reuse = Reuse { address: false, port: true };

    fn at(text: &str) -> BindAddress {
        BindAddress::new(text.parse().unwrap(), false)
    }

    #[test]
    fn a_wildcard_conflicts_with_every_address() {
        let mut ports = Ports::default();
        ports.add(at("10.0.0.1"), 7, EXCLUSIVE);
        assert!(ports.is_taken(at("10.0.0.1"), 7, BY_ADDRESS));
        assert!(ports.is_taken(at("0.0.0.0"), 7, BY_ADDRESS));
        assert!(!ports.is_taken(at("10.0.0.2"), 7, EXCLUSIVE));
        assert!(!ports.is_taken(at("10.0.0.1"), 8, EXCLUSIVE));
        ports.remove(at("10.0.0.1"), 7, EXCLUSIVE);
        assert!(ports.0.is_empty());
    }

    /// The results of Linux: the row's address is bound first, then the column's.
    #[test]
    fn families_conflict_only_through_a_dual_stack_wildcard() {
        let only = BindAddress::new("::".parse().unwrap(), true);
        let all =
            [at("10.0.0.1"), at("0.0.0.0"), at("fd00::1"), only, at("::"), at("::ffff:10.0.0.1")];
        let table = ["xx..xx", "xx..xx", "..xxx.", "..xxx.", "xxxxxx", "xx..xx"];
        for (a, row) in all.iter().zip(table) {
            for (b, mark) in all.iter().zip(row.chars()) {
                assert_eq!(a.conflicts_with(b), mark == 'x', "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn a_port_is_shared_only_if_all_sockets_set_so_reuseaddr() {
        let mut ports = Ports::default();
        ports.add(at("0.0.0.0"), 7, BY_ADDRESS);
        assert!(ports.is_taken(at("0.0.0.0"), 7, EXCLUSIVE));
        assert!(!ports.is_taken(at("0.0.0.0"), 7, BY_ADDRESS));
        ports.add(at("10.0.0.1"), 7, BY_ADDRESS);
        ports.add(at("0.0.0.0"), 7, BY_ADDRESS);
        ports.remove(at("0.0.0.0"), 7, BY_ADDRESS);
        assert!(ports.is_taken(at("10.0.0.2"), 7, EXCLUSIVE));
    }

    #[test]
    fn so_reuseaddr_does_not_share_with_so_reuseport() {
        let mut ports = Ports::default();
        ports.add(at("0.0.0.0"), 7, BY_PORT);
        assert!(ports.is_taken(at("0.0.0.0"), 7, BY_ADDRESS));
        assert!(!ports.is_taken(at("10.0.0.1"), 7, BY_PORT));
        let both = Reuse { address: true, port: true };
        ports.add(at("0.0.0.0"), 7, both);
        ports.remove(at("0.0.0.0"), 7, BY_PORT);
        assert!(!ports.is_taken(at("0.0.0.0"), 7, BY_ADDRESS));
        assert!(!ports.is_taken(at("0.0.0.0"), 7, BY_PORT));
        assert!(ports.is_taken(at("0.0.0.0"), 7, EXCLUSIVE));
    }

    #[test]
    fn ephemeral_ports_are_random_and_all_of_them_are_used() {
        let (mut ports, random) = (Ports::default(), Random::new(1));
        let any = at("::");
        let mut seen = Vec::new();
        while let Some(port) = ports.ephemeral(any, EXCLUSIVE, &random) {
            ports.add(any, port, EXCLUSIVE);
            seen.push(port);
        }
        assert!(seen.windows(2).take(100).filter(|w| w[1] == w[0] + 1).count() < 5);
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(EPHEMERAL));
    }
}
