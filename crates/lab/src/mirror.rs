//! A third address on the link that sends every packet back with source and destination swapped: a host that
//! talks to the mirror talks to itself, over its interface.
//!
//! The mirror is an XDP program of some fifty instructions on the server's interface, which answers from the driver
//! and passes everything else. A swap changes no checksum. The packet that an ICMP error quotes is swapped, too, so
//! that the error reaches the socket whose packet it is about.

mod bpf;
mod program;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use busypoll_linux::ethtool::Ethtool;

use crate::{Lab, LabError, LabHost, Side, rtnetlink};

/// The mirror's addresses, seen from the client.
const IPV4: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const IPV6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1);
/// The names of veth's transmit checksum offloads (`net/ethtool/common.c`).
const CHECKSUMS: [&str; 2] = ["tx-checksum-ip-generic", "tx-checksum-sctp"];

/// A mirror for the client of a lab. Dropping it removes the mirror.
#[derive(Debug)]
pub struct Mirror {
    _link: OwnedFd,
    has_ipv6: bool,
}

impl Lab {
    /// Attaches a mirror to the server's interface, and adds routes to it for the client. From then on the client
    /// sends complete checksums, as packets from the mirror do not carry the state of a partial one.
    ///
    /// # Errors
    /// Without the right to load and attach XDP programs, or if there is a mirror already.
    pub fn mirror(&self) -> Result<Mirror, LabError> {
        let has_ipv6 = self.client.ipv6().is_some();
        self.client.enter(|| {
            Ethtool::open(self.client.interface())?.set_features(&CHECKSUMS, false)?;
            routes(&self.client).map_err(LabError::system("add the routes to the mirror"))
        })??;
        let attach = || bpf::attach(&program::mirror(IPV4, IPV6), self.server.ifindex());
        let link = self.server.enter(attach)?.map_err(LabError::system("attach the mirror"))?;
        Ok(Mirror { _link: link, has_ipv6 })
    }
}

impl Mirror {
    /// The IPv4 address.
    #[must_use]
    pub fn ipv4(&self) -> Ipv4Addr {
        IPV4
    }

    /// The IPv6 address; none on a machine whose kernel has IPv6 switched off.
    #[must_use]
    pub fn ipv6(&self) -> Option<Ipv6Addr> {
        self.has_ipv6.then_some(IPV6)
    }
}

fn routes(client: &LabHost) -> io::Result<()> {
    let socket = rtnetlink::Socket::open()?;
    let (oif, by) = (client.ifindex(), Side::Server);
    socket.add_route(IpAddr::V4(IPV4), IpAddr::V4(by.ipv4()), oif)?;
    match client.ipv6() {
        Some(_) => socket.add_route(IpAddr::V6(IPV6), IpAddr::V6(by.ipv6()), oif),
        None => Ok(()),
    }
}
