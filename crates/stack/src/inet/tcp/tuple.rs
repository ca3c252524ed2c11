//! The two ends of a connection, as a key: either family, small to hash.

use std::{
    hash::{Hash, Hasher},
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

/// Local and remote address and port. IPv4 addresses are kept as IPv6 has them (`::ffff:a.b.c.d`), and are
/// equal to those.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Tuple {
    local: u128,
    remote: u128,
    ports: u32,
}

const V4: u128 = 0xffff << 32;

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => V4 | u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn address(bits: u128) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical()
}

impl Tuple {
    #[inline]
    pub(super) fn new(local: SocketAddr, remote: SocketAddr) -> Tuple {
        Tuple {
            local: bits(local.ip()),
            remote: bits(remote.ip()),
            ports: u32::from(local.port()) << 16 | u32::from(remote.port()),
        }
    }

    #[inline]
    pub(super) fn is_v4(&self) -> bool {
        self.remote >> 32 == V4 >> 32
    }

    pub(super) fn local(&self) -> SocketAddr {
        SocketAddr::new(address(self.local), (self.ports >> 16) as u16)
    }

    pub(super) fn remote(&self) -> SocketAddr {
        SocketAddr::new(address(self.remote), self.ports as u16)
    }

    #[inline]
    pub(super) fn local_port(&self) -> u16 {
        (self.ports >> 16) as u16
    }

    #[inline]
    pub(super) fn remote_port(&self) -> u16 {
        self.ports as u16
    }

    pub(super) fn local_bits(&self) -> u128 {
        self.local
    }

    pub(super) fn remote_bits(&self) -> u128 {
        self.remote
    }

    pub(super) fn ports(&self) -> u32 {
        self.ports
    }
}

impl Hash for Tuple {
    #[inline]
    fn hash<H: Hasher>(&self, hash: &mut H) {
        if self.is_v4() {
            hash.write_u64(self.local as u32 as u64 | (self.remote as u64) << 32);
        } else {
            for address in [self.local, self.remote] {
                hash.write_u64((address >> 64) as u64);
                hash.write_u64(address as u64);
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
