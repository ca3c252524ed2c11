//! An interface's own IPv6 addresses, their state in duplicate address detection, and source address selection.

use super::cidr::common_prefix;
use crate::{
    sync::{AtomicU32, Ordering},
    wire::{MacAddr, ipv6},
};
use std::net::Ipv6Addr;

/// The states of duplicate address detection (RFC 4862 section 5.4). A tentative address may be used, as an optimistic
/// one (RFC 4429): duplicates are rare, and waiting a second would delay every start.
const TENTATIVE: u32 = 0;
const UNIQUE: u32 = 1;
const DUPLICATE: u32 = 2;

/// One of an interface's own IPv6 addresses (the kernel's `inet6_ifaddr`).
#[derive(Debug)]
pub(super) struct IfAddr6 {
    pub(super) address: Ipv6Addr,
    pub(super) prefix: u8,
    /// The address's solicited-node multicast group.
    pub(super) solicited_node: Ipv6Addr,
    state: AtomicU32,
}

impl IfAddr6 {
    pub(super) fn new(address: Ipv6Addr, prefix: u8) -> IfAddr6 {
        let solicited_node = ipv6::solicited_node(address);
        IfAddr6 { address, prefix, solicited_node, state: AtomicU32::new(TENTATIVE) }
    }

    /// Whether it may be used: it is not a duplicate.
    #[inline]
    pub(super) fn is_usable(&self) -> bool {
        self.state.load(Ordering::Acquire) != DUPLICATE
    }

    pub(super) fn is_tentative(&self) -> bool {
        self.state.load(Ordering::Acquire) == TENTATIVE
    }

    /// No host has answered the probe.
    pub(super) fn dad_passed(&self) {
        let _ = self.change(UNIQUE);
    }

    /// Another host has the address. True if it was tentative until now.
    pub(super) fn dad_failed(&self) -> bool {
        self.change(DUPLICATE)
    }

    fn change(&self, to: u32) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        self.state.compare_exchange(TENTATIVE, to, success, failure).is_ok()
    }

    pub(super) fn contains(&self, address: Ipv6Addr) -> bool {
        common_prefix(self.address, address) >= self.prefix.into()
    }
}

/// The link-local address of the interface with this MAC address (RFC 2464 sections 4 and 5).
pub(super) fn link_local(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0.map(u16::from);
    let words = [(a ^ 2) << 8 | b, c << 8 | 0xff, 0xfe00 | d, e << 8 | f];
    Ipv6Addr::new(0xfe80, 0, 0, 0, words[0], words[1], words[2], words[3])
}

/// Whether an address is valid on one link only and needs a scope id.
pub(super) fn needs_scope(address: Ipv6Addr) -> bool {
    scope(address) <= 2 && !address.is_loopback()
}

/// RFC 6724 section 3.1: link-local 2, site-local 5, global 14; of a group, its scope field (RFC 4291 section 2.7).
fn scope(address: Ipv6Addr) -> u8 {
    let first = address.segments()[0];
    match first {
        0xff00.. => (first & 0xf) as u8,
        0xfe80..=0xfebf => 2,
        0xfec0..=0xfeff => 5,
        _ if address.is_loopback() => 2,
        _ => 14,
    }
}

/// RFC 6724 section 2.1, the default policy table.
fn label(address: Ipv6Addr) -> u8 {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => 0,
        [0, 0, 0, 0, 0, 0xffff, ..] => 4,
        [0, 0, 0, 0, 0, 0, ..] => 3,
        [0x2002, ..] => 2,
        [0x2001, 0, ..] => 5,
        [0xfc00..=0xfdff, ..] => 13,
        [0xfec0..=0xfeff, ..] => 11,
        [0x3ffe, ..] => 12,
        _ => 1,
    }
}

/// The source address for a packet to `destination` (RFC 6724 section 5: rules 1, 2, 6 and 8; there are no deprecated,
/// temporary or home addresses here, and all candidates belong to the outgoing interface).
pub(super) fn source<'a>(
    own: impl DoubleEndedIterator<Item = &'a IfAddr6>,
    destination: Ipv6Addr,
) -> Option<Ipv6Addr> {
    let rank = |own: &&IfAddr6| {
        let (ours, theirs) = (scope(own.address), scope(destination));
        // The smallest scope that reaches the destination; if none does, the largest.
        let reaches = ours >= theirs;
        let reach = if reaches { 16 - ours } else { ours };
        let near = common_prefix(own.address, destination).min(own.prefix.into());
        let same = label(own.address) == label(destination);
        (own.address == destination, reaches, reach, same, near)
    };
    // `max_by_key` returns the last of equals, so the order is reversed for the first to win.
    own.rev().filter(|own| own.is_usable()).max_by_key(rank).map(|own| own.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(own: &[&str], destination: &str) -> String {
        let own: Vec<_> = own.iter().map(|text| IfAddr6::new(text.parse().unwrap(), 64)).collect();
        source(own.iter(), destination.parse().unwrap()).unwrap().to_string()
    }

    /// The examples of RFC 6724 section 10.1 that use address types this stack has.
    #[test]
    fn sources_are_chosen_by_rfc_6724() {
        let cases: [(&[&str], &str, &str); 8] = [
            (&["2001:db8:3::1", "fe80::1"], "2001:db8:1::1", "2001:db8:3::1"),
            (&["2001:db8:3::1", "fe80::1"], "ff05::1", "2001:db8:3::1"),
            (&["2001:db8:1::1", "2001:db8:2::1"], "2001:db8:1::1", "2001:db8:1::1"),
            (&["fe80::1", "2001:db8:2::1"], "fe80::2", "fe80::1"),
            (&["2001:db8:2::1", "fe80::1"], "ff02::1", "fe80::1"),
            (&["2001:db8:1::2", "2001:db8:3::2"], "2001:db8:3::1", "2001:db8:3::2"),
            (
                &["2002:c633:6401::d5e3", "2001:db8:1::2"],
                "2002:c633:6401::1",
                "2002:c633:6401::d5e3",
            ),
            (&["2001:db8::1", "fd00::1"], "fd77::1", "fd00::1"),
        ];
        for (own, destination, source) in cases {
            assert_eq!(chosen(own, destination), source, "{own:?} to {destination}");
        }
        assert_eq!(
            chosen(&["fd00::1", "fd00::2"], "fd77::1"),
            "fd00::1",
            "the first of equals wins"
        );
    }

    #[test]
    fn a_duplicate_address_is_not_used() {
        let own = [IfAddr6::new("fd00::1".parse().unwrap(), 64)];
        assert!(own[0].dad_failed() && !own[0].dad_failed());
        assert_eq!(source(own.iter(), "fd00::2".parse().unwrap()), None);
    }

    #[test]
    fn a_link_local_address_is_derived_from_the_mac_address() {
        // RFC 2464 section 4's example.
        let mac = MacAddr([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
        assert_eq!(link_local(mac).to_string(), "fe80::3656:78ff:fe9a:bcde");
    }
}
