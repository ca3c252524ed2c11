//! Listening: who asks for a connection (the SYN queue) and who waits to be accepted (the accept queue).

use super::{Flow, Hold, TcpEndpoint, TcpOptions};
use crate::inet::Inet;
use std::{io, net::SocketAddr, sync::Arc};

/// What `socket`, `setsockopt` and `listen` say about a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// How many connections may wait to be accepted; `somaxconn` at the most. One more than this is taken, as
    /// in Linux (`sk_acceptq_is_full`).
    pub backlog: u32,
    /// `SO_REUSEADDR`: connections of an earlier listener on the port do not stand in the way.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`: others that set it may listen at the same address; each new connection goes to one of
    /// them.
    pub reuse_port: bool,
    /// `IPV6_V6ONLY`: a listener at `[::]` does not hear IPv4.
    pub only_v6: bool,
    /// What accepted connections start with.
    pub tcp: TcpOptions,
}

impl Default for ListenOptions {
    fn default() -> ListenOptions {
        ListenOptions {
            backlog: 4096,
            reuse_address: false,
            reuse_port: false,
            only_v6: false,
            tcp: TcpOptions::default(),
        }
    }
}

/// A listener. Dropping it closes it: connections not yet accepted are reset.
#[derive(Debug)]
pub struct Listening {}

impl Inet {
    /// Listens at `local`; port 0 takes a free one. `endpoint` is told of each connection that waits to be
    /// accepted; `hold` lives as long as the listener or any connection made through it.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, by Linux's rules for `bind` and `listen`.
    pub fn tcp_listen(
        self: &Arc<Inet>,
        local: SocketAddr,
        options: ListenOptions,
        hold: Option<Hold>,
        endpoint: Arc<dyn TcpEndpoint>,
    ) -> io::Result<Listening> {
        let _ = (local, options, hold, endpoint);
        unimplemented!()
    }
}

impl Listening {
    /// The address and port it listens at.
    pub fn local(&self) -> SocketAddr {
        unimplemented!()
    }

    /// The connection that has waited longest. [Attach](Flow::attach) an endpoint to hear of changes.
    pub fn accept(&self) -> Option<Flow> {
        unimplemented!()
    }

    /// How many connections wait to be accepted.
    pub fn queued(&self) -> usize {
        unimplemented!()
    }

    /// `listen` called again: another backlog.
    pub fn set_backlog(&self, backlog: u32) {
        let _ = backlog;
        unimplemented!()
    }

    /// What accepted connections start with.
    pub fn options(&self) -> TcpOptions {
        unimplemented!()
    }

    /// Sets what connections made from now on start with.
    pub fn set_options(&self, options: TcpOptions) {
        let _ = options;
        unimplemented!()
    }
}
