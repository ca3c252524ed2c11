//! UDP.

use super::waits::Waits;
use busypoll_stack::{Direction, Host, UdpSocket as StackUdpSocket};
use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    task::{Context, Poll, ready},
};
use tokio::io::ReadBuf;

/// A UDP socket on a [`Host`], with the methods of [`tokio::net::UdpSocket`](https://docs.rs/tokio). Any number of tasks
/// may use it at once.
///
/// Options, batches and counters: [`get_ref`](UdpSocket::get_ref). Host names are looked up on the calling thread.
#[derive(Debug)]
pub struct UdpSocket {
    socket: StackUdpSocket,
    readers: Waits,
    writers: Waits,
}

impl UdpSocket {
    /// A socket bound to the first of `addresses` that works. Port 0 means any free port.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EACCES, as from bind(2).
    pub async fn bind(host: &Host, addresses: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        UdpSocket::from_stack(StackUdpSocket::bind(host, addresses)?)
    }

    /// The same for a socket of the stack, which becomes non-blocking, as do its clones.
    ///
    /// # Errors
    /// None today; a `Result` as in tokio.
    pub fn from_stack(socket: StackUdpSocket) -> io::Result<UdpSocket> {
        socket.set_nonblocking(true)?;
        let (readers, writers) = (Waits::new(Direction::Read), Waits::new(Direction::Write));
        Ok(UdpSocket { socket, readers, writers })
    }

    /// The socket of the stack, still non-blocking.
    pub fn into_stack(self) -> StackUdpSocket {
        self.socket
    }

    /// The socket of the stack, for its options and counters.
    pub fn get_ref(&self) -> &StackUdpSocket {
        &self.socket
    }

    /// From now on the socket receives only from `addresses` (the first that works), and [`send`](UdpSocket::send)
    /// sends there.
    ///
    /// # Errors
    /// ENETUNREACH and what binding can fail with.
    pub async fn connect(&self, addresses: impl ToSocketAddrs) -> io::Result<()> {
        self.socket.connect(addresses)
    }

    /// Sends a datagram to the socket's peer.
    ///
    /// # Errors
    /// As [`stack::UdpSocket::send`](StackUdpSocket::send), but for `WouldBlock`.
    pub async fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.writers.call(&self.socket, || self.socket.send(payload)).await
    }

    /// Sends a datagram to `to`.
    ///
    /// # Errors
    /// As [`send`](UdpSocket::send).
    pub async fn send_to(&self, payload: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let to = first(to)?;
        self.writers.call(&self.socket, || self.socket.send_to(payload, to)).await
    }

    /// Receives a datagram; bytes that do not fit into `buffer` are lost. May be cancelled: then none is lost.
    ///
    /// # Errors
    /// A pending error (ECONNREFUSED and its like).
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.readers.call(&self.socket, || self.socket.recv(buffer)).await
    }

    /// As [`recv`](UdpSocket::recv), and returns the sender's address.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.readers.call(&self.socket, || self.socket.recv_from(buffer)).await
    }

    /// As [`recv_from`](UdpSocket::recv_from), but the datagram stays queued.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
    pub async fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.readers.call(&self.socket, || self.socket.peek_from(buffer)).await
    }

    /// As [`send`](UdpSocket::send), at once or not at all.
    ///
    /// # Errors
    /// As [`send`](UdpSocket::send), and `WouldBlock`.
    pub fn try_send(&self, payload: &[u8]) -> io::Result<usize> {
        self.socket.send(payload)
    }

    /// As [`send_to`](UdpSocket::send_to), at once or not at all.
    ///
    /// # Errors
    /// As [`send`](UdpSocket::send), and `WouldBlock`.
    pub fn try_send_to(&self, payload: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.socket.send_to(payload, to)
    }

    /// As [`recv`](UdpSocket::recv), at once or not at all.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv), and `WouldBlock`.
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.recv(buffer)
    }

    /// As [`recv_from`](UdpSocket::recv_from), at once or not at all.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv), and `WouldBlock`.
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket.recv_from(buffer)
    }

    /// Waits until a receive would not wait.
    ///
    /// # Errors
    /// None today; a `Result` as in tokio.
    pub async fn readable(&self) -> io::Result<()> {
        self.readers.ready(&self.socket).await;
        Ok(())
    }

    /// Waits until a send would not wait.
    ///
    /// # Errors
    /// None today; a `Result` as in tokio.
    pub async fn writable(&self) -> io::Result<()> {
        self.writers.ready(&self.socket).await;
        Ok(())
    }

    /// Receives a datagram. Only the task of the last call is woken.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
    pub fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_recv_from(cx, buf).map_ok(drop)
    }

    /// Receives a datagram, and returns the sender's address. Only the task of the last call is woken.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
    pub fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        let room = buf.initialize_unfilled();
        let (len, from) =
            ready!(self.readers.poll(&self.socket, cx, || self.socket.recv_from(room)))?;
        buf.advance(len);
        Poll::Ready(Ok(from))
    }

    /// Sends a datagram to the socket's peer. Only the task of the last call is woken.
    ///
    /// # Errors
    /// As [`send`](UdpSocket::send).
    pub fn poll_send(&self, cx: &mut Context<'_>, payload: &[u8]) -> Poll<io::Result<usize>> {
        self.writers.poll(&self.socket, cx, || self.socket.send(payload))
    }

    /// Sends a datagram to `to`. Only the task of the last call is woken.
    ///
    /// # Errors
    /// As [`send`](UdpSocket::send).
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        payload: &[u8],
        to: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.writers.poll(&self.socket, cx, || self.socket.send_to(payload, to))
    }

    /// The address it is bound to.
    ///
    /// # Errors
    /// None today; a `Result` as in tokio.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The address it is connected to.
    ///
    /// # Errors
    /// ENOTCONN.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// The pending error, cleared (`SO_ERROR`).
    ///
    /// # Errors
    /// None today; a `Result` as in tokio.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }
}

fn first(addresses: impl ToSocketAddrs) -> io::Result<SocketAddr> {
    let none = || io::Error::new(io::ErrorKind::InvalidInput, "no address given");
    addresses.to_socket_addrs()?.next().ok_or_else(none)
}
