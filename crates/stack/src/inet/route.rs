//! Where to: routes of our own, the longest prefix first, and which floor below takes a packet.

use super::{Inet, Ipv4Cidr, SendError, iface::Interface};
use crate::sync::Arc;
use std::net::Ipv4Addr;

/// One route over an interface whose addresses are ours.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) to: Ipv4Cidr,
    pub(super) iface: Arc<Interface>,
    /// `None`: the destination is on the link.
    pub(super) gateway: Option<Ipv4Addr>,
    /// Our address on the way.
    pub(super) source: Ipv4Addr,
}

/// All routes, the longest prefix first.
#[derive(Debug, Default)]
pub(super) struct Routes(Vec<Route>);

impl Routes {
    /// Adds a route; one to the same destination is replaced.
    pub(super) fn add(&mut self, route: Route) {
        self.0.retain(|old| old.to != route.to);
        let at = self.0.partition_point(|old| old.to.prefix() >= route.to.prefix());
        self.0.insert(at, route);
    }

    pub(super) fn find(&self, destination: Ipv4Addr) -> Option<&Route> {
        self.0.iter().find(|route| route.to.contains(destination))
    }
}

/// How a packet leaves.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// Not at all: it is for us.
    Local,
    /// Over an interface.
    Link(Link),
}

#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) iface: Arc<Interface>,
    pub(super) next_hop: NextHop,
    /// The source address if the sender has named none.
    pub(super) source: Ipv4Addr,
    /// The largest packet the way takes.
    pub(super) mtu: usize,
    /// The way's MTU was told to be so low that fragmenting by routers is allowed.
    pub(super) mtu_locked: bool,
}

/// Whom on the link a packet goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextHop {
    One(Ipv4Addr),
    Group(Ipv4Addr),
    Everybody,
}

impl Inet {
    /// The way to `destination` from `local`, unspecified if the sender has named no address.
    pub(super) fn way(&self, local: Ipv4Addr, destination: Ipv4Addr) -> Result<Way, SendError> {
        let topology = self.topology();
        let kernel = || topology.interfaces.iter().filter(|iface| iface.kernel().is_some());
        let shared = kernel().next().is_some();
        // RFC 1122 section 3.2.1.3 (g): 127/8 never leaves the host; 0.0.0.0 is ourselves (ip(7)).
        let inside = destination.is_loopback() || destination.is_unspecified();
        if topology.own(destination) || (inside && !shared) {
            return Ok(Way::Local);
        }
        if inside || kernel().any(|iface| iface.has(destination)) {
            return Err(SendError::UseKernel);
        }
        if destination.is_broadcast() || destination.is_multicast() {
            // Without a route it leaves where its source address is, else over the first interface.
            let from_here = topology.interfaces.iter().find(|iface| iface.has(local));
            let routed = topology.routes.find(destination).map(|route| &route.iface);
            let iface = from_here.or(routed).or(topology.interfaces.first());
            let iface = iface.ok_or(SendError::NoRoute)?;
            let source = match iface.own().first() {
                Some(cidr) => cidr.address(),
                // Which groups and networks the kernel's interface is on is the kernel's to say.
                None => return Err(SendError::UseKernel),
            };
            let next_hop = if destination.is_broadcast() {
                NextHop::Everybody
            } else {
                NextHop::Group(destination)
            };
            return Ok(Way::Link(self.link(iface, next_hop, source, None, destination)));
        }
        let own = topology.routes.find(destination);
        let specific = own.filter(|route| route.to.prefix() > 0);
        if let (None, true) = (specific, shared) {
            for iface in kernel() {
                let Some(hop) = iface.kernel().and_then(|tables| tables.route(destination)) else {
                    continue;
                };
                if iface.is_broadcast(destination) {
                    return Err(SendError::UseKernel);
                }
                let next_hop = NextHop::One(hop.next_hop);
                return Ok(Way::Link(self.link(iface, next_hop, hop.source, hop.mtu, destination)));
            }
        }
        let Some(route) = specific.or(own) else {
            return Err(if shared { SendError::UseKernel } else { SendError::NoRoute });
        };
        let next_hop = match route.gateway {
            _ if route.iface.is_broadcast(destination) => NextHop::Everybody,
            Some(gateway) => NextHop::One(gateway),
            None => NextHop::One(destination),
        };
        Ok(Way::Link(self.link(&route.iface, next_hop, route.source, None, destination)))
    }

    fn link(
        &self,
        iface: &Arc<Interface>,
        next_hop: NextHop,
        source: Ipv4Addr,
        mtu: Option<u32>,
        destination: Ipv4Addr,
    ) -> Link {
        let told = self.pmtu.get(destination);
        let mtu = [mtu, told.map(|told| told.mtu)]
            .into_iter()
            .flatten()
            .map(|mtu| mtu as usize)
            .fold(iface.info().mtu, usize::min);
        let mtu_locked = told.is_some_and(|told| told.locked);
        Link { iface: iface.clone(), next_hop, source, mtu, mtu_locked }
    }
}
