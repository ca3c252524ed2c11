//! What the application has sent and the peer has not acknowledged yet, by sequence number.

use super::{
    BufferSizes,
    memory::Memory,
    seq::Seq,
    store::{Pieces, Store},
};
use crate::{sync::Arc, wire::checksum::Sum};
use std::{io::IoSlice, ops::Range};

/// How many chunks a connection may always have, so that it moves even when memory is exhausted.
const GRANTED: usize = 1;

/// Bytes from SND.UNA on.
#[derive(Debug)]
pub(super) struct SendBuffer {
    store: Store,
    /// The most it holds at present.
    limit: u32,
    /// The most it may grow to.
    max: u32,
}

impl SendBuffer {
    /// An empty buffer; its first byte will be number `first`: the one after the SYN.
    pub(super) fn new(first: Seq, sizes: BufferSizes, memory: Arc<Memory>) -> SendBuffer {
        let limit = sizes.initial.max(1);
        SendBuffer { store: Store::new(first, memory), limit, max: sizes.max.max(limit) }
    }

    /// Appends as much as there is room for; how many bytes that was.
    pub(super) fn push(&mut self, from: &[IoSlice<'_>]) -> usize {
        let mut pushed = 0;
        for piece in from {
            let at = self.store.end();
            let len = self.store.allowed(at, piece.len().min(self.room()), GRANTED);
            self.store.write(at, piece.get(..len).unwrap_or_default());
            pushed += len;
            if len < piece.len() {
                break;
            }
        }
        pushed
    }

    /// Bytes sent and not acknowledged, or not even sent: `SIOCOUTQ`.
    #[inline]
    pub(super) fn len(&self) -> usize {
        (self.store.end() - self.store.start()) as usize
    }

    /// Whether there are none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.store.end() == self.store.start()
    }

    /// How many more bytes it takes.
    #[inline]
    pub(super) fn room(&self) -> usize {
        (self.limit as usize).saturating_sub(self.len())
    }

    /// Whether a waiting sender should be woken: a third of it is free, as Linux's `sk_stream_is_writeable`
    /// has it, so that a sender is woken for more than a segment.
    #[inline]
    pub(super) fn is_writable(&self) -> bool {
        let used = self.len();
        self.room() > 0 && self.room() >= used / 2
    }

    /// SND.UNA as far as data is concerned: the first byte kept.
    #[inline]
    pub(super) fn start(&self) -> Seq {
        self.store.start()
    }

    /// The number the next byte pushed will have; a FIN comes here.
    #[inline]
    pub(super) fn end(&self) -> Seq {
        self.store.end()
    }

    /// Forgets what comes before `una`, which may count a SYN or a FIN.
    #[inline]
    pub(super) fn ack(&mut self, una: Seq) {
        self.store.discard(una);
    }

    /// The bytes of a range that may count a SYN or a FIN.
    #[inline]
    pub(super) fn pieces(&self, range: Range<Seq>) -> Pieces<'_> {
        let start = range.start.max(self.start());
        self.store.pieces(start, (range.end - start) as usize)
    }

    /// Copies the bytes of a range to the front of `to`; how many, and their sum.
    pub(super) fn copy(&self, range: Range<Seq>, to: &mut [u8]) -> (usize, Sum) {
        let (mut copied, mut sum) = (0, Sum::ZERO);
        for piece in self.pieces(range) {
            let Some(room) = to.get_mut(copied..copied + piece.len()) else { break };
            room.copy_from_slice(piece);
            let part = Sum::of(room);
            sum = sum.plus(if copied % 2 == 1 { part.shifted() } else { part });
            copied += piece.len();
        }
        (copied, sum)
    }

    /// The most it holds at present: `SO_SNDBUF`.
    #[inline]
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Fixes the limit: `SO_SNDBUF`.
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = limit.max(1);
        self.max = self.limit;
    }

    /// Lets it grow with the congestion window (bytes): two windows, one in flight and one to come, as
    /// Linux's `tcp_sndbuf_expand`. To be called when the window has grown and was used up.
    #[inline]
    pub(super) fn grow(&mut self, congestion_window: u32) {
        let want = congestion_window.saturating_mul(2).min(self.max);
        if want > self.limit && !self.store.memory().pressure() {
            self.limit = want;
        }
    }

    /// Forgets everything: the connection is dead.
    pub(super) fn clear(&mut self) {
        self.store.clear();
    }
}
