//! Route lookup: our own routes by longest prefix, and the choice between own and shared interfaces.

use super::{
    Cidr, Inet, SendError, Topology,
    dad::{self, needs_scope},
    iface::{Hop, Interface, KernelTables},
};
use crate::sync::Arc;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A route over an interface with addresses of our own.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) to: Cidr,
    pub(super) iface: Arc<Interface>,
    /// `None`: the destination is on the link.
    pub(super) gateway: Option<IpAddr>,
    /// The preferred source address. For IPv6 it is selected anew for each destination.
    pub(super) source: IpAddr,
}

/// All routes, the longest prefix first.
#[derive(Debug, Default)]
pub(super) struct Routes(Vec<Route>);

impl Routes {
    /// Adds a route and replaces the one to the same destination.
    pub(super) fn add(&mut self, route: Route) {
        self.0.retain(|old| old.to != route.to);
        let at = self.0.partition_point(|old| old.to.prefix() >= route.to.prefix());
        self.0.insert(at, route);
    }

    /// Removes the routes over `iface`.
    pub(super) fn remove(&mut self, iface: &Arc<Interface>) {
        self.0.retain(|route| !Arc::ptr_eq(&route.iface, iface));
    }

    pub(super) fn find(&self, destination: IpAddr) -> Option<&Route> {
        self.0.iter().find(|route| route.to.contains(destination))
    }
}

/// The result of a route lookup.
#[derive(Clone, Debug)]
pub(super) enum RouteResult {
    /// The destination is this host.
    Local,
    /// The packet leaves over an interface.
    Link(LinkRoute),
}

#[derive(Clone, Debug)]
pub(super) struct LinkRoute {
    pub(super) iface: Arc<Interface>,
    pub(super) next_hop: NextHop,
    /// The source address if the sender has specified none.
    pub(super) source: IpAddr,
    /// The path MTU, bytes.
    pub(super) mtu: usize,
    /// The reported path MTU is below `min_pmtu`, so routers may fragment.
    pub(super) mtu_locked: bool,
    /// The generation of the kernel's tables before the lookup.
    pub(super) kernel_generation: u64,
}

/// The next hop of a packet on the link.
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
    /// The route to `destination` from `local`, which is unspecified if the sender has given no address. `scope` is
    /// the scope id of link-local addresses, or 0.
    pub(super) fn look_up_route(
        &self,
        local: IpAddr,
        destination: IpAddr,
        scope: u32,
    ) -> Result<RouteResult, SendError> {
        let topology = self.topology();
        let shared = topology.is_kernels || topology.shared().next().is_some();
        // RFC 1122 section 3.2.1.3 (g): 127/8 never leaves the host, nor does ::1 (RFC 4291 section 2.5.3);
        // 0.0.0.0 and :: are this host (ip(7)).
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

    /// The route to a process of this machine over the link of that number.
    pub(super) fn link_to_process(
        &self,
        number: u32,
        destination: IpAddr,
    ) -> Result<RouteResult, SendError> {
        let topology = self.topology();
        let mut links = topology.links.iter();
        let link = links.find(|link| link.link() == number).ok_or(SendError::NoRoute)?;
        // As the kernel's local table has it.
        let source = match destination {
            IpAddr::V4(address) if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            _ => destination,
        };
        let next_hop = NextHop::Unicast(destination);
        Ok(RouteResult::Link(LinkRoute {
            mtu: link.info().mtu,
            mtu_locked: false,
            kernel_generation: 0,
            iface: link.clone(),
            next_hop,
            source,
        }))
    }

    /// The route to a destination that is on no network: broadcast, multicast, link-local. The interface is `scope`,
    /// else the one with the source address, else that of a matching route, else the first.
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
        let none = if topology.is_kernels { SendError::UseKernel } else { SendError::NoRoute };
        let iface = iface.ok_or(none)?;
        // On a shared interface the kernel handles broadcast and multicast.
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

    /// The route that the kernel returned. `generation` was read before the lookup.
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

/// The source address the sender has specified. A group is none, though a socket may be bound to one.
fn specified(local: IpAddr) -> Option<IpAddr> {
    (!local.is_unspecified() && !local.is_multicast()).then_some(local)
}

fn source6(iface: &Interface, destination: Ipv6Addr) -> Result<IpAddr, SendError> {
    dad::source(iface.addresses6().iter(), destination).map(IpAddr::V6).ok_or(SendError::NoRoute)
}
