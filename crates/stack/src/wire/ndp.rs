//! Neighbour discovery for IPv6 (RFC 4861).
//!
//! Owns the four messages a host needs and the rules by which one is believed. What is done about
//! them is inet's business. Redirects are not read: a host may ignore them, and they have been
//! good for little but misleading it.

use std::net::Ipv6Addr;

use super::checksum::Sum;
use super::icmpv6::{self, Type};
use super::{Error, MacAddr, Result, be32, ethernet, ip6, ipv6, put_ip6};

/// Bytes of a router solicitation with its sender's MAC address.
pub const ROUTER_SOLICITATION_LEN: usize = 16;
/// Bytes of a neighbour solicitation or advertisement with a MAC address.
pub const NEIGHBOR_LEN: usize = 32;
/// The hop limit of every message: no router has passed it on.
pub const HOP_LIMIT: u8 = 255;

/// A message that may be believed.
#[derive(Debug, Clone, Copy)]
pub enum Message<'a> {
    /// A host asks routers to introduce themselves.
    RouterSolicitation {
        /// The host's MAC address.
        source: Option<MacAddr>,
    },
    /// A router introduces itself.
    RouterAdvertisement(RouterAdvertisement<'a>),
    /// Somebody asks who has `target`.
    NeighborSolicitation {
        /// The address in question, not a group's.
        target: Ipv6Addr,
        /// The asker's MAC address; none while it is making sure its own address is free.
        source: Option<MacAddr>,
    },
    /// Somebody tells that it has `target`.
    NeighborAdvertisement {
        /// The address in question, not a group's.
        target: Ipv6Addr,
        /// Its MAC address.
        mac: Option<MacAddr>,
        /// The sender is a router.
        router: bool,
        /// It was asked.
        solicited: bool,
        /// What was known before is to be forgotten.
        overrides: bool,
    },
}

/// A router's introduction of itself (RFC 4861 section 4.2).
#[derive(Debug, Clone, Copy)]
pub struct RouterAdvertisement<'a> {
    /// The hop limit it recommends; 0 if none.
    pub hop_limit: u8,
    /// How long it is a default router, seconds; 0 if it is none.
    pub lifetime: u16,
    /// How long a neighbour counts as reachable, milliseconds; 0 if it does not say.
    pub reachable_time: u32,
    /// Between solicitations, milliseconds; 0 if it does not say.
    pub retransmission: u32,
    /// The router's MAC address.
    pub source: Option<MacAddr>,
    /// The MTU of the link, bytes. To be believed between [`ipv6::MIN_MTU`] and the link's own.
    pub mtu: Option<u32>,
    options: Options<'a>,
}

impl<'a> RouterAdvertisement<'a> {
    /// The prefixes it announces.
    pub fn prefixes(&self) -> impl Iterator<Item = Prefix> + use<'a> {
        self.options.filter(|o| o.kind() == option::PREFIX).filter_map(|o| o.prefix())
    }
}

/// A prefix a router announces (RFC 4861 section 4.6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// The prefix; bits beyond its length mean nothing.
    pub prefix: Ipv6Addr,
    /// Its length in bits, at most 128.
    pub len: u8,
    /// Addresses of it are on this link.
    pub on_link: bool,
    /// Hosts may make themselves addresses of it (RFC 4862).
    pub autonomous: bool,
    /// How long it is on the link, seconds; `u32::MAX` means for ever.
    pub valid: u32,
    /// How long addresses of it are to be preferred, seconds.
    pub preferred: u32,
}

mod option {
    pub const SOURCE_MAC: u8 = 1;
    pub const TARGET_MAC: u8 = 2;
    pub const PREFIX: u8 = 3;
    pub const MTU: u8 = 5;
}

/// One option, at least the 8 bytes it begins with.
#[derive(Debug, Clone, Copy)]
struct Opt<'a>(&'a [u8]);

