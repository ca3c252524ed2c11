//! The reservation of a TCP port in the kernel, on an interface shared with it: a kernel socket that is bound to the
//! port and does nothing else, so that no other program gets the port, and the steering that redirects the port's
//! packets to our queues. A listener has one reservation, shared with all its connections, including TIME_WAIT. A
//! connection made from here has its own. If the kernel socket is the application's, it may be closed before the
//! connections are, and the kernel may then give the port to another program. In that case only the connections stay
//! steered, not the whole port.
//!
//! The socket does not listen: the kernel refuses connections to our port over loopback, or over an interface that is
//! not shared.

use super::companion::{State, Steered};
use crate::{
    inet::tcp::PortHolder,
    sync::lock,
    sys::{self, get_option, set_option},
    time::{self, Instant},
};
use std::{
    collections::{HashMap, VecDeque},
    io,
    net::{SocketAddr, TcpStream as KernelSocket},
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

pub(super) const TCP: u8 = 6;

/// How long a port that other processes wait for, too, is left to the kernel before it is tried to steer it again: they
/// may have ended.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The port of a closed connection is kept idle until this many others are, so that it is not reused while the peer may
/// still remember it. Then it serves the next connection, without a system call. Up to twice as many are kept, so that
/// several connections that open and close at once need no system call either. Each keeps a descriptor, so there are
/// fewer if the process's limit is low.
const IDLE_PORTS: usize = 128;

/// Idle ports may use one in this many of the process's descriptors.
const IDLE_SHARE: usize = 16;

/// How bind(2) has bound a kernel socket.
#[derive(Clone, Copy, Debug)]
pub struct KernelBinding {
    /// Its address.
    pub local: SocketAddr,
    /// `SO_REUSEADDR`.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`.
    pub reuse_port: bool,
    /// `IPV6_V6ONLY`.
    pub only_v6: bool,
    /// No other socket had the port when it was bound.
    pub was_exclusive: bool,
}

impl KernelBinding {
    /// Asks the kernel about `socket`, bound to `local`. It does not tell whether the port was free.
    pub(crate) fn of(socket: &impl AsRawFd, local: SocketAddr) -> KernelBinding {
        let on = |level, name| get_option(socket, level, name).is_ok_and(|on| on != 0);
        KernelBinding {
            local,
            reuse_address: on(libc::SOL_SOCKET, libc::SO_REUSEADDR),
            reuse_port: on(libc::SOL_SOCKET, libc::SO_REUSEPORT),
            only_v6: local.is_ipv6() && on(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
            was_exclusive: false,
        }
    }
}

/// Socket options for bind(2).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReservationOptions {
    pub(crate) reuse_address: bool,
    pub(crate) reuse_port: bool,
    pub(crate) only_v6: bool,
}

/// A reserved port. Dropping it releases the port.
pub(crate) struct PortReservation {
    port: Option<Port>,
    /// The port is not kept idle, because its connection was handed over to the kernel.
    handed_over: AtomicBool,
    state: Arc<State>,
    /// The reservation of the socket that this connection belongs to.
    _of: Option<Arc<PortReservation>>,
}

/// The parts of a reservation.
#[derive(Debug)]
struct Port {
    /// None: the kernel socket belongs to the application.
    _socket: Option<OwnedFd>,
    local: SocketAddr,
    /// The kernel chose it, for the wildcard address: the next connection may reuse it.
    ephemeral: bool,
    only_v6: bool,
    /// The number of its steering entry; `None`: each of its connections has its own entry, or it is adopted.
    steered: Option<u64>,
    adopted: Option<Box<Adopted>>,
    /// The kernel may have connections from it.
    may_have_connections: bool,
}

/// The port of a listener's kernel socket, which the application has bound.
#[derive(Debug, Default)]
struct Adopted {
    /// Where other processes know that a listener of ours waits for it, until it is steered.
    shared_at: Vec<(usize, SocketAddr)>,
    /// When it was last tried to steer it.
    tried: Mutex<Option<Instant>>,
    /// The number of its steering entry.
    steered: OnceLock<u64>,
}

impl Port {
    /// The number of the entry that steers all of it.
    fn steered(&self) -> Option<u64> {
        self.steered.or_else(|| self.adopted.as_ref()?.steered.get().copied())
    }

    /// One that is not steered.
    fn new(socket: Option<OwnedFd>, local: SocketAddr, only_v6: bool) -> Port {
        Port {
            _socket: socket,
            local,
            ephemeral: false,
            only_v6,
            steered: None,
            adopted: None,
            may_have_connections: true,
        }
    }
}

/// The ports that a host has reserved.
#[derive(Debug)]
pub(super) struct ReservedPorts {
    /// The ports requested by number, or chosen for an unconnected socket. A second request for a reserved port shares
    /// the reservation; inet decides whether it may. So a server can restart while connections of its earlier run are
    /// in TIME_WAIT.
    named: Mutex<HashMap<SocketAddr, Weak<PortReservation>>>,
    /// Idle ports, by family.
    idle: [Mutex<VecDeque<Port>>; 2],
    /// How many ports stay idle before the oldest is reused.
    min_idle: usize,
}

impl Default for ReservedPorts {
    fn default() -> ReservedPorts {
        let min_idle = IDLE_PORTS.min(sys::descriptor_limit() / IDLE_SHARE);
        ReservedPorts { named: Mutex::default(), idle: Default::default(), min_idle }
    }
}

impl std::fmt::Debug for PortReservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.port)
    }
}

