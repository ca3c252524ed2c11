//! Listeners: an entry in the table, and the accept queue. The SYN queue consists of entries of the table, counted
//! here.

use super::{
    Config, Flow, PortRef, Ready, TcpEndpoint, TcpOptions,
    claims::{Claim, Claims, FlowClaim, Kind, candidates},
    flow::{Core, DeferredClose},
    request::SynQueueEntry,
    waited::{WaitWord, Waited},
};
use crate::{
    inet::{EPHEMERAL, Inet, Pass, PathOptions, input::Arrival},
    ledger::{LISTEN, LedgerSlot, SocketState},
    sync::{AtomicU32, Mutex, Ordering, lock},
    time::Instant,
    wire::Protocol,
};
use std::{
    collections::VecDeque,
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Weak},
    time::Duration,
};

/// Values of [`Listener::takes_links`].
const NO: u32 = 0;
/// As its process waits for connections.
const WAITS: u32 = 1;
/// Its process has accepted.
const ACCEPTS: u32 = 2;
/// Not even when its process accepts: others do so as well.
const NEVER: u32 = 3;
/// While a thread of its process waits, as other processes wait there, too. Such a connection is offered: its handshake
/// goes on when the process accepts it, and until then its client may go elsewhere.
const SHARED: u32 = 4;

/// How long after the last cookie was sent one may come back (`TCP_SYNCOOKIE_VALID`).
const COOKIES_VALID: Duration = Duration::from_secs(120);

/// The options of a listener, from `socket`, `setsockopt` and `listen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// How many connections may wait to be accepted; `somaxconn` at the most. One more than this is queued, as in
    /// Linux (`sk_acceptq_is_full`). As many handshakes may be in progress.
    pub backlog: u32,
    /// `SO_REUSEADDR`: connections of an earlier listener on the port are no conflict.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`: other sockets that set it may listen at the same address; each new connection goes to one of
    /// them, by a hash of its 4-tuple.
    pub reuse_port: bool,
    /// With `reuse_port`: a connection goes to the listener whose index in the group, in the order of creation, is
    /// the number of the receive queue of its SYN. The setting of the first in a group counts.
    pub by_queue: bool,
    /// `IPV6_V6ONLY`: a listener at `[::]` does not accept IPv4.
    pub only_v6: bool,
    /// The options of accepted connections.
    pub tcp: TcpOptions,
    /// `IP_TTL` and `IP_TOS`, likewise.
    pub path: PathOptions,
}

impl Default for ListenOptions {
    fn default() -> ListenOptions {
        ListenOptions {
            backlog: 4096,
            reuse_address: false,
            reuse_port: false,
            by_queue: false,
            only_v6: false,
            tcp: TcpOptions::default(),
            path: PathOptions::default(),
        }
    }
}

/// A listener, as the table refers to it.
pub(super) struct Listener {
    claim: Claim,
    pub(super) by_queue: bool,
    endpoint: Arc<dyn TcpEndpoint>,
    /// Whether it accepts connections over links to processes of this machine.
    takes_links: AtomicU32,
    waited: Waited,
    state: Mutex<State>,
}

struct State {
    tcp: TcpOptions,
    path: PathOptions,
    backlog: u32,
    /// Handshakes in progress: the length of the SYN queue.
    syn_queue_len: u32,
    /// Connections in the accept queue, or about to be.
    reserved: u32,
    queue: VecDeque<Arc<Core>>,
    /// Connections over links that are offered.
    offers: VecDeque<Offer>,
    cookie_at: Option<Instant>,
    port_ref: Option<PortRef>,
    closed: bool,
    /// The entry in the host's ledger.
    ledger_entry: Option<LedgerSlot>,
}

/// A connection that waits for the process to accept it.
struct Offer {
    handshake: Arc<SynQueueEntry>,
    since: Instant,
}

impl State {
    fn update_ledger(&self) {
        if let Some(ledger_entry) = &self.ledger_entry {
            ledger_entry.note(&SocketState {
                state: LISTEN,
                unread: self.queue.len(),
                unacknowledged: self.backlog as usize,
                ..SocketState::default()
            });
        }
    }
}

