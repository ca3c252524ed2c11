//! UDP sockets, as an application holds them.

use super::{
    buffer::Buffer,
    busy::{Busy, Terms, busy_loop},
    endpoint::{Endpoint, Find, SocketStats},
    options::{SO_BROADCAST, SO_ERROR, SO_INCOMING_NAPI_ID, SO_REUSEADDR},
    readiness::Events,
};
use crate::{
    Host,
    inet::{Binding, Path, PathOptions, SendError},
    napi::{Direct, Driver, NapiId, Pass, Poller, Waiter, Wake},
    sync::lock,
    time::{self, Instant},
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, ToSocketAddrs},
    slice,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// A datagram to be sent by [`UdpSocket::send_many`].
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Its bytes.
    pub payload: &'a [u8],
    /// Where to; `None`: where the socket is connected to.
    pub to: Option<SocketAddr>,
}

/// Room for a datagram, filled by [`UdpSocket::recv_many`].
#[derive(Debug)]
pub struct Incoming<'a> {
    /// Where its bytes go.
    pub buffer: &'a mut [u8],
    /// How many came.
    pub len: usize,
    /// Where from.
    pub from: Option<SocketAddr>,
    /// The local address that it was sent to.
    pub to: Option<SocketAddr>,
    /// The NAPI context whose queue it came over.
    pub napi: Option<NapiId>,
    /// When the pass that found it began.
    pub arrived: Instant,
}

impl<'a> Incoming<'a> {
    /// Room for a datagram of up to `buffer.len()` bytes.
    pub fn new(buffer: &'a mut [u8]) -> Incoming<'a> {
        Incoming { buffer, len: 0, from: None, to: None, napi: None, arrived: Instant::ZERO }
    }
}

/// A UDP socket on a [`Host`]. Its methods are those of [`std::net::UdpSocket`]; any number of threads may
/// use it at once. Dropping it closes it.
///
/// ```
/// use busypoll_stack::{Host, UdpSocket, nic::cable};
///
/// let (a, b) = cable::pair(cable::Config::default())?;
/// let left = Host::builder().interface(a, "10.0.0.1/24").build()?;
/// let right = Host::builder().interface(b, "10.0.0.2/24").build()?;
/// let server = UdpSocket::bind(&right, "10.0.0.2:7")?;
/// let client = UdpSocket::bind(&left, "10.0.0.1:0")?;
/// client.connect("10.0.0.2:7")?;
/// client.set_busy_poll(50)?;
///
/// client.send(b"x")?;
/// let mut buffer = [0; 16];
/// let (len, from) = server.recv_from(&mut buffer)?;
/// server.send_to(&buffer[..len], from)?;
/// assert_eq!(client.recv(&mut buffer)?, 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct UdpSocket {
    host: Host,
    endpoint: Arc<Endpoint>,
    binding: Mutex<Option<Bound>>,
    /// The path last sent over, and the address it was asked for; `None`: the peer's.
    path: Mutex<Option<(Option<SocketAddr>, Path)>>,
    nonblocking: AtomicBool,
    read_timeout: AtomicU64,
    write_timeout: AtomicU64,
}

/// What a bound socket holds, the kernel's part released after ours.
#[derive(Debug)]
struct Bound {
    inet: Binding,
    remote: Option<SocketAddr>,
    kernel: Option<crate::host::Shadow>,
}

/// No address.
const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

impl UdpSocket {
    /// A socket that is not bound yet; sending binds it to a port of the host's choice.
    pub fn new(host: &Host) -> UdpSocket {
        UdpSocket {
            endpoint: Arc::new(Endpoint::new(host.busy_read(), host.delivery_hook())),
            host: host.clone(),
            binding: Mutex::new(None),
            path: Mutex::new(None),
            nonblocking: AtomicBool::new(false),
            read_timeout: AtomicU64::new(0),
            write_timeout: AtomicU64::new(0),
        }
    }

    /// A socket bound to the first of `addresses` that works. Port 0 takes any free port.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EACCES, as from bind(2).
    pub fn bind(host: &Host, addresses: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let socket = UdpSocket::new(host);
        each(addresses, |address| socket.bind_to(address))?;
        Ok(socket)
    }

    /// Binds a socket made by [`new`](UdpSocket::new), after its options are set.
    ///
    /// # Errors
    /// As [`bind`](UdpSocket::bind), and EINVAL if it is bound already.
    pub fn bind_to(&self, local: SocketAddr) -> io::Result<()> {
        let mut bound = lock(&self.binding);
        if bound.is_some() {
            return Err(errno(libc::EINVAL));
        }
        *bound = Some(self.make_binding(local)?);
        Ok(())
    }

