//! A UDP socket's place in the tables: binding, connecting, and giving it all back.

use super::{
    Inet, SendError, UdpEndpoint,
    demux::{Key, Member},
};
use crate::sync::{Arc, Mutex, Ordering, lock};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
};

/// A bound UDP socket. Dropping it unbinds; a packet in flight may reach the endpoint a moment later, and
/// the tables may hold on to it until another socket is closed, so let no descriptor hang on that.
pub struct Binding {
    inet: Arc<Inet>,
    member: Member,
    reuse: bool,
    /// The address `bind` was given.
    bound: Ipv4Addr,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    local: SocketAddrV4,
    remote: Option<SocketAddrV4>,
}

impl State {
    fn key(self) -> Key {
        Key::new(self.local, self.remote)
    }
}

impl std::fmt::Debug for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Binding").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Inet {
    /// Binds a UDP socket to `local`; port 0 takes a free one of [`EPHEMERAL`](super::EPHEMERAL). `reuse`
    /// is `SO_REUSEADDR`: the port may be shared with others that set it, and the newest gets what is sent
    /// to one.
    ///
    /// Where the kernel shares an interface the address is not checked: its own bind has done that.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, as Linux.
    pub fn udp_bind(
        self: &Arc<Inet>,
        local: SocketAddr,
        reuse: bool,
        endpoint: Arc<dyn UdpEndpoint>,
    ) -> io::Result<Binding> {
        let SocketAddr::V4(mut local) = local else {
            return Err(SendError::Family.into());
        };
        if !self.can_bind(*local.ip()) {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        }
        let id = self.bindings.fetch_add(1, Ordering::Relaxed);
        let member = Member { id, endpoint };
        let in_use = || io::Error::from_raw_os_error(libc::EADDRINUSE);
        let mut ports = lock(&self.ports);
        if local.port() == 0 {
            let port = ports.ephemeral(*local.ip(), reuse, &self.random).ok_or_else(in_use)?;
            local.set_port(port);
        } else if ports.is_taken(local, reuse) {
            return Err(in_use());
        }
        ports.claim(local, reuse);
        let state = State { local, remote: None };
        self.demux.insert(state.key(), member.clone());
        drop(ports);
        let bound = *local.ip();
        Ok(Binding { inet: self.clone(), member, reuse, bound, state: Mutex::new(state) })
    }

    /// Linux's `inet_addr_valid_or_nonlocal`.
    pub(super) fn can_bind(&self, address: Ipv4Addr) -> bool {
        if address.is_unspecified() || address.is_broadcast() || address.is_multicast() {
            return true;
        }
        let topology = self.topology();
        let mut interfaces = topology.interfaces.iter();
        address.is_loopback()
            || interfaces.any(|iface| {
                iface.kernel().is_some() || iface.has(address) || iface.is_broadcast(address)
            })
    }
}

impl Binding {
    /// The local address and port.
    pub fn local(&self) -> SocketAddr {
        lock(&self.state).local.into()
    }

    /// The peer, if connected.
    pub fn remote(&self) -> Option<SocketAddr> {
        lock(&self.state).remote.map(SocketAddr::V4)
    }

    /// From now on hears `remote` alone. An unspecified local address becomes the one the route prefers.
    ///
    /// # Errors
    /// As a send to it would fail; `Unsupported` ([`SendError::UseKernel`]) if only the kernel knows the
    /// way: ask it for the source address, then [`connect_from`](Binding::connect_from).
    pub fn connect(&self, remote: SocketAddr) -> io::Result<()> {
        let IpAddr::V4(address) = remote.ip() else { return Err(SendError::Family.into()) };
        let source = self.inet.source(self.bound, address)?;
        self.connect_from(source.into(), remote)
    }

    /// As [`connect`](Binding::connect) with a local address that is known, in place of the one bound to.
    ///
    /// # Errors
    /// EAFNOSUPPORT.
    pub fn connect_from(&self, local: IpAddr, remote: SocketAddr) -> io::Result<()> {
        let (IpAddr::V4(local), SocketAddr::V4(mut remote)) = (local, remote) else {
            return Err(SendError::Family.into());
        };
        if remote.ip().is_unspecified() {
            remote.set_ip(local);
        }
        self.move_to(local, Some(remote));
        Ok(())
    }

    /// Hears everybody again, at the address first bound to.
    pub fn disconnect(&self) {
        self.move_to(self.bound, None);
    }

    fn move_to(&self, local: Ipv4Addr, remote: Option<SocketAddrV4>) {
        let mut state = lock(&self.state);
        let old = *state;
        let new = State { local: SocketAddrV4::new(local, old.local.port()), remote };
        if new == old {
            return;
        }
        let mut ports = lock(&self.inet.ports);
        ports.claim(new.local, self.reuse);
        self.inet.demux.rename(old.key(), new.key(), &self.member);
        ports.release(old.local, self.reuse);
        *state = new;
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        let state = *lock(&self.state);
        let mut ports = lock(&self.inet.ports);
        self.inet.demux.remove(state.key(), self.member.id);
        ports.release(state.local, self.reuse);
    }
}
