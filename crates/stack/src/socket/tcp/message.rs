//! Data as recvmsg(2) and sendmsg(2) move it: in pieces, waiting or not call by call. For those who bring the calls
//! of C to our sockets.

use super::stream::TcpStream;
use crate::{
    inet::tcp::Mark,
    socket::{options::errno, udp::ReceiveFlags},
};
use std::io::{self, IoSlice, IoSliceMut};

/// How one send goes, whatever its socket's options say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// More follows at once (`MSG_MORE`).
    pub more: bool,
    /// What has no room is not waited for (`MSG_DONTWAIT`).
    pub dont_wait: bool,
    /// The last byte ends a record: no segment goes beyond it (`MSG_EOR`).
    pub record_end: bool,
    /// The last byte is urgent (`MSG_OOB`).
    pub urgent: bool,
}

impl SendFlags {
    /// What is said of the data, if something is; `last`: nothing of it is left.
    #[inline]
    pub(super) fn mark(self, last: bool) -> Option<Mark> {
        let mark = Mark { record: self.record_end && last, urgent: self.urgent };
        (self.record_end || self.urgent).then_some(mark)
    }
}

impl TcpStream {
    /// Reads into `pieces`, one after the other; 0 at the end of the stream. Waits as a read, but for what
    /// `flags` say.
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

    /// The urgent byte (`MSG_OOB`), taken unless `peek`; `None` if the peer has sent all and there is none. Never waits.
    ///
    /// # Errors
    /// EINVAL: there is none, or it is read with the rest (`SO_OOBINLINE`). EAGAIN: it was announced and is to come.
    pub fn recv_urgent(&self, peek: bool) -> io::Result<Option<u8>> {
        match self.0.connection() {
            Some(flow) => {
                let moment = self.0.endpoint.moment();
                let taken = flow.recv_urgent(peek);
                self.0.endpoint.stands(moment, flow.ready());
                taken
            }
            None => Err(errno(libc::EINVAL)),
        }
    }

    /// Whether the next byte to be read is the urgent one (`SIOCATMARK`).
    pub fn is_at_mark(&self) -> bool {
        self.0.connection().is_some_and(|flow| flow.is_at_mark())
    }

    /// Writes `pieces`, one after the other. Waits as a write, but for what `flags` say.
    ///
    /// # Errors
    /// As writing.
    pub fn send_message(&self, pieces: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        self.0.send(pieces, flags)
    }
}
