//! Bytes of a stream by sequence number, from the first that is still needed. Both buffers of a connection are
//! stores.
//!
//! Up to 32 bytes are kept in the connection itself: a small request and its response take no memory and make no
//! call. Beyond that the bytes are in chunks from the host's [`Memory`], and there may be holes between them. When
//! the store is empty all chunks are freed: an idle connection keeps none, and the next chunk costs some nanoseconds.

use super::{
    chunks::Chunks,
    memory::{CHUNK, Memory},
    seq::Seq,
};
use crate::{
    memory_pressure::{self, Level},
    sync::Arc,
};

/// The bytes that fit without a chunk.
const SMALL: usize = 32;

#[derive(Debug)]
pub(super) struct Store {
    memory: Arc<Memory>,
    start: Seq,
    end: Seq,
    /// Where the first chunk begins.
    origin: Seq,
    chunks: Chunks,
    /// While there is no chunk: byte `seq` is at `seq % SMALL`.
    small: [u8; SMALL],
}

impl Store {
    /// An empty store whose first byte will be number `start`.
    pub(super) fn new(start: Seq, memory: Arc<Memory>) -> Store {
        let chunks = Chunks::default();
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

    /// Whether it has neither bytes nor chunks.
    pub(super) fn is_clear(&self) -> bool {
        self.start == self.end && self.chunks.is_empty()
    }

    #[inline]
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// How many of `len` bytes at `at` may be written: all, unless memory is exhausted. Then as many as fit into the
    /// chunks that are there, or into `granted` chunks in all.
    #[inline]
    pub(super) fn allowed(&self, at: Seq, len: usize, granted: usize) -> usize {
        if self.memory.exhausted() { self.allowed_when_exhausted(at, len, granted) } else { len }
    }

    #[cold]
    fn allowed_when_exhausted(&self, at: Seq, len: usize, granted: usize) -> usize {
        let (end, is_empty) = (at + len as u32, self.chunks.is_empty());
        if is_empty && (end - self.start) as usize <= SMALL {
            return len;
        }
        // Without any memory nothing is granted; chunks that are there already may be filled.
        let granted = if memory_pressure::is(Level::Out) { 0 } else { granted };
        let origin = if is_empty { self.start } else { self.origin };
        let from = (at - origin) as usize;
        let mut chunks = self.chunks.present();
        let mut end = from;
        while end < from + len {
            if self.chunks.get(end / CHUNK).is_none() {
                chunks += 1;
                if chunks > granted {
                    break;
                }
            }
            end = (end / CHUNK + 1) * CHUNK;
        }
        (end - from).min(len)
    }

    /// Appends `bytes`.
    #[inline(always)]
    pub(super) fn append(&mut self, bytes: &[u8]) {
        let (end, turn) = (self.end + bytes.len() as u32, self.end.0 as usize % SMALL);
        let fits = self.chunks.is_empty() && (end - self.start) as usize <= SMALL;
        match self.small[turn..].get_mut(..bytes.len()) {
            Some(place) if fits => {
                place.copy_from_slice(bytes);
                self.end = end;
            }
            _ => self.write(self.end, bytes),
        }
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
                if !wrapped.is_empty() {
                    self.small[..wrapped.len()].copy_from_slice(wrapped);
                }
                self.end = self.end.max(end);
                return;
            }
            self.spill();
        }
        self.write_chunks(at, bytes);
        self.end = self.end.max(end);
    }

    /// Moves the bytes from the connection to a chunk.
    fn spill(&mut self) {
        self.origin = self.start;
        if self.start != self.end {
            let mut chunk = self.memory.take();
            let turn = self.start.0 as usize % SMALL;
            chunk[..SMALL - turn].copy_from_slice(&self.small[turn..]);
            chunk[SMALL - turn..SMALL].copy_from_slice(&self.small[..turn]);
            if let Some(slot) = self.chunks.slot(0) {
                *slot = Some(chunk);
            }
        }
    }

    fn write_chunks(&mut self, at: Seq, mut bytes: &[u8]) {
        let mut offset = (at - self.origin) as usize;
        while !bytes.is_empty() {
            let (index, within) = (offset / CHUNK, offset % CHUNK);
            let Some(slot) = self.chunks.slot(index) else { return };
            let chunk = slot.get_or_insert_with(|| self.memory.take());
            let (here, rest) = bytes.split_at(bytes.len().min(CHUNK - within));
            chunk[within..within + here.len()].copy_from_slice(here);
            offset += here.len();
            bytes = rest;
        }
    }

    /// The bytes from `at` on, `len` of them at the most; bytes never written are undefined.
    #[inline]
    pub(super) fn pieces(&self, at: Seq, len: usize) -> Pieces<'_> {
        let at = at.max(self.start);
        Pieces { store: Some(self), at, left: len.min((self.end - at) as usize) }
    }

    /// Drops the bytes before `to`.
    #[inline(always)]
    pub(super) fn discard(&mut self, to: Seq) {
        self.start = self.start.max(to).min(self.end);
        if self.chunks.is_empty() {
            return;
        }
        if self.start == self.end {
            return self.release();
        }
        while (self.start - self.origin) as usize >= CHUNK {
            if let Some(chunk) = self.chunks.pop_front() {
                self.memory.give(chunk);
            }
            self.origin += CHUNK as u32;
        }
    }

    /// Drops all bytes.
    #[inline(always)]
    pub(super) fn discard_all(&mut self) {
        self.start = self.end;
        if !self.chunks.is_empty() {
            self.release();
        }
    }

    /// For an empty store: the bytes up to `to` are not kept, and the next byte will be number `to`.
    #[inline]
    pub(super) fn skip(&mut self, to: Seq) {
        debug_assert!(self.start == self.end && self.chunks.is_empty());
        (self.start, self.end) = (to, to);
    }

    /// Drops the bytes from `end` on.
    pub(super) fn cut(&mut self, end: Seq) {
        self.end = self.end.min(end).max(self.start);
        if self.start == self.end {
            return self.release();
        }
        let keep = ((self.end - self.origin) as usize).div_ceil(CHUNK);
        while self.chunks.len() > keep {
            if let Some(chunk) = self.chunks.pop_back() {
                self.memory.give(chunk);
            }
        }
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.start = self.end;
        self.release();
    }

    fn release(&mut self) {
        while !self.chunks.is_empty() {
            if let Some(chunk) = self.chunks.pop_front() {
                self.memory.give(chunk);
            }
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.release();
    }
}