impl ReservedPorts {
    /// Releases the idle ports; false: there are none.
    pub(super) fn release_idle(&self, state: &State) -> bool {
        let rested: Vec<Port> =
            self.idle.iter().flat_map(|idle| std::mem::take(&mut *lock(idle))).collect();
        let some = !rested.is_empty();
        // The steering is removed first, while no other program can have the port.
        rested.iter().filter_map(|port| port.steered).for_each(|steered| state.remove(steered));
        some
    }

    fn idle(&self, local: SocketAddr) -> &Mutex<VecDeque<Port>> {
        let [v4, v6] = &self.idle;
        if local.is_ipv4() { v4 } else { v6 }
    }
}

impl PortHolder for PortReservation {
    fn mark_handed_over(&self) {
        self.handed_over.store(true, Ordering::Relaxed);
    }
}

impl PortReservation {
    /// Reserves `local`; port 0: the kernel chooses. `None` if it is not an address of the kernel.
    ///
    /// # Errors
    /// As bind(2); a full steering map.
    pub(super) fn named(
        state: &Arc<State>,
        local: SocketAddr,
        options: ReservationOptions,
    ) -> io::Result<Option<Arc<PortReservation>>> {
        if !state.is_kernel_address(local) {
            return Ok(None);
        }
        loop {
            let mut named = lock(&state.reserved.named);
            match named.get(&local).map(Weak::upgrade) {
                Some(Some(reservation)) => return Ok(Some(reservation)),
                // Another thread is about to release it.
                Some(None) => {
                    drop(named);
                    thread::yield_now();
                }
                None => {
                    let reservation = Arc::new(PortReservation::new(state, local, options, false)?);
                    named.extend(
                        reservation.local().map(|local| (local, Arc::downgrade(&reservation))),
                    );
                    return Ok(Some(reservation));
                }
            }
        }
    }

    fn new(
        state: &Arc<State>,
        local: SocketAddr,
        options: ReservationOptions,
        ephemeral: bool,
    ) -> io::Result<PortReservation> {
        let (socket, local) = bind(local, options)?;
        let steered = Some(state.add(Steered::new(TCP, local, options.only_v6))?);
        let port = Port { ephemeral, steered, ..Port::new(Some(socket), local, options.only_v6) };
        Ok(PortReservation::of(port, state))
    }

    fn of(port: Port, state: &Arc<State>) -> PortReservation {
        PortReservation {
            port: Some(port),
            handed_over: AtomicBool::new(false),
            state: state.clone(),
            _of: None,
        }
    }

    /// The port of a kernel socket that listens, and that the application has bound; `None` if it is not an address of
    /// the kernel. The kernel makes its connections until the port is [steered](PortReservation::steer).
    ///
    /// # Errors
    /// A full steering map.
    pub(super) fn adopt(
        state: &Arc<State>,
        local: SocketAddr,
        only_v6: bool,
    ) -> io::Result<Option<PortReservation>> {
        if !state.is_kernel_address(local) {
            return Ok(None);
        }
        let shared_at = state.share(local, only_v6)?;
        let adopted = Box::new(Adopted { shared_at, ..Adopted::default() });
        let port = Port { adopted: Some(adopted), ..Port::new(None, local, only_v6) };
        Ok(Some(PortReservation::of(port, state)))
    }