    fn make_binding(&self, local: SocketAddr) -> io::Result<Bound> {
        let reuse = self.endpoint.options.get(SO_REUSEADDR)? != 0;
        let reserved = match self.host.kernel() {
            Some(kernel) => kernel.reserve(local, reuse, self.endpoint.clone())?,
            None => None,
        };
        let (local, kernel) = match reserved {
            Some((local, shadow)) => (local, Some(shadow)),
            None => (local, None),
        };
        let inet = self.host.inet().udp_bind(local, reuse, self.endpoint.clone())?;
        if let Some(kernel) = &kernel {
            kernel.set_broadcast(self.endpoint.options.get(SO_BROADCAST)? != 0)?;
            kernel.steer(inet.local())?;
        }
        Ok(Bound { inet, remote: None, kernel })
    }

    fn with_binding<T>(&self, then: impl FnOnce(&mut Bound) -> io::Result<T>) -> io::Result<T> {
        let mut bound = lock(&self.binding);
        if bound.is_none() {
            *bound = Some(self.make_binding(NOBODY)?);
        }
        match &mut *bound {
            Some(bound) => then(bound),
            None => Err(errno(libc::EINVAL)),
        }
    }

    /// From now on the socket receives only from `addresses` (the first that works), and
    /// [`send`](UdpSocket::send) sends there.
    ///
    /// # Errors
    /// ENETUNREACH and what binding can fail with.
    pub fn connect(&self, addresses: impl ToSocketAddrs) -> io::Result<()> {
        each(addresses, |remote| {
            self.with_binding(|bound| {
                if let Some(kernel) = &bound.kernel {
                    kernel.connect(Some(remote))?;
                }
                match (bound.inet.connect(remote), &bound.kernel) {
                    // The way leads through the kernel, which has just chosen the address it leaves from.
                    (Err(error), Some(kernel)) if error.kind() == io::ErrorKind::Unsupported => {
                        bound.inet.connect_from(kernel.local_addr()?.ip(), remote)?;
                    }
                    (result, _) => result?,
                }
                bound.remote = Some(remote);
                self.endpoint.set_connected(true);
                Ok(())
            })?;
            self.forget_path();
            Ok(())
        })
    }

    /// Takes [`connect`](UdpSocket::connect) back.
    pub fn disconnect(&self) {
        if let Some(bound) = &mut *lock(&self.binding) {
            bound.inet.disconnect();
            if let Some(kernel) = &bound.kernel {
                // Only forgets its peer; there is nothing in it that could fail.
                let _ = kernel.connect(None);
            }
            bound.remote = None;
            self.endpoint.set_connected(false);
        }
        self.forget_path();
    }

    /// After the binding has changed, its lock released: a sender holds the path's lock and then asks for
    /// the binding's.
    fn forget_path(&self) {
        *lock(&self.path) = None;
    }

