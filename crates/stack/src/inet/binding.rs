//! Binding, connecting and unbinding UDP sockets: their ports and their entries in the socket tables.

use super::{
    Inet, SendError, UdpEndpoint,
    demux::{AddressPair, Member},
    dual::{Mapped, mapped, unmapped},
    ports::{BindAddress, Reuse},
};
use crate::sync::{Arc, Mutex, Ordering, lock};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// A bound UDP socket. Dropping it unbinds. A packet in flight may still reach the endpoint shortly after, and the
/// tables may keep a reference until another socket is closed: do not tie a file descriptor to the endpoint's drop.
pub struct Binding {
    inet: Arc<Inet>,
    /// Its entry in the table of its own family.
    member: Member,
    /// The IPv4 table's entry of an IPv6 socket.
    mapped: Option<Member>,
    options: BindOptions,
    /// The address passed to `bind`.
    bound: IpAddr,
    state: Mutex<State>,
}

/// The socket options that affect binding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// `SO_REUSEADDR`: the port may be shared with sockets that set it too; the newest gets the unicast datagrams.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`: the port may be shared with sockets that set it too; each gets the datagrams of a share of the
    /// peers.
    pub reuse_port: bool,
    /// `IPV6_V6ONLY`: an IPv6 socket does not receive IPv4. Without it, a socket bound to `::` receives both, and
    /// shows IPv4 peers as `::ffff:10.0.0.1`.
    pub only_v6: bool,
}

impl BindOptions {
    fn reuse(self) -> Reuse {
        Reuse { address: self.reuse_address, port: self.reuse_port }
    }
}

/// The socket's addresses as the application sees them: an IPv6 socket has IPv6 addresses only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    local: SocketAddr,
    remote: Option<SocketAddr>,
}

impl State {
    fn bind_address(&self, options: BindOptions) -> BindAddress {
        BindAddress::new(self.local.ip(), options.only_v6)
    }

    /// Its addresses in the tables of both families.
    fn address_pairs(
        &self,
        only_v6: bool,
    ) -> (Option<AddressPair<Ipv4Addr>>, Option<AddressPair<Ipv6Addr>>) {
        let (local, remote) = (unmapped(self.local), self.remote.map(unmapped));
        let port = local.port();
        let v4 = match (local.ip(), remote.map(|r| (r.ip(), r.port()))) {
            (IpAddr::V4(local), None) => Some(AddressPair { local: (local, port), remote: None }),
            (IpAddr::V4(local), Some((IpAddr::V4(remote), to))) => {
                Some(AddressPair { local: (local, port), remote: Some((remote, to)) })
            }
            (IpAddr::V6(any), None) if any.is_unspecified() && !only_v6 => {
                Some(AddressPair { local: (Ipv4Addr::UNSPECIFIED, port), remote: None })
            }
            _ => None,
        };
        let v6 = match (local.ip(), remote.map(|r| (r.ip(), r.port()))) {
            (IpAddr::V6(local), None) => Some(AddressPair { local: (local, port), remote: None }),
            (IpAddr::V6(local), Some((IpAddr::V6(remote), to))) => {
                Some(AddressPair { local: (local, port), remote: Some((remote, to)) })
            }
            _ => None,
        };
        (v4, v6)
    }
}

impl std::fmt::Debug for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Binding").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Inet {
    /// Binds a UDP socket to `local`; port 0 takes a free port of [`EPHEMERAL`](super::EPHEMERAL).
    ///
    /// With a shared interface the address is not checked: the companion's bind has done that.
    ///
    /// # Errors
    /// EADDRINUSE; EADDRNOTAVAIL; EINVAL for `::ffff:10.0.0.1` with `IPV6_V6ONLY`, as Linux.
    pub fn udp_bind(
        self: &Arc<Inet>,
        mut local: SocketAddr,
        options: BindOptions,
        endpoint: Arc<dyn UdpEndpoint>,
    ) -> io::Result<Binding> {
        let failed = |errno| Err(io::Error::from_raw_os_error(errno));
        if options.only_v6 && local.is_ipv6() && unmapped(local).is_ipv4() {
            return failed(libc::EINVAL);
        }
        if !self.can_bind(unmapped(local).ip()) {
            return failed(libc::EADDRNOTAVAIL);
        }
        let id = self.bindings.fetch_add(1, Ordering::Relaxed);
        let wrapped = local.is_ipv6().then(|| Arc::new(Mapped(endpoint.clone())));
        let reuseport = options.reuse_port;
        let mapped = wrapped.map(|endpoint| Member { id, reuseport, endpoint });
        let member = Member { id, reuseport, endpoint };
        let address = BindAddress::new(local.ip(), options.only_v6);
        let mut ports = lock(&self.ports);
        if local.port() == 0 {
            let Some(port) = ports.ephemeral(address, options.reuse(), &self.random) else {
                return failed(libc::EADDRINUSE);
            };
            local.set_port(port);
        } else if ports.is_taken(address, local.port(), options.reuse()) {
            return failed(libc::EADDRINUSE);
        }
        ports.add(address, local.port(), options.reuse());
        let (bound, state) = (local.ip(), State { local, remote: None });
        let state = Mutex::new(state);
        let binding = Binding { inet: self.clone(), member, mapped, options, bound, state };
        binding.update_demux((None, None), lock(&binding.state).address_pairs(options.only_v6));
        drop(ports);
        Ok(binding)
    }

    /// Whether `address` belongs to an interface that is not shared with the kernel.
    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        let (address, topology) = (address.to_canonical(), self.topology());
        let mut own = topology.interfaces.iter().filter(|iface| iface.kernel().is_none());
        let broadcast =
            |on: &super::Interface| matches!(address, IpAddr::V4(it) if on.is_broadcast(it));
        topology.has_own_address(address) || own.any(|iface| broadcast(iface))
    }

    /// Linux's `inet_addr_valid_or_nonlocal`, `inet6_bind`.
    pub(super) fn can_bind(&self, address: IpAddr) -> bool {
        if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
            return true;
        }
        let topology = self.topology();
        let broadcast = |iface: &super::Interface| matches!(address, IpAddr::V4(v4) if v4.is_broadcast() || iface.is_broadcast(v4));
        let mut interfaces = topology.interfaces.iter();
        topology.is_kernels
            || interfaces
                .any(|iface| iface.kernel().is_some() || iface.has(address) || broadcast(iface))
    }
}