    /// Whether the packets of the whole port come to us.
    pub(crate) fn is_steered(&self) -> bool {
        self.port.as_ref().is_some_and(|port| port.steered().is_some())
    }

    /// An adopted port that is not steered, and when it was last tried to steer it.
    fn unsteered(&self) -> Option<(&Port, &Adopted, MutexGuard<'_, Option<Instant>>)> {
        let port = self.port.as_ref()?;
        let adopted = port.adopted.as_deref().filter(|adopted| adopted.steered.get().is_none())?;
        Some((port, adopted, lock(&adopted.tried)))
    }

    /// Whether it is an adopted port that was not [steered](PortReservation::steer), nor tried to be so lately.
    pub(crate) fn is_to_be_steered(&self) -> bool {
        let is_old = |tried: Option<Instant>| tried.is_none_or(|at| time::now() >= at + TRY_AGAIN);
        self.unsteered().is_some_and(|(.., tried)| is_old(*tried))
    }

    /// Steers an adopted port from now on, if no other process waits for it. Connections that the kernel has stay with
    /// the kernel.
    pub(crate) fn steer(&self) {
        let Some((port, adopted, mut tried)) = self.unsteered() else { return };
        if adopted.steered.get().is_some() {
            return;
        }
        *tried = Some(time::now());
        let (state, local) = (&self.state, port.local);
        let steered = state.begin_take_over(local, port.only_v6).and_then(|take_over| match state
            .add(Steered::new(TCP, local, port.only_v6))
        {
            Ok(entry) => {
                state.finish_take_over_later(take_over, entry);
                Ok(entry)
            }
            Err(error) => {
                state.end_take_over(&take_over);
                Err(error)
            }
        });
        // On an error the kernel goes on making the connections.
        if let Ok(entry) = steered {
            let _ = adopted.steered.set(entry);
            state.unshare(&adopted.shared_at);
        }
    }

    /// Takes a kernel socket that the application has bound, to connect from its port; `None` if it is not an address
    /// of the kernel.
    pub(super) fn for_connect(
        state: &Arc<State>,
        binding: KernelBinding,
        socket: OwnedFd,
    ) -> Option<PortReservation> {
        let KernelBinding { local, only_v6, was_exclusive, .. } = binding;
        let may_have_connections = !was_exclusive;
        let port = Port { may_have_connections, ..Port::new(Some(socket), local, only_v6) };
        state.is_kernel_address(local).then(|| PortReservation::of(port, state))
    }

    /// The reservation for a connection to `remote`: this one if the whole port is steered, else a new one.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if the kernel has that connection; a full steering map.
    pub(crate) fn connected(
        self: &Arc<PortReservation>,
        remote: SocketAddr,
    ) -> io::Result<Arc<PortReservation>> {
        let Some(port) = self.port.as_ref().filter(|port| port.steered().is_none()) else {
            return Ok(self.clone());
        };
        let Port { local, only_v6, may_have_connections, .. } = *port;
        if may_have_connections && self.state.has_connection(local, remote) {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        }
        let steered = Some(self.state.add(Steered::from(local, only_v6, vec![remote]))?);
        let port = Port { steered, ..Port::new(None, local, only_v6) };
        let (state, _of) = (self.state.clone(), Some(self.clone()));
        Ok(Arc::new(PortReservation {
            port: Some(port),
            handed_over: AtomicBool::new(false),
            state,
            _of,
        }))
    }

