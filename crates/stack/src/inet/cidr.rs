//! An IP address with its prefix length.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// `10.0.0.1/24`: an address on a network. With the host bits ignored it is the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4Cidr {
    address: Ipv4Addr,
    prefix: u8,
}

impl Ipv4Cidr {
    /// 0.0.0.0/0, the destination of a default route.
    pub const DEFAULT: Ipv4Cidr = Ipv4Cidr { address: Ipv4Addr::UNSPECIFIED, prefix: 0 };

    /// `None` if `prefix` is above 32.
    #[must_use]
    pub const fn new(address: Ipv4Addr, prefix: u8) -> Option<Ipv4Cidr> {
        if prefix > 32 { None } else { Some(Ipv4Cidr { address, prefix }) }
    }

    /// The address, host bits included.
    #[inline]
    #[must_use]
    pub const fn address(self) -> Ipv4Addr {
        self.address
    }

    /// The prefix length, 0 to 32.
    #[must_use]
    pub const fn prefix(self) -> u8 {
        self.prefix
    }

    const fn mask(self) -> u32 {
        match self.prefix {
            0 => 0,
            prefix => u32::MAX << (32 - prefix),
        }
    }

    /// Whether `address` is on this network.
    #[inline]
    #[must_use]
    pub const fn contains(self, address: Ipv4Addr) -> bool {
        (self.address.to_bits() ^ address.to_bits()) & self.mask() == 0
    }

    /// The network's broadcast address; a /31 and a /32 have none (RFC 3021).
    #[inline]
    #[must_use]
    pub const fn broadcast(self) -> Option<Ipv4Addr> {
        if self.prefix > 30 {
            None
        } else {
            Some(Ipv4Addr::from_bits(self.address.to_bits() | !self.mask()))
        }
    }
}

impl fmt::Display for Ipv4Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// As [`Ipv4Cidr`], for either family: `10.0.0.1/24`, `fd00::1/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// `None` if `prefix` is longer than the address.
    #[must_use]
    pub const fn new(address: IpAddr, prefix: u8) -> Option<Cidr> {
        let most = if address.is_ipv4() { 32 } else { 128 };
        if prefix > most { None } else { Some(Cidr { address, prefix }) }
    }

    /// The address, host bits included.
    #[must_use]
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// The prefix length.
    #[must_use]
    pub const fn prefix(self) -> u8 {
        self.prefix
    }

    /// As an [`Ipv4Cidr`], if it is IPv4.
    pub(super) fn v4(self) -> Option<Ipv4Cidr> {
        match self.address {
            IpAddr::V4(address) => Ipv4Cidr::new(address, self.prefix),
            IpAddr::V6(_) => None,
        }
    }

    /// Address and prefix length, if it is IPv6.
    pub(super) fn v6(self) -> Option<(Ipv6Addr, u8)> {
        match self.address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some((address, self.prefix)),
        }
    }

    /// Whether `address` is on this network.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(address)) => {
                Ipv4Cidr { address: own, prefix: self.prefix }.contains(address)
            }
            (IpAddr::V6(own), IpAddr::V6(address)) => {
                common_prefix(own, address) >= self.prefix.into()
            }
            _ => false,
        }
    }
}

/// The number of leading bits two addresses have in common.
pub(super) fn common_prefix(a: Ipv6Addr, b: Ipv6Addr) -> u32 {
    (a.to_bits() ^ b.to_bits()).leading_zeros()
}

impl From<Ipv4Cidr> for Cidr {
    fn from(cidr: Ipv4Cidr) -> Cidr {
        Cidr { address: cidr.address.into(), prefix: cidr.prefix }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// The error for text that is not an address with a prefix length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address with a prefix length: {0:?}; write it as in 10.0.0.1/24 or fd00::1/64")]
pub struct ParseCidrError(String);

impl FromStr for Ipv4Cidr {
    type Err = ParseCidrError;

    fn from_str(text: &str) -> Result<Ipv4Cidr, ParseCidrError> {
        text.parse::<Cidr>()?.v4().ok_or_else(|| ParseCidrError(text.to_owned()))
    }
}

impl FromStr for Cidr {
    type Err = ParseCidrError;

    fn from_str(text: &str) -> Result<Cidr, ParseCidrError> {
        text.split_once('/')
            .filter(|(_, prefix)| prefix.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|(address, prefix)| Some((address.parse().ok()?, prefix.parse().ok()?)))
            .and_then(|(address, prefix)| Cidr::new(address, prefix))
            .ok_or_else(|| ParseCidrError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_network_contains_its_addresses_and_has_a_broadcast_address() {
        let cidr: Ipv4Cidr = "10.1.2.3/24".parse().unwrap();
        assert!(cidr.contains([10, 1, 2, 255].into()) && !cidr.contains([10, 1, 3, 3].into()));
        assert_eq!(cidr.broadcast(), Some([10, 1, 2, 255].into()));
        assert_eq!("10.0.0.1/31".parse::<Ipv4Cidr>().unwrap().broadcast(), None);
        assert!(Ipv4Cidr::DEFAULT.contains([8, 8, 8, 8].into()));
    }

    #[test]
    fn a_network_contains_the_addresses_of_its_family_and_prefix() {
        let cidr: Cidr = "fd00:0:0:1::1/64".parse().unwrap();
        let on = |text: &str| cidr.contains(text.parse().unwrap());
        assert!(on("fd00:0:0:1:ffff::") && !on("fd00:0:0:2::1") && !on("10.0.0.1"));
        assert!("::/0".parse::<Cidr>().unwrap().contains("2001:db8::1".parse().unwrap()));
        assert!(!"fd00::1/128".parse::<Cidr>().unwrap().contains("fd00::".parse().unwrap()));
        assert!("10.0.0.1/8".parse::<Cidr>().unwrap().contains("10.9.9.9".parse().unwrap()));
    }

    #[test]
    fn malformed_text_is_rejected() {
        for text in ["10.0.0.1", "10.0.0.1/33", "10.0.0/8", "10.0.0.1/", "10.0.0.1/+8", "::1/129"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
        assert!("::1/64".parse::<Ipv4Cidr>().is_err());
    }
}
