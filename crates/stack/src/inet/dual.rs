//! Dual-stack sockets: an IPv6 socket that also receives IPv4 (RFC 3493 section 3.7). The application sees IPv4 peers
//! as IPv4-mapped addresses, `::ffff:10.0.0.1`; inet uses the IPv4 addresses.

use super::{Datagram, SocketError, UdpEndpoint};
use crate::{inet::Pass, sync::Arc, wire::Rest};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// An IPv4 address and port as an IPv6 socket shows them.
pub(super) fn mapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        v6 => v6,
    }
}

/// The address with an IPv4-mapped one converted to IPv4.
pub(super) fn unmapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(v4.into(), v6.port()),
            None => address,
        },
        v4 => v4,
    }
}

/// Both ends of a conversation in the family it uses on the wire; `local` may be unspecified or mapped. `None` if the
/// families differ.
pub(super) fn in_common_family(
    local: SocketAddr,
    remote: SocketAddr,
) -> Option<(SocketAddr, SocketAddr)> {
    let (local, remote) = (unmapped(local), unmapped(remote));
    match (local.ip(), remote.ip()) {
        (IpAddr::V6(any), IpAddr::V4(_)) if any.is_unspecified() => {
            Some((SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port()), remote))
        }
        (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => Some((local, remote)),
        _ => None,
    }
}

/// A dual-stack socket in the IPv4 table.
pub(super) struct Mapped(pub(super) Arc<dyn UdpEndpoint>);

impl UdpEndpoint for Mapped {
    fn datagram(&self, datagram: &Datagram<'_>, pass: &mut Pass) -> bool {
        let (from, to) = (mapped(datagram.from), mapped(datagram.to));
        self.0.datagram(&Datagram { from, to, ..*datagram }, pass)
    }

    fn datagram_in_pieces(&self, datagram: &Datagram<'_>, rest: Rest<'_>, pass: &mut Pass) -> bool {
        let (from, to) = (mapped(datagram.from), mapped(datagram.to));
        self.0.datagram_in_pieces(&Datagram { from, to, ..*datagram }, rest, pass)
    }

    fn accepts_group(&self, group: IpAddr, interface: u32, source: IpAddr) -> bool {
        self.0.accepts_group(group, interface, source)
    }

    fn error(&self, error: SocketError, remote: SocketAddr, pass: &mut Pass) {
        self.0.error(error, mapped(remote), pass);
    }
}
