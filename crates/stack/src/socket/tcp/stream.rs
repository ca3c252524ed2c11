//! A TCP socket from creation to close: bind, connect, shutdown, close.

use super::{
    endpoint::{Endpoint, WriteChannel, events},
    is_connected,
    listener::TcpListener,
    listener_companion::ListenerCompanion,
    options::Values,
    transfer::send_deferred_ack,
};
use crate::{
    Host, Link,
    host::PortReservation,
    inet::{
        self, Context, Pass,
        tcp::{Flow, Ready, TcpBound, connection::State},
    },
    napi::{self, KernelFds, NapiId, PolledBy, Waiter},
    signal,
    socket::{
        UNSPECIFIED,
        common::{common_options, timeouts},
        options::errno,
        readiness::{Events, Watch},
        source::{Sealed, Socket, Source},
        task_wait::TaskChannel,
        try_each,
        udp::SocketStats,
        unspecified,
        waiting::{Timeout, WaitOptions},
    },
    sync::lock,
    time,
};
use std::{
    io,
    net::{IpAddr, Shutdown, SocketAddr, ToSocketAddrs},
    ops::Deref,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

/// A TCP connection on a [`Host`]. Its methods are those of [`std::net::TcpStream`]; any number of threads
/// may use it at once. It is closed when the last of its clones ([`try_clone`](TcpStream::try_clone)) is
/// dropped; what was written before still arrives.
///
/// ```
/// use busypoll_stack::{Host, TcpListener, TcpStream, nic::cable};
/// use std::{io::{Read, Write}, thread};
///
/// let (a, b) = cable::pair(cable::Config::default())?;
/// let left = Host::builder().interface(a, "10.0.0.1/24").busy_read(50).build()?;
/// let right = Host::builder().interface(b, "10.0.0.2/24").busy_read(50).build()?;
///
/// let listener = TcpListener::bind(&right, "10.0.0.2:7")?;
/// let echo = thread::spawn(move || {
///     let (mut stream, _peer) = listener.accept()?;
///     let mut request = Vec::new();
///     stream.read_to_end(&mut request)?;
///     stream.write_all(&request)
/// });
///
/// let mut stream = TcpStream::connect(&left, "10.0.0.2:7")?;
/// stream.write_all(b"hello")?;
/// stream.shutdown(std::net::Shutdown::Write)?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer)?;
/// assert_eq!(answer, "hello");
/// # echo.join().unwrap()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct TcpStream(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) host: Host,
    pub(super) endpoint: Arc<Endpoint>,
    /// The flow of the first attempt to connect, or of the accepted connection.
    flow: OnceLock<Flow>,
    /// The flow of a later attempt, after the ones before have failed.
    retry: Mutex<Option<Arc<Flow>>>,
    /// The outcome of connecting as calls have returned it ([`OUTCOME`]), and above it the number of the attempt.
    outcome: AtomicU32,
    /// The [`Events`] of a shutdown before there was a connection.
    shut: AtomicU32,
    closed: AtomicBool,
    /// The kernel has the connection.
    elsewhere: AtomicBool,
    pub(super) values: Mutex<Values>,
    /// The address that bind(2) gave it, kept until close (`SOCK_BINDPORT_LOCK`).
    bound: Mutex<Option<Box<Bound>>>,
}

/// A local address. The fields are dropped in this order.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) inet: TcpBound,
    pub(super) reservation: Option<Arc<PortReservation>>,
}

/// The most ports of the kernel's choice that are tried for a connection.
const PORTS_TRIED: usize = 64;

const PENDING: u32 = 0;
const CONNECTED: u32 = 1;
/// The socket is as if it had never been connected (`inet_stream_connect`).
const FAILED: u32 = 2;
/// The mask of the outcome; the bits above count attempts.
const OUTCOME: u32 = 3;

/// The flow that a call uses.
pub(super) enum Current<'a> {
    First(&'a Flow),
    Retry(Arc<Flow>),
}

impl Deref for Current<'_> {
    type Target = Flow;

    #[inline]
    fn deref(&self) -> &Flow {
        match self {
            Current::First(flow) => flow,
            Current::Retry(flow) => flow,
        }
    }
}

/// A pass for a call of the application.
pub(super) fn pass() -> Pass<'static> {
    Pass::new(None, time::now(), PolledBy::Kernel)
}

common_options!(TcpStream, TcpStream::wait_options, TcpStream::inner);
timeouts!(TcpStream, TcpStream::wait_options);

