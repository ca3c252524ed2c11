//! Where to: routes of our own, the longest prefix first, and which floor below takes a packet.

use super::{
    Cidr, Inet, SendError, Topology,
    dad::{self, needs_scope},
    iface::{Hop, Interface, KernelTables},
};
use crate::sync::Arc;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One route over an interface whose addresses are ours.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) to: Cidr,
    pub(super) iface: Arc<Interface>,
    /// `None`: the destination is on the link.
    pub(super) gateway: Option<IpAddr>,
    /// Our address on the way. Over IPv6 it is chosen anew for each destination.
    pub(super) source: IpAddr,
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

    pub(super) fn find(&self, destination: IpAddr) -> Option<&Route> {
        self.0.iter().find(|route| route.to.contains(destination))
    }
}

/// How a packet leaves.
#[derive(Clone, Debug)]
pub(super) enum RouteResult {
    /// Not at all: it is for us.
    Local,
    /// Over an interface.
    Link(LinkRoute),
}

#[derive(Clone, Debug)]
pub(super) struct LinkRoute {
    pub(super) iface: Arc<Interface>,
    pub(super) next_hop: NextHop,
    /// The source address if the sender has named none.
    pub(super) source: IpAddr,
    /// The largest packet the way takes.
    pub(super) mtu: usize,
    /// The way's MTU was told to be so low that fragmenting by routers is allowed.
    pub(super) mtu_locked: bool,
    /// The kernel's generation from before it was asked.
    pub(super) kernel_generation: u64,
}

/// Whom on the link a packet goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextHop {
    Unicast(IpAddr),
    Multicast(IpAddr),
    Broadcast,
}

impl Topology {
    fn shared(&self) -> impl Iterator<Item = &Arc<Interface>> {
        self.interfaces.iter().filter(|iface| iface.kernel().is_some())
    }
}

impl Inet {
    /// The way to `destination` from `local`, unspecified if the sender has named no address. `scope` is the
    /// interface that link-local addresses are meant on; 0 if it was not said.
    pub(super) fn look_up_route(
        &self,
        local: IpAddr,
        destination: IpAddr,
        scope: u32,
    ) -> Result<RouteResult, SendError> {
        let topology = self.topology();
        let shared = topology.shared().next().is_some();
        // RFC 1122 section 3.2.1.3 (g): 127/8 never leaves the host, nor does ::1 (RFC 4291 section 2.5.3);
        // 0.0.0.0 and :: are ourselves (ip(7)).
        let inside = destination.is_loopback() || destination.is_unspecified();
        if topology.has_own_address(destination) || (inside && !shared) {
            return Ok(RouteResult::Local);
        }
        if inside || topology.shared().any(|iface| iface.has(destination)) {
            return Err(SendError::UseKernel);
        }
        let many = destination.is_multicast() || destination == Ipv4Addr::BROADCAST;
        let linked = matches!(destination, IpAddr::V6(address) if needs_scope(address));
        if many || linked {
            return self.look_up_link_route(&topology, local, destination, scope);
        }
        let own = topology.routes.find(destination);
        let specific = own.filter(|route| route.to.prefix() > 0);
        if let (None, true) = (specific, shared) {
            for iface in topology.shared() {
                let generation = iface.kernel_generation();
                let route =
                    |tables: &Arc<dyn KernelTables>| tables.route(destination, specified(local));
                let Some(hop) = iface.kernel().and_then(route) else { continue };
                if matches!(destination, IpAddr::V4(address) if iface.is_broadcast(address)) {
                    return Err(SendError::UseKernel);
                }
                return Ok(RouteResult::Link(self.kernel_link_route(
                    iface,
                    hop,
                    generation,
                    destination,
                )));
            }
        }
        let Some(route) = specific.or(own) else {
            return Err(if shared { SendError::UseKernel } else { SendError::NoRoute });
        };
        let source = match destination {
            IpAddr::V4(address) if route.iface.is_broadcast(address) => {
                let link = self.link_route(
                    &route.iface,
                    NextHop::Broadcast,
                    route.source,
                    None,
                    destination,
                );
                return Ok(RouteResult::Link(link));
            }
            IpAddr::V4(_) => route.source,
            IpAddr::V6(address) => source6(&route.iface, address)?,
        };
        let next_hop = NextHop::Unicast(route.gateway.unwrap_or(destination));
        Ok(RouteResult::Link(self.link_route(&route.iface, next_hop, source, None, destination)))
    }

