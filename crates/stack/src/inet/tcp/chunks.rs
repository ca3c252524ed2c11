//! The chunks of a store, in order; some may be absent. Most often there is one, which needs no table.

use super::memory::Chunk;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(super) struct Chunks {
    first: Option<Box<Chunk>>,
    /// The chunks after the first. Boxed, to keep an idle connection small.
    #[allow(clippy::box_collection)]
    rest: Option<Box<VecDeque<Option<Box<Chunk>>>>>,
    len: u32,
}

impl Chunks {
    /// How many there are, absent chunks included.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many are present.
    pub(super) fn present(&self) -> usize {
        (0..self.len()).filter(|&at| self.get(at).is_some()).count()
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&Chunk> {
        match at.checked_sub(1) {
            None => self.first.as_deref(),
            Some(at) => self.rest.as_ref()?.get(at)?.as_deref(),
        }
    }

    /// The slot of chunk `at`; absent chunks before it are added.
    #[inline]
    pub(super) fn slot(&mut self, at: usize) -> Option<&mut Option<Box<Chunk>>> {
        self.len = self.len.max(at as u32 + 1);
        let Some(at) = at.checked_sub(1) else { return Some(&mut self.first) };
        let rest = self.rest.get_or_insert_default();
        if at >= rest.len() {
            rest.resize_with(at + 1, || None);
        }
        rest.get_mut(at)
    }

    /// Removes the first slot; returns its chunk.
    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<Box<Chunk>> {
        let first = self.first.take();
        self.len = self.len.saturating_sub(1);
        if let Some(rest) = &mut self.rest {
            self.first = rest.pop_front().flatten();
            if self.len == 0 {
                self.rest = None;
            }
        }
        first
    }

    /// Removes the last slot; returns its chunk.
    pub(super) fn pop_back(&mut self) -> Option<Box<Chunk>> {
        self.len = self.len.saturating_sub(1);
        match &mut self.rest {
            // `rest` has one slot less than `len` says.
            Some(rest) if !rest.is_empty() => rest.pop_back().flatten(),
            _ => self.first.take(),
        }
    }
}
