//! Listeners.

use super::{TcpStream, waits::Waits};
use busypoll_stack::{Direction, Host, TcpListener as StackTcpListener};
use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    task::{Context, Poll, ready},
};

/// A TCP socket on a [`Host`] that listens, with the methods of tokio's. Any number of tasks may accept at once.
///
/// For options before listening make a [`stack::TcpStream::new`](busypoll_stack::TcpStream::new), and give its listener
/// to [`from_stack`](TcpListener::from_stack).
#[derive(Debug)]
pub struct TcpListener {
    listener: StackTcpListener,
    readers: Waits,
}

impl TcpListener {
    /// Listens at the first of `addresses` that works, with `SO_REUSEADDR` set. Port 0 takes any free port.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EACCES, as from bind(2) and listen(2).
    pub async fn bind(host: &Host, addresses: impl ToSocketAddrs) -> io::Result<TcpListener> {
        TcpListener::from_stack(StackTcpListener::bind(host, addresses)?)
    }

    /// The same for a listener of the stack, which becomes non-blocking, as do its clones.
    ///
    /// # Errors
    /// None today; a `Result` as in tokio.
    pub fn from_stack(listener: StackTcpListener) -> io::Result<TcpListener> {
        listener.set_nonblocking(true)?;
        Ok(TcpListener { listener, readers: Waits::new(Direction::Read) })
    }

    /// The listener of the stack, still non-blocking.
    pub fn into_stack(self) -> StackTcpListener {
        self.listener
    }

    /// The listener of the stack, for its options and counters.
    pub fn get_ref(&self) -> &StackTcpListener {
        &self.listener
    }

    /// The connection that has waited longest, and its peer's address. May be cancelled: then no connection is lost.
    ///
    /// # Errors
    /// EINVAL once accepting was [stopped](StackTcpListener::stop).
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = self.readers.call(&self.listener, || self.listener.accept()).await?;
        Ok((TcpStream::from_stack(stream)?, peer))
    }

    /// The connection that has waited longest. Only the task of the last call is woken.
    ///
    /// # Errors
    /// As [`accept`](TcpListener::accept).
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let accepted = ready!(self.readers.poll(&self.listener, cx, || self.listener.accept()));
        Poll::Ready(accepted.and_then(|(stream, peer)| Ok((TcpStream::from_stack(stream)?, peer))))
    }

    /// The address it listens at.
    ///
    /// # Errors
    /// None today; a `Result` as in tokio.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
