//! Connections.

use super::{
    split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf},
    waits::{Waits, poll_io},
};
use busypoll_stack::{Direction, Host, TaskWait, TcpStream as StackTcpStream};
use std::{
    io::{self, IoSlice, Read, Write},
    net::{Shutdown, SocketAddr, ToSocketAddrs},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A TCP connection on a [`Host`], with the methods of tokio's. Closed when it is dropped; what was written before still
/// arrives.
///
/// Options and counters: [`get_ref`](TcpStream::get_ref). Host names are looked up on the calling thread.
#[derive(Debug)]
pub struct TcpStream {
    pub(super) shared: Arc<Shared>,
    read: TaskWait,
    write: TaskWait,
}

/// What both halves of a stream use.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) stream: StackTcpStream,
    readers: Waits,
    writers: Waits,
}

impl TcpStream {
    /// Connects to the first of `addresses` that works.
    ///
    /// # Errors
    /// ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, EADDRNOTAVAIL (out of ports), as from connect(2).
    pub async fn connect(host: &Host, addresses: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "no address given");
        for address in addresses.to_socket_addrs()? {
            match TcpStream::connect_socket(StackTcpStream::new(host), address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Connects a socket made by [`stack::TcpStream::new`](StackTcpStream::new), whose options are set.
    ///
    /// # Errors
    /// As [`connect`](TcpStream::connect).
    pub async fn connect_socket(socket: StackTcpStream, to: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::from_stack(socket)?;
        let Shared { stream: socket, writers, .. } = &*stream.shared;
        let connect = || match socket.connect_to(to).map_err(|error| (error.raw_os_error(), error))
        {
            Ok(()) => Ok(()),
            Err((Some(libc::EINPROGRESS | libc::EALREADY), _)) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            Err((_, error)) => Err(error),
        };
        writers.call(socket, connect).await?;
        Ok(stream)
    }

    /// The same for a connection of the stack, which becomes non-blocking, as do its clones.
    ///
    /// # Errors
    /// None today; a `Result` as in tokio.
    pub fn from_stack(stream: StackTcpStream) -> io::Result<TcpStream> {
        stream.set_nonblocking(true)?;
        let (readers, writers) = (Waits::new(Direction::Read), Waits::new(Direction::Write));
        Ok(TcpStream::new(Arc::new(Shared { stream, readers, writers })))
    }

    pub(super) fn new(shared: Arc<Shared>) -> TcpStream {
        let (read, write) = (shared.wait(Direction::Read), shared.wait(Direction::Write));
        TcpStream { shared, read, write }
    }

    /// The connection of the stack, still non-blocking: another handle to the same socket.
    ///
    /// # Errors
    /// None today; a `Result` as in tokio.
    pub fn into_stack(self) -> io::Result<StackTcpStream> {
        self.shared.stream.try_clone()
    }

    /// The two halves, to be used by two futures of one task.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        let TcpStream { shared, read, write } = self;
        (ReadHalf { shared, wait: read }, WriteHalf { shared, wait: write })
    }

    /// The two halves, to be used by two tasks. Dropping the write half ends sending.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let TcpStream { shared, read, write } = self;
        let writer = OwnedWriteHalf { shared: shared.clone(), wait: write, shuts_down: true };
        (OwnedReadHalf { shared, wait: read }, writer)
    }

    /// Whether Nagle's algorithm is off (`TCP_NODELAY`).
    ///
    /// # Errors
    /// None today; a `Result` as in tokio.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.shared.stream.nodelay()
    }

    /// Turns Nagle's algorithm off (`TCP_NODELAY`).
    ///
    /// # Errors
    /// None today; a `Result` as in tokio.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.shared.stream.set_nodelay(on)
    }
}

impl Shared {
    fn wait(&self, direction: Direction) -> TaskWait {
        TaskWait::new(&self.stream, direction)
    }

    pub(super) fn poll_read(
        &self,
        wait: &mut TaskWait,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buf.initialize_unfilled();
        let len = ready!(poll_io(wait, cx, || (&self.stream).read(room)))?;
        buf.advance(len);
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_write(
        &self,
        wait: &mut TaskWait,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        poll_io(wait, cx, || (&self.stream).write(data))
    }

    pub(super) fn poll_write_vectored(
        &self,
        wait: &mut TaskWait,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        poll_io(wait, cx, || (&self.stream).write_vectored(data))
    }

    /// Ends sending. A connection that has ended already has nothing left to end.
    pub(super) fn shut_down(&self) -> io::Result<()> {
        match self.stream.shutdown(Shutdown::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            done => done,
        }
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        self.readers.ready(&self.stream).await;
        Ok(())
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        self.writers.ready(&self.stream).await;
        Ok(())
    }

    pub(super) async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.readers.call(&self.stream, || self.stream.peek(buffer)).await
    }
}

/// The methods that streams and read halves have, for a type with a field `shared`.
macro_rules! reading {
    ($type:ty) => {
        impl $type {
            /// As a read, but the data stays unread.
            ///
            /// # Errors
            /// As [`stack::TcpStream::peek`](busypoll_stack::TcpStream::peek), but for `WouldBlock`.
            pub async fn peek(&self, buffer: &mut [u8]) -> ::std::io::Result<usize> {
                self.shared.peek(buffer).await
            }

            /// Waits until a read would not wait.
            ///
            /// # Errors
            /// None today; a `Result` as in tokio.
            pub async fn readable(&self) -> ::std::io::Result<()> {
                self.shared.readable().await
            }

            /// Reads at once or not at all.
            ///
            /// # Errors
            /// `WouldBlock`, and the connection's errors.
            pub fn try_read(&self, buffer: &mut [u8]) -> ::std::io::Result<usize> {
                ::std::io::Read::read(&mut &self.shared.stream, buffer)
            }
        }
    };
}

/// The methods that streams and write halves have, for a type with a field `shared`.
macro_rules! writing {
    ($type:ty) => {
        impl $type {
            /// Waits until a write would not wait.
            ///
            /// # Errors
            /// None today; a `Result` as in tokio.
            pub async fn writable(&self) -> ::std::io::Result<()> {
                self.shared.writable().await
            }

            /// Writes at once or not at all.
            ///
            /// # Errors
            /// `WouldBlock`, and the connection's errors.
            pub fn try_write(&self, data: &[u8]) -> ::std::io::Result<usize> {
                ::std::io::Write::write(&mut &self.shared.stream, data)
            }
        }
    };
}

/// The methods that all of them have.
macro_rules! addresses {
    ($type:ty) => {
        impl $type {
            /// The local address.
            ///
            /// # Errors
            /// None today; a `Result` as in tokio.
            pub fn local_addr(&self) -> ::std::io::Result<::std::net::SocketAddr> {
                self.shared.stream.local_addr()
            }

            /// The peer's address.
            ///
            /// # Errors
            /// ENOTCONN.
            pub fn peer_addr(&self) -> ::std::io::Result<::std::net::SocketAddr> {
                self.shared.stream.peer_addr()
            }

            /// The connection of the stack, for its options and counters.
            pub fn get_ref(&self) -> &busypoll_stack::TcpStream {
                &self.shared.stream
            }
        }
    };
}

pub(super) use {addresses, reading, writing};

reading!(TcpStream);
writing!(TcpStream);
addresses!(TcpStream);

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let TcpStream { shared, read, .. } = self.get_mut();
        shared.poll_read(read, cx, buf)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let TcpStream { shared, write, .. } = self.get_mut();
        shared.poll_write(write, cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shared.shut_down())
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let TcpStream { shared, write, .. } = self.get_mut();
        shared.poll_write_vectored(write, cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
