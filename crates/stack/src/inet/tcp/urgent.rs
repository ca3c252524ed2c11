//! Urgent data as in Linux: the pointer names the byte before the one it points to (RFC 793's page 17, not RFC 1122;
//! RFC 6093 section 3.1 explains why). That byte is read separately (`MSG_OOB`) unless `SO_OOBINLINE` is set. A read
//! stops before it, so that the reader knows where it stood (`SIOCATMARK`).

use super::{
    connection::{Connection, State, errno},
    segment::{Flags, Segment},
    seq::Seq,
};
use crate::time::Instant;
use std::io::{self, IoSliceMut};

/// The last urgent byte, until it is read past (Linux's `urg_seq` and `urg_data`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Urgent {
    seq: Seq,
    byte: Byte,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Byte {
    NotYet,
    Valid(u8),
    Read,
}

impl Connection {
    //= RFC 9293 3.8.5
    //# However, TCP implementations MUST still include support for the urgent mechanism (MUST-30).
    //= RFC 9293 3.10.7.4
    //# If the URG bit is set, RCV.UP <- max(RCV.UP,SEG.UP), and signal the user that the remote side has urgent data
    //# if the urgent pointer (RCV.UP) is in advance of the data consumed.
    /// A segment in the window, with URG or while an urgent byte has yet to arrive (`tcp_urg`).
    #[cold]
    pub(super) fn look_for_urgent(&mut self, segment: &Segment<'_>, now: Instant) {
        if segment.flags.has(Flags::URG) {
            self.urgent_pointer(segment, now);
        }
        let Some(urgent) = &mut self.urgent else { return };
        if urgent.byte == Byte::NotYet
            && let Some(byte) = segment.data().get((urgent.seq - segment.seq) as usize)
        {
            urgent.byte = Byte::Valid(byte);
            self.notify = true;
        }
    }

    /// `tcp_check_urg`.
    fn urgent_pointer(&mut self, segment: &Segment<'_>, now: Instant) {
        let seq = segment.seq + u32::from(segment.urgent.saturating_sub(1));
        let read = self.receiver.read_up_to();
        if read.after(seq) || seq.before(self.receiver.next()) {
            return;
        }
        if let Some(old) = self.urgent {
            if !seq.after(old.seq) {
                return;
            }
            // The old urgent byte will not be read any more, and must not be read as data.
            if old.seq == read && !self.options.oob_inline && self.receiver.available() > 0 {
                self.receiver.discard(1, now);
            }
        }
        self.urgent = Some(Urgent { seq, byte: Byte::NotYet });
        (self.sigurg_due, self.notify) = (true, true);
        self.update_fast_path();
    }

    //= RFC 9293 3.8.5
    //# A TCP implementation MUST (MUST-32) inform the application layer asynchronously whenever it receives an urgent
    //# pointer and there was previously no pending urgent data, or whenever the urgent pointer advances in the data
    //# stream.
    /// Whether SIGURG is due, once for each urgent pointer.
    pub fn take_sigurg(&mut self) -> bool {
        std::mem::take(&mut self.sigurg_due)
    }

    /// `tcp_recvmsg` while there is an urgent byte: reads up to it, or from behind it on.
    #[cold]
    pub(super) fn read_beside_urgent(
        &mut self,
        into: &mut [IoSliceMut<'_>],
        peek: bool,
        now: Instant,
    ) -> usize {
        let ahead = self.urgent_ahead().unwrap_or(usize::MAX);
        let most = if ahead == 0 { usize::MAX } else { ahead };
        let skip = self.out_of_band_len();
        if peek {
            return self.receiver.peek_part(skip, most, into);
        }
        self.receiver.discard(skip, now);
        let read = self.receiver.peek_part(0, most, into);
        self.receiver.discard(read, now);
        if self.urgent.is_some_and(|urgent| self.receiver.read_up_to().after(urgent.seq)) {
            self.urgent = None;
            self.update_fast_path();
            // What poll(2) reports has changed.
            self.notify = true;
        }
        read
    }

    /// How many bytes can be read before the urgent byte, if there is one.
    fn urgent_ahead(&self) -> Option<usize> {
        Some((self.urgent?.seq - self.receiver.read_up_to()) as usize)
    }

    /// 1 if the next byte to be read is the urgent one, and is not read in line.
    #[cold]
    pub(super) fn out_of_band_len(&self) -> usize {
        let next = self.is_at_mark() && !self.options.oob_inline;
        usize::from(next && self.receiver.available() > 0)
    }

    //= RFC 9293 3.8.5
    //# The TCP implementation MUST (MUST-33) provide a way for the application to learn how much urgent data remains
    //# to be read from the connection, or at least to determine whether more urgent data remains to be read [19].
    /// `SIOCATMARK`: the next byte to be read is the urgent one.
    pub fn is_at_mark(&self) -> bool {
        self.urgent_ahead() == Some(0)
    }

    /// Whether the urgent byte can be received.
    #[cold]
    pub(super) fn has_urgent(&self) -> bool {
        self.urgent.is_some_and(|urgent| matches!(urgent.byte, Byte::Valid(_)))
    }

    /// The bytes to read before the urgent one, if there is one that is not read in line (`tcp_inq`).
    #[cold]
    pub(super) fn unread_before_urgent(&self) -> usize {
        let available = self.receiver.available();
        match self.urgent_ahead() {
            Some(ahead) if !self.options.oob_inline && ahead < available => ahead,
            _ => available,
        }
    }

    /// `MSG_OOB` (`tcp_recv_urg`): the urgent byte; `None`: the stream has ended without one.
    ///
    /// # Errors
    /// EINVAL: there is none, or it was read, or is read in line. EAGAIN: it has yet to arrive, and the call does not
    /// wait.
    pub fn recv_urgent(&mut self, peek: bool) -> io::Result<Option<u8>> {
        let urgent = self.urgent.as_mut().filter(|_| !self.options.oob_inline);
        let Some(urgent) = urgent.filter(|urgent| urgent.byte != Byte::Read) else {
            return Err(errno(libc::EINVAL));
        };
        if self.state == State::Closed && !self.peer_done {
            return Err(errno(libc::ENOTCONN));
        }
        match urgent.byte {
            Byte::Valid(byte) => {
                if !peek {
                    urgent.byte = Byte::Read;
                }
                Ok(Some(byte))
            }
            _ if self.state == State::Closed || self.read_shut => Ok(None),
            _ => Err(errno(libc::EAGAIN)),
        }
    }

    /// Updates whether the next segment may take the fast path.
    pub(super) fn update_fast_path(&mut self) {
        self.fast = self.state == State::Established && self.urgent.is_none();
    }
}
