//! Which local ports are in use, by Linux's rules for TCP (net/ipv4/inet_connection_sock.c). Listeners, flows and
//! TIME_WAIT entries each hold a claim on their address and port. Equal claims are counted, not listed.

use super::tuple::Tuple;
use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
};

/// The kind of a claim: the options of its socket, and whether it listens. Bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind(u8);

impl Kind {
    const LISTENS: u8 = 1;
    const REUSE_ADDRESS: u8 = 2;
    const REUSE_PORT: u8 = 4;

    pub(super) fn new(reuse_address: bool, reuse_port: bool) -> Kind {
        Kind(
            u8::from(reuse_address) * Kind::REUSE_ADDRESS + u8::from(reuse_port) * Kind::REUSE_PORT,
        )
    }

    pub(super) fn listening(self) -> Kind {
        Kind(self.0 | Kind::LISTENS)
    }

    /// The kind of a connection made by a listener.
    pub(super) fn connected(self) -> Kind {
        Kind(self.0 & !Kind::LISTENS)
    }

    /// Whether a socket of this kind may join a socket of kind `other` at the same address and port
    /// (`inet_bind_conflict`): both set `SO_REUSEADDR` and the other does not listen, or both set `SO_REUSEPORT`.
    fn can_share_with(self, other: Kind) -> bool {
        let both = self.0 & other.0;
        (both & Kind::REUSE_ADDRESS != 0 && other.0 & Kind::LISTENS == 0)
            || both & Kind::REUSE_PORT != 0
    }
}

/// One claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    /// The first key of the order.
    pub(super) port: u16,
    /// `0.0.0.0` comes first in the order.
    pub(super) address: IpAddr,
    /// `IPV6_V6ONLY`: `::` does not include IPv4.
    pub(super) only_v6: bool,
    pub(super) kind: Kind,
    /// The port was chosen for one connection: others to other destinations may use it too.
    pub(super) chosen: bool,
}

/// A connection's claim, without what its 4-tuple contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowClaim {
    pub(super) kind: Kind,
    pub(super) chosen: bool,
}

impl FlowClaim {
    pub(super) fn of(self, tuple: &Tuple) -> Claim {
        let FlowClaim { kind, chosen } = self;
        let local = tuple.local();
        Claim { address: local.ip(), port: local.port(), only_v6: true, kind, chosen }
    }
}

impl Claim {
    /// Whether packets to `local` fall under this claim.
    pub(super) fn covers_local(&self, local: SocketAddr) -> bool {
        let at = Claim { address: local.ip(), port: local.port(), only_v6: true, ..*self };
        self.port == at.port && self.overlaps(&at)
    }

    /// Whether two claims cover the same packets (`inet_rcv_saddr_equal`).
    fn overlaps(&self, other: &Claim) -> bool {
        let covers = |wide: IpAddr, only_v6: bool, other: IpAddr| match wide {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => other.is_ipv4(),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => other.is_ipv6() || !only_v6,
            _ => wide == other,
        };
        covers(self.address, self.only_v6, other.address)
            || covers(other.address, other.only_v6, self.address)
    }
}

/// The number of each claim, in the order of ports. One more connection takes an entry of a tree node, or a count.
#[derive(Debug, Default)]
pub(super) struct Claims(BTreeMap<Claim, u32>);

impl Claims {
    /// The claims on `port`.
    fn on(&self, port: u16) -> impl Iterator<Item = &Claim> {
        let first = Claim {
            port,
            address: Ipv4Addr::UNSPECIFIED.into(),
            only_v6: false,
            kind: Kind::default(),
            chosen: false,
        };
        self.0.range(first..).map(|(claim, _)| claim).take_while(move |claim| claim.port == port)
    }

    /// Whether `claim`, by a `bind` or `listen`, conflicts with existing claims.
    pub(super) fn conflict(&self, claim: &Claim) -> bool {
        self.on(claim.port)
            .any(|other| claim.overlaps(other) && !claim.kind.can_share_with(other.kind))
    }

    /// Whether a socket listens where `claim` would be, for a port that the kernel has given us. Any other claim
    /// there belongs to a connection left by an earlier listener.
    pub(super) fn is_listened_at(&self, claim: &Claim) -> bool {
        let mut others = self.on(claim.port).filter(|other| other.kind.0 & Kind::LISTENS != 0);
        others.any(|other| claim.overlaps(other) && !claim.kind.can_share_with(other.kind))
    }

