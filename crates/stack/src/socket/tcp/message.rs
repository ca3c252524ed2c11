//! Data as recvmsg(2) and sendmsg(2) move it: in pieces, waiting or not call by call. For those who bring the calls
//! of C to our sockets.

use super::stream::TcpStream;
use crate::socket::udp::ReceiveFlags;
use std::io::{self, IoSlice, IoSliceMut};

/// How one send goes, whatever its socket's options say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// More follows at once (`MSG_MORE`).
    pub more: bool,
    /// What has no room is not waited for (`MSG_DONTWAIT`).
    pub dont_wait: bool,
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

    /// Writes `pieces`, one after the other. Waits as a write, but for what `flags` say.
    ///
    /// # Errors
    /// As writing.
    pub fn send_message(&self, pieces: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        self.0.send(pieces, flags)
    }
}