/// Why the accept queue takes no connection.
pub(super) enum Refused {
    Full,
    Closed,
}

impl Listener {
    /// The addresses and ports it listens at.
    pub(super) fn listen_keys(&self) -> impl Iterator<Item = (IpAddr, u16)> + use<> {
        let Claim { address, port, only_v6, .. } = self.claim;
        let dual = address == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && !only_v6;
        let v4 = dual.then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        [Some(address), v4].into_iter().flatten().map(move |address| (address, port))
    }

    pub(super) fn options(&self) -> (TcpOptions, PathOptions) {
        let state = lock(&self.state);
        (state.tcp, state.path)
    }

    /// Whether it takes a connection over a link now.
    pub(super) fn takes_links(&self) -> bool {
        match self.takes_links.load(Ordering::Relaxed) {
            WAITS | ACCEPTS => true,
            SHARED => self.waited.can_take() > 0,
            _ => false,
        }
    }

    /// Whether other processes wait for connections at its address, too.
    pub(super) fn is_shared(&self) -> bool {
        self.takes_links.load(Ordering::Relaxed) == SHARED
    }

    /// Offers a connection to its process. False: it is closed.
    pub(super) fn offer(&self, handshake: &Arc<SynQueueEntry>, pass: &mut Pass<'_>) -> bool {
        let mut state = lock(&self.state);
        if state.closed {
            return false;
        }
        state.offers.push_back(Offer { handshake: handshake.clone(), since: pass.now });
        self.waited.set_offers(state.offers.len());
        self.endpoint.changed(Ready::READABLE, pass.napi, pass);
        true
    }

    /// The client of this offer has gone.
    pub(super) fn withdraw(&self, handshake: &Arc<SynQueueEntry>) {
        let mut state = lock(&self.state);
        state.offers.retain(|offer| !Arc::ptr_eq(&offer.handshake, handshake));
        self.waited.set_offers(state.offers.len());
    }

    /// The options of a connection to it that begins with this segment.
    pub(super) fn options_for(&self, arrival: &Arrival<'_>) -> (TcpOptions, PathOptions) {
        let (tcp, path) = self.options();
        (tcp, PathOptions { link: arrival.link(), ..path })
    }

    /// The claim of a connection made through it, on its port.
    pub(super) fn flow_claim(&self) -> FlowClaim {
        FlowClaim { kind: self.claim.kind.connected(), chosen: false }
    }

    pub(super) fn port_ref(&self) -> Option<PortRef> {
        lock(&self.state).port_ref.clone()
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.state).closed
    }

    /// Linux's `inet_csk_reqsk_queue_is_full`.
    pub(super) fn syn_queue_is_full(&self, config: &Config) -> bool {
        let state = lock(&self.state);
        state.syn_queue_len >= state.backlog.min(config.tcp_max_syn_backlog)
    }

    /// One more handshake is in progress; false if the listener is closed.
    pub(super) fn syn_queue_add(&self) -> bool {
        let mut state = lock(&self.state);
        state.syn_queue_len += u32::from(!state.closed);
        !state.closed
    }

    pub(super) fn syn_queue_remove(&self) {
        lock(&self.state).syn_queue_len -= 1;
    }

    pub(super) fn note_cookie(&self, now: Instant) {
        lock(&self.state).cookie_at = Some(now);
    }

    /// Whether cookies were sent lately. If not, a cookie that comes back can only be a guess.
    pub(super) fn sent_cookies(&self, now: Instant) -> bool {
        lock(&self.state).cookie_at.is_some_and(|at| now.since(at) <= COOKIES_VALID)
    }

    pub(super) fn accept_queue_is_full(&self) -> bool {
        let state = lock(&self.state);
        state.reserved > state.backlog
    }

    /// Reserves room for one more connection in the accept queue.
    pub(super) fn reserve(&self) -> Result<(), Refused> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.reserved > state.backlog {
            return Err(Refused::Full);
        }
        state.reserved += 1;
        Ok(())
    }

    pub(super) fn unreserve(&self) {
        lock(&self.state).reserved -= 1;
    }

    /// Adds a connection to the accept queue; room was reserved.
    pub(super) fn push(&self, core: Arc<Core>, inet: &Inet, pass: &mut Pass<'_>) {
        let mut state = lock(&self.state);
        if state.closed {
            drop(state);
            return core.close_later(DeferredClose::Abort, inet);
        }
        state.queue.push_back(core);
        state.update_ledger();
        self.endpoint.changed(Ready::READABLE, pass.napi, pass);
    }
}

