//! One socket of IPv6 that hears IPv4 as well (RFC 3493 section 3.7): its peers of IPv4 have addresses mapped into
//! IPv6, `::ffff:10.0.0.1`, towards the application; everywhere below they are what they are.

use super::{Datagram, SocketError, UdpEndpoint};
use crate::{napi::Pass, sync::Arc};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// An IPv4 address and port as an IPv6 socket shows them.
pub(super) fn mapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        v6 => v6,
    }
}

/// What an address and port stand for: of a mapped one the IPv4 address.
pub(super) fn unmapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(v4.into(), v6.port()),
            None => address,
        },
        v4 => v4,
    }
}

/// The two ends of a conversation in the family they really have: the local one may be unspecified or mapped.
/// `None` if they have none in common.
pub(super) fn ends(local: SocketAddr, remote: SocketAddr) -> Option<(SocketAddr, SocketAddr)> {
    let (local, remote) = (unmapped(local), unmapped(remote));
    match (local.ip(), remote.ip()) {
        (IpAddr::V6(any), IpAddr::V4(_)) if any.is_unspecified() => {
            Some((SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port()), remote))
        }
        (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => Some((local, remote)),
        _ => None,
    }
}

/// An IPv6 socket in the table of IPv4.
pub(super) struct Mapped(pub(super) Arc<dyn UdpEndpoint>);

impl UdpEndpoint for Mapped {
    fn datagram(&self, datagram: &Datagram<'_>, pass: &mut Pass) -> bool {
        let (from, to) = (mapped(datagram.from), mapped(datagram.to));
        self.0.datagram(&Datagram { from, to, ..*datagram }, pass)
    }

    fn hears(&self, group: IpAddr, interface: u32, source: IpAddr) -> bool {
        self.0.hears(group, interface, source)
    }

    fn error(&self, error: SocketError, remote: SocketAddr, pass: &mut Pass) {
        self.0.error(error, mapped(remote), pass);
    }
}
