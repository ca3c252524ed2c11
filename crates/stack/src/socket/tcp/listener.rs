//! Listeners, and accepting their connections.

use super::{
    adopt::Accepted,
    endpoint::{Endpoint, ReadChannel, events},
    listener_companion::ListenerCompanion,
    options::Values,
    stream::{Bound, TcpStream, pass},
};
use crate::{
    Host,
    host::PortReservation,
    inet::{
        Context, Poller,
        tcp::{Flow, Listening, Ready, TcpEndpoint},
    },
    napi::{NAPI_POLL_WEIGHT, NapiId},
    socket::{
        common::common_options,
        options::errno,
        readiness::{Events, Watch},
        source::{Sealed, Socket, Source},
        task_wait::TaskChannel,
        try_each,
        udp::SocketStats,
        waiting::WaitOptions,
    },
    sync::lock,
};
use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    os::fd::RawFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// The default backlog, as in std.
const BACKLOG: u32 = 128;

/// A connection that was offered so long ago may not be there any more.
const STALE: Duration = Duration::from_millis(1);

/// Not the number of a socket.
const NO_SOCKET: usize = usize::MAX;

/// A TCP socket that listens. Its methods are those of [`std::net::TcpListener`]; any number of threads may
/// accept at once. When the last of its clones is dropped, connections not yet accepted are reset.
///
/// For options that come before listening, make a [`TcpStream::new`], set them, and
/// [`listen`](TcpStream::listen). Accepted connections begin with the listener's options: busy polling, timeouts,
/// buffer sizes, and those of TCP.
///
/// ```
/// use busypoll_stack::{Host, TcpListener, TcpStream, nic::cable};
/// # let (a, _b) = cable::pair(cable::Config::default())?;
/// # let host = Host::builder().interface(a, "10.0.0.1/24").build()?;
/// let socket = TcpStream::new(&host);
/// socket.set_reuse_port(true)?;
/// socket.bind_to("10.0.0.1:7".parse().unwrap())?;
/// let listener = socket.listen(1024)?;
/// listener.set_busy_poll(50)?; // accept busy polls, and so do the accepted connections
/// # let client = TcpStream::connect(&host, "10.0.0.1:7")?;
/// let (stream, peer) = listener.accept()?;
/// assert_eq!(stream.busy_poll(), 50);
/// assert_eq!(client.local_addr()?, peer);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct TcpListener(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) host: Host,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) listening: Listening,
    pub(super) reservation: Option<Arc<PortReservation>>,
    pub(super) values: Mutex<Values>,
    closed: AtomicBool,
    /// Accepting was shut down.
    stopped: AtomicBool,
    /// A readiness call has reported nothing but offers, whose clients may go elsewhere: a blocking accept fails then,
    /// where it would otherwise wait for the next connection.
    reported_offers: AtomicBool,
    /// The kernel socket that listens at the same address.
    pub(super) kernel: Option<ListenerCompanion>,
}

common_options!(TcpListener, TcpListener::wait_options, TcpListener::inner);

impl TcpListener {
    /// Listens at the first of `addresses` that works, with `SO_REUSEADDR` set and a backlog of 128, as std
    /// does. Port 0 takes any free port.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EACCES, as from bind(2) and listen(2).
    pub fn bind(host: &Host, addresses: impl ToSocketAddrs) -> io::Result<TcpListener> {
        let mut listener = None;
        try_each(addresses, |address| {
            let socket = TcpStream::new(host);
            socket.set_reuse_address(true)?;
            socket.bind_to(address)?;
            listener = Some(socket.listen(BACKLOG)?);
            Ok(())
        })?;
        listener.ok_or_else(|| errno(libc::EINVAL))
    }

    pub(super) fn new(
        host: &Host,
        bound: Bound,
        waiting: WaitOptions,
        values: Values,
        backlog: u32,
        kernel: impl FnOnce(&Arc<Endpoint>) -> io::Result<Option<ListenerCompanion>>,
    ) -> io::Result<TcpListener> {
        let endpoint = Arc::new(Endpoint::of_listener(waiting));
        let reservation = bound.reservation;
        let options = values.listen(backlog);
        let kernel = kernel(&endpoint)?;
        let listening = bound.inet.listen(
            options,
            reservation.clone().map(|reservation| reservation as _),
            endpoint.clone(),
        )?;
        Ok(TcpListener(Arc::new(Inner {
            host: host.clone(),
            endpoint,
            listening,
            reservation,
            values: Mutex::new(values),
            closed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            reported_offers: AtomicBool::new(false),
            kernel,
        })))
    }

