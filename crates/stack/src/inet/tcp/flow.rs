//! A flow: a connection behind its lock, with its path, its endpoint, and its places in the table and on
//! the timer wheel.

use super::{Hold, Ready, TcpEndpoint, TcpOptions, connection::State, info::TcpInfo};
use crate::{
    inet::{Inet, PathOptions},
    napi::{NapiId, Pass},
    time::Instant,
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{Shutdown, SocketAddr},
    sync::Arc,
};

/// What `socket` and `setsockopt` say about a connection to be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// `SO_REUSEADDR`, for a local port that is named.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`, likewise.
    pub reuse_port: bool,
    /// `IP_TTL` and `IP_TOS`.
    pub path: PathOptions,
    /// TCP's own.
    pub tcp: TcpOptions,
}

/// An application's end of a connection. Dropping it closes the connection; it lives on by itself until what
/// was sent has arrived and both sides are done, or it has failed.
#[derive(Debug)]
pub struct Flow {}

impl Inet {
    /// Begins to connect to `remote`. Unspecified parts of `local` are chosen: the address by the route, the
    /// port so that the 4-tuple is free and hard to guess. The flow is writable once connected; before, sends
    /// and receives are `WouldBlock`. `hold` lives as long as the connection, its TIME_WAIT included.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if no port is left or the 4-tuple is taken; EADDRINUSE if `local` names a port that is
    /// bound; ENETUNREACH and the like; `Unsupported` ([`SendError::UseKernel`](crate::inet::SendError)) if
    /// the way leads through the kernel.
    pub fn tcp_connect(
        self: &Arc<Inet>,
        local: SocketAddr,
        remote: SocketAddr,
        options: &ConnectOptions,
        hold: Option<Hold>,
        endpoint: Arc<dyn TcpEndpoint>,
        pass: &mut Pass<'_>,
    ) -> io::Result<Flow> {
        let _ = (local, remote, options, hold, endpoint, pass);
        unimplemented!()
    }
}

impl Flow {
    /// Has `endpoint` told of changes from now on, and at once of how things stand.
    pub fn attach(&self, endpoint: Arc<dyn TcpEndpoint>, pass: &mut Pass<'_>) {
        let _ = (endpoint, pass);
        unimplemented!()
    }

    /// Takes data to be sent; how many bytes it took. `more`: more is to follow at once (`MSG_MORE`).
    ///
    /// # Errors
    /// `WouldBlock` if there is no room or the connection is not made yet; the connection's error, once;
    /// EPIPE after it or after `shutdown`.
    pub fn send(&self, data: &[IoSlice<'_>], more: bool, pass: &mut Pass<'_>) -> io::Result<usize> {
        let _ = (data, more, pass);
        unimplemented!()
    }

    /// Copies received data to `into`, and takes it from the buffer unless `peek`; how many bytes. 0 is the
    /// end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing; the connection's error, once.
    pub fn recv(
        &self,
        into: &mut [IoSliceMut<'_>],
        peek: bool,
        pass: &mut Pass<'_>,
    ) -> io::Result<usize> {
        let _ = (into, peek, pass);
        unimplemented!()
    }

    /// shutdown(2).
    ///
    /// # Errors
    /// ENOTCONN.
    pub fn shutdown(&self, how: Shutdown, pass: &mut Pass<'_>) -> io::Result<()> {
        let _ = (how, pass);
        unimplemented!()
    }

    /// close(2): resets the connection if received data was not read or `linger` is zero, else ends it in
    /// order. The flow lives on without us; who lingers waits until [`lingers`](Flow::lingers) is false before
    /// dropping this.
    pub fn close(&self, pass: &mut Pass<'_>) {
        let _ = pass;
        unimplemented!()
    }

    /// Whether data, or the FIN, of a closed flow has yet to be acknowledged.
    pub fn lingers(&self) -> bool {
        unimplemented!()
    }

    /// Resets the connection.
    pub fn abort(&self, pass: &mut Pass<'_>) {
        let _ = pass;
        unimplemented!()
    }

    /// How things stand.
    pub fn ready(&self) -> Ready {
        unimplemented!()
    }

    /// The state of the connection.
    pub fn state(&self) -> State {
        unimplemented!()
    }

    /// `TCP_INFO` at `now`.
    pub fn info(&self, now: Instant) -> TcpInfo {
        let _ = now;
        unimplemented!()
    }

    /// The queue the last packet came from.
    pub fn napi(&self) -> Option<NapiId> {
        unimplemented!()
    }

    /// Our address and port.
    pub fn local(&self) -> SocketAddr {
        unimplemented!()
    }

    /// The peer's.
    pub fn remote(&self) -> SocketAddr {
        unimplemented!()
    }

    /// `SO_ERROR`: the pending error's errno, once.
    pub fn take_error(&self) -> Option<i32> {
        unimplemented!()
    }

    /// The options as they are.
    pub fn options(&self) -> TcpOptions {
        unimplemented!()
    }

    /// Sets the options that may change on a connection. Those that release data at once (`nodelay`, `cork`
    /// off) do.
    pub fn set_options(&self, options: TcpOptions, pass: &mut Pass<'_>) {
        let _ = (options, pass);
        unimplemented!()
    }

    /// `IP_TTL` and `IP_TOS` from now on.
    pub fn set_path_options(&self, options: PathOptions) {
        let _ = options;
        unimplemented!()
    }

    /// Bytes received and not read yet (`SIOCINQ`).
    pub fn unread(&self) -> usize {
        unimplemented!()
    }

    /// Bytes sent and not acknowledged yet (`SIOCOUTQ`).
    pub fn unacknowledged(&self) -> usize {
        unimplemented!()
    }
}
