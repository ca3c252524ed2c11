//! What an application does to a flow.

use super::{
    Mark, Ready, TcpEndpoint, TcpOptions,
    connection::{Connection, State},
    flow::{Core, Dropped},
    info::TcpInfo,
};
use crate::{
    inet::{Inet, PathOptions},
    napi::{NapiId, Pass},
    time::Instant,
};
use std::{
    any::Any,
    fmt,
    io::{self, IoSlice, IoSliceMut},
    net::{Shutdown, SocketAddr},
    sync::Arc,
};

/// An application's end of a connection. Dropping it closes the connection, which lives on by itself until what
/// was sent has arrived and both sides are done, or it has failed.
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

    /// For [`Poller::likely`](crate::napi::Poller::likely): who polls for this flow finds it without a look into the
    /// table.
    #[inline]
    pub(crate) fn likely(&self) -> &(dyn Any + Send + Sync) {
        &self.core
    }

    /// Does something to the connection, then sends what may go because of it.
    #[inline]
    fn call<R>(&self, pass: &mut Pass<'_>, call: impl FnOnce(&mut Connection, Instant) -> R) -> R {
        let mut state = self.core.enter(pass);
        let result = call(&mut state.connection, pass.now);
        self.core.finish(state, &self.inet, pass);
        self.inet.deliver_local(pass);
        result
    }

    /// Has `endpoint` told of changes from now on, and at once of how things stand.
    pub fn attach(&self, endpoint: Arc<dyn TcpEndpoint>, pass: &mut Pass<'_>) {
        let mut state = self.core.lock();
        // What it would be told of is in what it is told now.
        state.connection.take_news();
        endpoint.changed(state.connection.ready(), state.napi, pass);
        state.endpoint = Some(endpoint);
    }

    /// Takes data to be sent; how many bytes it took. `more`: more is to follow at once (`MSG_MORE`).
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

    /// What waits to be sent waits no longer (`TCP_NODELAY`).
    pub fn push(&self, pass: &mut Pass<'_>) {
        self.call(pass, |connection, _| connection.push());
    }

    /// The urgent byte, taken unless `peek`; `None` if the peer has sent all.
    ///
    /// # Errors
    /// EINVAL: there is none. EAGAIN: it is to come.
    pub fn recv_urgent(&self, peek: bool) -> io::Result<Option<u8>> {
        self.core.lock().connection.recv_urgent(peek)
    }

    /// Whether the next byte to be read is the urgent one.
    pub fn is_at_mark(&self) -> bool {
        self.core.lock().connection.is_at_mark()
    }

    /// Whether there is room for a full segment more to be sent.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.core.lock().connection.has_room()
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
        let mut state = self.core.enter(pass);
        let result = state.connection.recv(into, peek, pass.now);
        // Reading moves no timer, and seldom is there something to say.
        let connection = &state.connection;
        if connection.has_to_send() || connection.has_news() || self.inet.ledger().is_some() {
            self.core.finish(state, &self.inet, pass);
            self.inet.deliver_local(pass);
        }
        result
    }

    /// The reader waits for more: sends the acknowledgment that was left to his answer
    /// ([`ack_is_left`](TcpEndpoint::ack_is_left)), if nothing has carried it.
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

    /// close(2): resets the connection if received data was not read or `linger` is zero, else ends it in
    /// order. The flow lives on without us; who lingers waits until [`lingers`](Flow::lingers) is false before
    /// dropping this.
    pub fn close(&self, pass: &mut Pass<'_>) {
        self.call(pass, |connection, now| connection.close(now));
    }

    /// Its process ends: resets it, if received data was not read or `linger` is zero, else sends FIN.
    pub fn leave(&self, pass: &mut Pass<'_>) {
        self.call(pass, |connection, now| connection.leave(now));
    }

    /// Whether data, or the FIN, of a closed flow has yet to be acknowledged.
    pub fn lingers(&self) -> bool {
        self.core.lock().connection.lingers()
    }

    /// Resets the connection.
    pub fn abort(&self, pass: &mut Pass<'_>) {
        self.call(pass, |connection, now| connection.abort(now));
    }

    /// How things stand.
    pub fn ready(&self) -> Ready {
        self.core.lock().connection.ready()
    }

    /// The queue the last packet came from.
    pub fn napi(&self) -> Option<NapiId> {
        self.core.lock().napi
    }

    /// Our address and port.
    pub fn local(&self) -> SocketAddr {
        let tuple = &self.core.tuple;
        self.inet.shown(tuple.local().ip(), tuple.local())
    }

    /// The peer's.
    pub fn remote(&self) -> SocketAddr {
        let tuple = &self.core.tuple;
        self.inet.shown(tuple.local().ip(), tuple.remote())
    }

    /// `SO_ERROR`: the pending error's errno, once.
    pub fn take_error(&self) -> Option<i32> {
        self.core.lock().connection.take_error()
    }

    /// An error that was taken is pending again, unless there is another.
    #[cold]
    pub fn put_back_error(&self, errno: i32, pass: &mut Pass<'_>) {
        self.call(pass, |connection, _| connection.put_back_error(errno));
    }

    /// The options as they are.
    pub fn options(&self) -> TcpOptions {
        self.core.lock().connection.options()
    }

    /// Sets the options that may change on a connection. What that lets go (`nodelay`, `cork` off) is sent at
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

    /// The same and one for the peer's end (`TCP_INQ`).
    pub fn unread_with_end(&self) -> usize {
        self.core.lock().connection.unread_with_end()
    }

    /// What both buffers hold at present (`SO_SNDBUF`, `SO_RCVBUF`).
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
        self.core.drop_later(Dropped::Close, &self.inet);
    }
}