    /// The reservation for a connection that the kernel has made at this port: from now on its packets are ours.
    ///
    /// # Errors
    /// A full steering map.
    pub(crate) fn imported(
        self: &Arc<PortReservation>,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> io::Result<Arc<PortReservation>> {
        let steered = Some(self.state.add(Steered::from(local, false, vec![remote]))?);
        let port = Port { steered, ..Port::new(None, local, false) };
        let (state, _of) = (self.state.clone(), Some(self.clone()));
        let handed_over = AtomicBool::new(false);
        Ok(Arc::new(PortReservation { port: Some(port), handed_over, state, _of }))
    }

    /// The reservation for a connection that another process has given up, and the kernel has: from now on its packets are
    /// ours.
    ///
    /// # Errors
    /// EEXIST: the process that has the port would get them. A full steering map.
    pub(super) fn taken(
        state: &Arc<State>,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> io::Result<Arc<PortReservation>> {
        let steered = Some(state.add(Steered::taken(local, remote))?);
        let port = Port { steered, ..Port::new(None, local, false) };
        Ok(Arc::new(PortReservation::of(port, state)))
    }

    /// The listener has closed, and its connections to `remotes` go on: if the kernel socket is the application's, only
    /// these connections stay steered.
    pub(crate) fn narrow(&self, remotes: Vec<SocketAddr>) {
        if let Some(port) = self.port.as_ref().filter(|port| port._socket.is_none())
            && let Some(entry) = port.steered()
        {
            // If the map is full, the whole port stays steered as long as they live.
            let _ = self.state.narrow(entry, remotes);
        }
    }

    /// Reserves any port of the wildcard address, in the family of `like`, for a connection.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if there is none left; no descriptor left; a full steering map.
    pub(super) fn ephemeral(state: &Arc<State>, like: SocketAddr) -> io::Result<PortReservation> {
        let idle = state.reserved.idle(like);
        let take_idle = |least| {
            let mut idle = lock(idle);
            if idle.len() > least { idle.pop_front() } else { None }
        };
        let again = |port| PortReservation::of(port, state);
        if let Some(port) = take_idle(state.reserved.min_idle) {
            return Ok(again(port));
        }
        let options = ReservationOptions { only_v6: true, ..ReservationOptions::default() };
        match PortReservation::new(state, like, options, true) {
            Ok(reservation) => Ok(reservation),
            // Better a port that has not been idle for long than none.
            Err(error) => take_idle(0).map(again).ok_or_else(|| match error.raw_os_error() {
                Some(libc::EADDRINUSE) => io::Error::from_raw_os_error(libc::EADDRNOTAVAIL),
                _ => error,
            }),
        }
    }

    /// The reserved address.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        self.port.as_ref().map(|port| port.local)
    }
}

impl Drop for PortReservation {
    fn drop(&mut self) {
        let Some(port) = self.port.take() else { return };
        if port.ephemeral && !*self.handed_over.get_mut() {
            let mut idle = lock(self.state.reserved.idle(port.local));
            if idle.len() < 2 * self.state.reserved.min_idle {
                return idle.push_back(port);
            }
        }
        // Under the lock, so that a new request finds the port either reserved or free.
        let mut named = lock(&self.state.reserved.named);
        // An adopted port is not in the table, but another reservation of the same address may be.
        if !port.ephemeral
            && named.get(&port.local).is_some_and(|reservation| reservation.strong_count() == 0)
        {
            named.remove(&port.local);
        }
        match (port.steered(), &port.adopted) {
            (Some(entry), _) => self.state.remove(entry),
            (None, Some(adopted)) => self.state.unshare(&adopted.shared_at),
            (None, None) => {}
        }
        drop(port);
    }
}

/// A kernel socket bound to `local`, and the address it got.
fn bind(local: SocketAddr, options: ReservationOptions) -> io::Result<(OwnedFd, SocketAddr)> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: a plain system call.
    let socket = sys::owned(unsafe { libc::socket(family, kind, 0) })?;
    if options.reuse_port {
        set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    if local.is_ipv6() {
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, i32::from(options.only_v6))?;
    }
    let bound = sys::bind(socket.as_raw_fd(), local);
    match bound {
        // Kernel connections in TIME_WAIT prevent the bind unless SO_REUSEADDR is set. It is not set from the start,
        // because another socket that sets it could then listen at the same port.
        Err(error) if options.reuse_address && error.raw_os_error() == Some(libc::EADDRINUSE) => {
            set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
            sys::bind(socket.as_raw_fd(), local)?;
            set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 0)?;
        }
        other => other?,
    }
    if local.port() != 0 {
        return Ok((socket, local));
    }
    let socket = KernelSocket::from(socket);
    let local = socket.local_addr()?;
    Ok((socket.into(), local))
}
