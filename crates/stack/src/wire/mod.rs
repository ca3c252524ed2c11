//! Typed views over packet bytes.
//!
//! Owns what the bytes of a packet mean, and nothing else: no state, no clock, no allocation, and
//! it imports no other part of the stack. A view borrows a buffer. `new_checked` checks every
//! length once; after that no accessor of the view can panic, whatever the bytes hold. Checksums
//! are verified only on request, because a NIC may have done it already.
//!
//! Sending code writes headers into a buffer with `init`, outermost first:
//!
//! ```
//! use busypoll_stack::wire::{EtherType, MacAddr, Protocol, ethernet, ipv4, udp};
//! use std::net::Ipv4Addr;
//!
//! # fn main() -> busypoll_stack::wire::Result<()> {
//! let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
//! let data = b"ping";
//! let mut buf = [0; 64];
//!
//! let mut frame = ethernet::Frame::init(&mut buf, MacAddr::BROADCAST, MacAddr([2; 6]), EtherType::IPV4)?;
//! let mut ip = ipv4::Packet::init(
//!     frame.payload_mut(), src, dst, Protocol::UDP, udp::HEADER_LEN + data.len())?;
//! let mut udp = udp::Packet::init(ip.payload_mut(), 4000, 7, data.len())?;
//! udp.payload_mut().copy_from_slice(data);
//! udp.fill_checksum(ipv4::address_sum(src, dst));
//!
//! // And back:
//! let frame = ethernet::Frame::new_checked(&buf[..])?;
//! let inner = frame.untag()?;
//! assert_eq!(inner.ethertype, EtherType::IPV4);
//! let ip = ipv4::Packet::new_checked(inner.payload)?;
//! ip.verify_checksum()?;
//! let udp = udp::Packet::new_checked(ip.payload())?;
//! udp.verify_checksum(ip.address_sum())?;
//! assert_eq!((udp.dst_port(), udp.payload()), (7, &data[..]));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod extension;
pub mod icmp;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod ndp;
pub mod pieces;
pub mod tcp;
pub mod udp;

pub use ethernet::{EtherType, MacAddr};
pub use pieces::{Data, Rest};

use std::net::{Ipv4Addr, Ipv6Addr};

/// Why a packet is invalid; one variant per cause, so that drops can be counted by cause:
/// `drops[error as usize] += 1` in an array of [`Error::COUNT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u8)]
pub enum Error {
    /// The buffer ends before the header, or before the length the header states.
    #[error("truncated: the bytes end before the packet does")]
    Truncated,
    /// A length field contradicts its own header, or a packet to be built is too long for its
    /// length field.
    #[error("bad length: a length field contradicts its own header")]
    BadLength,
    /// The IP version does not match the EtherType.
    #[error("bad version: the IP version does not match the EtherType")]
    BadVersion,
    /// A checksum does not match the bytes it covers.
    #[error("bad checksum")]
    BadChecksum,
    /// A field has an unsupported or invalid value, such as an ARP hardware type other than
    /// Ethernet.
    #[error("bad value: a field holds a value its protocol forbids")]
    BadValue,
    /// A fragment that cannot be part of any datagram: it is empty, ends beyond 65535 bytes, or
    /// is not the last and not a multiple of 8 bytes long.
    #[error("bad fragment: it cannot be part of any datagram")]
    BadFragment,
    /// More VLAN tags than [`ethernet::MAX_TAGS`].
    #[error("too many VLAN tags")]
    TooManyTags,
    /// An IPv6 extension header that must not be skipped, or too many of them.
    #[error("bad extension header: it must not be skipped, or there are too many")]
    BadExtension,
}

impl Error {
    /// All causes, in the order of their numbers.
    pub const ALL: [Error; 8] = [
        Error::Truncated,
        Error::BadLength,
        Error::BadVersion,
        Error::BadChecksum,
        Error::BadValue,
        Error::BadFragment,
        Error::TooManyTags,
        Error::BadExtension,
    ];

    /// The number of causes: the size of an array of drop counters.
    pub const COUNT: usize = Self::ALL.len();

    /// The cause as a counter's name, for example `bad_checksum`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Error::Truncated => "truncated",
            Error::BadLength => "bad_length",
            Error::BadVersion => "bad_version",
            Error::BadChecksum => "bad_checksum",
            Error::BadValue => "bad_value",
            Error::BadFragment => "bad_fragment",
            Error::TooManyTags => "too_many_tags",
            Error::BadExtension => "bad_extension",
        }
    }
}

/// The result of checking or building a packet.
pub type Result<T> = std::result::Result<T, Error>;

/// The protocol an IP packet of either version carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: Protocol = Protocol(0);
    /// ICMP for IPv4.
    pub const ICMP: Protocol = Protocol(1);
    /// TCP.
    pub const TCP: Protocol = Protocol(6);
    /// UDP.
    pub const UDP: Protocol = Protocol(17);
    /// IPv6 routing header.
    pub const ROUTING: Protocol = Protocol(43);
    /// IPv6 fragment header.
    pub const FRAGMENT: Protocol = Protocol(44);
    /// ICMP for IPv6.
    pub const ICMPV6: Protocol = Protocol(58);
    /// Nothing follows (IPv6).
    pub const NO_NEXT_HEADER: Protocol = Protocol(59);
    /// IPv6 destination options.
    pub const DESTINATION_OPTIONS: Protocol = Protocol(60);
}

// Fields by offset. The views call these only within the length that `new_checked` has verified,
// so the compiler merges the bounds checks with that test.

#[inline]
fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

#[inline]
fn put16(b: &mut [u8], at: usize, v: u16) {
    b[at..at + 2].copy_from_slice(&v.to_be_bytes());
}

#[inline]
fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline]
fn put32(b: &mut [u8], at: usize, v: u32) {
    b[at..at + 4].copy_from_slice(&v.to_be_bytes());
}

#[inline]
fn ip4(b: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(be32(b, at))
}

#[inline]
fn put_ip4(b: &mut [u8], at: usize, v: Ipv4Addr) {
    b[at..at + 4].copy_from_slice(&v.octets());
}

#[inline]
fn ip6(b: &[u8], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&b[at..at + 16]);
    Ipv6Addr::from(octets)
}

#[inline]
fn put_ip6(b: &mut [u8], at: usize, v: Ipv6Addr) {
    b[at..at + 16].copy_from_slice(&v.octets());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_its_own_counter() {
        for (i, e) in Error::ALL.into_iter().enumerate() {
            assert_eq!(e as usize, i, "{e}");
            assert_eq!(Error::ALL.iter().filter(|o| o.name() == e.name()).count(), 1, "{e}");
        }
    }
}
