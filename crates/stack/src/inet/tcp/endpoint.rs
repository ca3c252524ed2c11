//! What the socket layer passes down to TCP: the endpoint to notify, and what to keep alive.

use crate::{inet::Pass, napi::NapiId, wire::Data};
use std::{fmt, ops::BitOr, sync::Arc};

/// The readiness of a flow or listener, with the meaning poll(2) gives each bit.
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
    /// Data, but less than `SO_RCVLOWAT`: poll(2) does not report it, though a receive may take it.
    pub const BELOW_LOWAT: Ready = Ready(32);
    /// An urgent byte can be received (`POLLPRI`).
    pub const URGENT: Ready = Ready(128);
    /// With [`WRITABLE`](Ready::WRITABLE): a waiter had found no room, and now there is some. Reported even if
    /// `WRITABLE` was reported before.
    pub const WRITE_SPACE: Ready = Ready(64);

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
            (Ready::BELOW_LOWAT, "below_lowat"),
            (Ready::WRITE_SPACE, "write_space"),
            (Ready::URGENT, "urgent"),
        ];
        f.debug_set().entries(names.iter().filter(|(bit, _)| self.has(*bit)).map(|n| n.1)).finish()
    }
}

/// A socket, as TCP sees it.
pub trait TcpEndpoint: Send + Sync {
    /// Something has happened that a waiter may wait for, and `ready` is the present state: new data has come (even
    /// if there was some already), room has become free, the connection was made, has failed or ended; or, for a
    /// listener, there is one more connection to accept. `napi` is the queue of the last packet.
    ///
    /// Called under the lock of the flow or listener, on any thread: record it, put the waiters to wake on
    /// `pass.wake`, and do not call TCP.
    fn changed(&self, ready: Ready, napi: Option<NapiId>, pass: &mut Pass<'_>);

    /// Data has come: it is all there is to read, and nothing else has happened. If the pass is a busy poll by a
    /// receiver of this very socket that has room for all of it, the receiver may take it. Returns whether it did; if
    /// not, [`changed`](TcpEndpoint::changed) follows. The same rules as for `changed` apply.
    fn take(&self, _napi: Option<NapiId>, _data: &[u8], _pass: &mut Pass<'_>) -> bool {
        false
    }

    /// As [`take`](TcpEndpoint::take), for data in several pieces.
    fn take_pieces(&self, _napi: Option<NapiId>, _data: &Data<'_>, _pass: &mut Pass<'_>) -> bool {
        false
    }

    /// Whether this pass is a busy poll by a receiver of this very socket.
    fn receives(&self, _pass: &Pass<'_>) -> bool {
        false
    }

    /// An urgent pointer has come. Called as [`changed`](TcpEndpoint::changed) is.
    fn urgent(&self) {}

    /// The data that was [taken](TcpEndpoint::take), or that came in a pass of a thread that
    /// [receives](TcpEndpoint::receives), is not acknowledged yet, so that the answer can carry the ACK. If there is
    /// no answer and the receiver waits again, it has to call [`Flow::reader_waits`](super::Flow::reader_waits)
    /// first.
    fn ack_deferred_to_reader(&self) {}

    /// Events by the pass they came in: busy polls of this socket, of another, and by interrupts.
    fn deliveries(&self) -> [u64; 3] {
        [0; 3]
    }
}

/// Something that must live as long as a port is in use: on an interface shared with the kernel its companion socket
/// and the steering. Listeners, flows (closed ones until they are done) and TIME_WAIT entries share it.
pub type PortRef = Arc<dyn PortHolder>;

/// What is held for a port in use.
pub trait PortHolder: fmt::Debug + Send + Sync {
    /// The connection was handed over to the kernel, and so was the port.
    fn mark_handed_over(&self);
}