    /// The address it is bound to; 0.0.0.0:0 if it is not.
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let bound = lock(&self.binding);
        let unbound = NOBODY;
        Ok(bound.as_ref().map_or(unbound, |bound| bound.inet.local()))
    }

    /// The address it is connected to.
    ///
    /// # Errors
    /// ENOTCONN.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let bound = lock(&self.binding);
        bound.as_ref().and_then(|bound| bound.remote).ok_or_else(|| errno(libc::ENOTCONN))
    }

    // Receiving.

    /// Receives a datagram; what does not fit into `buffer` is lost. Busy polls and then sleeps while there
    /// is none. Returns 0 after [`shutdown`](UdpSocket::shutdown).
    ///
    /// # Errors
    /// `WouldBlock` if non-blocking or the read timeout is over, `Interrupted` by a signal, a pending error
    /// (ECONNREFUSED and its like).
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buffer).map(|(len, _)| len)
    }

    /// As [`recv`](UdpSocket::recv), and tells who sent it.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let mut find = Find::new();
        let mut taken = self.receive(Some(&mut find), |waiting| waiting.pop(buffer))?;
        if taken.is_none() {
            taken = find.pop(buffer);
        }
        Ok(taken.map_or((0, NOBODY), |(meta, len)| (len, meta.from)))
    }

    /// As [`recv_from`](UdpSocket::recv_from), but the datagram stays.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
    pub fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let seen = self.receive(None, |waiting| waiting.peek(buffer))?;
        Ok(seen.map_or((0, NOBODY), |(meta, len)| (len, meta.from)))
    }

    /// Receives up to `into.len()` datagrams: waits for the first as [`recv`](UdpSocket::recv) does, then
    /// takes what is there. Returns how many.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
    pub fn recv_many(&self, into: &mut [Incoming<'_>]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let taken = self.receive(None, |waiting| {
            let mut count = 0;
            for room in into.iter_mut() {
                let Some((meta, len)) = waiting.pop(room.buffer) else { break };
                room.len = len;
                (room.from, room.to) = (Some(meta.from), Some(meta.to));
                (room.napi, room.arrived) = (meta.napi, meta.arrived);
                count += 1;
            }
            (count > 0).then_some(count)
        })?;
        Ok(taken.unwrap_or(0))
    }

    /// The receive path, top to bottom: what is there; else busy poll; else sleep; again. `None` at the end,
    /// or if the datagram is in `find`.
    #[inline]
    fn receive<T>(
        &self,
        mut find: Option<&mut Find>,
        mut take: impl FnMut(&mut Buffer) -> Option<T>,
    ) -> io::Result<Option<T>> {
        if let Some(result) = self.endpoint.take(&mut take) {
            return result;
        }
        let deadline = deadline(&self.read_timeout);
        loop {
            if self.busy_poll_for(find.as_deref_mut(), deadline) {
                if find.as_ref().is_some_and(|find| find.is_filled()) {
                    return Ok(None);
                }
                if let Some(result) = self.endpoint.take(&mut take) {
                    return result;
                }
            }
            if self.nonblocking.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let wake = self.sleep(deadline)?;
            if let Some(result) = self.endpoint.take(&mut take) {
                return result;
            }
            match wake {
                Wake::Timeout => return Err(io::ErrorKind::WouldBlock.into()),
                Wake::Interrupted => return Err(io::ErrorKind::Interrupted.into()),
                Wake::Woken | Wake::Readable => {}
            }
        }
    }

    /// Busy polls by `SO_BUSY_POLL` if a napi id is known. True if something came.
    #[inline]
    fn busy_poll_for(&self, find: Option<&mut Find>, deadline: Option<Instant>) -> bool {
        let endpoint = &*self.endpoint;
        let options = &endpoint.options;
        let micros = options.busy_poll.load(Ordering::Relaxed);
        if micros == 0 {
            return false;
        }
        let Some(context) = endpoint.context() else { return false };
        let once = self.nonblocking.load(Ordering::Relaxed);
        let terms = Terms {
            span: Duration::from_micros(if once { 0 } else { micros.into() }),
            budget: options.busy_poll_budget.load(Ordering::Relaxed) as usize,
            deadline,
        };
        let mut poller = Poller {
            name: endpoint.poller(),
            prefer: options.prefer_busy_poll.load(Ordering::Relaxed),
            direct: find.map(|find| find as &mut dyn Direct),
        };
        let contexts = slice::from_ref(&context);
        busy_loop(contexts, &terms, &mut poller, || endpoint.has_attention()) == Busy::Ready
    }

    /// Sleeps until something may have come.
    fn sleep(&self, deadline: Option<Instant>) -> io::Result<Wake> {
        let waiter = Waiter::of_this_thread()?;
        waiter.start();
        let Ok(context) = self.endpoint.join(&waiter) else { return Ok(Wake::Woken) };
        let timeout = deadline.map(|deadline| deadline - time::now());
        let wake = match context {
            Some(context) => context.sleep(&waiter, timeout),
            None => waiter.sleep(timeout),
        };
        // Who wakes a receiver takes it off the queue; but it may have been woken by the late echo of an
        // earlier wait, and an entry left behind would swallow a later wake-up.
        if waiter.is_queued() || !waiter.is_woken() {
            self.endpoint.leave(&waiter);
        }
        Ok(wake)
    }

    // Sending.

    /// Sends a datagram to where the socket is connected to.
    ///
    /// # Errors
    /// EDESTADDRREQ if it is not connected, EMSGSIZE, EPIPE after shutdown, EHOSTUNREACH, ENETUNREACH, a
    /// pending error (ECONNREFUSED from an earlier datagram), `WouldBlock` if the ring is full and the
    /// socket non-blocking (or the write timeout over).
    #[inline]
    pub fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.send_all(&[Outgoing { payload, to: None }]).map(|_| payload.len())
    }

    /// Sends a datagram to `to`.
    ///
    /// # Errors
    /// As [`send`](UdpSocket::send).
    #[inline]
    pub fn send_to(&self, payload: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let to = to.to_socket_addrs()?.next().ok_or_else(|| errno(libc::EDESTADDRREQ))?;
        self.send_all(&[Outgoing { payload, to: Some(to) }]).map(|_| payload.len())
    }

    /// Sends datagrams in order, those that go the same way with one doorbell. Returns how many were sent;
    /// fewer than asked for only if a later one failed.
    ///
    /// # Errors
    /// As [`send`](UdpSocket::send), if the first one fails.
    pub fn send_many(&self, datagrams: &[Outgoing<'_>]) -> io::Result<usize> {
        self.send_all(datagrams)
    }

    #[inline]
    fn send_all(&self, datagrams: &[Outgoing<'_>]) -> io::Result<usize> {
        self.endpoint.may_send().map_err(errno)?;
        let limit = self.endpoint.options.send_buffer.load(Ordering::Relaxed) as usize;
        let mut cached = lock(&self.path);
        let mut sent = 0;
        while let Some(first) = datagrams.get(sent) {
            // Those that go the same way go together.
            let fits = |datagram: &&Outgoing<'_>| {
                datagram.to == first.to && datagram.payload.len() <= limit
            };
            let run = datagrams[sent..].iter().take_while(fits).count();
            let result = match run {
                0 => Err(errno(libc::EMSGSIZE)),
                _ => self.send_run(&datagrams[sent..sent + run], &mut cached),
            };
            match result {
                Ok(count) => sent += count,
                Err(_) if sent > 0 => return Ok(sent),
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Sends some of `run`, at least one; all are for one address.
    #[inline]
    fn send_run(
        &self,
        run: &[Outgoing<'_>],
        cached: &mut Option<(Option<SocketAddr>, Path)>,
    ) -> io::Result<usize> {
        let Some(first) = run.first() else { return Ok(0) };
        let by_kernel = || self.send_by_kernel(first).map(|()| 1);
        let inet = self.host.inet();
        let mut waited: Option<Option<Instant>> = None;
        loop {
            let path = match &mut *cached {
                Some((to, path)) if *to == first.to && path.is_current(inet) => path,
                _ => match self.find_path(first.to, cached)? {
                    Some(path) => path,
                    None => return by_kernel(),
                },
            };
            let mut pass = Pass::new(None, time::now(), Driver::Kernel);
            let result = match run {
                [one] => inet.udp_send(path, one.payload, &mut pass).map(|()| 1),
                many => inet.udp_send_many(path, many.iter().map(|one| one.payload), &mut pass),
            };
            pass.wake.wake_all();
            match result {
                Ok(count) => return Ok(count),
                Err(SendError::UseKernel) => return by_kernel(),
                Err(SendError::RingFull) => self.wait_for_room(&mut waited)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Resolves the way to `to` (or the peer) and keeps it. `None`: the kernel's business.
    #[cold]
    fn find_path<'a>(
        &self,
        to: Option<SocketAddr>,
        cached: &'a mut Option<(Option<SocketAddr>, Path)>,
    ) -> io::Result<Option<&'a mut Path>> {
        let (local, remote) = self.with_binding(|bound| {
            let remote = to.or(bound.remote).ok_or_else(|| errno(libc::EDESTADDRREQ))?;
            Ok((bound.inet.local(), remote))
        })?;
        let queue = self.endpoint.context().map_or(0, |context| context.queue());
        let broadcast = self.endpoint.options.get(SO_BROADCAST)? != 0;
        let options = PathOptions { broadcast, ..PathOptions::default() };
        match self.host.inet().path(local, remote, queue, options, time::now()) {
            Ok(path) => Ok(Some(&mut cached.insert((to, path)).1)),
            Err(SendError::UseKernel) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets the device run, which is behind: neither ring nor kernel has an interrupt for room. `waited`
    /// keeps how long that may go on.
    #[cold]
    fn wait_for_room(&self, waited: &mut Option<Option<Instant>>) -> io::Result<()> {
        let deadline = *waited.get_or_insert_with(|| deadline(&self.write_timeout));
        if self.nonblocking.load(Ordering::Relaxed)
            || deadline.is_some_and(|deadline| time::now() >= deadline)
        {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        std::thread::sleep(Duration::from_micros(20));
        Ok(())
    }

    fn send_by_kernel(&self, datagram: &Outgoing<'_>) -> io::Result<()> {
        let mut waited = None;
        loop {
            let result = self.with_binding(|bound| {
                let to = datagram.to.or(bound.remote).ok_or_else(|| errno(libc::EDESTADDRREQ))?;
                match &bound.kernel {
                    Some(kernel) => kernel.send_to(datagram.payload, to),
                    None => Err(errno(libc::ENETUNREACH)),
                }
            });
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait_for_room(&mut waited)?;
                }
                other => return other,
            }
        }
    }

    // The rest.

    /// Ends receiving, sending, or both. A receiver that waits returns 0.
    ///
    /// # Errors
    /// ENOTCONN if it is not connected; it is shut down nevertheless.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.endpoint.shut(how != Shutdown::Write, how != Shutdown::Read);
        // As in Linux, which does it all the same (`inet_shutdown`).
        self.peer_addr().map(drop)
    }

    /// Sets an option of [`options`](super::options) by its Linux name.
    ///
    /// # Errors
    /// ENOPROTOOPT for one that is unknown or read only, EINVAL for a value out of range.
    pub fn setsockopt(&self, name: i32, value: i32) -> io::Result<()> {
        self.endpoint.options.set(name, value)?;
        let bound = lock(&self.binding);
        match bound.as_ref().and_then(|bound| bound.kernel.as_ref()) {
            Some(kernel) if name == SO_BROADCAST => kernel.set_broadcast(value != 0),
            _ => Ok(()),
        }
    }

    /// Reads an option of [`options`](super::options) by its Linux name.
    ///
    /// # Errors
    /// ENOPROTOOPT for an unknown one.
    pub fn getsockopt(&self, name: i32) -> io::Result<i32> {
        match name {
            SO_INCOMING_NAPI_ID => {
                Ok(self.incoming_napi_id().map_or(0, |id| id.get().cast_signed()))
            }
            SO_ERROR => Ok(self.endpoint.take_error().unwrap_or(0)),
            _ => self.endpoint.options.get(name),
        }
    }

    /// `SO_BUSY_POLL`: microseconds that a receive may busy poll; 0 = off.
    ///
    /// # Errors
    /// EINVAL above 2^31 - 1.
    pub fn set_busy_poll(&self, micros: u32) -> io::Result<()> {
        let micros = i32::try_from(micros).map_err(|_| errno(libc::EINVAL))?;
        self.setsockopt(super::options::SO_BUSY_POLL, micros)
    }

    /// `SO_BUSY_POLL`.
    pub fn busy_poll(&self) -> u32 {
        self.endpoint.options.busy_poll.load(Ordering::Relaxed)
    }

    /// `SO_INCOMING_NAPI_ID`: the context that the last packet came from.
    pub fn incoming_napi_id(&self) -> Option<NapiId> {
        self.endpoint.napi()
    }

    /// The pending error, cleared (`SO_ERROR`).
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.endpoint.take_error().map(errno))
    }

    /// Receives and sends return `WouldBlock` instead of waiting. A receive still makes one busy-poll pass
    /// if `SO_BUSY_POLL` is set.
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// How long a receive may wait; `None`: for ever.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.read_timeout, timeout)
    }

    /// How long a send may wait for room on the ring; `None`: for ever.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.write_timeout, timeout)
    }

    /// How many datagrams wait, and the size of the first in bytes.
    pub fn waiting(&self) -> (usize, usize) {
        self.endpoint.waiting()
    }

    /// How its datagrams found their way in, and how many were dropped.
    pub fn stats(&self) -> SocketStats {
        self.endpoint.stats()
    }

    /// What it can do at this moment.
    pub fn readiness(&self) -> Events {
        self.endpoint.readiness()
    }

    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    pub(super) fn host(&self) -> &Host {
        &self.host
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        *lock(&self.binding) = None;
        self.endpoint.close();
    }
}

fn each(
    addresses: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<()>,
) -> io::Result<()> {
    let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "no address given");
    for address in addresses.to_socket_addrs()? {
        match attempt(address) {
            Ok(()) => return Ok(()),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn set_timeout(cell: &AtomicU64, timeout: Option<Duration>) -> io::Result<()> {
    let nanos = match timeout {
        Some(Duration::ZERO) => return Err(io::ErrorKind::InvalidInput.into()),
        Some(timeout) => u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
        None => 0,
    };
    cell.store(nanos, Ordering::Relaxed);
    Ok(())
}

fn deadline(timeout: &AtomicU64) -> Option<Instant> {
    match timeout.load(Ordering::Relaxed) {
        0 => None,
        nanos => Some(time::now() + Duration::from_nanos(nanos)),
    }
}