    /// Whether `port` may be chosen for a connection: no socket has named it (`__inet_hash_connect`).
    pub(super) fn can_choose(&self, port: u16) -> bool {
        self.on(port).all(|claim| claim.chosen)
    }

    pub(super) fn add(&mut self, claim: &Claim) {
        *self.0.entry(*claim).or_default() += 1;
    }

    /// Removes a claim that [`add`](Claims::add) was given.
    pub(super) fn remove(&mut self, claim: &Claim) {
        if let Entry::Occupied(mut count) = self.0.entry(*claim) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The ports of `range`, each once, from `offset` (modulo the length) on. Linux tries every second port first, to
/// leave room for `bind`; there the search among many connections takes long once half of the ports are used up.
pub(super) fn candidates(range: RangeInclusive<u16>, offset: u32) -> impl Iterator<Item = u16> {
    let (low, count) = (*range.start(), range.len().max(1) as u32);
    (0..count).map(move |n| low + ((offset % count + n) % count) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(address: &str, kind: Kind) -> Claim {
        let address = address.parse().unwrap();
        Claim { address, port: 7, only_v6: false, kind, chosen: false }
    }

    const PLAIN: Kind = Kind(0);
    const REUSE: Kind = Kind(Kind::REUSE_ADDRESS);
    const GROUP: Kind = Kind(Kind::REUSE_PORT);

    #[test]
    fn addresses_overlap_as_in_linux() {
        let mut claims = Claims::default();
        claims.add(&claim("10.0.0.1", PLAIN));
        for (address, only_v6, conflict) in [
            ("10.0.0.1", false, true),
            ("10.0.0.2", false, false),
            ("0.0.0.0", false, true),
            ("::", false, true),
            ("::", true, false),
            ("fd::1", false, false),
        ] {
            let new = Claim { only_v6, ..claim(address, PLAIN) };
            assert_eq!(claims.conflict(&new), conflict, "{address} {only_v6}");
        }
        claims.remove(&claim("10.0.0.1", PLAIN));
        assert!(claims.is_empty());
        claims.add(&claim("::", PLAIN));
        assert!(claims.conflict(&claim("10.0.0.9", PLAIN)));
        assert!(claims.conflict(&claim("fd::1", PLAIN)));
    }

    #[test]
    fn a_port_is_shared_by_linuxs_rules() {
        let listens = |kind: Kind| kind.listening();
        for (there, new, conflict) in [
            (PLAIN, PLAIN, true),
            (REUSE, PLAIN, true),
            (PLAIN, REUSE, true),
            (REUSE, REUSE, false),
            (listens(REUSE), REUSE, true),
            (listens(GROUP), GROUP, false),
            (listens(GROUP), REUSE, true),
            (GROUP, PLAIN, true),
        ] {
            let mut claims = Claims::default();
            claims.add(&claim("10.0.0.1", there));
            let got = claims.conflict(&claim("0.0.0.0", new));
            assert_eq!(got, conflict, "{there:?} then {new:?}");
        }
    }

    #[test]
    fn connections_left_by_a_listener_are_no_conflict_on_a_port_from_the_kernel() {
        let mut claims = Claims::default();
        claims.add(&claim("10.0.0.1", PLAIN));
        let new = claim("0.0.0.0", PLAIN.listening());
        assert!(claims.conflict(&new) && !claims.is_listened_at(&new));
        claims.add(&claim("10.0.0.1", GROUP.listening()));
        assert!(claims.is_listened_at(&new));
        assert!(!claims.is_listened_at(&claim("0.0.0.0", GROUP.listening())));
    }

    #[test]
    fn a_named_port_is_not_chosen_and_a_chosen_one_is_shared() {
        let mut claims = Claims::default();
        let chosen = Claim { chosen: true, ..claim("10.0.0.1", PLAIN) };
        claims.add(&chosen);
        assert!(claims.can_choose(7));
        claims.add(&chosen);
        claims.add(&claim("10.0.0.2", PLAIN));
        assert!(!claims.can_choose(7));
        claims.remove(&claim("10.0.0.2", PLAIN));
        assert!(claims.can_choose(7));
        claims.remove(&chosen);
        claims.remove(&chosen);
        assert!(claims.is_empty());
    }

    #[test]
    fn every_port_is_a_candidate_once() {
        for (range, offset) in [(10..=19, 7), (10..=20, u32::MAX), (5..=5, 3), (0..=u16::MAX, 1)] {
            let mut all: Vec<u16> = candidates(range.clone(), offset).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(range));
        }
    }
}
