//! The UDP sockets of an application: creating, binding, connecting and closing them. [Receive](receive), [send](send)
//! and [options] have their own files.

use super::{
    UNSPECIFIED,
    common::{common_options, timeouts},
    options::errno,
    readiness::Events,
    source::{Sealed, Socket, Source},
    task_wait::TaskChannel,
    try_each, unspecified,
    waiting::WaitOptions,
};
use crate::{
    Host, PublishedUdp,
    inet::{Binding, PathOptions, UdpEndpoint},
    napi::NapiId,
    sync::lock,
    wire::Protocol,
};
use endpoint::Endpoint;
use std::{
    io,
    net::{Shutdown, SocketAddr, ToSocketAddrs},
    sync::{Arc, Mutex},
    time::Duration,
};

mod adopt;
mod buffer;
mod direct_delivery;
mod endpoint;
mod groups;
mod links;
mod message;
mod options;
mod receive;
mod send;

pub use endpoint::SocketStats;
pub use groups::{Groups, Sources};
pub use message::{Message, ReceiveFlags};
pub use receive::Incoming;
pub use send::Outgoing;

/// A UDP socket on a [`Host`], of IPv4, of IPv6, or of both if it is bound to `[::]`. Its methods are those of
/// [`std::net::UdpSocket`]; any number of threads may use it at once. It is closed when the last of its clones
/// ([`try_clone`](UdpSocket::try_clone)) is dropped.
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
pub struct UdpSocket(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    host: Host,
    endpoint: Arc<Endpoint>,
    /// The same, as inet knows it.
    expected: Arc<dyn UdpEndpoint>,
    binding: Mutex<Option<Bound>>,
    paths: Mutex<send::PathCache>,
}

/// The binding of a socket. The companion (`kernel`) is dropped after our part.
#[derive(Debug)]
struct Bound {
    inet: Binding,
    remote: Option<SocketAddr>,
    /// Its address as other processes of this machine see it. Withdrawn before the companion gives the port back.
    published: Option<PublishedUdp>,
    kernel: Option<crate::host::Companion>,
}

common_options!(UdpSocket, UdpSocket::wait_options, UdpSocket::endpoint);
timeouts!(UdpSocket, UdpSocket::wait_options);

impl UdpSocket {
    /// A socket that is not bound yet. The first send binds it to a port of the host's choice, in the destination's
    /// family.
    pub fn new(host: &Host) -> UdpSocket {
        let endpoint = Arc::new(Endpoint::new(host.busy_read(), host.delivery_hook()));
        UdpSocket(Arc::new(Inner {
            expected: endpoint.clone(),
            endpoint,
            host: host.clone(),
            binding: Mutex::new(None),
            paths: Mutex::default(),
        }))
    }

    /// A socket bound to the first of `addresses` that works. Port 0 means any free port.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EACCES, as from bind(2).
    pub fn bind(host: &Host, addresses: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        let socket = UdpSocket::new(host);
        try_each(addresses, |address| socket.bind_to(address))?;
        Ok(socket)
    }

    /// Binds a socket made by [`new`](UdpSocket::new), after its options are set.
    ///
    /// # Errors
    /// As [`bind`](UdpSocket::bind), and EINVAL if it is bound already.
    pub fn bind_to(&self, local: SocketAddr) -> io::Result<()> {
        let mut bound = lock(&self.0.binding);
        if bound.is_some() {
            return Err(errno(libc::EINVAL));
        }
        self.0.set_ledger_entry(bound.insert(self.0.make_binding(local)?));
        Ok(())
    }

    /// Another handle to the same socket, as from dup(2).
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn try_clone(&self) -> io::Result<UdpSocket> {
        Ok(UdpSocket(self.0.clone()))
    }

    /// From now on the socket receives only from `addresses` (the first that works), and
    /// [`send`](UdpSocket::send) sends there.
    ///
    /// # Errors
    /// ENETUNREACH and what binding can fail with.
    pub fn connect(&self, addresses: impl ToSocketAddrs) -> io::Result<()> {
        try_each(addresses, |remote| self.0.connect(remote))
    }

    /// Undoes [`connect`](UdpSocket::connect).
    pub fn disconnect(&self) {
        let inner = &*self.0;
        if let Some(bound) = &mut *lock(&inner.binding) {
            bound.inet.disconnect();
            if let Some(kernel) = &bound.kernel {
                // Disconnecting cannot fail.
                let _ = kernel.connect(None);
            }
            bound.remote = None;
            bound.publish_again();
            inner.endpoint.set_connected(false);
            inner.set_ledger_entry(bound);
        }
        inner.forget_paths();
    }

