//! Our TCP sockets made of kernel sockets, for a library that moves an existing program's sockets to the stack. bind(2)
//! and listen(2) on the kernel socket have already checked everything about the port.

use super::{
    endpoint::Endpoint,
    listener::{Inner, TcpListener},
    stream::{Bound, TcpStream},
};
use crate::{
    Host,
    host::{
        CompanionEndpoint, CompanionListener, CompanionService, KernelBinding, PortReservation,
    },
    inet::{
        Pass,
        tcp::{Ready, TcpEndpoint},
    },
    socket::options::{IPPROTO_IPV6, IPV6_V6ONLY, SO_REUSEADDR, SO_REUSEPORT, SOL_SOCKET, errno},
    sync::lock,
    sys, time,
};
use std::{
    io,
    net::{SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream},
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// The time after a port's take-over from the kernel until no packet of the kernel's old connections is left in our
/// rings.
const TAKE_OVER: Duration = Duration::from_millis(200);

/// What a listener with a companion accepts.
#[derive(Debug)]
pub enum Accepted {
    /// A connection over our queues, and its peer's address.
    Ours(TcpStream, SocketAddr),
    /// A connection that the kernel has made (loopback, other interfaces), as accept(2) returns it. If it comes over our
    /// queues, why it was not taken over.
    Kernel(KernelStream, Option<&'static str>),
}

/// The kernel socket beside a listener.
#[derive(Debug)]
pub(super) struct ListenerCompanion {
    state: Arc<CompanionState>,
    kernel: CompanionListener,
}

#[derive(Debug)]
struct CompanionState {
    /// Connections may wait at the kernel socket.
    may_be_readable: AtomicBool,
    endpoint: Arc<Endpoint>,
    /// The kernel socket, to be polled.
    kernel: RawFd,
    /// Held while it is polled or accepted from: so no waiter is notified of a connection that was accepted already.
    checking: Mutex<()>,
}

impl CompanionEndpoint for CompanionState {
    fn readable(&self, pass: &mut Pass<'_>) {
        let _checking = lock(&self.checking);
        if sys::poll(self.kernel, Some(Duration::ZERO)) > 0 {
            self.may_be_readable.store(true, Ordering::SeqCst);
            self.endpoint.changed(Ready::READABLE, None, pass);
        }
    }
}

impl ListenerCompanion {
    /// The next of the kernel's connections. `check`: tries even if no connection was notified.
    pub(super) fn accept(&self, check: bool) -> Option<io::Result<KernelStream>> {
        // Cleared before the check: a connection after the check sets it again.
        if !self.state.may_be_readable.swap(false, Ordering::SeqCst) && !check {
            return None;
        }
        let _checking = lock(&self.state.checking);
        let accepted = self.kernel.accept();
        if accepted.is_some() {
            self.state.may_be_readable.store(true, Ordering::SeqCst);
        }
        accepted
    }

    /// Whether a connection was notified and not accepted yet; true at first, before any check.
    pub(super) fn may_be_readable(&self) -> bool {
        self.state.may_be_readable.load(Ordering::SeqCst)
    }

    /// Whether there is a connection to accept.
    pub(super) fn is_readable(&self) -> bool {
        if !self.state.may_be_readable.swap(false, Ordering::SeqCst) {
            return false;
        }
        let readable = self.kernel.is_readable();
        if readable {
            self.state.may_be_readable.store(true, Ordering::SeqCst);
        }
        readable
    }
}

impl TcpStream {
    /// A socket at the address that `kernel` is bound to, for [`connect_to`](TcpStream::connect_to). It duplicates the
    /// descriptor of `kernel`, which keeps the port until the last connection from it has ended.
    ///
    /// Of the options only those that bind(2) uses are copied.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if it is bound to no address of an interface that `host` shares, and what binding can fail
    /// with; no descriptor left.
    #[doc(hidden)]
    pub fn adopt(host: &Host, kernel: &KernelStream) -> io::Result<TcpStream> {
        TcpStream::adopt_bound(host, kernel, KernelBinding::of(kernel, kernel.local_addr()?))
    }

    /// As [`adopt`](TcpStream::adopt), for a caller that knows how `kernel` is bound: it is not asked.
    ///
    /// # Errors
    /// As [`adopt`](TcpStream::adopt).
    pub fn adopt_bound(
        host: &Host,
        kernel: &KernelStream,
        binding: KernelBinding,
    ) -> io::Result<TcpStream> {
        let own = kernel.as_fd().try_clone_to_owned()?;
        let unavailable = || errno(libc::EADDRNOTAVAIL);
        adopted(host, binding, |service| match service.reserve_to_connect(binding, own) {
            // From a loopback address it connects over links only.
            None if binding.local.ip().to_canonical().is_loopback() => Ok(None),
            reservation => reservation.map(Some).ok_or_else(unavailable),
        })
    }
}

impl TcpListener {
    /// Listens at the address of `kernel`, with `kernel` as the companion. Until the first call of
    /// [`accept_any`](TcpListener::accept_any) all clients connect to the kernel socket: perhaps another process accepts
    /// them. From then on clients that come over our queues connect to us, all others to the kernel socket; that call
    /// accepts from both. Other processes may have descriptors of `kernel`. A blocking `kernel` is set non-blocking for
    /// each moment in which we accept from it.
    ///
    /// Of the options only those that bind(2) uses are copied. `backlog` as in [`listen`](TcpStream::listen). If other
    /// processes may wait for it, too, it takes no connection over a link while this one does not (`is_shared`).
    ///
    /// # Errors
    /// EADDRNOTAVAIL if it is bound to no address of an interface that `host` shares, and what listening can fail
    /// with; no descriptor left.
    #[doc(hidden)]
    pub fn with_companion(
        host: &Host,
        kernel: &KernelListener,
        backlog: u32,
        is_shared: bool,
    ) -> io::Result<TcpListener> {
        let own = KernelListener::from(kernel.as_fd().try_clone_to_owned()?);
        let binding = KernelBinding::of(&own, own.local_addr()?);
        let stream = adopted(host, binding, |service| {
            let port = service.adopt_port(binding.local, binding.only_v6)?;
            // To a loopback address packets come over links only.
            match port.is_some() || binding.local.ip().to_canonical().is_loopback() {
                true => Ok(port),
                false => Err(errno(libc::EADDRNOTAVAIL)),
            }
        })?;
        stream
            .listen_with_companion(backlog, |endpoint| {
                let state = Arc::new(CompanionState {
                    may_be_readable: AtomicBool::new(true),
                    endpoint: endpoint.clone(),
                    kernel: own.as_raw_fd(),
                    checking: Mutex::new(()),
                });
                let service = host.kernel().ok_or_else(|| errno(libc::EADDRNOTAVAIL))?;
                Ok(ListenerCompanion { kernel: service.add_listener(own, state.clone())?, state })
            })
            .inspect(|listener| {
                let listening = &listener.0.listening;
                listening.take_no_links();
                if let Some(peers) = host.peers() {
                    peers.publish(listening.local(), listening.links(), is_shared);
                }
            })
    }

    /// Processes of other network namespaces find it, too, if the host [reaches them](Host::reach_processes). It takes IPv4
    /// connections unless `only_v6`.
    #[doc(hidden)]
    pub fn publish_to_containers(&self, only_v6: bool) {
        self.0.host.publish_to_containers(self.0.listening.local(), only_v6);
    }

    /// As [`accept`](TcpListener::accept), also of the [companion's](TcpListener::with_companion) connections.
    /// Non-blocking if `dont_wait`, whatever the socket's mode.
    ///
    /// # Errors
    /// As [`accept`](TcpListener::accept), and those of accept(2).
    #[doc(hidden)]
    pub fn accept_any(&self, dont_wait: bool) -> io::Result<Accepted> {
        self.0.take_port();
        self.accept_from_both(dont_wait)
    }

    /// Whether clients connect to us: this process has accepted before.
    #[doc(hidden)]
    pub fn has_port(&self) -> bool {
        self.0.reservation.as_ref().is_some_and(|reservation| reservation.is_steered())
    }
}

impl Inner {
    /// Steers the port, unless other processes wait for it, which is checked again once a second: they may have ended.
    fn take_port(&self) {
        if let Some(reservation) = &self.reservation {
            self.steer(reservation);
        }
        self.listening.accepts();
    }

    fn steer(&self, reservation: &PortReservation) {
        if !reservation.is_to_be_steered() {
            return;
        }
        // A packet for one of the kernel's connections must not be answered with a reset.
        let taking_over = || self.host.inet().tcp_take_over_until(time::now() + TAKE_OVER);
        taking_over();
        reservation.steer();
        taking_over();
    }
}

/// Our socket bound as `binding` says, with the port reservation that `reservation` makes.
fn adopted(
    host: &Host,
    binding: KernelBinding,
    reservation: impl FnOnce(&CompanionService) -> io::Result<Option<PortReservation>>,
) -> io::Result<TcpStream> {
    let stream = TcpStream::new(host);
    for (level, name, on) in [
        (SOL_SOCKET, SO_REUSEADDR, binding.reuse_address),
        (SOL_SOCKET, SO_REUSEPORT, binding.reuse_port),
        (IPPROTO_IPV6, IPV6_V6ONLY, binding.only_v6),
    ] {
        if on {
            stream.setsockopt(level, name, 1)?;
        }
    }
    let options = lock(&stream.0.values).clone();
    let Some(service) = host.kernel() else { return Err(errno(libc::EADDRNOTAVAIL)) };
    let reservation = reservation(service)?.map(Arc::new);
    let inet = host.inet().tcp_bind_kernel_port(binding.local, &options.listen(0))?;
    stream.0.set_bound(Bound { inet, reservation });
    Ok(stream)
}