impl Opt<'_> {
    fn kind(self) -> u8 {
        self.0[0]
    }

    /// Ethernet's form (RFC 2464 section 6): 8 bytes.
    fn mac(self) -> MacAddr {
        ethernet::mac(self.0, 2)
    }

    fn prefix(self) -> Option<Prefix> {
        let b = self.0;
        (b.len() >= 32 && b[2] <= 128).then(|| Prefix {
            prefix: ip6(b, 16),
            len: b[2],
            on_link: b[3] & 0x80 != 0,
            autonomous: b[3] & 0x40 != 0,
            valid: be32(b, 4),
            preferred: be32(b, 8),
        })
    }
}

/// Options that have been checked.
#[derive(Debug, Clone, Copy)]
struct Options<'a>(&'a [u8]);

impl<'a> Options<'a> {
    /// RFC 4861 section 4.6: "Nodes MUST silently discard an ND packet that contains an option
    /// with length zero."
    fn new_checked(bytes: &'a [u8]) -> Result<Options<'a>> {
        let mut rest = bytes;
        while let [_, units, ..] = *rest {
            if units == 0 {
                return Err(Error::BadLength);
            }
            rest = rest.get(usize::from(units) * 8..).ok_or(Error::Truncated)?;
        }
        if rest.is_empty() { Ok(Options(bytes)) } else { Err(Error::Truncated) }
    }

    fn mac(self, kind: u8) -> Option<MacAddr> {
        let mut of_kind = self.filter(|o| o.kind() == kind);
        of_kind.next().map(Opt::mac).filter(|mac| mac.is_unicast())
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Opt<'a>;

    fn next(&mut self) -> Option<Opt<'a>> {
        let units = *self.0.get(1)?;
        let (option, rest) = self.0.split_at_checked(usize::from(units) * 8)?;
        self.0 = rest;
        Some(Opt(option)).filter(|o| !o.0.is_empty())
    }
}

/// Reads a message whose checksum has been verified; `None` if it is of another kind.
///
/// # Errors
/// What RFC 4861 sections 6.1 and 7.1 want silently discarded: [`Error::BadValue`] if it has come
/// from beyond the link or contradicts itself, [`Error::Truncated`], [`Error::BadLength`].
pub fn parse<'a>(
    ip: &ipv6::Packet<&[u8]>,
    message: &icmpv6::Packet<&'a [u8]>,
) -> Result<Option<Message<'a>>> {
    let fixed = match message.kind() {
        Type::ROUTER_SOLICITATION => 0,
        Type::ROUTER_ADVERTISEMENT => 8,
        Type::NEIGHBOR_SOLICITATION | Type::NEIGHBOR_ADVERTISEMENT => 16,
        _ => return Ok(None),
    };
    // "The IP Hop Limit field has a value of 255, i.e., the packet could not possibly have been
    // forwarded by a router." "ICMP Code is 0."
    if ip.hop_limit() != HOP_LIMIT || message.code() != 0 {
        return Err(Error::BadValue);
    }
    let (body, options) = message.payload().split_at_checked(fixed).ok_or(Error::Truncated)?;
    let options = Options::new_checked(options)?;
    let unspecified = ip.src().is_unspecified();
    let source = options.mac(option::SOURCE_MAC);
    let first = message.rest();
    let good = |valid: bool| if valid { Ok(()) } else { Err(Error::BadValue) };
    Ok(Some(match message.kind() {
        Type::ROUTER_SOLICITATION => {
            // "If the IP source address is the unspecified address, there is no source link-layer
            // address option in the message."
            good(!unspecified || source.is_none())?;
            Message::RouterSolicitation { source }
        }
        Type::ROUTER_ADVERTISEMENT => {
            // "IP Source Address is a link-local address."
            good(ip.src().is_unicast_link_local())?;
            let mut of_kind = options.filter(|o| o.kind() == option::MTU);
            Message::RouterAdvertisement(RouterAdvertisement {
                hop_limit: (first >> 24) as u8,
                lifetime: first as u16,
                reachable_time: be32(body, 0),
                retransmission: be32(body, 4),
                source,
                mtu: of_kind.next().map(|o| be32(o.0, 4)),
                options,
            })
        }
        Type::NEIGHBOR_SOLICITATION => {
            let target = ip6(body, 0);
            // "If the IP source address is the unspecified address, the IP destination address is
            // a solicited-node multicast address", and no source MAC, as above.
            good(!target.is_multicast())?;
            good(!unspecified || source.is_none() && is_solicited_node(ip.dst()))?;
            Message::NeighborSolicitation { target, source }
        }
        _ => {
            let target = ip6(body, 0);
            let solicited = first & 1 << 30 != 0;
            // "If the IP Destination Address is a multicast address the Solicited flag is zero."
            good(!target.is_multicast())?;
            good(!(ip.dst().is_multicast() && solicited))?;
            Message::NeighborAdvertisement {
                target,
                mac: options.mac(option::TARGET_MAC),
                router: first & 1 << 31 != 0,
                solicited,
                overrides: first & 1 << 29 != 0,
            }
        }
    }))
}