/// A listener. Dropping it closes it: connections not yet accepted are reset.
pub struct Listening {
    pub(super) listener: Arc<Listener>,
    pub(super) inet: Arc<Inet>,
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening").field("local", &self.local()).finish_non_exhaustive()
    }
}

/// What a socket already has of the port that it claims.
#[derive(Clone, Copy)]
pub(super) enum HeldPort<'a> {
    Nothing,
    /// The port, from the kernel, which shares the interface.
    FromKernel,
    /// This claim by bind(2), which is no conflict.
    Bound(&'a Claim),
    /// Both.
    BoundFromKernel(&'a Claim),
}

impl Inet {
    /// Listens at `local`; port 0 chooses a free one. `endpoint` is notified of each connection to accept; `port_ref`
    /// lives as long as the listener or any connection made through it.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, by Linux's rules for `bind` and `listen`.
    pub fn tcp_listen(
        self: &Arc<Inet>,
        local: SocketAddr,
        options: ListenOptions,
        port_ref: Option<PortRef>,
        endpoint: Arc<dyn TcpEndpoint>,
    ) -> io::Result<Listening> {
        self.tcp_listen_at(local, HeldPort::Nothing, options, port_ref, endpoint)
    }

    /// `own`: what the socket already has of the port.
    pub(super) fn tcp_listen_at(
        self: &Arc<Inet>,
        local: SocketAddr,
        own: HeldPort<'_>,
        options: ListenOptions,
        port_ref: Option<PortRef>,
        endpoint: Arc<dyn TcpEndpoint>,
    ) -> io::Result<Listening> {
        let address = local.ip().to_canonical();
        self.tcp_can_bind(address)?;
        let ListenOptions { reuse_address, reuse_port, only_v6, .. } = options;
        let kind = Kind::new(reuse_address, reuse_port).listening();
        let mut claims = lock(&self.tcp.claims);
        let named = Claim { address, port: local.port(), only_v6, kind, chosen: false };
        let claim = self.tcp_claim(&mut claims, named, own)?;
        let at = SocketAddr::new(claim.address, claim.port);
        let ledger_entry = self.ledger().and_then(|ledger| ledger.enter(Protocol::TCP, at, None));
        let state = State {
            tcp: options.tcp,
            path: options.path,
            backlog: options.backlog.min(self.tcp.config().somaxconn),
            syn_queue_len: 0,
            reserved: 0,
            queue: VecDeque::new(),
            offers: VecDeque::new(),
            cookie_at: None,
            port_ref,
            closed: false,
            ledger_entry,
        };
        state.update_ledger();
        let by_queue = options.by_queue;
        let (takes_links, state) = (AtomicU32::new(ACCEPTS), Mutex::new(state));
        let waited = Waited::default();
        let listener = Arc::new(Listener { claim, by_queue, endpoint, takes_links, waited, state });
        self.tcp.table.listen(&listener);
        drop(claims);
        Ok(Listening { listener, inet: self.clone() })
    }

    /// Adds a claim that must not be in conflict with others, on a chosen port if it names none.
    pub(super) fn tcp_claim(
        &self,
        claims: &mut Claims,
        claim: Claim,
        own: HeldPort<'_>,
    ) -> io::Result<Claim> {
        let (own, from_kernel) = match own {
            HeldPort::Nothing => (None, false),
            HeldPort::FromKernel => (None, true),
            HeldPort::Bound(own) => (Some(own), false),
            HeldPort::BoundFromKernel(own) => (Some(own), true),
        };
        own.into_iter().for_each(|own| claims.remove(own));
        let fits = |claims: &Claims, port| {
            let claim = Claim { port, ..claim };
            let conflict =
                if from_kernel { claims.is_listened_at(&claim) } else { claims.conflict(&claim) };
            (!conflict).then_some(claim)
        };
        let found = match claim.port {
            0 => {
                candidates(EPHEMERAL, self.random.next() as u32).find_map(|port| fits(claims, port))
            }
            port => fits(claims, port),
        };
        own.into_iter().for_each(|own| claims.add(own));
        let claim = found.ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRINUSE))?;
        claims.add(&claim);
        Ok(claim)
    }

    pub(super) fn tcp_can_bind(&self, address: IpAddr) -> io::Result<()> {
        let many = match address {
            IpAddr::V4(address) => address.is_broadcast() || address.is_multicast(),
            IpAddr::V6(address) => address.is_multicast(),
        };
        if many || !self.can_bind(address) {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        }
        Ok(())
    }
}

