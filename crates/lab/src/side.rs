//! The two sides of a lab with their fixed names and addresses.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Prefix length of [`Side::ipv4`].
pub const PREFIX_V4: u8 = 24;
/// Prefix length of [`Side::ipv6`].
pub const PREFIX_V6: u8 = 64;

/// One of the two hosts. Its fixed properties follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The host that sends requests.
    Client,
    /// The host that answers.
    Server,
}

impl Side {
    /// Both sides.
    pub const BOTH: [Self; 2] = [Self::Client, Self::Server];

    /// The other host.
    #[must_use]
    pub fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    /// `client` or `server`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    /// The host's interface: `lab-client` or `lab-server`.
    #[must_use]
    pub fn interface(self) -> &'static str {
        match self {
            Self::Client => "lab-client",
            Self::Server => "lab-server",
        }
    }

    /// The interface's MAC address, locally administered.
    #[must_use]
    pub fn mac(self) -> [u8; 6] {
        [0x02, 0, 0, 0, 0x77, self.number()]
    }

    /// The host's IPv4 address: 10.77.0.1 or 10.77.0.2, with [`PREFIX_V4`].
    #[must_use]
    pub fn ipv4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.number())
    }

    /// The host's IPv6 address: fd77::1 or fd77::2, with [`PREFIX_V6`].
    #[must_use]
    pub fn ipv6(self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, self.number().into())
    }

    fn number(self) -> u8 {
        match self {
            Self::Client => 1,
            Self::Server => 2,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Side {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let side = Self::BOTH.into_iter().find(|side| side.name() == text);
        side.ok_or_else(|| "the hosts are `client` and `server`".into())
    }
}
