//! bind(2): an address and port taken before it is known whether the socket will listen or connect.

use super::{
    ConnectOptions, Flow, Hold, ListenOptions, Listening, TcpEndpoint,
    claims::{Claim, Kind},
};
use crate::{inet::Inet, napi::Pass, sync::lock};
use std::{fmt, io, net::SocketAddr, sync::Arc};

/// A local address and port taken by a socket that neither listens nor is connected (yet). Dropping it frees them;
/// what listens or is connected by then has them for itself.
pub struct TcpBound {
    claim: Claim,
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
        let address = local.ip().to_canonical();
        self.tcp_can_bind(address)?;
        let kind = Kind::new(options.reuse_address, options.reuse_port);
        let only_v6 = options.only_v6;
        let named = Claim { address, port: local.port(), only_v6, kind, chosen: false };
        let claim = self.tcp_claim(&mut lock(&self.tcp.claims), named, None)?;
        Ok(TcpBound { claim, inet: self.clone() })
    }
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
        self.inet.tcp_listen_at(self.local(), Some(&self.claim), options, hold, endpoint)
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
        let from = (self.local(), Some(&self.claim));
        self.inet.tcp_connect_from(from, remote, options, hold, endpoint, pass)
    }
}

impl Drop for TcpBound {
    fn drop(&mut self) {
        self.inet.tcp_release(&self.claim);
    }
}
