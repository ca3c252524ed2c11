//! An address and how many of its bits name the network.

use std::{fmt, net::Ipv4Addr, str::FromStr};

/// `10.0.0.1/24`: an address on a network, or with the host bits ignored, the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4Cidr {
    address: Ipv4Addr,
    prefix: u8,
}

impl Ipv4Cidr {
    /// Everywhere: the destination of a default route.
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

    /// How many bits name the network, 0 to 32.
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

    /// The address of everybody on this network; networks of one or two have none (RFC 3021).
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

/// Text that is no address with a prefix length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an IPv4 address with a prefix length: {0:?}; write it as in 10.0.0.1/24")]
pub struct ParseCidrError(String);

impl FromStr for Ipv4Cidr {
    type Err = ParseCidrError;

    fn from_str(text: &str) -> Result<Ipv4Cidr, ParseCidrError> {
        text.split_once('/')
            .filter(|(_, prefix)| prefix.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|(address, prefix)| Some((address.parse().ok()?, prefix.parse().ok()?)))
            .and_then(|(address, prefix)| Ipv4Cidr::new(address, prefix))
            .ok_or_else(|| ParseCidrError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_its_network() {
        let cidr: Ipv4Cidr = "10.1.2.3/24".parse().unwrap();
        assert!(cidr.contains([10, 1, 2, 255].into()) && !cidr.contains([10, 1, 3, 3].into()));
        assert_eq!(cidr.broadcast(), Some([10, 1, 2, 255].into()));
        assert_eq!("10.0.0.1/31".parse::<Ipv4Cidr>().unwrap().broadcast(), None);
        assert!(Ipv4Cidr::DEFAULT.contains([8, 8, 8, 8].into()));
    }

    #[test]
    fn refuses_other_text() {
        for text in ["10.0.0.1", "10.0.0.1/33", "10.0.0/8", "10.0.0.1/", "10.0.0.1/+8", "::1/64"] {
            assert!(text.parse::<Ipv4Cidr>().is_err(), "{text}");
        }
    }
}