type AddressPairs = (Option<AddressPair<Ipv4Addr>>, Option<AddressPair<Ipv6Addr>>);

impl Binding {
    /// Moves the socket in the tables of both families. The caller holds the lock of the ports.
    fn update_demux(&self, from: AddressPairs, to: AddressPairs) {
        let in_v4 = self.mapped.as_ref().unwrap_or(&self.member);
        self.inet.demux.rebind(from.0, to.0, in_v4);
        self.inet.demux6.rebind(from.1, to.1, &self.member);
    }

    /// The local address and port.
    pub fn local(&self) -> SocketAddr {
        lock(&self.state).local
    }

    /// Receives only from `remote` from now on. An unspecified local address becomes the route's source address.
    ///
    /// # Errors
    /// As a send to it would fail; `Unsupported` ([`SendError::UseKernel`]) if only the kernel has a route: get
    /// the source address from the kernel and call [`connect_from`](Binding::connect_from).
    pub fn connect(&self, remote: SocketAddr) -> io::Result<()> {
        let remote = self.in_socket_family(remote)?;
        let bound = SocketAddr::new(self.bound, 0);
        let source = self.inet.source(bound, remote)?;
        self.connect_from(source, remote)
    }

    /// As [`connect`](Binding::connect), with `local` in place of the bound address.
    ///
    /// # Errors
    /// EAFNOSUPPORT; ENETUNREACH for an IPv4 peer with `IPV6_V6ONLY`.
    pub fn connect_from(&self, local: IpAddr, remote: SocketAddr) -> io::Result<()> {
        let mut remote = self.in_socket_family(remote)?;
        let local = self.in_socket_family(SocketAddr::new(local, 0))?;
        if unmapped(local).is_ipv4() != unmapped(remote).is_ipv4() {
            return Err(SendError::Family.into());
        }
        if remote.ip().is_unspecified() {
            remote.set_ip(local.ip());
        }
        self.move_to(local.ip(), Some(remote));
        Ok(())
    }

    /// Whether `address` is IPv4 and the socket is `IPV6_V6ONLY` (RFC 3493 section 5.3).
    pub(crate) fn is_ipv4_but_v6only(&self, address: SocketAddr) -> bool {
        self.bound.is_ipv6() && self.options.only_v6 && unmapped(address).is_ipv4()
    }

    /// An address in the family of this socket.
    fn in_socket_family(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        match (self.bound, address) {
            (IpAddr::V4(_), SocketAddr::V6(_)) => Err(SendError::Family.into()),
            (IpAddr::V4(_), v4) => Ok(v4),
            (IpAddr::V6(_), address) if self.is_ipv4_but_v6only(address) => {
                Err(SendError::NoRoute.into())
            }
            (IpAddr::V6(_), address) => Ok(mapped(address)),
        }
    }

    /// Receives from any peer again, at the address it was bound to.
    pub fn disconnect(&self) {
        self.move_to(self.bound, None);
    }

    fn move_to(&self, local: IpAddr, remote: Option<SocketAddr>) {
        let mut state = lock(&self.state);
        let old = *state;
        let port = old.local.port();
        let new = State { local: SocketAddr::new(local, port), remote };
        if new == old {
            return;
        }
        let (only_v6, reuse) = (self.options.only_v6, self.options.reuse());
        let mut ports = lock(&self.inet.ports);
        ports.add(new.bind_address(self.options), port, reuse);
        self.update_demux(old.address_pairs(only_v6), new.address_pairs(only_v6));
        ports.remove(old.bind_address(self.options), port, reuse);
        *state = new;
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        let state = *lock(&self.state);
        let mut ports = lock(&self.inet.ports);
        self.update_demux(state.address_pairs(self.options.only_v6), (None, None));
        ports.remove(state.bind_address(self.options), state.local.port(), self.options.reuse());
    }
}