impl Listening {
    /// The address and port it listens at.
    pub fn local(&self) -> SocketAddr {
        (self.listener.claim.address, self.listener.claim.port).into()
    }

    /// The connection that has waited longest. [Attach](Flow::attach) an endpoint to be notified of changes.
    pub fn accept(&self) -> Option<Flow> {
        let mut state = lock(&self.listener.state);
        let core = state.queue.pop_front()?;
        state.reserved -= 1;
        state.update_ledger();
        Some(Flow::new(core, self.inet.clone()))
    }

    /// How many connections wait to be accepted.
    pub fn queued(&self) -> usize {
        let state = lock(&self.listener.state);
        state.queue.len() + state.offers.len()
    }

    /// Whether offers are all that waits to be accepted.
    pub(crate) fn has_only_offers(&self) -> bool {
        let state = lock(&self.listener.state);
        state.queue.is_empty() && !state.offers.is_empty()
    }

    /// How long the oldest offer has waited; `None`: there is none.
    pub(crate) fn offered_for(&self, now: Instant) -> Option<Duration> {
        lock(&self.listener.state).offers.front().map(|offer| now - offer.since)
    }

    /// Accepts the connection that was offered first.
    pub(crate) fn accept_offer(&self, pass: &mut Pass<'_>) -> Option<Flow> {
        loop {
            let mut state = lock(&self.listener.state);
            let offer = state.offers.pop_front()?;
            self.listener.waited.set_offers(state.offers.len());
            // The lock of a handshake comes before it.
            drop(state);
            if let Some(core) = offer.handshake.accept(&self.inet, pass) {
                return Some(Flow::new(core, self.inet.clone()));
            }
        }
    }

    /// A thread of this process begins, or ends, a wait for connections.
    pub(crate) fn waits(&self, begins: bool) {
        self.listener.waited.waits(begins);
    }

    /// How many threads of this process wait.
    pub(crate) fn waiting_threads(&self) -> u32 {
        self.listener.waited.threads()
    }

    /// `listen` called again: another backlog.
    pub fn set_backlog(&self, backlog: u32) {
        let mut state = lock(&self.listener.state);
        state.backlog = backlog.min(self.inet.tcp.config().somaxconn);
        state.update_ledger();
    }

    /// Sets the options of connections made from now on.
    pub fn set_options(&self, options: TcpOptions) {
        lock(&self.listener.state).tcp = options;
    }

    /// `IP_TTL` and `IP_TOS` of connections made from now on.
    pub fn set_path_options(&self, options: PathOptions) {
        lock(&self.listener.state).path = options;
    }
}

/// A listener, for what concerns links to processes of this machine.
#[derive(Clone)]
pub(crate) struct TakesLinks(Weak<Listener>);

impl TakesLinks {
    fn change(&self, from: u32, to: u32) -> bool {
        let order = Ordering::Relaxed;
        let change = |it: Arc<Listener>| it.takes_links.compare_exchange(from, to, order, order);
        self.0.upgrade().is_some_and(|listener| change(listener).is_ok())
    }

    /// Its process waits for connections: it accepts over links.
    pub(crate) fn waits(&self) {
        self.change(NO, WAITS);
    }

