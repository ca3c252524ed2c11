//! Our TCP sockets made of kernel sockets, for a library that moves an existing program's sockets to the stack. bind(2)
//! and listen(2) on the kernel socket have already checked everything about the port.

use super::{
    listener::{Inner, TcpListener},
    listener_companion::ListenerCompanion,
    stream::{Bound, TcpStream},
};
use crate::{
    Host,
    host::{CompanionService, KernelBinding, PortReservation},
    socket::options::{IPPROTO_IPV6, IPV6_V6ONLY, SO_REUSEADDR, SO_REUSEPORT, SOL_SOCKET, errno},
    sync::lock,
    time,
};
use std::{
    io,
    net::{SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
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
                let service = host.kernel().ok_or_else(|| errno(libc::EADDRNOTAVAIL))?;
                ListenerCompanion::new(service, own, endpoint)
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

    /// Takes a connection of the kernel's by `accept`, which gets the [companion](TcpListener::with_companion) and does
    /// not wait: fewer system calls than [`accept_any`](TcpListener::accept_any). `None`: that one is to be called, for a
    /// connection over our queues waits, or the listener was shut down.
    #[doc(hidden)]
    pub fn accept_of_kernel<T>(
        &self,
        accept: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> Option<io::Result<T>> {
        let inner = &*self.0;
        let kernel = inner.kernel.as_ref()?;
        inner.take_port();
        if inner.is_stopped() || inner.listening.queued() > 0 {
            return None;
        }
        inner.take_reported_offers();
        let accepted = kernel.accept_by(accept);
        if accepted.is_ok() {
            inner.endpoint.wake_next_reader();
        }
        Some(accepted)
    }

    /// Whether such a connection comes over our queues, so that [`import`](TcpListener::import) may take it over.
    #[doc(hidden)]
    pub fn may_import(&self, kernel: &KernelStream) -> bool {
        self.0.may_import(kernel)
    }

    /// Takes over a connection that the kernel has made for this listener, and that it
    /// [may](TcpListener::may_import) take over.
    ///
    /// # Errors
    /// Gives it back: it stays the kernel's, and why if it comes over our queues.
    #[doc(hidden)]
    pub fn import(
        &self,
        kernel: KernelStream,
    ) -> Result<(TcpStream, SocketAddr), (KernelStream, Option<&'static str>)> {
        self.0.import_checked(kernel).map(|flow| self.made_of(flow))
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
