//! The 4-tuple of a connection, as a key: either family, small to hash.

use std::{
    hash::{Hash, Hasher},
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

/// Local and remote address and port. IPv4 addresses are stored as mapped IPv6 addresses (`::ffff:a.b.c.d`), and are
/// equal to those.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::inet) struct Tuple {
    local: Bits,
    remote: Bits,
    ports: u32,
}

/// The upper and the lower half of an IPv6 address.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Bits(u64, u64);

const V4: u64 = 0xffff << 32;

#[inline]
fn bits(address: IpAddr) -> Bits {
    match address {
        IpAddr::V4(address) => Bits(0, V4 | u64::from(address.to_bits())),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            Bits((bits >> 64) as u64, bits as u64)
        }
    }
}

fn address(Bits(upper, lower): Bits) -> IpAddr {
    let bits = u128::from(upper) << 64 | u128::from(lower);
    IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical()
}

impl Tuple {
    #[inline]
    pub(super) fn new(local: SocketAddr, remote: SocketAddr) -> Tuple {
        Tuple::of((local.ip(), local.port()), (remote.ip(), remote.port()))
    }

    #[inline]
    pub(in crate::inet) fn of(local: (IpAddr, u16), remote: (IpAddr, u16)) -> Tuple {
        Tuple {
            local: bits(local.0),
            remote: bits(remote.0),
            ports: u32::from(local.1) << 16 | u32::from(remote.1),
        }
    }

    #[inline]
    pub(super) fn is_v4(&self) -> bool {
        self.remote.0 == 0 && self.remote.1 >> 32 == V4 >> 32
    }

    pub(super) fn local(&self) -> SocketAddr {
        SocketAddr::new(address(self.local), (self.ports >> 16) as u16)
    }

    pub(super) fn remote(&self) -> SocketAddr {
        SocketAddr::new(address(self.remote), self.ports as u16)
    }

    /// The addresses and ports of a received IPv4 packet, as they are on the wire. Of an IPv6 flow: zeros, which no
    /// packet has.
    pub(super) fn received_as(&self) -> ([u8; 8], [u8; 4]) {
        let (mut addresses, mut ports) = ([0; 8], [0; 4]);
        if self.is_v4() {
            let (from, to) = (self.remote.1 as u32, self.local.1 as u32);
            addresses[..4].copy_from_slice(&from.to_be_bytes());
            addresses[4..].copy_from_slice(&to.to_be_bytes());
            ports[..2].copy_from_slice(&self.remote_port().to_be_bytes());
            ports[2..].copy_from_slice(&self.local_port().to_be_bytes());
        }
        (addresses, ports)
    }

    #[inline]
    pub(super) fn local_port(&self) -> u16 {
        (self.ports >> 16) as u16
    }

    #[inline]
    pub(super) fn remote_port(&self) -> u16 {
        self.ports as u16
    }

    /// The ports of a segment that is sent, as they are on the wire.
    #[inline]
    pub(super) fn sent_ports(&self) -> [u8; 4] {
        self.ports.to_be_bytes()
    }

    /// The two hosts, without the ports.
    pub(super) fn hosts(&self) -> Tuple {
        Tuple { ports: 0, ..*self }
    }

    /// All of it.
    pub(super) fn words(&self) -> [u64; 5] {
        [self.local.0, self.local.1, self.remote.0, self.remote.1, self.ports.into()]
    }
}

impl Hash for Tuple {
    #[inline]
    fn hash<H: Hasher>(&self, hash: &mut H) {
        if self.is_v4() {
            hash.write_u64(u64::from(self.local.1 as u32) | self.remote.1 << 32);
        } else {
            for Bits(upper, lower) in [self.local, self.remote] {
                hash.write_u64(upper);
                hash.write_u64(lower);
            }
        }
        hash.write_u32(self.ports);
    }
}

impl std::fmt::Debug for Tuple {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}", self.local(), self.remote())
    }
}
