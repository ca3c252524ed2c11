//! One connection (RFC 9293's TCB): what the application does to it, and what it can say about itself.
//!
//! Segments come in by [`Connection::segment`], time by [`Connection::timer`], and what is to be sent goes out by
//! [`Connection::transmit`]. No lock, no clock, no I/O; whoever holds a connection calls `transmit` after each
//! of the other calls, and looks at [`Connection::ready`] and [`Connection::deadline`] then.

use super::{
    Ready, TcpOptions,
    segment::{Flags, Options, Segment},
    seq::Seq,
    shared::Shared,
};
use crate::{inet::SocketError, time::Instant};
use std::{
    io::{self, IoSlice, IoSliceMut},
    net::Shutdown,
    sync::Arc,
};

/// The states of RFC 9293 section 3.3.2; a listener is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// We sent a SYN.
    SynSent,
    /// Both SYNs are sent, ours is not acknowledged.
    SynReceived,
    /// Data flows.
    Established,
    /// We sent FIN.
    FinWait1,
    /// Our FIN is acknowledged.
    FinWait2,
    /// The peer sent FIN.
    CloseWait,
    /// Both sent FIN, ours is not acknowledged.
    Closing,
    /// The peer sent FIN, then we did.
    LastAck,
    /// All is said; stray segments die.
    TimeWait,
    /// There is no connection (any more).
    Closed,
}

/// A segment on its way out: all but addresses, ports and checksum.
#[derive(Clone, Debug, Default)]
pub struct Outgoing<'a> {
    /// The number of its first byte, or of its SYN.
    pub seq: Seq,
    /// What we expect next; counts if `flags` has ACK.
    pub ack: Seq,
    /// The control bits.
    pub flags: Flags,
    /// The window as it goes on the wire, scaled already.
    pub window: u16,
    /// The options.
    pub options: Options,
    /// The IP header says ECT(0) (RFC 3168).
    pub ecn_capable: bool,
    /// The data, in two pieces, either of which may be empty.
    pub payload: [&'a [u8]; 2],
}

/// What a connection begins with, besides its options.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The initial sequence number (RFC 6528).
    pub iss: Seq,
    /// What our timestamps start from (RFC 7323 section 7.1).
    pub ts_offset: u32,
    /// The largest segment the path takes, without options: MTU less IP header less 20.
    pub mss: u16,
}

/// What TIME_WAIT must know of a connection that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWait {
    /// SND.NXT.
    pub snd_nxt: Seq,
    /// RCV.NXT.
    pub rcv_nxt: Seq,
    /// The window last offered, bytes.
    pub rcv_window: u32,
    /// The same as it goes on the wire.
    pub window: u16,
    /// With timestamps: the peer's last one, and what ours start from.
    pub timestamps: Option<(u32, u32)>,
    /// When it ends.
    pub until: Instant,
}

/// One connection.
pub struct Connection {
    state: State,
}

impl Connection {
    /// Opens actively: `transmit` gives the SYN.
    pub fn connect(
        _shared: &Arc<Shared>,
        _options: &TcpOptions,
        _start: Start,
        _now: Instant,
    ) -> Connection {
        todo!()
    }

    /// Opens passively: the SYN-ACK of `request` has been answered. To be followed by [`Connection::segment`] with
    /// that answer, which makes it established.
    pub fn accepted(
        _shared: &Arc<Shared>,
        _options: &TcpOptions,
        _request: &super::handshake::Request,
        _mss: u16,
        _now: Instant,
    ) -> Connection {
        todo!()
    }

    /// A segment has come: RFC 9293 section 3.10.7.
    pub fn segment(&mut self, _segment: &Segment<'_>, _now: Instant) {
        todo!()
    }

    /// Does what is due by `now`.
    pub fn timer(&mut self, _now: Instant) {
        todo!()
    }

    /// When [`Connection::timer`] has something to do next, unless something else happens before.
    pub fn deadline(&self) -> Option<Instant> {
        todo!()
    }