    /// The connection that has waited longest, and its peer's address. While there is none, busy polls the queue that
    /// the last connection came from, and then sleeps.
    ///
    /// # Errors
    /// `WouldBlock` if non-blocking or the read timeout is over, `Interrupted` by a signal, `ConnectionAborted` if the
    /// connection that a readiness call has reported is another process's by now.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            // A connection of the kernel's is only for callers of `accept_any`.
            if let Accepted::Ours(stream, remote) = self.accept_from_both(false)? {
                return Ok((stream, remote));
            }
        }
    }

    pub(super) fn accept_from_both(&self, dont_wait: bool) -> io::Result<Accepted> {
        let inner = &*self.0;
        let endpoint = &*inner.endpoint;
        let waiting = &endpoint.waiting;
        let nonblocking = dont_wait || waiting.is_nonblocking();
        let counted = (!nonblocking && inner.counts_waits()).then(|| CountedWait::begin(inner));
        let accepted = waiting.wait_nonblocking_if(
            nonblocking,
            &ReadChannel(endpoint),
            &waiting.reading,
            &mut || {
                let snapshot = endpoint.snapshot();
                let kernel = inner.kernel.as_ref();
                if inner.is_stopped() {
                    // The other waiters are woken to return the error, too.
                    endpoint.wake_next_reader();
                    return Some(Err(errno(libc::EINVAL)));
                }
                let ready = endpoint.ready().any(Ready::READABLE);
                // A non-blocking caller may know of the kernel's connection before the host's thread does: check always.
                if !ready && !kernel.is_some_and(|kernel| nonblocking || kernel.may_be_readable()) {
                    let gone = inner.take_reported_offers() && !nonblocking;
                    return gone.then(|| Err(errno(libc::ECONNABORTED)));
                }
                let flow = inner.listening.accept().or_else(|| inner.accept_offer());
                let accepted = match flow {
                    Some(flow) => Some(Ok(self.accepted(flow))),
                    None => {
                        let kernels = kernel.and_then(|kernel| kernel.accept(nonblocking));
                        kernels
                            .map(|accepted| accepted.map(|kernel| Accepted::Kernel(kernel, None)))
                    }
                };
                let gone = inner.take_reported_offers() && !nonblocking;
                if inner.listening.queued() == 0
                    && !kernel.is_some_and(ListenerCompanion::is_readable)
                {
                    endpoint.clear_ready(snapshot, Ready::READABLE);
                } else {
                    endpoint.wake_next_reader();
                }
                accepted.or_else(|| gone.then(|| Err(errno(libc::ECONNABORTED))))
            },
        );
        drop(counted);
        match accepted? {
            Accepted::Kernel(kernel, _) => Ok(match inner.import(kernel) {
                Ok(flow) => self.accepted(flow),
                Err((kernel, why)) => Accepted::Kernel(kernel, why),
            }),
            ours => Ok(ours),
        }
    }

    fn accepted(&self, flow: Flow) -> Accepted {
        let (stream, remote) = self.made_of(flow);
        Accepted::Ours(stream, remote)
    }

    /// The socket of an accepted connection, and its peer's address.
    pub(super) fn made_of(&self, flow: Flow) -> (TcpStream, SocketAddr) {
        let inner = &*self.0;
        let remote = flow.remote();
        let values = lock(&inner.values).clone();
        let waiting = inner.endpoint.waiting.inherited();
        (TcpStream::accepted(&inner.host, flow, waiting, values), remote)
    }

    /// Ends accepting, as shutdown(2) does: [`accept`](TcpListener::accept) fails with EINVAL, also in threads that
    /// wait in it. New connections are still established; they are reset when the listener is dropped.
    pub fn stop(&self) {
        let inner = &*self.0;
        if inner.stopped.swap(true, Ordering::AcqRel) {
            return;
        }
        inner.withdraw();
        let mut pass = pass();
        // `tcp_poll` reports this of a listener that was shut down.
        inner.endpoint.changed(Ready::WRITABLE | Ready::HANGUP, None, &mut pass);
        pass.wake.wake_all();
        inner.endpoint.wake_next_reader();
    }

    /// An endless iterator over the connections as they come.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// The address it listens at.
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.0.listening.local())
    }

    /// How many connections may wait to be accepted, at most the host's `somaxconn` (listen(2) called again).
    pub fn set_backlog(&self, backlog: u32) {
        self.0.listening.set_backlog(backlog);
    }

    /// How many connections wait to be accepted.
    pub fn queued(&self) -> usize {
        self.0.listening.queued()
    }

    /// How long an accept may wait; `None`: for ever (`SO_RCVTIMEO`).
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_accept_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.endpoint.waiting.reading.set(timeout)
    }

    /// How long [`accept`](TcpListener::accept) may wait; `None`: for ever.
    pub fn accept_timeout(&self) -> Option<Duration> {
        self.0.endpoint.waiting.reading.get()
    }

    /// Another handle to the same socket, as from dup(2).
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn try_clone(&self) -> io::Result<TcpListener> {
        Ok(TcpListener(self.0.clone()))
    }

    /// The pending error; a listener has none.
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(None)
    }

    /// The number of connections, by the kind of pass that found them.
    pub fn stats(&self) -> SocketStats {
        self.0.endpoint.stats()
    }

    fn wait_options(&self) -> &WaitOptions {
        &self.0.endpoint.waiting
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

/// The connections of a listener as they come: [`TcpListener::incoming`].
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a TcpListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

/// A thread that waits in accept(2).
struct CountedWait<'a>(&'a Inner);

