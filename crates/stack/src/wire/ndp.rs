//! Neighbour discovery for IPv6 (RFC 4861).
//!
//! Owns the two messages of neighbour discovery and the rules for accepting them. Inet acts on them. Router
//! advertisements are not parsed: the user configures routes. Redirects are not parsed: a host may ignore them, and
//! they serve attackers more than hosts.

use std::net::Ipv6Addr;

use super::checksum::Sum;
use super::icmpv6::{self, Type};
use super::{Error, MacAddr, Result, ethernet, ip6, ipv6, put_ip6};

/// Bytes of a neighbour solicitation or advertisement with a MAC address.
pub const NEIGHBOR_LEN: usize = 32;
/// The hop limit of every message, which shows that no router has forwarded it.
pub const HOP_LIMIT: u8 = 255;

/// A message that has passed the checks.
#[derive(Debug, Clone, Copy)]
pub enum Message {
    /// A host requests the MAC address of `target`.
    NeighborSolicitation {
        /// The address in question, never multicast.
        target: Ipv6Addr,
        /// The sender's MAC address; none in duplicate address detection.
        source: Option<MacAddr>,
    },
    /// A host announces that it has `target`.
    NeighborAdvertisement {
        /// The address in question, never multicast.
        target: Ipv6Addr,
        /// Its MAC address.
        mac: Option<MacAddr>,
        /// The sender is a router.
        router: bool,
        /// The message answers a solicitation.
        solicited: bool,
        /// The message overrides an existing entry.
        overrides: bool,
    },
}

mod option {
    pub const SOURCE_MAC: u8 = 1;
    pub const TARGET_MAC: u8 = 2;
}

/// One option, at least 8 bytes long.
#[derive(Debug, Clone, Copy)]
struct Opt<'a>(&'a [u8]);

impl Opt<'_> {
    fn kind(self) -> u8 {
        self.0[0]
    }

    /// The MAC address in an Ethernet link-layer address option (RFC 2464 section 6), 8 bytes.
    fn mac(self) -> MacAddr {
        ethernet::mac(self.0, 2)
    }
}

/// Checked options.
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

