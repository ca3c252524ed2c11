//! The calls of the application on a flow.

use super::{
    Mark, Ready, TcpEndpoint, TcpOptions,
    connection::{Connection, State},
    flow::{Core, DeferredClose},
    info::TcpInfo,
};
use crate::{
    inet::{Inet, Pass, PathOptions},
    napi::NapiId,
    time::Instant,
};
use std::{
    fmt,
    io::{self, IoSlice, IoSliceMut},
    net::{Shutdown, SocketAddr},
    sync::Arc,
};

/// The application's handle of a connection. Dropping it closes the connection, which continues by itself until
/// everything sent has arrived and both sides are closed, or until it fails.
pub struct Flow {
    pub(super) core: Arc<Core>,
    pub(super) inet: Arc<Inet>,
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Flow").field(&self.core.tuple).finish()
    }
}

impl Flow {
    pub(super) fn new(core: Arc<Core>, inet: Arc<Inet>) -> Flow {
        Flow { core, inet }
    }

    /// The number of the link to a process of this machine that it goes over; 0: none.
    pub(crate) fn link(&self) -> u32 {
        self.core.lock().path_options.link
    }

    /// Whether the kernel has made it.
    pub(crate) fn is_imported(&self) -> bool {
        self.core.lock().imported
    }

    /// Changes the connection, then sends what may be sent because of it.
    #[inline]
    fn call<R>(&self, pass: &mut Pass<'_>, call: impl FnOnce(&mut Connection, Instant) -> R) -> R {
        let mut state = self.core.enter(pass);
        let result = call(&mut state.connection, pass.now);
        self.core.finish(state, &self.inet, pass);
        self.inet.deliver_local(pass);
        result
    }

    /// Begins to connect. Apart from making the flow: the peer's answer may wake a thread before this call returns, and
    /// that thread must find the flow at its socket.
    pub fn send_syn(&self, pass: &mut Pass<'_>) {
        self.call(pass, |_, _| ());
    }

    /// Notifies `endpoint` of changes from now on, and at once of the present state.
    pub fn attach(&self, endpoint: Arc<dyn TcpEndpoint>, pass: &mut Pass<'_>) {
        let mut state = self.core.lock();
        // The present state includes what was not reported yet.
        state.connection.take_notify();
        endpoint.changed(state.connection.ready(), state.napi, pass);
        state.endpoint = Some(endpoint);
    }

    /// Queues data to be sent; returns how many bytes it took. `more`: more data follows at once (`MSG_MORE`).
    ///
    /// # Errors
    /// `WouldBlock` if there is no room or the connection is not made yet; the connection's error, once;
    /// EPIPE after it or after `shutdown`.
    pub fn send(&self, data: &[IoSlice<'_>], more: bool, pass: &mut Pass<'_>) -> io::Result<usize> {
        self.call(pass, |connection, now| connection.send(data, more, now))
    }

    /// As [`send`](Flow::send), for data that has a mark.
    ///
    /// # Errors
    /// As `send`.
    #[cold]
    pub fn send_marked(
        &self,
        data: &[IoSlice<'_>],
        more: bool,
        mark: Mark,
        pass: &mut Pass<'_>,
    ) -> io::Result<usize> {
        self.call(pass, |connection, now| connection.send_marked(data, more, mark, now))
    }

    /// Data that was held back is sent now (`TCP_NODELAY`).
    pub fn push(&self, pass: &mut Pass<'_>) {
        self.call(pass, |connection, _| connection.push());
    }

    /// The urgent byte, consumed unless `peek`; `None` at the end of the stream.
    ///
    /// # Errors
    /// EINVAL: there is none. EAGAIN: it has not arrived yet.
    pub fn recv_urgent(&self, peek: bool) -> io::Result<Option<u8>> {
        self.core.lock().connection.recv_urgent(peek)
    }

    /// Whether the next byte to be read is the urgent one.
    pub fn is_at_mark(&self) -> bool {
        self.core.lock().connection.is_at_mark()
    }

    /// Whether there is room for one more full segment to be sent.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.core.lock().connection.has_room()
    }

    /// Copies received data to `into`, and takes it from the buffer unless `peek`; returns how many bytes. 0 is the
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
        let mut state = self.core.enter(pass);
        let result = state.connection.recv(into, peek, pass.now);
        // Reading moves no timer, and seldom makes anything to send.
        let connection = &state.connection;
        if connection.has_to_send() || connection.has_notify() || self.inet.ledger().is_some() {
            self.core.finish(state, &self.inet, pass);
            self.inet.deliver_local(pass);
        }
        result
    }

    /// The reader waits for more data: sends the ACK that was left to its answer
    /// ([`ack_deferred_to_reader`](TcpEndpoint::ack_deferred_to_reader)), if no segment has carried it.
    #[cold]
    pub fn reader_waits(&self, pass: &mut Pass<'_>) {
        self.call(pass, |connection, _| connection.reader_waits());
    }

