//! The rules for each segment of ours, in every script: the stream's bytes, the peer's window and MSS, and that our
//! window's edge and our acknowledgment never go back.

use super::{super::floor::Sent, IRS, Script, relative, stream};
use crate::inet::tcp::segment::{Flags, Segment};

impl Script {
    /// Records what the peer has promised, for [`Script::check_rules`].
    pub(super) fn record_peer(&mut self, segment: &Segment<'_>) {
        let mut shift = self.peer_shift.unwrap_or(0);
        if segment.flags.has(Flags::SYN) {
            self.peer_shift = segment.options.window_scale;
            self.peer_mss = segment.options.mss;
            shift = 0;
        }
        if self.our_shift.is_none() && self.offered.is_some() {
            shift = 0; // we did not offer to scale, or have not been asked
        }
        let edge = (i64::from(segment.window)) << shift;
        let ack = if segment.flags.has(Flags::ACK) { relative(segment.ack, self.iss()) } else { 1 };
        self.room = self.room.max(ack + edge);
    }

    /// Checks the rules for each segment.
    pub(super) fn check_rules(&mut self, sent: &Sent) {
        let seq = relative(sent.segment.seq, self.iss());
        let len = sent.payload.len();
        let log = &self.log;
        assert_eq!(sent.payload, stream(seq - 1, len, true), "not the stream's bytes\n{log}");
        if sent.segment.flags.has(Flags::RST) {
            return;
        }
        // RFC 6691: the peer's MSS does not count options; our segments do.
        let mss = usize::from(self.peer_mss.unwrap_or(536));
        assert!(len == 0 || sent.header - 20 + len <= mss, "more than the peer's MSS\n{log}");
        assert!(len == 0 || seq + len as i64 <= self.room, "beyond the peer's window\n{log}");
        if sent.segment.flags.has(Flags::SYN) {
            self.our_shift = sent.segment.options.window_scale;
        }
        if !sent.segment.flags.has(Flags::ACK) {
            self.offered.get_or_insert(0);
            return;
        }
        let scales = self.peer_shift.is_some() && !sent.segment.flags.has(Flags::SYN);
        let shift = if scales { self.our_shift.unwrap_or(0) } else { 0 };
        let ack = relative(sent.segment.ack, IRS);
        let edge = ack + (i64::from(sent.segment.window) << shift);
        assert!(self.offered.is_none_or(|was| edge >= was), "the window's edge moved left\n{log}");
        assert!(self.acked.is_none_or(|was| ack >= was), "an acknowledgment taken back\n{log}");
        (self.offered, self.acked) = (Some(edge), Some(ack));
    }
}
