//! Bytes of a stream by sequence number, from the first that is still needed: what both buffers of a
//! connection are made of.
//!
//! As long as all of it lies within 128 bytes, it is in the connection itself: a small request and its
//! response take no memory and make no call. Beyond that it is in chunks that come from the host's
//! [`Memory`]; they need not follow each other without holes. As soon as nothing is left, all chunks go
//! back: what an idle connection keeps is nothing, and the next chunk costs some nanoseconds.

use super::{
    memory::{CHUNK, Chunk, Memory},
    seq::Seq,
};
use crate::sync::Arc;
use std::collections::VecDeque;

/// What fits without a chunk.
const SMALL: usize = 128;
/// The longest table of chunks that is kept when it falls empty: bytes beside an idle connection.
const TABLE: usize = 8;

#[derive(Debug)]
pub(super) struct Store {
    memory: Arc<Memory>,
    start: Seq,
    end: Seq,
    /// Where the first chunk begins.
    origin: Seq,
    chunks: VecDeque<Option<Box<Chunk>>>,
    /// While there is no chunk: byte `seq` is at `seq % SMALL`.
    small: [u8; SMALL],
}

impl Store {
    /// An empty store whose first byte will be number `start`.
    pub(super) fn new(start: Seq, memory: Arc<Memory>) -> Store {
        let chunks = VecDeque::new();
        Store { memory, start, end: start, origin: start, chunks, small: [0; SMALL] }
    }

    /// The first byte kept.
    #[inline]
    pub(super) fn start(&self) -> Seq {
        self.start
    }

    /// After the last byte written.
    #[inline]
    pub(super) fn end(&self) -> Seq {
        self.end
    }

    #[inline]
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// How many of `len` bytes at `at` may be written: all, unless memory is exhausted; then as many as fit
    /// the chunks that are there, or that make `granted`.
    #[inline]
    pub(super) fn allowed(&self, at: Seq, len: usize, granted: usize) -> usize {
        if self.memory.exhausted() { self.rationed(at, len, granted) } else { len }
    }

    #[cold]
    fn rationed(&self, at: Seq, len: usize, granted: usize) -> usize {
        let origin = if self.chunks.is_empty() { self.start } else { self.origin };
        let from = (at - origin) as usize;
        let mut chunks = self.chunks.iter().filter(|chunk| chunk.is_some()).count();
        let mut end = from;
        while end < from + len {
            if self.chunks.get(end / CHUNK).is_none_or(Option::is_none) {
                chunks += 1;
                if chunks > granted {
                    break;
                }
            }
            end = (end / CHUNK + 1) * CHUNK;
        }
        (end - from).min(len)
    }

    /// Writes `bytes` from number `at` on, which is not before [`start`](Store::start).
    #[inline]
    pub(super) fn write(&mut self, at: Seq, bytes: &[u8]) {
        debug_assert!(self.start.at_most(at));
        let end = at + bytes.len() as u32;
        if self.chunks.is_empty() {
            if (end - self.start) as usize <= SMALL {
                let (here, wrapped) =
                    bytes.split_at(bytes.len().min(SMALL - at.0 as usize % SMALL));
                self.small[at.0 as usize % SMALL..][..here.len()].copy_from_slice(here);
                self.small[..wrapped.len()].copy_from_slice(wrapped);
                self.end = self.end.max(end);
                return;
            }
            self.spill();
        }
        self.write_chunks(at, bytes);
        self.end = self.end.max(end);
    }

    /// From inside the connection to a chunk.
    fn spill(&mut self) {
        self.origin = self.start;
        if self.start != self.end {
            let mut chunk = self.memory.take();
            let turn = self.start.0 as usize % SMALL;
            chunk[..SMALL - turn].copy_from_slice(&self.small[turn..]);
            chunk[SMALL - turn..SMALL].copy_from_slice(&self.small[..turn]);
            self.chunks.push_back(Some(chunk));
        }
    }

    fn write_chunks(&mut self, at: Seq, mut bytes: &[u8]) {
        let mut offset = (at - self.origin) as usize;
        while !bytes.is_empty() {
            let (index, within) = (offset / CHUNK, offset % CHUNK);
            if index >= self.chunks.len() {
                self.chunks.resize_with(index + 1, || None);
            }
            let Some(slot) = self.chunks.get_mut(index) else { return };
            let chunk = slot.get_or_insert_with(|| self.memory.take());
            let (here, rest) = bytes.split_at(bytes.len().min(CHUNK - within));
            chunk[within..within + here.len()].copy_from_slice(here);
            offset += here.len();
            bytes = rest;
        }
    }

    /// The bytes from `at` on, `len` of them at the most; what was never written means nothing.
    #[inline]
    pub(super) fn pieces(&self, at: Seq, len: usize) -> Pieces<'_> {
        let at = at.max(self.start);
        Pieces { store: Some(self), at, left: len.min((self.end - at) as usize) }
    }

    /// Forgets what comes before `to`.
    #[inline]
    pub(super) fn discard(&mut self, to: Seq) {
        self.start = self.start.max(to).min(self.end);
        if self.chunks.is_empty() {
            return;
        }
        if self.start == self.end {
            return self.release();
        }
        while (self.start - self.origin) as usize >= CHUNK {
            if let Some(Some(chunk)) = self.chunks.pop_front() {
                self.memory.give(chunk);
            }
            self.origin += CHUNK as u32;
        }
    }

    /// Forgets what comes from `end` on.
    pub(super) fn cut(&mut self, end: Seq) {
        self.end = self.end.min(end).max(self.start);
        if self.start == self.end {
            return self.release();
        }
        let keep = ((self.end - self.origin) as usize).div_ceil(CHUNK);
        while self.chunks.len() > keep {
            if let Some(Some(chunk)) = self.chunks.pop_back() {
                self.memory.give(chunk);
            }
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.start = self.end;
        self.release();
    }

    fn release(&mut self) {
        while let Some(chunk) = self.chunks.pop_front() {
            if let Some(chunk) = chunk {
                self.memory.give(chunk);
            }
        }
        if self.chunks.capacity() > TABLE {
            self.chunks = VecDeque::new();
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.release();
    }
}

/// Pieces of memory that, laid end to end, are a run of bytes.
#[derive(Clone, Debug, Default)]
pub struct Pieces<'a> {
    store: Option<&'a Store>,
    at: Seq,
    left: usize,
}

impl Pieces<'_> {
    /// How many bytes there are in all.
    #[inline]
    pub fn len(&self) -> usize {
        self.left
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let store = self.store?;
        let piece = if store.chunks.is_empty() {
            store.small.get(self.at.0 as usize % SMALL..)?
        } else {
            let offset = (self.at - store.origin) as usize;
            store.chunks.get(offset / CHUNK)?.as_deref()?.get(offset % CHUNK..)?
        };
        let piece = piece.get(..self.left).unwrap_or(piece);
        self.at += piece.len() as u32;
        self.left -= piece.len();
        Some(piece)
    }
}