fn is_solicited_node(address: Ipv6Addr) -> bool {
    address == ipv6::solicited_node(address)
}

/// Writes a router solicitation; `addresses` is the [`ipv6::address_sum`] of its packet. Returns
/// its length: 8 bytes without a MAC address, [`ROUTER_SOLICITATION_LEN`] with one.
///
/// # Errors
/// [`Error::Truncated`] if the buffer is shorter.
pub fn put_router_solicitation(
    buf: &mut [u8],
    addresses: Sum,
    source: Option<MacAddr>,
) -> Result<usize> {
    let mac = source.map(|mac| (option::SOURCE_MAC, mac));
    put(buf, addresses, Type::ROUTER_SOLICITATION, 0, None, mac)
}

/// Writes a neighbour solicitation that asks who has `target`. Returns its length: 24 bytes
/// without a MAC address, [`NEIGHBOR_LEN`] with one.
///
/// # Errors
/// [`Error::Truncated`] if the buffer is shorter.
pub fn put_neighbor_solicitation(
    buf: &mut [u8],
    addresses: Sum,
    target: Ipv6Addr,
    source: Option<MacAddr>,
) -> Result<usize> {
    let mac = source.map(|mac| (option::SOURCE_MAC, mac));
    put(buf, addresses, Type::NEIGHBOR_SOLICITATION, 0, Some(target), mac)
}

/// Writes a host's neighbour advertisement: `target` has `mac`. `solicited` if it answers one who
/// has an address, `overrides` if what was known before is to be forgotten. Returns its length,
/// [`NEIGHBOR_LEN`].
///
/// # Errors
/// [`Error::Truncated`] if the buffer is shorter.
pub fn put_neighbor_advertisement(
    buf: &mut [u8],
    addresses: Sum,
    target: Ipv6Addr,
    mac: MacAddr,
    solicited: bool,
    overrides: bool,
) -> Result<usize> {
    let flags = u32::from(solicited) << 30 | u32::from(overrides) << 29;
    let mac = Some((option::TARGET_MAC, mac));
    put(buf, addresses, Type::NEIGHBOR_ADVERTISEMENT, flags, Some(target), mac)
}

