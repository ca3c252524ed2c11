//! The handshake: which options are offered and agreed, and the embryonic connection of a listener.

use super::{
    TcpOptions,
    connection::{Outgoing, Start},
    segment::Segment,
    seq::Seq,
    shared::Shared,
};
use crate::time::Instant;

/// What both SYNs together say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// The largest segment the peer takes, bytes of data without options.
    pub mss: u16,
    /// The shift of the peer's windows, and of ours; `None`: no scaling.
    pub window_scale: Option<(u8, u8)>,
    /// SACK, both ways.
    pub sack: bool,
    /// Timestamps, both ways.
    pub timestamps: bool,
    /// ECN, both ways.
    pub ecn: bool,
}

/// A SYN that was answered and whose answer is not acknowledged: an entry of a listener's SYN queue, or what
/// a cookie brought back. No larger than it must be.
#[derive(Clone, Debug)]
pub struct Request {
    /// Our initial sequence number.
    pub iss: Seq,
    /// The peer's.
    pub irs: Seq,
    /// What was agreed.
    pub agreed: Agreed,
}

/// What to do about a segment for a [`Request`].
#[derive(Debug)]
pub enum Answer<'a> {
    /// The handshake is complete: make a connection of it, give it this segment.
    Accept,
    /// Nothing.
    Ignore,
    /// Send this; the request stands.
    Send(Outgoing<'a>),
    /// Send [`Request::syn_ack`] again.
    SynAck,
    /// The peer has reset it: forget it.
    Forget,
}

impl Request {
    /// A SYN has come. `start.mss` is what our side announces.
    pub fn new(
        _shared: &Shared,
        _options: &TcpOptions,
        _syn: &Segment<'_>,
        _start: Start,
        _now: Instant,
    ) -> Request {
        todo!()
    }

    /// A cookie has come back in `ack`, and said what was agreed.
    pub fn from_cookie(
        _shared: &Shared,
        _options: &TcpOptions,
        _ack: &Segment<'_>,
        _agreed: Agreed,
        _start: Start,
        _now: Instant,
    ) -> Request {
        todo!()
    }

    /// The SYN-ACK.
    pub fn syn_ack(&self, _now: Instant) -> Outgoing<'static> {
        todo!()
    }

    /// When the SYN-ACK is due again.
    pub fn deadline(&self) -> Instant {
        todo!()
    }

    /// The deadline has come: true if the SYN-ACK is to be sent again, false if the request is over.
    pub fn timer(&mut self, _shared: &Shared, _now: Instant) -> bool {
        todo!()
    }

    /// A segment has come for it (RFC 9293 section 3.10.7.4, SYN-RECEIVED; `tcp_check_req`).
    pub fn segment(
        &mut self,
        _shared: &Shared,
        _segment: &Segment<'_>,
        _now: Instant,
    ) -> Answer<'static> {
        todo!()
    }
}