    /// The way to an address that names no network: broadcast, groups, link-local ones. It leaves over the
    /// interface `scope`, else where its source address is, else where a route leads, else over the first.
    fn look_up_link_route(
        &self,
        topology: &Topology,
        local: IpAddr,
        destination: IpAddr,
        scope: u32,
    ) -> Result<RouteResult, SendError> {
        let has_family =
            |iface: &&Arc<Interface>| destination.is_ipv4() || !iface.addresses6().is_empty();
        let mut ours = topology.interfaces.iter();
        let iface = if scope != 0 {
            ours.find(|iface| iface.scope_id() == scope)
        } else {
            let routed = || topology.routes.find(destination).map(|route| &route.iface);
            let from_here = ours.find(|iface| iface.has(local));
            from_here.or_else(routed).or_else(|| {
                topology.interfaces.iter().find(has_family).or(topology.interfaces.first())
            })
        };
        let iface = iface.ok_or(SendError::NoRoute)?;
        // Which groups and networks the kernel's interface is on is the kernel's to say.
        if let Some(tables) = iface.kernel() {
            let IpAddr::V6(address) = destination else { return Err(SendError::UseKernel) };
            let generation = tables.generation();
            let hop =
                tables.route(destination, specified(local)).filter(|_| !address.is_multicast());
            let Some(hop) = hop else { return Err(SendError::UseKernel) };
            return Ok(RouteResult::Link(self.kernel_link_route(
                iface,
                hop,
                generation,
                destination,
            )));
        }
        let source = match destination {
            IpAddr::V4(_) => match iface.addresses4().first() {
                Some(cidr) => cidr.address().into(),
                None => return Err(SendError::NoRoute),
            },
            IpAddr::V6(address) => source6(iface, address)?,
        };
        let next_hop = match destination {
            _ if destination.is_multicast() => NextHop::Multicast(destination),
            IpAddr::V4(_) => NextHop::Broadcast,
            IpAddr::V6(_) => NextHop::Unicast(destination),
        };
        Ok(RouteResult::Link(self.link_route(iface, next_hop, source, None, destination)))
    }

    /// The way that the kernel has named, asked when its tables were of `generation` at the least.
    fn kernel_link_route(
        &self,
        iface: &Arc<Interface>,
        hop: Hop,
        generation: u64,
        destination: IpAddr,
    ) -> LinkRoute {
        let next_hop = NextHop::Unicast(hop.next_hop);
        let link = self.link_route(iface, next_hop, hop.source, hop.mtu, destination);
        LinkRoute { kernel_generation: generation, ..link }
    }

    fn link_route(
        &self,
        iface: &Arc<Interface>,
        next_hop: NextHop,
        source: IpAddr,
        mtu: Option<u32>,
        destination: IpAddr,
    ) -> LinkRoute {
        let path_mtu = self.pmtu.get(destination);
        let mtu = [mtu, path_mtu.map(|path_mtu| path_mtu.mtu)]
            .into_iter()
            .flatten()
            .map(|mtu| mtu as usize)
            .fold(iface.info().mtu, usize::min);
        let mtu_locked = path_mtu.is_some_and(|path_mtu| path_mtu.locked);
        let kernel_generation = iface.kernel_generation();
        LinkRoute { iface: iface.clone(), next_hop, source, mtu, mtu_locked, kernel_generation }
    }
}

/// The source a sender has named. Nothing is sent from a group, which a socket may be bound to.
fn specified(local: IpAddr) -> Option<IpAddr> {
    (!local.is_unspecified() && !local.is_multicast()).then_some(local)
}

fn source6(iface: &Interface, destination: Ipv6Addr) -> Result<IpAddr, SendError> {
    dad::source(iface.addresses6().iter(), destination).map(IpAddr::V6).ok_or(SendError::NoRoute)
}