/// Parses a message whose checksum has been verified; `None` if it is of another type.
///
/// # Errors
/// For messages that RFC 4861 section 7.1 requires to be silently discarded: [`Error::BadValue`]
/// if it was forwarded by a router or contradicts itself, [`Error::Truncated`],
/// [`Error::BadLength`].
pub fn parse(ip: &ipv6::Packet<&[u8]>, message: &icmpv6::Packet<&[u8]>) -> Result<Option<Message>> {
    if !matches!(message.kind(), Type::NEIGHBOR_SOLICITATION | Type::NEIGHBOR_ADVERTISEMENT) {
        return Ok(None);
    }
    // "The IP Hop Limit field has a value of 255, i.e., the packet could not possibly have been
    // forwarded by a router." "ICMP Code is 0."
    if ip.hop_limit() != HOP_LIMIT || message.code() != 0 {
        return Err(Error::BadValue);
    }
    let (body, options) = message.payload().split_at_checked(16).ok_or(Error::Truncated)?;
    let options = Options::new_checked(options)?;
    let target = ip6(body, 0);
    let good = |valid: bool| if valid { Ok(()) } else { Err(Error::BadValue) };
    good(!target.is_multicast())?;
    Ok(Some(match message.kind() {
        Type::NEIGHBOR_SOLICITATION => {
            let source = options.mac(option::SOURCE_MAC);
            // "If the IP source address is the unspecified address, the IP destination address is
            // a solicited-node multicast address", and "there is no source link-layer address option".
            let unspecified = ip.src().is_unspecified();
            good(!unspecified || source.is_none() && is_solicited_node(ip.dst()))?;
            Message::NeighborSolicitation { target, source }
        }
        _ => {
            let first = message.rest();
            let solicited = first & 1 << 30 != 0;
            // "If the IP Destination Address is a multicast address the Solicited flag is zero."
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

/// Writes a neighbour solicitation for `target`. Returns its length: 24 bytes without a MAC
/// address, [`NEIGHBOR_LEN`] with one.
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
    put(buf, addresses, Type::NEIGHBOR_SOLICITATION, 0, target, mac)
}

/// Writes a host's neighbour advertisement: `target` has `mac`. `solicited`: it answers a
/// solicitation from a specified address. `overrides`: it overrides an existing entry. Returns its
/// length, [`NEIGHBOR_LEN`].
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
    put(buf, addresses, Type::NEIGHBOR_ADVERTISEMENT, flags, target, mac)
}

fn put(
    buf: &mut [u8],
    addresses: Sum,
    kind: Type,
    first: u32,
    target: Ipv6Addr,
    mac: Option<(u8, MacAddr)>,
) -> Result<usize> {
    let at = icmpv6::HEADER_LEN + 16;
    let len = at + if mac.is_some() { 8 } else { 0 };
    let buf = buf.get_mut(..len).ok_or(Error::Truncated)?;
    put_ip6(buf, icmpv6::HEADER_LEN, target);
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

    /// A packet with the message that `write` writes.
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

    fn read(bytes: &[u8]) -> Result<Option<Message>> {
        let ip = ipv6::Packet::new_checked(bytes)?;
        let message = icmpv6::Packet::new_checked(ip.payload())?;
        message.verify_checksum(ip.address_sum())?;
        parse(&ip, &message)
    }

    /// The error for a valid message after `change`, with its checksum corrected.
    fn error(mut bytes: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Option<Error> {
        change(&mut bytes);
        let addresses = ipv6::Packet::new_checked(&bytes).unwrap().address_sum();
        icmpv6::Packet::new_checked(&mut bytes[40..]).unwrap().fill_checksum(addresses);
        read(&bytes).err()
    }

    #[test]
    fn a_solicitation_and_an_advertisement_are_written_and_read() {
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
    fn forwarded_messages_are_rejected() {
        let group = ipv6::solicited_node(B);
        for bytes in [solicitation(A, group, Some(MAC)), advertisement(A, true)] {
            assert_eq!(error(bytes.clone(), |_| ()), None);
            assert_eq!(error(bytes.clone(), |b| b[7] = 254), Some(Error::BadValue));
            assert_eq!(error(bytes, |b| b[41] = 1), Some(Error::BadValue)); // code
        }
    }

    #[test]
    fn messages_that_break_rfc_4861_section_7_1_are_rejected() {
        let unspecified = Ipv6Addr::UNSPECIFIED;
        let group = ipv6::solicited_node(B);
        assert!(read(&solicitation(unspecified, group, None)).is_ok());
        assert_eq!(read(&solicitation(unspecified, group, Some(MAC))).err(), Some(Error::BadValue));
        assert_eq!(read(&solicitation(unspecified, B, None)).err(), Some(Error::BadValue));
        let target_is_a_group = |b: &mut [u8]| b[48] = 0xff;
        assert_eq!(error(solicitation(A, group, None), target_is_a_group), Some(Error::BadValue));
        assert_eq!(error(advertisement(A, true), target_is_a_group), Some(Error::BadValue));
        assert!(read(&advertisement(ipv6::ALL_NODES, false)).is_ok());
        assert_eq!(read(&advertisement(ipv6::ALL_NODES, true)).err(), Some(Error::BadValue));
        let no_length = |b: &mut [u8]| b[65] = 0;
        assert_eq!(error(advertisement(A, true), no_length), Some(Error::BadLength));
        let too_long = |b: &mut [u8]| b[65] = 2;
        assert_eq!(error(advertisement(A, true), too_long), Some(Error::Truncated));
        // A group's MAC address is no host's address: it is ignored.
        let bytes = solicitation(A, group, Some(MacAddr::BROADCAST));
        let Ok(Some(Message::NeighborSolicitation { source, .. })) = read(&bytes) else { panic!() };
        assert_eq!(source, None);
    }

    #[test]
    fn short_messages_and_short_buffers_are_truncated() {
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
    }
}
