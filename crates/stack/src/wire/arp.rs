//! ARP for IPv4 over Ethernet (RFC 826).
//!
//! Owns the 28 bytes of a request or reply. Inet decides which requests to answer.

use std::net::Ipv4Addr;

use super::ethernet::mac;
use super::{Error, EtherType, MacAddr, Result, be16, ip4, put_ip4, put16};

/// Bytes of a packet; a frame's padding may follow.
pub const LEN: usize = 28;

const ETHERNET: u16 = 1;

/// The operation of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operation(pub u16);

impl Operation {
    /// Who has the target address?
    pub const REQUEST: Operation = Operation(1);
    /// The sender has it.
    pub const REPLY: Operation = Operation(2);
}

/// A view of an ARP packet.
#[derive(Debug, Clone, Copy)]
pub struct Packet<T>(T);

impl<T: AsRef<[u8]>> Packet<T> {
    /// Checks that the packet is complete and about IPv4 over Ethernet.
    ///
    /// # Errors
    /// [`Error::Truncated`]; [`Error::BadValue`] for other hardware or protocols;
    /// [`Error::BadLength`] for addresses of other sizes.
    #[inline]
    pub fn new_checked(buf: T) -> Result<Packet<T>> {
        let b = buf.as_ref();
        if b.len() < LEN {
            return Err(Error::Truncated);
        }
        // RFC 826, Packet Reception: "Do I have the hardware type in ar$hrd? [optionally check
        // the hardware length ar$hln] Do I speak the protocol in ar$pro? [...]"
        if be16(b, 0) != ETHERNET || be16(b, 2) != EtherType::IPV4.0 {
            return Err(Error::BadValue);
        }
        if b[4] != 6 || b[5] != 4 {
            return Err(Error::BadLength);
        }
        Ok(Packet(buf))
    }

    /// Request, reply, or any other number.
    #[inline]
    pub fn operation(&self) -> Operation {
        Operation(be16(self.0.as_ref(), 6))
    }

    /// The sender's hardware address.
    #[inline]
    pub fn sender_mac(&self) -> MacAddr {
        mac(self.0.as_ref(), 8)
    }

    /// The sender's protocol address; 0.0.0.0 in a probe (RFC 5227 section 2.1.1).
    #[inline]
    pub fn sender_ip(&self) -> Ipv4Addr {
        ip4(self.0.as_ref(), 14)
    }

    /// The target's hardware address; meaningless in a request.
    #[inline]
    pub fn target_mac(&self) -> MacAddr {
        mac(self.0.as_ref(), 18)
    }

    /// The target's protocol address.
    #[inline]
    pub fn target_ip(&self) -> Ipv4Addr {
        ip4(self.0.as_ref(), 24)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Writes a whole packet, from `sender` to `target`.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the buffer is too short for it.
    pub fn init(
        mut buf: T,
        operation: Operation,
        sender: (MacAddr, Ipv4Addr),
        target: (MacAddr, Ipv4Addr),
    ) -> Result<Packet<T>> {
        let b = buf.as_mut();
        if b.len() < LEN {
            return Err(Error::Truncated);
        }
        put16(b, 0, ETHERNET);
        put16(b, 2, EtherType::IPV4.0);
        b[4] = 6;
        b[5] = 4;
        put16(b, 6, operation.0);
        b[8..14].copy_from_slice(&sender.0.0);
        put_ip4(b, 14, sender.1);
        b[18..24].copy_from_slice(&target.0.0);
        put_ip4(b, 24, target.1);
        Ok(Packet(buf))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Who has 10.0.0.2? Tell 10.0.0.1.
    const REQUEST: [u8; LEN] = [
        0x00, 0x01, 0x08, 0x00, 0x06, 0x04, 0x00, 0x01, 0x02, 0x00, 0x00, 0x00, 0x00, 0x01, 0x0a,
        0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0a, 0x00, 0x00, 0x02,
    ];
    const A: (MacAddr, Ipv4Addr) = (MacAddr([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 0, 0, 1));
    const B: (MacAddr, Ipv4Addr) = (MacAddr::UNSPECIFIED, Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn a_request_is_read() {
        let arp = Packet::new_checked(REQUEST).unwrap();
        assert_eq!(arp.operation(), Operation::REQUEST);
        assert_eq!((arp.sender_mac(), arp.sender_ip()), A);
        assert_eq!((arp.target_mac(), arp.target_ip()), B);
    }

    #[test]
    fn the_same_request_is_written() {
        let mut buf = [0xee; LEN + 2];
        Packet::init(&mut buf, Operation::REQUEST, A, B).unwrap();
        assert_eq!((&buf[..LEN], &buf[LEN..]), (&REQUEST[..], &[0xee, 0xee][..]));
        assert_eq!(
            Packet::init(&mut buf[..LEN - 1], Operation::REPLY, A, B).err(),
            Some(Error::Truncated)
        );
    }

    #[test]
    fn other_links_and_protocols_are_rejected() {
        let broken = |at: usize| {
            let mut bytes = REQUEST;
            bytes[at] ^= 0x10;
            Packet::new_checked(bytes).err()
        };
        for at in 0..4 {
            assert_eq!(broken(at), Some(Error::BadValue), "byte {at}");
        }
        assert_eq!(broken(4), Some(Error::BadLength));
        assert_eq!(broken(5), Some(Error::BadLength));
        assert_eq!(Packet::new_checked(&REQUEST[..27]).err(), Some(Error::Truncated));
    }
}
