//! bind(2): an address and port taken before it is known whether the socket will listen or connect.

use super::{
    ConnectOptions, Flow, Hold, ListenOptions, Listening, TcpEndpoint,
    claims::{Claim, Kind},
    connect::From,
    listener::Before,
};
use crate::{inet::Inet, napi::Pass, sync::lock};
use std::{fmt, io, net::SocketAddr, sync::Arc};

/// A local address and port taken by a socket that neither listens nor is connected (yet). Dropping it frees them;
/// what listens or is connected by then has them for itself.
pub struct TcpBound {
    claim: Claim,
    /// The kernel, which shares the interface, has given it the port.
    agreed: bool,
    inet: Arc<Inet>,
}

impl fmt::Debug for TcpBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TcpBound").field(&self.local()).finish()
    }
}

impl Inet {
    /// Binds to `local`; port 0 takes a free one. Of `options`, those about sharing the port count.
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

    /// As [`tcp_bind`](Inet::tcp_bind), to a port that the kernel, which shares the interface, has given us: connections
    /// that a listener has left behind are in nobody's way.
    ///
    /// # Errors
    /// EADDRINUSE if somebody listens there; EADDRNOTAVAIL.
    pub(crate) fn tcp_bind_agreed(
        self: &Arc<Inet>,
        local: SocketAddr,
        options: &ListenOptions,
    ) -> io::Result<TcpBound> {
        self.tcp_bind_to(named(local, options), true)
    }

    fn tcp_bind_to(self: &Arc<Inet>, claim: Claim, agreed: bool) -> io::Result<TcpBound> {
        self.tcp_can_bind(claim.address)?;
        let own = if agreed { Before::Agreed } else { Before::Nothing };
        let claim = self.tcp_claim(&mut lock(&self.tcp.claims), claim, own)?;
        Ok(TcpBound { claim, agreed, inet: self.clone() })
    }

    /// Whether [`tcp_bind`](Inet::tcp_bind) would find the port in use.
    pub(crate) fn tcp_is_taken(&self, local: SocketAddr, options: &ListenOptions) -> bool {
        lock(&self.tcp.claims).conflict(&named(local, options))
    }
}

/// The claim of who binds to `local`.
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

    /// As [`Inet::tcp_listen`], where it is bound.
    ///
    /// # Errors
    /// EADDRINUSE: others may be bound there too, and one of them listens.
    pub fn listen(
        &self,
        options: ListenOptions,
        hold: Option<Hold>,
        endpoint: Arc<dyn TcpEndpoint>,
    ) -> io::Result<Listening> {
        let own = match self.agreed {
            true => Before::BoundAgreed(&self.claim),
            false => Before::Bound(&self.claim),
        };
        self.inet.tcp_listen_at(self.local(), own, options, hold, endpoint)
    }

    /// As [`Inet::tcp_connect`], from where it is bound.
    ///
    /// # Errors
    /// As [`Inet::tcp_connect`].
    pub fn connect(
        &self,
        remote: SocketAddr,
        options: &ConnectOptions,
        hold: Option<Hold>,
        endpoint: Arc<dyn TcpEndpoint>,
        pass: &mut Pass<'_>,
    ) -> io::Result<Flow> {
        let from = (self.local(), From::Bound);
        self.inet.tcp_connect_from(from, remote, options, hold, endpoint, pass)
    }
}

impl Drop for TcpBound {
    fn drop(&mut self) {
        self.inet.tcp_release(&self.claim);
    }
}