impl TcpStream {
    /// A socket that is not connected yet, to set options before [`bind_to`](TcpStream::bind_to),
    /// [`connect_to`](TcpStream::connect_to) or [`listen`](TcpStream::listen).
    pub fn new(host: &Host) -> TcpStream {
        TcpStream::with(host, WaitOptions::new(host.busy_read()), Values::new())
    }

    fn with(host: &Host, waiting: WaitOptions, values: Values) -> TcpStream {
        TcpStream(Arc::new(Inner {
            host: host.clone(),
            endpoint: Arc::new(Endpoint::new(waiting)),
            flow: OnceLock::new(),
            retry: Mutex::new(None),
            outcome: AtomicU32::new(PENDING),
            shut: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            elsewhere: AtomicBool::new(false),
            values: Mutex::new(values),
            bound: Mutex::new(None),
        }))
    }

    /// The socket of an accepted connection.
    pub(super) fn accepted(
        host: &Host,
        flow: Flow,
        waiting: WaitOptions,
        values: Values,
    ) -> TcpStream {
        let stream = TcpStream::with(host, waiting, values);
        let flow = stream.0.flow.get_or_init(|| flow);
        let mut pass = pass();
        flow.attach(stream.0.endpoint.clone(), &mut pass);
        pass.wake.wake_all();
        stream.0.outcome.store(CONNECTED, Ordering::Relaxed);
        stream
    }

    /// Connects to the first of `addresses` that works.
    ///
    /// # Errors
    /// ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, EADDRNOTAVAIL (out of ports), as from connect(2).
    pub fn connect(host: &Host, addresses: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let mut connected = None;
        try_each(addresses, |address| {
            let stream = TcpStream::new(host);
            stream.connect_to(address)?;
            connected = Some(stream);
            Ok(())
        })?;
        connected.ok_or_else(|| errno(libc::EINVAL))
    }