fn put(
    buf: &mut [u8],
    addresses: Sum,
    kind: Type,
    first: u32,
    target: Option<Ipv6Addr>,
    mac: Option<(u8, MacAddr)>,
) -> Result<usize> {
    let at = icmpv6::HEADER_LEN + if target.is_some() { 16 } else { 0 };
    let len = at + if mac.is_some() { 8 } else { 0 };
    let buf = buf.get_mut(..len).ok_or(Error::Truncated)?;
    if let Some(target) = target {
        put_ip6(buf, icmpv6::HEADER_LEN, target);
    }
    if let Some((option, mac)) = mac {
        buf[at] = option;
        buf[at + 1] = 1; // in units of 8 bytes
        buf[at + 2..].copy_from_slice(&mac.0);
    }
    icmpv6::Packet::init(buf, kind, 0, first)?.fill_checksum(addresses);
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::super::Protocol;
    use super::*;

    const A: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    const B: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    /// A packet around the message that `write` lays.
    fn packet(
        src: Ipv6Addr,
        dst: Ipv6Addr,
        write: impl FnOnce(&mut [u8], Sum) -> usize,
    ) -> Vec<u8> {
        let mut body = [0xee; 128];
        let len = write(&mut body, ipv6::address_sum(src, dst));
        let mut bytes = vec![0; ipv6::HEADER_LEN + len];
        let mut ip = ipv6::Packet::init(&mut bytes, src, dst, Protocol::ICMPV6, len).unwrap();
        ip.set_hop_limit(HOP_LIMIT);
        ip.payload_mut().copy_from_slice(&body[..len]);
        bytes
    }

    fn solicitation(src: Ipv6Addr, dst: Ipv6Addr, source: Option<MacAddr>) -> Vec<u8> {
        packet(src, dst, |b, sum| put_neighbor_solicitation(b, sum, B, source).unwrap())
    }

    fn advertisement(dst: Ipv6Addr, solicited: bool) -> Vec<u8> {
        packet(B, dst, |b, sum| {
            put_neighbor_advertisement(b, sum, B, MAC, solicited, true).unwrap()
        })
    }

    /// A router advertisement with these options.
    fn router(src: Ipv6Addr, options: &[u8]) -> Vec<u8> {
        packet(src, ipv6::ALL_NODES, |b, sum| {
            let len = 16 + options.len();
            let fixed = [0, 0, 0x75, 0x30, 0, 0, 3, 0xe8]; // reachable 30 s, retransmission 1 s
            b[8..16].copy_from_slice(&fixed);
            b[16..len].copy_from_slice(options);
            let first = 64 << 24 | 1800; // hop limit and lifetime
            icmpv6::Packet::init(&mut b[..len], Type::ROUTER_ADVERTISEMENT, 0, first)
                .unwrap()
                .fill_checksum(sum);
            len
        })
    }

    fn read(bytes: &[u8]) -> Result<Option<Message<'_>>> {
        let ip = ipv6::Packet::new_checked(bytes)?;
        let message = icmpv6::Packet::new_checked(ip.payload())?;
        message.verify_checksum(ip.address_sum())?;
        parse(&ip, &message)
    }

    /// What becomes of a good message after a change that keeps its checksum right.
    fn error(mut bytes: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Option<Error> {
        change(&mut bytes);
        let addresses = ipv6::Packet::new_checked(&bytes).unwrap().address_sum();
        icmpv6::Packet::new_checked(&mut bytes[40..]).unwrap().fill_checksum(addresses);
        read(&bytes).err()
    }

    #[test]
    fn who_has_an_address_and_the_answer() {
        let bytes = solicitation(A, ipv6::solicited_node(B), Some(MAC));
        let Ok(Some(Message::NeighborSolicitation { target, source })) = read(&bytes) else {
            panic!()
        };
        assert_eq!((target, source), (B, Some(MAC)));

        let bytes = advertisement(A, true);
        let Ok(Some(Message::NeighborAdvertisement { target, mac, router, solicited, overrides })) =
            read(&bytes)
        else {
            panic!()
        };
        assert_eq!((target, mac, router, solicited, overrides), (B, Some(MAC), false, true, true));
    }

    #[test]
    fn routers() {
        let ask =
            |mac| packet(A, ipv6::ALL_ROUTERS, |b, s| put_router_solicitation(b, s, mac).unwrap());
        let bytes = ask(Some(MAC));
        assert_eq!(bytes.len(), 40 + ROUTER_SOLICITATION_LEN);
        let Ok(Some(Message::RouterSolicitation { source })) = read(&bytes) else { panic!() };
        assert_eq!(source, Some(MAC));
        assert!(matches!(read(&ask(None)), Ok(Some(Message::RouterSolicitation { source: None }))));

        #[rustfmt::skip]
        let options = [
            1, 1, 2, 0, 0, 0, 0, 1,
            5, 1, 0, 0, 0, 0, 0x05, 0xdc,
            3, 4, 64, 0xc0, 0, 0, 0, 60, 0, 0, 0, 30, 0, 0, 0, 0,
            0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            3, 1, 64, 0xc0, 0, 0, 0, 60, // too short for a prefix
            200, 1, 0, 0, 0, 0, 0, 0,
        ];
        let bytes = router(A, &options);
        let Ok(Some(Message::RouterAdvertisement(ra))) = read(&bytes) else { panic!() };
        assert_eq!((ra.hop_limit, ra.lifetime), (64, 1800));
        assert_eq!((ra.reachable_time, ra.retransmission), (30_000, 1_000));
        assert_eq!((ra.source, ra.mtu), (Some(MAC), Some(1500)));
        let (prefix, len) = (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0), 64);
        let want =
            Prefix { prefix, len, on_link: true, autonomous: true, valid: 60, preferred: 30 };
        assert!(ra.prefixes().eq([want]));
        assert_eq!(
            read(&router(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), &[])).err(),
            Some(Error::BadValue)
        );
    }

    #[test]
    fn what_has_passed_a_router_is_not_believed() {
        let group = ipv6::solicited_node(B);
        let all = [
            solicitation(A, group, Some(MAC)),
            advertisement(A, true),
            router(A, &[]),
            packet(A, ipv6::ALL_ROUTERS, |b, s| put_router_solicitation(b, s, None).unwrap()),
        ];
        for bytes in all {
            assert_eq!(error(bytes.clone(), |_| ()), None);
            assert_eq!(error(bytes.clone(), |b| b[7] = 254), Some(Error::BadValue));
            assert_eq!(error(bytes, |b| b[41] = 1), Some(Error::BadValue)); // code
        }
    }

    #[test]
    fn the_rules_of_rfc_4861_section_7_1() {
        let nobody = Ipv6Addr::UNSPECIFIED;
        let group = ipv6::solicited_node(B);
        assert!(read(&solicitation(nobody, group, None)).is_ok());
        assert_eq!(read(&solicitation(nobody, group, Some(MAC))).err(), Some(Error::BadValue));
        assert_eq!(read(&solicitation(nobody, B, None)).err(), Some(Error::BadValue));
        let target_is_a_group = |b: &mut [u8]| b[48] = 0xff;
        assert_eq!(error(solicitation(A, group, None), target_is_a_group), Some(Error::BadValue));
        assert_eq!(error(advertisement(A, true), target_is_a_group), Some(Error::BadValue));
        assert!(read(&advertisement(ipv6::ALL_NODES, false)).is_ok());
        assert_eq!(read(&advertisement(ipv6::ALL_NODES, true)).err(), Some(Error::BadValue));
        let no_length = |b: &mut [u8]| b[65] = 0;
        assert_eq!(error(advertisement(A, true), no_length), Some(Error::BadLength));
        let too_long = |b: &mut [u8]| b[65] = 2;
        assert_eq!(error(advertisement(A, true), too_long), Some(Error::Truncated));
        // A group's MAC address is nobody's.
        let bytes = solicitation(A, group, Some(MacAddr::BROADCAST));
        let Ok(Some(Message::NeighborSolicitation { source, .. })) = read(&bytes) else { panic!() };
        assert_eq!(source, None);
    }

    #[test]
    fn short_messages_and_short_buffers() {
        let whole = solicitation(A, B, Some(MAC));
        for len in 48..whole.len() {
            let mut bytes = whole[..len].to_vec();
            bytes[5] = len as u8 - 40;
            let want = if len == 64 { None } else { Some(Error::Truncated) };
            assert_eq!(error(bytes, |_| ()), want, "{len}"); // at 64 there is no option
        }
        let sum = ipv6::address_sum(A, B);
        let mut buf = [0; NEIGHBOR_LEN - 1];
        let short = Err(Error::Truncated);
        assert_eq!(put_neighbor_advertisement(&mut buf, sum, B, MAC, true, true), short);
        assert_eq!(put_neighbor_solicitation(&mut buf, sum, B, Some(MAC)), short);
        assert_eq!(put_neighbor_solicitation(&mut buf, sum, B, None), Ok(24));
        assert_eq!(put_router_solicitation(&mut buf[..7], sum, None), short);
    }
}
