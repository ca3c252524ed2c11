//! Was the reduction for nothing? By time stamps (Eifel, RFC 3522), by DSACK (RFC 3708). Owns what is needed to
//! tell, and what to go back to (RFC 4015, RFC 9438 section 4.9).

use super::{super::seq::Seq, congestion::Saved};
use crate::time::Instant;
use std::ops::Range;

/// One episode of recovery.
#[derive(Debug, Default)]
pub(super) struct Undo {
    /// SND.UNA when it began; `None`: nothing to undo.
    marker: Option<Seq>,
    /// The windows before it; `None`: not to be taken back (ECN has confirmed congestion).
    saved: Option<Box<Saved>>,
    /// Bytes sent again and not reported as duplicates; `None`: none was sent again yet.
    unreported: Option<u32>,
    /// When the first of them was sent.
    pub first: Option<Instant>,
}

impl Undo {
    /// An episode begins; `out` bytes sent again are in flight already.
    pub fn begin(&mut self, una: Seq, out: u32, saved: Option<Saved>) {
        self.marker = Some(una);
        self.saved = saved.map(Box::new);
        self.unreported = (out > 0).then_some(out);
        self.first = self.first.filter(|_| out > 0);
    }

    /// It is not to be undone, or has been.
    pub fn close(&mut self) {
        (self.marker, self.saved) = (None, None);
    }

    /// Whether an episode could still be undone.
    pub fn open(&self) -> bool {
        self.marker.is_some()
    }

    /// ECN says that there is congestion.
    pub fn forbid(&mut self) {
        self.saved = None;
    }

    /// Bytes were sent again.
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

    /// All that was sent again has arrived twice.
    pub fn all_duplicates(&self) -> bool {
        self.marker.is_some() && self.unreported == Some(0)
    }

    /// The ACK answers what was sent before anything was sent again: `before` is the end of the time in which
    /// the echoed time stamp can have been made.
    pub fn delayed(&self, before: Option<Instant>) -> bool {
        self.marker.is_some()
            && self.first.is_none_or(|first| before.is_some_and(|before| before <= first))
    }

    /// The windows to go back to.
    pub fn take(&mut self) -> Option<Saved> {
        self.marker = None;
        self.saved.take().map(|saved| *saved)
    }
}