    /// Connects to `address`, for at most `timeout`.
    ///
    /// # Errors
    /// As [`connect`](TcpStream::connect), and `TimedOut`; `InvalidInput` for no time.
    pub fn connect_timeout(
        host: &Host,
        address: &SocketAddr,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        let limit = Timeout::default();
        limit.set(Some(timeout))?;
        let stream = TcpStream::new(host);
        stream.0.start_connect(*address)?;
        stream.0.wait_connected(false, &limit).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::TimedOut, "connection timed out")
            }
            _ => error,
        })?;
        Ok(stream)
    }

    /// Binds a socket made by [`new`](TcpStream::new); port 0 means any free port.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EACCES, as from bind(2); EINVAL if it is bound already.
    pub fn bind_to(&self, local: SocketAddr) -> io::Result<()> {
        let mut bound = lock(&self.0.bound);
        if bound.is_some() || self.0.connection().is_some() {
            return Err(errno(libc::EINVAL));
        }
        *bound = Some(Box::new(self.0.bind(local)?));
        Ok(())
    }

    /// The connection to be made takes `link`, whatever the routes say.
    pub fn set_link(&self, link: Link) {
        lock(&self.0.values).path.link = link.0;
    }

    /// Connects to `remote` over `link`, within `limit`, also if the socket is non-blocking; from `source`, if the
    /// process there is of another network namespace.
    ///
    /// # Errors
    /// As [`connect`](TcpStream::connect); `WouldBlock` if the other process does not answer within `limit`;
    /// EINPROGRESS if it is connected and non-blocking, as such a call has not returned success.
    #[doc(hidden)]
    pub fn connect_over(
        &self,
        link: Link,
        (source, remote): (Option<IpAddr>, SocketAddr),
        limit: Duration,
    ) -> io::Result<()> {
        self.set_link(link);
        let (inner, waits) = (&*self.0, Timeout::default());
        waits.set(Some(limit))?;
        inner.start_connect_from(source, remote)?;
        inner.wait_connected(false, &waits).inspect_err(|_| {
            if let Some(flow) = inner.connection() {
                let mut pass = pass();
                flow.give_up(&mut pass);
                pass.wake.wake_all();
            }
        })?;
        if !self.nonblocking() {
            return Ok(());
        }
        let (done, stale) = (Ordering::Release, Ordering::Relaxed);
        let _ = inner.outcome.compare_exchange(CONNECTED, PENDING, done, stale);
        Err(errno(libc::EINPROGRESS))
    }

    /// Connects a socket made by [`new`](TcpStream::new). A non-blocking socket returns EINPROGRESS: it becomes
    /// writable once connected, or has an error ([`take_error`](TcpStream::take_error)).
    ///
    /// # Errors
    /// As [`connect`](TcpStream::connect); EINPROGRESS also if the write timeout is over; EALREADY while an earlier
    /// call goes on; EISCONN after a call has returned success. After a call has returned a failure the next call tries
    /// again, as in Linux: from the same address if the socket was bound.
    pub fn connect_to(&self, remote: SocketAddr) -> io::Result<()> {
        let inner = &*self.0;
        if inner.outcome.load(Ordering::Relaxed) & OUTCOME == CONNECTED {
            return Err(errno(libc::EISCONN));
        }
        let begun = inner.connection().is_some();
        if !begun {
            inner.start_connect(remote)?;
        }
        let waiting = &inner.endpoint.waiting;
        if !begun && waiting.is_nonblocking() {
            return Err(errno(libc::EINPROGRESS));
        }
        inner.wait_connected(waiting.is_nonblocking(), &waiting.writing).map_err(
            |error| match error.kind() {
                io::ErrorKind::WouldBlock if begun => errno(libc::EALREADY),
                io::ErrorKind::WouldBlock => errno(libc::EINPROGRESS),
                _ => error,
            },
        )
    }

    /// Turns a socket that is not connected into a listener. `backlog`: how many connections may wait to be
    /// accepted, at most the host's `somaxconn`.
    ///
    /// # Errors
    /// EADDRINUSE as from listen(2); EINVAL if it has been connected.
    pub fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        self.listen_with(backlog, |_| Ok(None))
    }

    pub(super) fn listen_with_companion(
        self,
        backlog: u32,
        kernel: impl FnOnce(&Arc<Endpoint>) -> io::Result<ListenerCompanion>,
    ) -> io::Result<TcpListener> {
        self.listen_with(backlog, |endpoint| kernel(endpoint).map(Some))
    }

    fn listen_with(
        self,
        backlog: u32,
        kernel: impl FnOnce(&Arc<Endpoint>) -> io::Result<Option<ListenerCompanion>>,
    ) -> io::Result<TcpListener> {
        let inner = &*self.0;
        if inner.connection().is_some() {
            return Err(errno(libc::EINVAL));
        }
        let bound = match lock(&inner.bound).take() {
            Some(bound) => *bound,
            None => inner.bind(UNSPECIFIED)?,
        };
        let values = lock(&inner.values).clone();
        let waiting = inner.endpoint.waiting.inherited();
        waiting.set_nonblocking(self.nonblocking());
        TcpListener::new(&inner.host, bound, waiting, values, backlog, kernel)
    }

    /// Another handle to the same socket, as from dup(2).
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn try_clone(&self) -> io::Result<TcpStream> {
        Ok(TcpStream(self.0.clone()))
    }

    /// The local address; 0.0.0.0:0 if it is not bound.
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let bound = || lock(&self.0.bound).as_ref().map(|bound| bound.inet.local());
        let local = self.0.connection().map(|flow| flow.local()).or_else(bound);
        Ok(local.unwrap_or(UNSPECIFIED))
    }

    /// The peer's address.
    ///
    /// # Errors
    /// ENOTCONN if it is not or no longer connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self.0.connection() {
            Some(flow) if is_connected(&flow) => Ok(flow.remote()),
            _ => Err(errno(libc::ENOTCONN)),
        }
    }

    /// The address that it is connecting to, until it is connected.
    pub fn connecting_to(&self) -> Option<SocketAddr> {
        self.0.connection().filter(|flow| flow.state() == State::SynSent).map(|flow| flow.remote())
    }

    /// Ends receiving, sending, or both: the peer reads all that was written, then the end. A connection in SYN_SENT is
    /// aborted: ECONNRESET is pending, and the next [`connect_to`](TcpStream::connect_to) tries again.
    ///
    /// # Errors
    /// ENOTCONN.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let attempt = self.0.outcome.load(Ordering::Acquire) & !OUTCOME;
        let Some(flow) = self.0.connection() else {
            self.0.shut_unconnected(how);
            return Err(errno(libc::ENOTCONN));
        };
        let mut pass = pass();
        let result = flow.shutdown(how, &mut pass);
        if result.is_err() {
            // Linux notifies the waiters even so (`inet_shutdown`).
            self.0.endpoint.notify_again(&mut pass);
        } else if is_aborted(flow.ready()) {
            self.0.report(attempt, FAILED);
        }
        pass.wake.wake_all();
        result
    }

    /// Closes the connection at the end of the process: the peer reads all that was written, then the end; or gets a
    /// reset, if data is left unread.
    #[doc(hidden)]
    pub fn close_at_exit(&self) {
        if let Some(flow) = self.0.connection() {
            let mut pass = pass();
            flow.close_at_exit(&mut pass);
            pass.wake.wake_all();
        }
    }

    /// Whether it is shut down for sending, and the peer has not acknowledged all.
    #[doc(hidden)]
    pub fn is_unacknowledged(&self) -> bool {
        self.0.connection().is_some_and(|flow| flow.is_unacknowledged())
    }

    /// Whether a process of this machine is at its other end, over a link.
    #[doc(hidden)]
    pub fn is_over_link(&self) -> bool {
        self.0.connection().is_some_and(|flow| flow.link() != 0)
    }

    /// Whether there is no connection: it was never connected, connecting has failed and a call has returned the error,
    /// or connecting was aborted.
    #[doc(hidden)]
    pub fn is_unconnected(&self) -> bool {
        self.0.connection().is_none()
    }

    /// The pending error, cleared (`SO_ERROR`).
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.0.take_error().map(errno))
    }

    /// Makes an error that a receive has returned pending again, for a caller that has data to return first.
    #[doc(hidden)]
    pub fn restore_error(&self, errno: i32) {
        if let Some(flow) = self.0.connection() {
            let mut pass = pass();
            flow.restore_error(errno, &mut pass);
            pass.wake.wake_all();
        }
    }

    /// Bytes received and not read yet (`SIOCINQ`).
    pub fn unread(&self) -> usize {
        self.0.connection().map_or(0, |flow| flow.unread())
    }

    /// The value of `TCP_INQ`: as [`unread`](TcpStream::unread), and one more once the peer has ended its half, so that
    /// a reader with no data left knows that it can read the end.
    #[doc(hidden)]
    pub fn unread_with_fin(&self) -> usize {
        self.0.connection().map_or(0, |flow| flow.unread_with_fin())
    }

    /// Bytes written and not acknowledged by the peer yet (`SIOCOUTQ`).
    pub fn unacknowledged(&self) -> usize {
        self.0.connection().map_or(0, |flow| flow.unacknowledged())
    }

    /// The number of events, by the kind of pass that found them.
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

