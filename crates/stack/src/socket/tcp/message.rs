//! Receive and send as recvmsg(2) and sendmsg(2) do it: with several buffers, and with flags for each call. For a
//! library that maps the C calls to our sockets.

use super::stream::TcpStream;
use crate::{
    inet::tcp::Mark,
    socket::{options::errno, udp::ReceiveFlags},
};
use std::io::{self, IoSlice, IoSliceMut};

/// The flags of one send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// More data follows at once (`MSG_MORE`).
    pub more: bool,
    /// Do not wait for room (`MSG_DONTWAIT`).
    pub dont_wait: bool,
    /// The last byte ends a record: no segment crosses it (`MSG_EOR`).
    pub record_end: bool,
    /// The last byte is urgent (`MSG_OOB`).
    pub urgent: bool,
}

impl SendFlags {
    /// Whether the data is as any other.
    #[inline]
    pub(super) fn are_plain(self) -> bool {
        !(self.more | self.record_end | self.urgent)
    }

    /// The mark on the data, if there is one; `last`: this is the last part of it.
    #[inline]
    pub(super) fn mark(self, last: bool) -> Option<Mark> {
        let mark = Mark { record: self.record_end && last, urgent: self.urgent };
        (self.record_end || self.urgent).then_some(mark)
    }
}

impl TcpStream {
    /// Reads into `pieces`, one after the other; 0 at the end of the stream. Waits as a read, except for the
    /// `flags`.
    ///
    /// # Errors
    /// As reading; ENOTCONN before there is a connection.
    pub fn recv_message(
        &self,
        pieces: &mut [IoSliceMut<'_>],
        flags: ReceiveFlags,
    ) -> io::Result<usize> {
        self.0.receive(pieces, flags)
    }

    /// The urgent byte (`MSG_OOB`), consumed unless `peek`; `None` if the peer has ended its half and there is none.
    /// Never waits.
    ///
    /// # Errors
    /// EINVAL: there is none, or it is read in the stream (`SO_OOBINLINE`). EAGAIN: it was announced but has not come.
    pub fn recv_urgent(&self, peek: bool) -> io::Result<Option<u8>> {
        match self.0.connection() {
            Some(flow) => {
                let snapshot = self.0.endpoint.snapshot();
                let taken = flow.recv_urgent(peek);
                self.0.endpoint.set_ready(snapshot, flow.ready());
                taken
            }
            None => Err(errno(libc::EINVAL)),
        }
    }

    /// Whether the next byte to be read is the urgent one (`SIOCATMARK`).
    pub fn is_at_mark(&self) -> bool {
        self.0.connection().is_some_and(|flow| flow.is_at_mark())
    }

    /// Writes `pieces`, one after the other. Waits as a write, except for the `flags`.
    ///
    /// # Errors
    /// As writing.
    pub fn send_message(&self, pieces: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        self.0.send(pieces, flags)
    }
}
