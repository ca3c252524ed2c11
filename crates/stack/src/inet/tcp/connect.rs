//! Active opens: the choice of a port, and the first SYN.

use super::{
    Flow, PortRef, TcpEndpoint, TcpOptions,
    claims::{FlowClaim, Kind, candidates},
    connection::{Connection, Start},
    flow::{Core, NewFlow, mss},
    listener::HeldPort,
    seq::Seq,
    table::Entry,
    tuple::Tuple,
};
use crate::{
    inet::{Count, EPHEMERAL, Inet, Pass, PathOptions, SendError, dual::unmapped},
    sync::{Ordering, lock},
    time::Instant,
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// The options of a connection to be made, from `socket` and `setsockopt`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// `SO_REUSEADDR`, for a local port that is named.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`, likewise.
    pub reuse_port: bool,
    /// The first transmit queue, best the one paired with the receive queue that answers will come from.
    pub queue: u32,
    /// `IP_TTL` and `IP_TOS`.
    pub path: PathOptions,
    /// The local address over a link to a process of another network namespace, as the kernel's routes have it.
    pub source: Option<IpAddr>,
    /// TCP's own.
    pub tcp: TcpOptions,
}

/// What a socket that connects already has of its local port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalPort {
    Nothing,
    Bound,
    /// The kernel, which shares the interface, has chosen it for this connection: connections left by an earlier
    /// listener on the port are no conflict.
    FromKernel,
}

/// A free 4-tuple for a connection to be made.
struct FreeTuple {
    tuple: Tuple,
    flow_claim: FlowClaim,
    /// Our first sequence number, if an earlier connection on this 4-tuple was ended for it.
    after: Option<Seq>,
}

impl Inet {
    /// A flow to `remote`, which [`Flow::send_syn`] begins to connect. Unspecified parts of `local` are chosen: the
    /// address by the route, the port so that the 4-tuple is free and hard to guess. The flow is writable once
    /// connected; before that, sends and receives return `WouldBlock`. `port_ref` lives as long as the connection, its
    /// TIME_WAIT included.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if no port is left or the 4-tuple is in use; EADDRINUSE if `local` names a port that is bound;
    /// ENETUNREACH and the like; `Unsupported` ([`SendError::UseKernel`]) if the route leads through the kernel.
    pub fn tcp_connect(
        self: &Arc<Inet>,
        local: SocketAddr,
        remote: SocketAddr,
        options: &ConnectOptions,
        port_ref: Option<PortRef>,
        endpoint: Arc<dyn TcpEndpoint>,
        pass: &mut Pass<'_>,
    ) -> io::Result<Flow> {
        let from = (local, LocalPort::Nothing);
        self.tcp_connect_from(from, remote, options, port_ref, endpoint, pass)
    }

    /// As [`tcp_connect`](Inet::tcp_connect), from a port that the socket may have already.
    ///
    /// # Errors
    /// As [`tcp_connect`](Inet::tcp_connect); EADDRNOTAVAIL if a connection on the kernel's port goes to `remote`.
    pub(crate) fn tcp_connect_from(
        self: &Arc<Inet>,
        (local, how): (SocketAddr, LocalPort),
        remote: SocketAddr,
        options: &ConnectOptions,
        port_ref: Option<PortRef>,
        endpoint: Arc<dyn TcpEndpoint>,
        pass: &mut Pass<'_>,
    ) -> io::Result<Flow> {
        let (local, remote) = (unmapped(local), unmapped(remote));
        //= RFC 9293 3.9.1.1
        //# A TCP implementation MUST reject as an error a local OPEN call for an invalid remote IP address (e.g., a
        //# broadcast or multicast address) (MUST-46).
        // With ENETUNREACH (`tcp_v4_connect`, `tcp_v6_connect`).
        let many = match remote.ip() {
            IpAddr::V4(address) => address.is_broadcast() || address.is_multicast(),
            IpAddr::V6(address) => address.is_multicast(),
        };
        if many {
            return Err(SendError::NoRoute.into());
        }
        if !local.ip().is_unspecified() {
            self.tcp_can_bind(local.ip())?;
        }
        //= RFC 9293 3.9.1.1
        //# If an application on a multihomed host does not specify the local IP address when actively opening a TCP
        //# connection, then the TCP implementation MUST ask the IP layer to select a local IP address before sending
        //# the (first) SYN (MUST-44).
        let from = options.source.map_or(local, |ip| SocketAddr::new(ip, local.port()));
        let path = match self.tcp_path((from, remote), options.queue, options.path, pass.now) {
            Ok(path) => path,
            // A broadcast address of the link.
            Err(SendError::Broadcast) => return Err(SendError::NoRoute.into()),
            Err(error) => return Err(error.into()),
        };
        // Both ends are known in full now, except perhaps our port.
        let (from, to) = (path.local(), path.remote());
        let FreeTuple { tuple, flow_claim, after } =
            self.tcp_choose((from, how), to, options, pass.now)?;
        let start = Start {
            iss: after.unwrap_or_else(|| self.tcp.secrets.isn(&tuple, pass.now)),
            ts_offset: self.tcp.secrets.timestamp_offset(&tuple),
            mss: mss(path.max_transport_len()),
        };
        let connection = Connection::connect(&self.tcp.shared, &options.tcp, start, pass.now);
        // The answer to the SYN most likely comes on the paired receive queue.
        let (endpoint, napi) = (Some(endpoint), path.napi());
        let iface = path.interface().cloned();
        let core =
            Core::new(NewFlow { tuple, connection, path, endpoint, napi, flow_claim, port_ref });
        if !self.tcp.table.insert(tuple, Entry::Flow(core.clone())) {
            // Another thread chose the same port at the same time.
            self.tcp_release(&flow_claim.of(&tuple));
            return Err(unavailable());
        }
        if iface.as_ref().is_some_and(|iface| iface.has_ended()) {
            // Since the route was looked up: then nothing else may end this connection.
            self.tcp.table.remove(&tuple, &Entry::Flow(core.clone()));
            core.forget(self);
            return Err(SendError::NoRoute.into());
        }
        self.tcp_count(Count::TcpActiveOpens);
        if iface.is_some_and(|iface| iface.link() != 0) {
            self.tcp_count(Count::TcpLinkActiveOpens);
        }
        Ok(Flow::new(core, self.clone()))
    }