impl Inner {
    #[inline]
    pub(super) fn connection(&self) -> Option<Current<'_>> {
        match self.outcome.load(Ordering::Acquire) {
            PENDING | CONNECTED => self.flow.get().map(Current::First),
            outcome => self.retry(outcome),
        }
    }

    #[cold]
    fn retry(&self, outcome: u32) -> Option<Current<'_>> {
        if outcome & OUTCOME == FAILED { None } else { self.latest() }
    }

    /// The kernel has the connection from now on.
    pub(super) fn set_elsewhere(&self) {
        self.elsewhere.store(true, Ordering::Release);
    }

    /// The flow of the latest attempt, even if it failed: the error of an aborted attempt is pending there.
    fn latest(&self) -> Option<Current<'_>> {
        match self.outcome.load(Ordering::Acquire) & !OUTCOME {
            0 => self.flow.get().map(Current::First),
            _ => lock(&self.retry).clone().map(Current::Retry),
        }
    }

    /// Records the outcome of `attempt`, unless another call has recorded it or begun a new attempt.
    fn report(&self, attempt: u32, what: u32) {
        let (done, stale) = (Ordering::Release, Ordering::Relaxed);
        let _ = self.outcome.compare_exchange(attempt | PENDING, attempt | what, done, stale);
    }

    pub(super) fn take_error(&self) -> Option<i32> {
        self.latest().and_then(|flow| flow.take_error())
    }

    /// A receive without a connection (`tcp_recvmsg_locked`).
    #[cold]
    pub(super) fn receive_unconnected(&self) -> io::Result<usize> {
        match self.take_error() {
            Some(code) => Err(errno(code)),
            None if self.shut.load(Ordering::Relaxed) != 0 => Ok(0),
            None => Err(errno(libc::ENOTCONN)),
        }
    }

    /// Records the shutdown for the next poll, as Linux does (`inet_shutdown`).
    fn shut_unconnected(&self, how: Shutdown) {
        if how != Shutdown::Write {
            let events = Events::READABLE | Events::READ_HANGUP;
            self.shut.fetch_or(events.0, Ordering::Relaxed);
        }
    }

    pub(super) fn set_bound(&self, bound: Bound) {
        *lock(&self.bound) = Some(Box::new(bound));
    }

    fn bind(&self, local: SocketAddr) -> io::Result<Bound> {
        let values = lock(&self.values).clone();
        let reservation = match self.host.kernel() {
            Some(kernel) => kernel.reserve_port(local, values.reservation())?,
            None => None,
        };
        let local =
            reservation.as_ref().and_then(|reservation| reservation.local()).unwrap_or(local);
        let inet = self.host.inet().tcp_bind(local, &values.listen(0))?;
        Ok(Bound { inet, reservation })
    }

    /// Sends the SYN.
    fn start_connect(&self, remote: SocketAddr) -> io::Result<()> {
        self.start_connect_from(None, remote)
    }

    /// The same, from the address `source` over a link.
    fn start_connect_from(&self, source: Option<IpAddr>, remote: SocketAddr) -> io::Result<()> {
        let bound = lock(&self.bound);
        if self.connection().is_some() {
            return Err(errno(libc::EALREADY));
        }
        // Clears the readiness of the attempt before.
        self.endpoint.set_ready(self.endpoint.snapshot(), Ready::default());
        self.shut.store(0, Ordering::Relaxed);
        let values = lock(&self.values);
        // An IPv6-only socket does not connect to IPv4 (RFC 3493 section 5.3).
        if values.only_v6 && remote.is_ipv6() && remote.ip().to_canonical().is_ipv4() {
            return Err(errno(libc::ENETUNREACH));
        }
        let options = inet::tcp::ConnectOptions { source, ..values.connect() };
        drop(values);
        let endpoint = self.endpoint.clone();
        let mut pass = pass();
        let begun = match bound.as_deref() {
            Some(Bound { inet, reservation }) => {
                let reservation = reservation
                    .as_ref()
                    .map(|reservation| reservation.connected(remote))
                    .transpose()?;
                let reservation = reservation.map(|reservation| reservation as inet::tcp::PortRef);
                inet.connect(remote, &options, reservation, endpoint, &mut pass)
            }
            None => self.connect_from_any(remote, &options, &mut pass),
        };
        let flow = begun.map_err(|error| explain(&self.host, remote, error))?;
        if let Some(napi) = flow.napi() {
            self.endpoint.mark_napi(napi);
        }
        if let Err(flow) = self.flow.set(flow) {
            *lock(&self.retry) = Some(Arc::new(flow));
            let attempt = (self.outcome.load(Ordering::Relaxed) | OUTCOME).checked_add(1);
            self.outcome.store(attempt.unwrap_or(OUTCOME + 1), Ordering::Release);
        }
        drop(bound);
        if let Some(flow) = self.connection() {
            flow.send_syn(&mut pass);
        }
        pass.wake.wake_all();
        Ok(())
    }

    fn connect_from_any(
        &self,
        remote: SocketAddr,
        options: &inet::tcp::ConnectOptions,
        pass: &mut Pass<'_>,
    ) -> io::Result<Flow> {
        let (inet, endpoint) = (self.host.inet(), || self.endpoint.clone());
        let unspecified = unspecified(SocketAddr::new(remote.ip().to_canonical(), 0));
        let Some(kernel) = self.host.kernel() else {
            return inet.tcp_connect(unspecified, remote, options, None, endpoint(), pass);
        };
        // On a shared interface the kernel chooses the port. It does not know of a connection there that one of our
        // listeners has left behind. Ports that fail are kept reserved meanwhile, so that the kernel chooses others.
        let mut kept: Vec<inet::tcp::PortRef> = Vec::new();
        loop {
            let reservation = kernel.reserve_ephemeral(unspecified)?;
            let local = reservation.local().unwrap_or(unspecified);
            let reservation: inet::tcp::PortRef = Arc::new(reservation);
            let own = Some(reservation.clone());
            let from = (local, inet::tcp::LocalPort::FromKernel);
            match inet.tcp_connect_from(from, remote, options, own, endpoint(), pass) {
                Err(error)
                    if error.raw_os_error() == Some(libc::EADDRNOTAVAIL)
                        && kept.len() < PORTS_TRIED =>
                {
                    kept.push(reservation);
                }
                other => return other,
            }
        }
    }

    /// Waits until the connection is established or has failed.
    fn wait_connected(&self, nonblocking: bool, limit: &Timeout) -> io::Result<()> {
        let endpoint = &*self.endpoint;
        let attempt = self.outcome.load(Ordering::Acquire) & !OUTCOME;
        let flow = self.connection().ok_or_else(|| errno(libc::ECONNABORTED))?;
        let mut outcome = || {
            let snapshot = endpoint.snapshot();
            let ready = flow.ready();
            endpoint.set_ready(snapshot, ready);
            if !ready.any(Ready::WRITABLE | Ready::ERROR | Ready::HANGUP) {
                return None;
            }
            let failed = match flow.take_error() {
                Some(code) => Some(code),
                // Another call has taken the error.
                None => (!is_connected(&flow)).then_some(libc::ECONNABORTED),
            };
            self.report(attempt, failed.map_or(CONNECTED, |_| FAILED));
            Some(failed.map_or(Ok(()), |code| Err(errno(code))))
        };
        let channel = WriteChannel(endpoint);
        endpoint.waiting.wait_nonblocking_if(nonblocking, &channel, limit, &mut outcome)
    }

    /// `SO_LINGER`: waits until the peer has acknowledged everything or `limit` is over.
    fn linger(&self, flow: &Flow, limit: Duration) {
        let deadline = time::now() + limit;
        let Ok(waiter) = Waiter::of_this_thread() else { return };
        while flow.lingers() {
            let left = deadline - time::now();
            if left.is_zero() {
                return;
            }
            // The last acknowledgement does not wake a closed socket: check every millisecond.
            let nap = Some(left.min(Duration::from_millis(1)));
            waiter.start();
            if signal::has_deferred_signal() {
                return;
            }
            let context = self.endpoint.context();
            napi::sleep_for(context.as_slice(), &waiter, nap, &mut KernelFds::none());
        }
    }
}