/// Pieces of memory that together make a run of bytes.
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
            store.chunks.get(offset / CHUNK)?.get(offset % CHUNK..)?
        };
        let piece = piece.get(..self.left).unwrap_or(piece);
        self.at += piece.len() as u32;
        self.left -= piece.len();
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn store(start: u32) -> Store {
        Store::new(Seq(start), Arc::new(Memory::new(1 << 30)))
    }

    fn all(store: &Store, at: Seq, len: usize) -> Vec<u8> {
        store.pieces(at, len).collect::<Vec<_>>().concat()
    }

    #[test]
    fn small_data_takes_no_chunk_and_an_empty_store_keeps_none() {
        let mut store = store(u32::MAX - 5);
        for round in 0..1000u32 {
            let at = store.end();
            store.write(at, &[round as u8; SMALL]);
            assert_eq!(all(&store, at, SMALL), [round as u8; SMALL]);
            assert_eq!(store.memory().used(), 0);
            store.discard(at + 100);
            store.discard(store.end());
        }
        let at = store.end();
        store.write(at, &[1; SMALL]);
        store.write(at + SMALL as u32, &[2; 1]);
        assert_eq!(store.memory().used(), CHUNK as u64);
        assert_eq!(all(&store, at, 1000), [&[1; SMALL][..], &[2]].concat());
        store.discard(store.end());
        assert_eq!(store.memory().used(), 0);
        store.write(store.end(), &vec![3; 100 * CHUNK]);
        assert_eq!(store.memory().used(), 100 * CHUNK as u64);
        let memory = store.memory().clone();
        drop(store);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn a_run_of_a_chunk_is_in_two_pieces_at_the_most() {
        let mut store = store(0);
        store.write(Seq(0), &vec![0; 10 * CHUNK]);
        for at in (0..8 * CHUNK as u32).step_by(97) {
            assert!(store.pieces(Seq(at), CHUNK + 1).count() <= 2);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write { ahead: u32, len: usize },
        Discard(u32),
        Cut(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let near = prop_oneof![Just(0u32), 0..200u32, 0..3 * CHUNK as u32];
        let len = prop_oneof![0..150usize, 0..3 * CHUNK];
        prop_oneof![
            4 => (near, len).prop_map(|(ahead, len)| Step::Write { ahead, len }),
            2 => prop_oneof![0..300u32, 0..4 * CHUNK as u32].prop_map(Step::Discard),
            1 => (0..2 * CHUNK as u32).prop_map(Step::Cut),
        ]
    }

    proptest! {
        /// Against a map from number to byte; writes may overlap and leave holes.
        #[test]
        fn equals_a_map_of_bytes(start: u32, steps in prop::collection::vec(step(), 1..40)) {
            let mut store = store(start);
            let mut map = BTreeMap::new();
            let (mut first, mut end) = (0u64, 0u64);
            for (n, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Write { ahead, len } => {
                        let bytes: Vec<_> = (0..len).map(|i| (n * 31 + i) as u8).collect();
                        store.write(Seq(start) + first as u32 + ahead, &bytes);
                        let at = first + u64::from(ahead);
                        map.extend(bytes.iter().enumerate().map(|(i, byte)| (at + i as u64, *byte)));
                        end = end.max(at + len as u64);
                    }
                    Step::Discard(len) => {
                        first = end.min(first + u64::from(len));
                        store.discard(Seq(start) + first as u32);
                        map = map.split_off(&first);
                    }
                    Step::Cut(len) => {
                        end = end.min(first + u64::from(len));
                        store.cut(Seq(start) + end as u32);
                        map.split_off(&end);
                    }
                }
                prop_assert_eq!((store.end() - store.start()) as u64, end - first);
                // Read each run of bytes that was written.
                let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
                for (&at, &byte) in &map {
                    match runs.last_mut() {
                        Some((from, run)) if *from + run.len() as u64 == at => run.push(byte),
                        _ => runs.push((at, vec![byte])),
                    }
                }
                for (at, run) in runs {
                    prop_assert_eq!(all(&store, Seq(start) + at as u32, run.len()), run);
                }
                let chunks = (end - first).div_ceil(CHUNK as u64) + 1;
                prop_assert!(store.memory().used() <= chunks * CHUNK as u64);
                prop_assert!(first < end || store.memory().used() == 0);
            }
        }
    }
}
