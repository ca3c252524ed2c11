//! Detects a needless reduction: by timestamps (Eifel, RFC 3522), or by DSACK (RFC 3708). Keeps the evidence, and the
//! values to restore (RFC 4015, RFC 9438 section 4.9).

use super::{super::seq::Seq, congestion::Saved};
use crate::time::Instant;
use std::ops::Range;

/// One episode of recovery.
#[derive(Debug, Default)]
pub(super) struct Undo {
    /// SND.UNA when it began; `None`: nothing to undo.
    marker: Option<Seq>,
    /// The windows before it; `None`: they must not be restored (ECN has confirmed congestion).
    saved: Option<Box<Saved>>,
    /// Bytes retransmitted and not reported as duplicates; `None`: nothing was retransmitted yet.
    unreported: Option<u32>,
    /// When the first retransmission was sent.
    pub first: Option<Instant>,
}

impl Undo {
    /// An episode begins; `out` bytes of retransmissions are in flight already.
    pub fn begin(&mut self, una: Seq, out: u32, saved: Option<Saved>) {
        self.marker = Some(una);
        self.saved = saved.map(Box::new);
        self.unreported = (out > 0).then_some(out);
        self.first = self.first.filter(|_| out > 0);
    }

    /// The episode must not be undone, or has been.
    pub fn close(&mut self) {
        (self.marker, self.saved) = (None, None);
    }

    /// Whether an episode could still be undone.
    pub fn open(&self) -> bool {
        self.marker.is_some()
    }

    /// ECN has confirmed congestion.
    pub fn forbid(&mut self) {
        self.saved = None;
    }

    /// Bytes were retransmitted.
    pub fn resent(&mut self, bytes: u32, now: Instant) {
        self.first.get_or_insert(now);
        if self.marker.is_some() {
            self.unreported = Some(self.unreported.unwrap_or(0).saturating_add(bytes));
        }
    }

    /// A DSACK came.
    pub fn duplicate(&mut self, block: &Range<Seq>) {
        if let (Some(marker), Some(bytes)) = (self.marker, &mut self.unreported)
            && block.end.after(marker)
        {
            *bytes = bytes.saturating_sub(block.end - block.start.max(marker));
        }
    }

    /// All retransmitted data has arrived twice.
    pub fn all_duplicates(&self) -> bool {
        self.marker.is_some() && self.unreported == Some(0)
    }

    /// Whether the ACK is for an original, sent before any retransmission: `before` is the end of the time in which
    /// the echoed timestamp can have been made.
    pub fn delayed(&self, before: Option<Instant>) -> bool {
        self.marker.is_some()
            && self.first.is_none_or(|first| before.is_some_and(|before| before <= first))
    }

    /// The windows to restore.
    pub fn take(&mut self) -> Option<Saved> {
        self.marker = None;
        self.saved.take().map(|saved| *saved)
    }
}
