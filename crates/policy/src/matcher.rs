//! The sockets that a rule is for: program, protocol, addresses and ports.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::names::Names;
use crate::settings::word;

/// The protocols a plane can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// Its name in the policy file.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }
}

/// A range of addresses: `10.0.0.0/8`, `fd00::/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// Whether the address is in the range. An IPv4-mapped IPv6 address counts as the IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(ip)) => {
                let host_bits = 32_u32.saturating_sub(self.prefix.into());
                (net.to_bits() ^ ip.to_bits()).checked_shr(host_bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(net), IpAddr::V6(ip)) => {
                let host_bits = 128_u32.saturating_sub(self.prefix.into());
                (net.to_bits() ^ ip.to_bits()).checked_shr(host_bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("'{text}' is no address; write for example 10.0.0.1, 10.0.0.0/8 or fd00::/64")
        };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let address = address.to_canonical();
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) => prefix.parse().map_err(|_| wrong())?,
            None => longest,
        };
        if prefix > longest {
            return Err(format!("'{text}': a prefix of this family has at most {longest} bits"));
        }
        Ok(Network { address, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = if self.address.is_ipv4() { 32 } else { 128 };
        if self.prefix == longest {
            return self.address.fmt(f);
        }
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// A range of ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// Whether the port is in the range.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let port = |text: &str| match text.trim().parse() {
            Ok(0) | Err(_) => {
                Err(format!("'{text}' is no port; write 1 to 65535, or a range such as 6379-6389"))
            }
            Ok(port) => Ok(port),
        };
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (port(first)?, port(last)?),
            None => (port(text)?, port(text)?),
        };
        if first > last {
            return Err(format!("'{text}' is empty: the first port is above the last"));
        }
        Ok(Ports { first, last })
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            return self.first.fmt(f);
        }
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// The sockets that a rule is for: those that match every list that is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Names or paths of executables, with `*` and `?`. A pattern with a `/` is compared with the whole
    /// path, any other with its last part.
    pub program: Vec<String>,
    /// The protocol.
    pub protocol: Option<Protocol>,
    /// Addresses the socket is bound to.
    pub local_address: Vec<Network>,
    /// Ports the socket is bound to.
    pub local_port: Vec<Ports>,
    /// Addresses of the peer.
    pub remote_address: Vec<Network>,
    /// Ports of the peer.
    pub remote_port: Vec<Ports>,
}

pub(crate) const PROGRAM: &str = "program";
pub(crate) const PROTOCOL: &str = "protocol";
pub(crate) const LOCAL_ADDRESS: &str = "local_address";
pub(crate) const LOCAL_PORT: &str = "local_port";
pub(crate) const REMOTE_ADDRESS: &str = "remote_address";
pub(crate) const REMOTE_PORT: &str = "remote_port";

/// The keys of a rule's conditions.
pub(crate) const MATCHES: [&str; 6] =
    [PROGRAM, PROTOCOL, LOCAL_ADDRESS, LOCAL_PORT, REMOTE_ADDRESS, REMOTE_PORT];

impl Match {
    /// Whether the rule is for this socket. A socket that is not yet bound, or not connected, has
    /// no such address and matches no rule that asks for one.
    #[must_use]
    pub fn fits(
        &self,
        program: &Names,
        protocol: Protocol,
        local: Option<SocketAddr>,
        remote: Option<SocketAddr>,
    ) -> bool {
        self.protocol.is_none_or(|wanted| wanted == protocol)
            && fits_end(&self.local_address, &self.local_port, local)
            && fits_end(&self.remote_address, &self.remote_port, remote)
            && self.fits_program(program)
    }

    /// Whether the rule is for sockets of this program.
    #[must_use]
    pub fn fits_program(&self, program: &Names) -> bool {
        let fits = |pattern: &String| program.fit(pattern);
        self.program.is_empty() || self.program.iter().any(fits)
    }

    /// Whether the rule asks for an address, which a socket has only once it is bound or connected.
    #[must_use]
    pub fn by_address(&self) -> bool {
        !(self.local_address.is_empty() && self.local_port.is_empty() && !self.by_remote())
    }

    /// Whether the rule asks for the peer's address, which a socket has only once it is connected.
    #[must_use]
    pub fn by_remote(&self) -> bool {
        !(self.remote_address.is_empty() && self.remote_port.is_empty())
    }

    /// Adds one value for `key`; `None` if there is no such key.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        fn into<T>(list: &mut Vec<T>, value: Result<T, String>) -> Result<(), String> {
            list.push(value?);
            Ok(())
        }
        Some(match key {
            PROGRAM => into(&mut self.program, program(value)),
            PROTOCOL => self.set_protocol(value),
            LOCAL_ADDRESS => into(&mut self.local_address, Network::parse(value)),
            LOCAL_PORT => into(&mut self.local_port, Ports::parse(value)),
            REMOTE_ADDRESS => into(&mut self.remote_address, Network::parse(value)),
            REMOTE_PORT => into(&mut self.remote_port, Ports::parse(value)),
            _ => return None,
        })
    }

    fn set_protocol(&mut self, value: &str) -> Result<(), String> {
        if self.protocol.is_some() {
            return Err("a rule has one protocol; leave it out for both".to_owned());
        }
        self.protocol = Some(word(value, &[("tcp", Protocol::Tcp), ("udp", Protocol::Udp)])?);
        Ok(())
    }

    /// Calls `each` with every key and value, in the form that [`Match::set`] reads.
    pub(crate) fn each(&self, mut each: impl FnMut(&str, &str)) {
        self.program.iter().for_each(|program| each(PROGRAM, program));
        if let Some(protocol) = self.protocol {
            each(PROTOCOL, protocol.word());
        }
        self.local_address.iter().for_each(|net| each(LOCAL_ADDRESS, &net.to_string()));
        self.local_port.iter().for_each(|ports| each(LOCAL_PORT, &ports.to_string()));
        self.remote_address.iter().for_each(|net| each(REMOTE_ADDRESS, &net.to_string()));
        self.remote_port.iter().for_each(|ports| each(REMOTE_PORT, &ports.to_string()));
    }
}

fn fits_end(addresses: &[Network], ports: &[Ports], end: Option<SocketAddr>) -> bool {
    if addresses.is_empty() && ports.is_empty() {
        return true;
    }
    let Some(end) = end else { return false };
    (addresses.is_empty() || addresses.iter().any(|net| net.contains(end.ip())))
        && (ports.is_empty() || ports.iter().any(|ports| ports.contains(end.port())))
}

fn program(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("an empty name is no program; leave it out for every program".to_owned());
    }
    if text.contains('/') && !text.starts_with(['/', '*']) {
        return Err(format!(
            "'{text}' is neither a name nor a whole path; write the name alone, or begin with '/'"
        ));
    }
    Ok(text.to_owned())
}