/// Whether connecting was aborted: a connection that has ended otherwise has its read side closed as well.
fn is_aborted(ready: Ready) -> bool {
    ready.has(Ready::HANGUP) && !ready.has(Ready::READ_CLOSED)
}

/// The errno that Linux would return for a connect that could not start.
fn explain(host: &Host, remote: SocketAddr, error: io::Error) -> io::Error {
    match error.kind() {
        // The route is the kernel's. Perhaps it has none.
        io::ErrorKind::Unsupported => {
            match host.kernel().map(|kernel| kernel.check_route(remote)) {
                Some(Err(none)) => none,
                _ => io::Error::new(
                    io::ErrorKind::Unsupported,
                    "the route goes over an interface that only the kernel has; connect a kernel socket instead",
                ),
            }
        }
        // Port 0: no socket can listen there.
        io::ErrorKind::InvalidInput => errno(libc::ECONNREFUSED),
        _ => error,
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        self.endpoint.close();
        if let Some(flow) = self.connection() {
            let mut pass = pass();
            flow.close(&mut pass);
            pass.wake.wake_all();
            match lock(&self.values).tcp.linger {
                Some(limit) if !limit.is_zero() => self.linger(&flow, limit),
                _ => {}
            }
        }
    }
}

impl Source for Inner {
    fn readiness(&self) -> Events {
        let Some(flow) = self.connection() else {
            // `tcp_poll` on a socket in state CLOSE.
            let shut = Events(self.shut.load(Ordering::Relaxed));
            let pending = self.latest().is_some_and(|flow| flow.ready().has(Ready::ERROR));
            let error = if pending { Events::ERROR } else { Events::default() };
            return Events::WRITABLE | Events::HANGUP | shut | error;
        };
        // A caller that polls the socket waits for more data.
        send_deferred_ack(&self.endpoint, &flow);
        let snapshot = self.endpoint.snapshot();
        let mut ready = flow.ready();
        if !self.endpoint.set_ready(snapshot, ready) {
            // The event may be older than what was read, and a receive looks at it alone.
            let snapshot = self.endpoint.snapshot();
            ready = flow.ready();
            self.endpoint.set_ready(snapshot, ready);
        }
        events(ready)
    }

    fn is_ready_for(&self, interest: Events) -> bool {
        let noted = events(self.endpoint.ready()).reported(interest);
        (!noted.is_empty() || self.connection().is_none())
            && !self.readiness().reported(interest).is_empty()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn is_elsewhere(&self) -> bool {
        self.elsewhere.load(Ordering::Acquire)
    }

    fn napi(&self) -> Option<NapiId> {
        self.endpoint.napi()
    }

    fn context(&self) -> Option<Arc<Context>> {
        self.endpoint.context()
    }

    fn watch(&self, watch: Arc<dyn Watch>) {
        self.endpoint.watch(watch);
    }

    fn unwatch(&self, watch: &Arc<dyn Watch>) {
        self.endpoint.unwatch(watch);
    }
}