    /// It does not accept over links before its process accepts a connection. Not if its process has done so before,
    /// unless `always`. Returns whether that is so.
    pub(crate) fn pause(&self, always: bool) -> bool {
        self.change(WAITS, NO) || always && self.change(ACCEPTS, NO)
    }

    /// It does not accept over links from now on.
    pub(crate) fn never(&self) {
        if let Some(listener) = self.0.upgrade() {
            listener.takes_links.store(NEVER, Ordering::Relaxed);
            listener.waited.unshare();
        }
    }

    /// Other processes wait at its address, too: from now on it accepts over links while a thread of its process waits,
    /// and `word` says whether one does.
    pub(crate) fn share(&self, word: Arc<dyn WaitWord>) {
        if let Some(listener) = self.0.upgrade() {
            listener.takes_links.store(SHARED, Ordering::Relaxed);
            listener.waited.share(word);
        }
    }

    pub(crate) fn is_same(&self, other: &TakesLinks) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// The connections over links that wait to be accepted: link, local and remote address. `None`: there may be more in
    /// a moment.
    pub(crate) fn queued(&self) -> Option<Vec<(u32, SocketAddr, SocketAddr)>> {
        let Some(listener) = self.0.upgrade() else { return Some(Vec::new()) };
        let state = lock(&listener.state);
        let (cores, handshakes) =
            (Vec::from_iter(state.queue.iter().cloned()), state.syn_queue_len);
        // The locks of flows come before it.
        drop(state);
        let over_links: Vec<_> = cores
            .iter()
            .map(|core| (core.lock().path_options.link, core.tuple))
            .filter(|(link, _)| *link != 0)
            .map(|(link, tuple)| (link, tuple.local(), tuple.remote()))
            .collect();
        (!over_links.is_empty() || handshakes == 0).then_some(over_links)
    }

    /// Takes a connection out of the accept queue.
    pub(crate) fn take(
        &self,
        inet: &Arc<Inet>,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<Flow> {
        let listener = self.0.upgrade()?;
        let mut state = lock(&listener.state);
        let is_it = |core: &Arc<Core>| (core.tuple.local(), core.tuple.remote()) == (local, remote);
        let at = state.queue.iter().position(is_it)?;
        let core = state.queue.remove(at)?;
        state.reserved -= 1;
        state.update_ledger();
        Some(Flow::new(core, inet.clone()))
    }
}

impl Listening {
    pub(crate) fn links(&self) -> TakesLinks {
        TakesLinks(Arc::downgrade(&self.listener))
    }

    /// It does not accept over links before [`accepts`](Listening::accepts).
    pub(crate) fn take_no_links(&self) {
        self.listener.takes_links.store(NO, Ordering::Relaxed);
    }

    /// Its process accepts.
    pub(crate) fn accepts(&self) {
        let state = &self.listener.takes_links;
        let now = state.load(Ordering::Relaxed);
        if matches!(now, NO | WAITS) {
            let order = Ordering::Relaxed;
            let _ = state.compare_exchange(now, ACCEPTS, order, order);
        }
    }

    /// Closes it, as dropping it does; it can still be asked for its address.
    pub fn close(&self) {
        let mut state = lock(&self.listener.state);
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        drop(state);
        let mut claims = lock(&self.inet.tcp.claims);
        self.inet.tcp.table.unlisten(&self.listener);
        claims.remove(&self.listener.claim);
        drop(claims);
        let mut state = lock(&self.listener.state);
        state.ledger_entry = None;
        let (queue, port_ref) = (std::mem::take(&mut state.queue), state.port_ref.take());
        let offers = std::mem::take(&mut state.offers);
        drop(state);
        let now = crate::time::now();
        offers.iter().for_each(|offer| offer.handshake.refuse(&self.inet, now));
        for core in queue {
            core.close_later(DeferredClose::Abort, &self.inet);
        }
        drop(port_ref);
    }

    /// The peers of all connections at its address.
    pub fn peers(&self) -> Vec<SocketAddr> {
        self.inet.tcp.table.peers(|local| self.listener.claim.covers_local(local))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.close();
    }
}