    /// shutdown(2).
    ///
    /// # Errors
    /// ENOTCONN.
    pub fn shutdown(&self, how: Shutdown, pass: &mut Pass<'_>) -> io::Result<()> {
        self.call(pass, |connection, now| connection.shutdown(how, now))
    }

    /// close(2): resets the connection if received data was not read or `linger` is zero, else ends it in order. The
    /// flow continues without the handle; a caller with `SO_LINGER` waits until [`lingers`](Flow::lingers) is false
    /// before it drops the handle.
    pub fn close(&self, pass: &mut Pass<'_>) {
        self.call(pass, |connection, now| connection.close(now));
    }

    /// The process exits: resets the connection if received data was not read or `linger` is zero, else sends FIN.
    pub fn close_at_exit(&self, pass: &mut Pass<'_>) {
        self.call(pass, |connection, now| connection.close_at_exit(now));
    }

    /// Whether data or the FIN of a closed flow is not acknowledged yet.
    pub fn lingers(&self) -> bool {
        self.core.lock().connection.lingers()
    }

    /// Whether it is shut down for sending, and data or the FIN is not acknowledged yet.
    pub(crate) fn is_unacknowledged(&self) -> bool {
        self.core.lock().connection.is_unacknowledged()
    }

    /// Resets the connection.
    pub fn abort(&self, pass: &mut Pass<'_>) {
        self.call(pass, |connection, now| connection.abort(now));
    }

    /// Gives up connecting over a link: the process at its other end does not accept the connection any more.
    pub(crate) fn give_up(&self, pass: &mut Pass<'_>) {
        self.core.give_up(&self.inet, pass);
    }

    /// The present readiness.
    pub fn ready(&self) -> Ready {
        self.core.lock().connection.ready()
    }

    /// The receive queue of the last packet.
    pub fn napi(&self) -> Option<NapiId> {
        self.core.lock().napi
    }

    /// Our address and port.
    pub fn local(&self) -> SocketAddr {
        let tuple = &self.core.tuple;
        self.inet.shown(tuple.local().ip(), tuple.local())
    }

    /// The peer's address and port.
    pub fn remote(&self) -> SocketAddr {
        let tuple = &self.core.tuple;
        self.inet.shown(tuple.local().ip(), tuple.remote())
    }

    /// `SO_ERROR`: the pending error's errno, once.
    pub fn take_error(&self) -> Option<i32> {
        self.core.lock().connection.take_error()
    }

    /// Makes an error that was taken pending again, unless there is another.
    #[cold]
    pub fn restore_error(&self, errno: i32, pass: &mut Pass<'_>) {
        self.call(pass, |connection, _| connection.restore_error(errno));
    }

    /// The options in force.
    pub fn options(&self) -> TcpOptions {
        self.core.lock().connection.options()
    }

    /// Sets the options that may change on a connection. Data that this releases (`nodelay`, `cork` off) is sent at
    /// once.
    pub fn set_options(&self, options: TcpOptions, pass: &mut Pass<'_>) {
        self.call(pass, |connection, now| connection.configure(now, |mine| *mine = options));
    }

    /// What `TCP_QUICKACK` reads.
    pub fn quick_ack(&self) -> bool {
        self.core.lock().connection.quick_ack()
    }

    /// Sets `IP_TTL` and `IP_TOS` from now on.
    pub fn set_path_options(&self, options: PathOptions, pass: &mut Pass<'_>) {
        let mut state = self.core.enter(pass);
        state.set_path_options(options, &self.core.tuple, &self.inet, pass.now);
    }

    /// Bytes received and not read yet (`SIOCINQ`).
    pub fn unread(&self) -> usize {
        self.core.lock().connection.unread()
    }

    /// The same, and one more for the peer's FIN (`TCP_INQ`).
    pub fn unread_with_fin(&self) -> usize {
        self.core.lock().connection.unread_with_fin()
    }

    /// The present sizes of both buffers (`SO_SNDBUF`, `SO_RCVBUF`).
    pub fn buffers(&self) -> (u32, u32) {
        self.core.lock().connection.buffers()
    }

    /// Bytes sent and not acknowledged yet (`SIOCOUTQ`).
    pub fn unacknowledged(&self) -> usize {
        self.core.lock().connection.unacknowledged()
    }

    /// The state of the connection.
    pub fn state(&self) -> State {
        self.core.lock().connection.state()
    }

    /// `TCP_INFO` at `now`.
    pub fn info(&self, now: Instant) -> TcpInfo {
        self.core.lock().connection.info(now)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.core.close_later(DeferredClose::Close, &self.inet);
    }
}