    /// Hands all that may be sent now to `out`, segment by segment. `out` returns false if it has no room for
    /// a segment, which then counts as not sent: ask again later.
    pub fn transmit(&mut self, _now: Instant, _out: &mut dyn FnMut(&Outgoing<'_>) -> bool) {
        todo!()
    }

    /// Takes bytes to send; `more` (`MSG_MORE`) says that others follow. Returns how many had room.
    ///
    /// # Errors
    /// EAGAIN: no room, or not connected yet. EPIPE: shut down for writing. Else the pending error, once.
    pub fn send(&mut self, _data: &[IoSlice<'_>], _more: bool, _now: Instant) -> io::Result<usize> {
        todo!()
    }

    /// Reads what has come, and leaves it there if `peek`. 0: the peer has sent all.
    ///
    /// # Errors
    /// EAGAIN: nothing there. ENOTCONN: the connection is over. Else the pending error, once.
    pub fn recv(
        &mut self,
        _into: &mut [IoSliceMut<'_>],
        _peek: bool,
        _now: Instant,
    ) -> io::Result<usize> {
        todo!()
    }

    /// shutdown(2): with `Write` or `Both`, FIN goes out behind what is queued.
    ///
    /// # Errors
    /// ENOTCONN: there is no connection.
    pub fn shutdown(&mut self, _how: Shutdown, _now: Instant) -> io::Result<()> {
        todo!()
    }

    /// The application lets go (close(2)): what is queued is still sent, then FIN; a RST goes out at once if
    /// data was left unread (RFC 2525 section 2.17) or `SO_LINGER` is 0. To be driven until [`Connection::is_done`].
    pub fn close(&mut self, _now: Instant) {
        todo!()
    }

    /// Resets the connection (RFC 9293 section 3.10.5). What was not sent is lost.
    pub fn abort(&mut self, _now: Instant) {
        todo!()
    }

    /// The options.
    pub fn options(&self) -> &TcpOptions {
        todo!()
    }

    /// Changes options; what that lets go is sent by the next `transmit`.
    pub fn configure(&mut self, _now: Instant, _change: impl FnOnce(&mut TcpOptions)) {
        todo!()
    }

    /// What poll(2) says (`tcp_poll` in net/ipv4/tcp.c).
    pub fn ready(&self) -> Ready {
        todo!()
    }

    /// The pending errno, which is none afterwards (`SO_ERROR`).
    pub fn take_error(&mut self) -> Option<i32> {
        todo!()
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// `TCP_INFO`.
    pub fn info(&self, _now: Instant) -> super::info::TcpInfo {
        todo!()
    }

    /// Bytes there to read (`SIOCINQ`).
    pub fn unread(&self) -> usize {
        todo!()
    }

    /// Bytes taken by `send` and not acknowledged yet (`SIOCOUTQ`).
    pub fn unacknowledged(&self) -> usize {
        todo!()
    }

    /// Closed by the application and not yet sure that the peer has all: what `SO_LINGER` waits for.
    pub fn lingers(&self) -> bool {
        todo!()
    }

    /// Over, and nothing left to send: it can be forgotten once the application lets go.
    pub fn is_done(&self) -> bool {
        todo!()
    }

    /// Once in TIME_WAIT, with all sent: what a TIME_WAIT entry needs to stand in for the connection, which is
    /// [`State::Closed`] afterwards.
    pub fn take_time_wait(&mut self) -> Option<TimeWait> {
        todo!()
    }

    /// An ICMP error has come about the segment that began at `quoted` (RFC 5927, RFC 5461).
    pub fn unreachable(&mut self, _error: SocketError, _quoted: Seq, _now: Instant) {
        todo!()
    }

    /// The path takes less than thought: ICMP said so about the segment that began at `quoted`. `mss` as in [`Start`].
    pub fn path_mss(&mut self, _mss: u16, _quoted: Seq, _now: Instant) {
        todo!()
    }
}
