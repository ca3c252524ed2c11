//! bind(2): claims an address and port before it is known whether the socket will listen or connect.

use super::{
    ConnectOptions, Flow, ListenOptions, Listening, PortRef, TcpEndpoint,
    claims::{Claim, Kind},
    connect::LocalPort,
    listener::HeldPort,
};
use crate::{
    inet::{Inet, Pass},
    sync::lock,
};
use std::{fmt, io, net::SocketAddr, sync::Arc};

/// A local address and port claimed by a socket that neither listens nor is connected (yet). Dropping it releases
/// them; a listener or connection made from it has a claim of its own by then.
pub struct TcpBound {
    claim: Claim,
    /// The kernel, which shares the interface, has given it the port.
    from_kernel: bool,
    inet: Arc<Inet>,
}

impl fmt::Debug for TcpBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TcpBound").field(&self.local()).finish()
    }
}

impl Inet {
    /// Binds to `local`; port 0 chooses a free one. Of `options` only those about sharing the port matter.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, by Linux's rules for `bind`.
    pub fn tcp_bind(
        self: &Arc<Inet>,
        local: SocketAddr,
        options: &ListenOptions,
    ) -> io::Result<TcpBound> {
        self.tcp_bind_to(named(local, options), false)
    }

    /// As [`tcp_bind`](Inet::tcp_bind), to a port that the kernel, which shares the interface, has given us:
    /// connections left by an earlier listener are no conflict.
    ///
    /// # Errors
    /// EADDRINUSE if a socket listens there; EADDRNOTAVAIL.
    pub(crate) fn tcp_bind_kernel_port(
        self: &Arc<Inet>,
        local: SocketAddr,
        options: &ListenOptions,
    ) -> io::Result<TcpBound> {
        self.tcp_bind_to(named(local, options), true)
    }

    fn tcp_bind_to(self: &Arc<Inet>, claim: Claim, from_kernel: bool) -> io::Result<TcpBound> {
        self.tcp_can_bind(claim.address)?;
        let own = if from_kernel { HeldPort::FromKernel } else { HeldPort::Nothing };
        let claim = self.tcp_claim(&mut lock(&self.tcp.claims), claim, own)?;
        Ok(TcpBound { claim, from_kernel, inet: self.clone() })
    }

    /// Whether [`tcp_bind`](Inet::tcp_bind) would find the port in use.
    pub(crate) fn tcp_is_taken(&self, local: SocketAddr, options: &ListenOptions) -> bool {
        lock(&self.tcp.claims).conflict(&named(local, options))
    }
}

/// The claim of a bind to `local`.
fn named(local: SocketAddr, options: &ListenOptions) -> Claim {
    let kind = Kind::new(options.reuse_address, options.reuse_port);
    let (address, port) = (local.ip().to_canonical(), local.port());
    Claim { address, port, only_v6: options.only_v6, kind, chosen: false }
}

impl TcpBound {
    /// The address and port.
    pub fn local(&self) -> SocketAddr {
        (self.claim.address, self.claim.port).into()
    }

    /// As [`Inet::tcp_listen`], at the bound address.
    ///
    /// # Errors
    /// EADDRINUSE: other sockets may be bound there too, and one of them listens.
    pub fn listen(
        &self,
        options: ListenOptions,
        port_ref: Option<PortRef>,
        endpoint: Arc<dyn TcpEndpoint>,
    ) -> io::Result<Listening> {
        let own = match self.from_kernel {
            true => HeldPort::BoundFromKernel(&self.claim),
            false => HeldPort::Bound(&self.claim),
        };
        self.inet.tcp_listen_at(self.local(), own, options, port_ref, endpoint)
    }

    /// As [`Inet::tcp_connect`], from the bound address.
    ///
    /// # Errors
    /// As [`Inet::tcp_connect`].
    pub fn connect(
        &self,
        remote: SocketAddr,
        options: &ConnectOptions,
        port_ref: Option<PortRef>,
        endpoint: Arc<dyn TcpEndpoint>,
        pass: &mut Pass<'_>,
    ) -> io::Result<Flow> {
        let from = (self.local(), LocalPort::Bound);
        self.inet.tcp_connect_from(from, remote, options, port_ref, endpoint, pass)
    }
}

impl Drop for TcpBound {
    fn drop(&mut self) {
        self.inet.tcp_release(&self.claim);
    }
}
