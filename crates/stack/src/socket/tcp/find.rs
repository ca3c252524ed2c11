//! What a receiver's own busy poll finds for it: data with none left unread before it goes from the frame straight into
//! the receiver's buffers, under the lock that the segment has taken anyway. The way over the socket copies it once
//! more, takes that lock again, tells all who watch and reads the clock, all of it between a request and its response.

use crate::napi::Direct;
use std::{any::Any, io::IoSliceMut};

/// The buffers of a receive, which one pass may fill with one segment after the other.
pub(super) struct Find<'a, 'b> {
    pub(super) into: &'a mut [IoSliceMut<'b>],
    /// How much they take, and how much of that is filled.
    room: usize,
    filled: usize,
}

impl<'a, 'b> Find<'a, 'b> {
    #[inline]
    pub(super) fn new(into: &'a mut [IoSliceMut<'b>]) -> Find<'a, 'b> {
        let room = into.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len()));
        Find { into, room, filled: 0 }
    }

    /// How many bytes are asked for.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// How many bytes were found.
    #[inline]
    pub(super) fn take(&mut self) -> Option<usize> {
        let found = std::mem::take(&mut self.filled);
        (found > 0).then_some(found)
    }
}

impl Direct for Find<'_, '_> {
    #[inline]
    fn is_filled(&self) -> bool {
        self.filled > 0
    }

    /// All of it or nothing: what is left over would have to go to the connection's buffer.
    #[inline]
    fn put(&mut self, find: &[u8], _: &dyn Any) -> bool {
        if find.len() > self.room - self.filled {
            return false;
        }
        let (mut skip, mut rest) = (self.filled, find);
        for piece in self.into.iter_mut() {
            let Some(free) = piece.get_mut(skip..) else {
                skip -= piece.len();
                continue;
            };
            let (here, more) = rest.split_at(rest.len().min(free.len()));
            free[..here.len()].copy_from_slice(here);
            (skip, rest) = (0, more);
            if rest.is_empty() {
                break;
            }
        }
        self.filled += find.len();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_fill_the_pieces_one_after_the_other_and_none_is_cut() {
        let find: Vec<u8> = (1..=9).collect();
        for lens in [[9, 0, 0], [0, 4, 5], [3, 3, 3], [1, 0, 8], [8, 0, 1]] {
            for first in 0..=9 {
                let mut room = lens.map(|len| vec![0; len]);
                let mut into = room.each_mut().map(|piece| IoSliceMut::new(piece));
                let mut buffers = Find::new(&mut into);
                assert!(!buffers.is_filled());
                assert!(buffers.put(&find[..first], &()) && buffers.put(&find[first..], &()));
                assert!(!buffers.put(&[10], &()));
                assert_eq!((buffers.take(), buffers.take()), (Some(9), None));
                assert_eq!(room.concat(), find, "{lens:?} {first}");
            }
        }
    }
}
