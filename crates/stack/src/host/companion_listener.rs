//! A kernel socket that listens at the port of one of our listeners. Clients over loopback, or over an interface that
//! is not shared, connect to it. The host's kernel thread notifies our listener of their connections.

use super::{
    companion::CompanionService,
    port_reservation::{KernelBinding, PortReservation},
};
use crate::{inet::Pass, sync::lock, sys};
use std::{
    fmt, io,
    net::{SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
};

use super::companion::State;

/// Edge-triggered: our listener accepts until no connection is left.
const NOTIFIED: u32 = (libc::EPOLLIN | libc::EPOLLET) as u32;

/// Our listener, as the companion notifies it.
pub(crate) trait CompanionEndpoint: Send + Sync {
    /// The companion has a new connection.
    fn readable(&self, pass: &mut Pass<'_>);
}

/// The kernel socket. Dropping this closes our descriptor only; the application may have others.
pub(crate) struct CompanionListener {
    id: u64,
    socket: KernelListener,
    state: Arc<State>,
}

impl fmt::Debug for CompanionListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}

impl CompanionService {
    /// Notifies `endpoint` of every connection that comes to `socket`.
    pub(crate) fn add_listener(
        &self,
        socket: KernelListener,
        endpoint: Arc<dyn CompanionEndpoint>,
    ) -> io::Result<CompanionListener> {
        let state = self.state().clone();
        let id = state.next.fetch_add(1, Ordering::Relaxed);
        lock(&state.listeners).insert(id, endpoint);
        let listener = CompanionListener { id, socket, state };
        listener.control(libc::EPOLL_CTL_ADD, NOTIFIED)?;
        Ok(listener)
    }

    /// The reservation of a port that a kernel socket is bound to already, see [`PortReservation::adopt`].
    pub(crate) fn adopt_port(
        &self,
        local: SocketAddr,
        only_v6: bool,
    ) -> io::Result<Option<PortReservation>> {
        PortReservation::adopt(self.state(), local, only_v6)
    }

    /// A reservation with `socket`, which is bound as `binding` says, see [`PortReservation::for_connect`].
    pub(crate) fn reserve_to_connect(
        &self,
        binding: KernelBinding,
        socket: OwnedFd,
    ) -> Option<PortReservation> {
        PortReservation::for_connect(self.state(), binding, socket)
    }
}

impl CompanionListener {
    /// The next connection; `None` if there is none. Called by one thread at a time.
    ///
    /// Another process may take the connection first, and then this call must not block. O_NONBLOCK is shared by all
    /// descriptors of the socket, so it is set only for the call.
    pub(crate) fn accept(&self) -> Option<io::Result<KernelStream>> {
        if !self.is_readable() {
            return None;
        }
        let blocks = !sys::is_nonblocking(self.socket.as_raw_fd());
        // It cannot fail on a socket.
        let set_nonblocking = |on| blocks.then(|| self.socket.set_nonblocking(on));
        set_nonblocking(true);
        let accepted = self.socket.accept();
        set_nonblocking(false);
        match accepted {
            Ok((stream, _)) => Some(Ok(stream)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Whether the thread notifies of its connections: if some wait already, of those.
    ///
    /// # Errors
    /// None.
    pub(crate) fn set_notified(&self, on: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, if on { NOTIFIED } else { libc::EPOLLET as u32 })
    }

    fn control(&self, operation: libc::c_int, events: u32) -> io::Result<()> {
        let (epoll, fd) = (self.state.epoll.as_raw_fd(), self.socket.as_raw_fd());
        sys::epoll_control(epoll, operation, fd, events, self.id)
    }

    /// The kernel's socket.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether a connection waits to be accepted.
    pub(crate) fn is_readable(&self) -> bool {
        sys::poll(self.socket.as_fd().as_raw_fd(), Some(std::time::Duration::ZERO)) > 0
    }
}

impl Drop for CompanionListener {
    fn drop(&mut self) {
        lock(&self.state.listeners).remove(&self.id);
        // Other descriptors may keep the socket open, and epoll would report it for ever. It is registered, so this
        // cannot fail.
        let _ = self.control(libc::EPOLL_CTL_DEL, 0);
    }
}