    /// Finds a free 4-tuple, and claims its port.
    fn tcp_choose(
        &self,
        (from, how): (SocketAddr, LocalPort),
        to: SocketAddr,
        options: &ConnectOptions,
        now: Instant,
    ) -> io::Result<FreeTuple> {
        let kind = Kind::new(options.reuse_address, options.reuse_port);
        if from.port() != 0 {
            let (tuple, flow_claim) = (Tuple::new(from, to), FlowClaim { kind, chosen: false });
            let mut claims = lock(&self.tcp.claims);
            let claim = match how {
                LocalPort::Nothing => {
                    self.tcp_claim(&mut claims, flow_claim.of(&tuple), HeldPort::Nothing)?
                }
                // bind(2) has checked this port already (`__inet_hash_connect`).
                LocalPort::Bound | LocalPort::FromKernel => {
                    let claim = flow_claim.of(&tuple);
                    claims.add(&claim);
                    claim
                }
            };
            drop(claims);
            return match self.tcp_is_free(&tuple, how != LocalPort::FromKernel, now) {
                Some(after) => Ok(FreeTuple { tuple, flow_claim, after }),
                None => {
                    self.tcp_release(&claim);
                    Err(unavailable())
                }
            };
        }
        // RFC 6056 section 3.3.4: each destination has its own sequence of ports, which continues where it stopped.
        let hash = self.tcp.secrets.port_hash(from.ip(), to);
        let step = &self.tcp.port_steps[(hash >> 56) as usize % self.tcp.port_steps.len()];
        let offset = (hash as u32).wrapping_add(step.fetch_add(1, Ordering::Relaxed));
        for port in candidates(EPHEMERAL, offset) {
            let tuple = Tuple::new(SocketAddr::new(from.ip(), port), to);
            let flow_claim = FlowClaim { kind, chosen: true };
            let claim = flow_claim.of(&tuple);
            {
                let mut claims = lock(&self.tcp.claims);
                if !claims.can_choose(port) {
                    continue;
                }
                claims.add(&claim);
            }
            if let Some(after) = self.tcp_is_free(&tuple, false, now) {
                return Ok(FreeTuple { tuple, flow_claim, after });
            }
            self.tcp_release(&claim);
        }
        Err(unavailable())
    }

    /// Whether a 4-tuple can be used: it is free, or a TIME_WAIT entry that can be reused has it; or, if the port is
    /// `named` and there is no alternative, an orphan in FIN_WAIT_2 (`__inet_check_established`). The inner value is
    /// our first sequence number after that one.
    fn tcp_is_free(&self, tuple: &Tuple, named: bool, now: Instant) -> Option<Option<Seq>> {
        match self.tcp.table.find(tuple, Entry::clone) {
            None => Some(None),
            Some(Entry::TimeWait(time_wait)) => time_wait.try_reuse(self, named, now).map(Some),
            Some(Entry::Flow(core)) if named => core.reuse_fin_wait2(self, now).map(Some),
            Some(_) => None,
        }
    }
}

/// connect(2): "EADDRNOTAVAIL [...] all port numbers in the ephemeral port range are currently in use".
fn unavailable() -> io::Error {
    io::Error::from_raw_os_error(libc::EADDRNOTAVAIL)
}
