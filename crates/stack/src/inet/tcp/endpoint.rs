//! What the floor above hands down to TCP: whom to tell, and what to keep alive.

use crate::napi::{NapiId, Pass};
use std::{any::Any, fmt, ops::BitOr, sync::Arc};

/// What a call on a flow or listener would find, with the meaning poll(2) gives each.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Ready(pub u8);

impl Ready {
    /// A receive would not wait: data, the end of the stream, or an error. For a listener: a connection to
    /// accept (`POLLIN`).
    pub const READABLE: Ready = Ready(1);
    /// A send would not wait: room, or an error (`POLLOUT`).
    pub const WRITABLE: Ready = Ready(2);
    /// The peer sends no more, or receiving was shut down (`POLLRDHUP`).
    pub const READ_CLOSED: Ready = Ready(4);
    /// Both directions are closed (`POLLHUP`).
    pub const HANGUP: Ready = Ready(8);
    /// [`Flow::take_error`](super::Flow::take_error) has one (`POLLERR`).
    pub const ERROR: Ready = Ready(16);
    /// Data, but less than is waited for (`SO_RCVLOWAT`): not what poll(2) reports, though a receive may take it.
    pub const LITTLE: Ready = Ready(32);
    /// An urgent byte can be received (`POLLPRI`).
    pub const URGENT: Ready = Ready(128);
    /// With [`WRITABLE`](Ready::WRITABLE): somebody had seen that there was no room, and now there is. News whatever was
    /// told before.
    pub const ROOM: Ready = Ready(64);

    /// Whether all bits of `other` are set.
    #[inline]
    pub const fn has(self, other: Ready) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any bit of `other` is set.
    #[inline]
    pub const fn any(self, other: Ready) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Ready {
    type Output = Ready;

    #[inline]
    fn bitor(self, other: Ready) -> Ready {
        Ready(self.0 | other.0)
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Ready::READABLE, "readable"),
            (Ready::WRITABLE, "writable"),
            (Ready::READ_CLOSED, "read-closed"),
            (Ready::HANGUP, "hangup"),
            (Ready::ERROR, "error"),
            (Ready::LITTLE, "little"),
            (Ready::ROOM, "room"),
            (Ready::URGENT, "urgent"),
        ];
        f.debug_set().entries(names.iter().filter(|(bit, _)| self.has(*bit)).map(|n| n.1)).finish()
    }
}

/// A socket, seen from below.
pub trait TcpEndpoint: Send + Sync {
    /// Something has happened that a waiter may wait for, and this is how things stand now: new data has
    /// come (also when there was some already), room has become free, the connection was made, has failed
    /// or ended; or, for a listener, there is one more connection to accept. `napi` is the queue the last
    /// packet came from.
    ///
    /// Called under the lock of the flow or listener, on whatever thread: note it, put those to be woken on
    /// `pass.wake`, and call nothing of TCP.
    fn changed(&self, ready: Ready, napi: Option<NapiId>, pass: &mut Pass<'_>);

    /// Data has come, all there is to read, and nothing else has happened. If the pass is a busy poll by a receiver
    /// of this very socket who has room for all of it he may take it: whether he has; else
    /// [`changed`](TcpEndpoint::changed) is to follow, under whose terms this is called.
    fn take(&self, _napi: Option<NapiId>, _data: &[u8], _pass: &mut Pass<'_>) -> bool {
        false
    }

    /// Whether this pass is a busy poll by a receiver of this very socket.
    fn receives(&self, _pass: &Pass<'_>) -> bool {
        false
    }

    /// An urgent pointer has come. Called as [`changed`](TcpEndpoint::changed) is.
    fn urgent(&self) {}

    /// What was [taken](TcpEndpoint::take), or came by the hand of one who [receives](TcpEndpoint::receives), is not
    /// acknowledged yet, for the answer to carry that: if there is none and the receiver waits again,
    /// [`Flow::reader_waits`](super::Flow::reader_waits) is to be called first.
    fn ack_is_left(&self) {}
}

/// Something that must live as long as a port is in use: on an interface shared with the kernel its shadow
/// socket and the steering. Listeners, flows (closed ones until they are done) and TIME_WAIT entries share it.
pub type Hold = Arc<dyn Any + Send + Sync>;