impl CountedWait<'_> {
    fn begin(listener: &Inner) -> CountedWait<'_> {
        listener.notify_of_companion();
        listener.waits(true);
        CountedWait(listener)
    }
}

impl Drop for CountedWait<'_> {
    fn drop(&mut self) {
        self.0.waits(false);
    }
}

impl Inner {
    /// Accepts a connection over a link, if one is offered.
    fn accept_offer(&self) -> Option<Flow> {
        let mut pass = pass();
        if self.listening.offered_for(pass.now)? > STALE
            && let Some(context) = self.endpoint.context()
        {
            // Its client may have gone elsewhere.
            context.busy_poll(NAPI_POLL_WEIGHT, pass.now, &mut Poller::new(NO_SOCKET));
        }
        let flow = self.listening.accept_offer(&mut pass);
        pass.wake.wake_all();
        flow
    }

    /// Whether a readiness call has reported offers since the last accept.
    pub(super) fn take_reported_offers(&self) -> bool {
        self.reported_offers.load(Ordering::Relaxed)
            && self.reported_offers.swap(false, Ordering::Relaxed)
    }

    /// Whether accepting was shut down.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Other processes of this machine connect by the kernel from now on.
    fn withdraw(&self) {
        if let Some(peers) = self.host.peers() {
            peers.withdraw(self.listening.local(), &self.listening.links());
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        self.withdraw();
        self.endpoint.close();
        self.listening.close();
        // Some connections have not ended yet. From now on only their packets are steered to us, not the whole port;
        // this must be so before the companion is closed.
        if let Some(reservation) =
            self.reservation.take().filter(|reservation| Arc::strong_count(reservation) > 1)
        {
            reservation.narrow(self.listening.peers());
        }
    }
}

impl Source for Inner {
    fn readiness(&self) -> Events {
        if self.is_stopped() {
            return Events::WRITABLE | Events::HANGUP;
        }
        let snapshot = self.endpoint.snapshot();
        if self.listening.queued() == 0
            && !self.kernel.as_ref().is_some_and(ListenerCompanion::is_readable)
        {
            self.endpoint.clear_ready(snapshot, Ready::READABLE);
            return Events::default();
        }
        if self.listening.has_only_offers() {
            self.reported_offers.store(true, Ordering::Relaxed);
        }
        Events::READABLE
    }

    fn own_readiness(&self) -> Events {
        if self.listening.queued() == 0 { Events::default() } else { Events::READABLE }
    }

    fn is_ready_for(&self, interest: Events) -> bool {
        !events(self.endpoint.ready()).reported(interest).is_empty()
            && !self.readiness().reported(interest).is_empty()
    }

    fn counts_waits(&self) -> bool {
        // Only such a listener is published.
        self.kernel.is_some()
    }

    fn waits(&self, begins: bool) {
        self.listening.waits(begins);
    }

    fn companion_to_poll(&self) -> Option<RawFd> {
        self.kernel.as_ref()?.to_poll(|| self.listening.waiting_threads())
    }

    fn look_at_companion(&self) {
        self.kernel.iter().for_each(ListenerCompanion::look);
    }

    fn notify_of_companion(&self) {
        self.kernel.iter().for_each(ListenerCompanion::notify_always);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn napi(&self) -> Option<NapiId> {
        self.endpoint.napi()
    }

    fn context(&self) -> Option<Arc<Context>> {
        self.endpoint.context()
    }

    fn watch(&self, watch: Arc<dyn Watch>) {
        if !watch.polls_companions() {
            self.notify_of_companion();
        }
        self.endpoint.watch(watch);
    }

    fn unwatch(&self, watch: &Arc<dyn Watch>) {
        self.endpoint.unwatch(watch);
    }
}