    /// The address it is bound to; 0.0.0.0:0 if it is not.
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(lock(&self.0.binding).as_ref().map_or(UNSPECIFIED, |bound| bound.inet.local()))
    }

    /// The address it is connected to.
    ///
    /// # Errors
    /// ENOTCONN.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let bound = lock(&self.0.binding);
        bound.as_ref().and_then(|bound| bound.remote).ok_or_else(|| errno(libc::ENOTCONN))
    }

    /// Ends receiving, sending, or both. A waiting receiver returns 0.
    ///
    /// # Errors
    /// ENOTCONN if it is not connected; it is shut down even so.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.endpoint.shut(how != Shutdown::Write, how != Shutdown::Read);
        // Linux shuts it down before it returns the error (`inet_shutdown`).
        self.peer_addr().map(drop)
    }

    /// The pending error, cleared (`SO_ERROR`).
    ///
    /// # Errors
    /// None today; a `Result` as in std.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.0.endpoint.take_error().map(errno))
    }

    /// Makes an error that a receive has returned pending again, for a caller that has datagrams to return first
    /// (recvmmsg(2)).
    #[doc(hidden)]
    pub fn restore_error(&self, errno: i32) {
        self.0.endpoint.restore_error(errno);
    }

    /// The number of datagrams in the receive buffer, and the size of the first in bytes.
    pub fn waiting(&self) -> (usize, usize) {
        self.0.endpoint.queued()
    }

    /// The number of datagrams by the kind of pass that delivered them, and of those dropped.
    pub fn stats(&self) -> SocketStats {
        self.0.endpoint.stats()
    }

    fn endpoint(&self) -> &Arc<Endpoint> {
        &self.0.endpoint
    }

    fn wait_options(&self) -> &WaitOptions {
        &self.0.endpoint.waiting
    }
}

impl Inner {
    fn make_binding(&self, local: SocketAddr) -> io::Result<Bound> {
        let path = self.endpoint.options.path();
        let options = self.endpoint.options.bind();
        let reserved = match self.host.kernel() {
            Some(kernel) => kernel.reserve(local, options, self.endpoint.clone())?,
            None => None,
        };
        let (local, kernel) = match reserved {
            Some((local, companion)) => (local, Some(companion)),
            None => (local, None),
        };
        let inet = self.host.inet().udp_bind(local, options, self.endpoint.clone())?;
        if let Some(kernel) = &kernel {
            if path != PathOptions::default() {
                kernel.set_options(&path)?;
            }
            kernel.steer(inet.local())?;
        }
        Ok(Bound { inet, remote: None, published: None, kernel })
    }

    /// Calls `then` with the binding. An unbound socket is first bound to any port, in the family of `like`.
    fn with_binding<T>(
        &self,
        like: SocketAddr,
        then: impl FnOnce(&mut Bound) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut bound = lock(&self.binding);
        if bound.is_none() {
            let binding = self.make_binding(unspecified(like)).map_err(|error| {
                // No port is left: EAGAIN, as from `inet_autobind`.
                if error.raw_os_error() == Some(libc::EADDRINUSE) {
                    errno(libc::EAGAIN)
                } else {
                    error
                }
            })?;
            self.set_ledger_entry(bound.insert(binding));
        }
        match &mut *bound {
            Some(bound) => then(bound),
            None => Err(errno(libc::EINVAL)),
        }
    }

    fn connect(&self, remote: SocketAddr) -> io::Result<()> {
        self.with_binding(remote, |bound| {
            if let Some(kernel) = &bound.kernel {
                kernel.connect(Some(remote))?;
            }
            match (bound.inet.connect(remote), &bound.kernel) {
                // The route is the kernel's, and the kernel has just chosen the source address.
                (Err(error), Some(kernel)) if error.kind() == io::ErrorKind::Unsupported => {
                    bound.inet.connect_from(kernel.local_addr()?.ip(), remote)?;
                }
                (result, _) => result?,
            }
            bound.remote = Some(remote);
            bound.publish_again();
            self.endpoint.set_connected(true);
            self.set_ledger_entry(bound);
            Ok(())
        })?;
        self.forget_paths();
        Ok(())
    }

    /// Enters the socket into the host's ledger, if there is one, in place of its old entry.
    fn set_ledger_entry(&self, bound: &Bound) {
        if let Some(ledger) = self.host.inet().ledger() {
            let ledger_entry = ledger.enter(Protocol::UDP, bound.inet.local(), bound.remote);
            self.endpoint.set_ledger_entry(ledger_entry, bound.remote.is_some());
        }
    }

    /// Called after a change of the binding or the options, with their locks released: a sender holds the lock of
    /// `paths` when it takes the binding's.
    fn forget_paths(&self) {
        lock(&self.paths).forget();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        *lock(&self.binding) = None;
        self.endpoint.close();
    }
}
