//! Direct delivery: data that a receiver's own busy poll finds is copied from the frame straight into the receiver's
//! buffers, if no data is unread before it. This happens under the flow's lock, which is held for the segment anyway.
//! The path over the receive queue copies once more, takes that lock again, notifies all watchers and reads the clock,
//! all of it between a request and its response.

use crate::{inet::Meta, napi::DirectBuffer, wire::Data};
use std::io::IoSliceMut;

/// The buffers of a receive call. One pass may fill them with several segments.
pub(super) struct ReceiveBuffers<'a, 'b> {
    pub(super) into: &'a mut [IoSliceMut<'b>],
    /// The size of all buffers in bytes, and how many bytes are filled.
    room: usize,
    filled: usize,
}

impl<'a, 'b> ReceiveBuffers<'a, 'b> {
    #[inline]
    pub(super) fn new(into: &'a mut [IoSliceMut<'b>]) -> ReceiveBuffers<'a, 'b> {
        let room = into.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len()));
        ReceiveBuffers { into, room, filled: 0 }
    }

    /// The size of the buffers in bytes.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// The number of bytes delivered, if any. Resets it.
    #[inline]
    pub(super) fn take_delivered(&mut self) -> Option<usize> {
        let found = std::mem::take(&mut self.filled);
        (found > 0).then_some(found)
    }
}

impl DirectBuffer<Meta> for ReceiveBuffers<'_, '_> {
    #[inline]
    fn is_filled(&self) -> bool {
        self.filled > 0
    }

    /// Takes all of the payload or nothing: a rest would have to go to the connection's buffer.
    #[inline]
    fn deliver(&mut self, payload: &[u8], _: Option<&Meta>) -> bool {
        if payload.len() > self.room - self.filled {
            return false;
        }
        if let ([one], 0) = (&mut *self.into, self.filled) {
            one[..payload.len()].copy_from_slice(payload);
            self.filled = payload.len();
            return true;
        }
        self.scatter(payload);
        true
    }

    /// All or nothing here too.
    fn deliver_pieces(&mut self, payload: &Data<'_>, _: Option<&Meta>) -> bool {
        let has_room = payload.len() <= self.room - self.filled;
        if has_room {
            payload.pieces().for_each(|piece| self.scatter(piece));
        }
        has_room
    }
}

impl ReceiveBuffers<'_, '_> {
    /// Copies bytes that have room behind those that are there.
    #[inline(never)]
    fn scatter(&mut self, bytes: &[u8]) {
        let (mut skip, mut rest) = (self.filled, bytes);
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
        self.filled += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Rest;

    #[test]
    fn segments_fill_the_buffers_in_order_and_none_is_cut() {
        let payload: Vec<u8> = (1..=9).collect();
        for lens in [[9, 0, 0], [0, 4, 5], [3, 3, 3], [1, 0, 8], [8, 0, 1]] {
            for first in 0..=9 {
                let mut room = lens.map(|len| vec![0; len]);
                let mut into = room.each_mut().map(|piece| IoSliceMut::new(piece));
                let mut buffers = ReceiveBuffers::new(&mut into);
                assert!(!buffers.is_filled());
                assert!(
                    buffers.deliver(&payload[..first], None)
                        && buffers.deliver(&payload[first..], None)
                );
                assert!(!buffers.deliver(&[10], None));
                assert_eq!((buffers.take_delivered(), buffers.take_delivered()), (Some(9), None));
                assert_eq!(room.concat(), payload, "{lens:?} {first}");
            }
        }
    }

    #[test]
    fn a_segment_in_pieces_is_delivered_as_in_one() {
        let payload: Vec<u8> = (1..=9).collect();
        for lens in [[9, 0, 0], [0, 4, 5], [3, 3, 3], [20, 0, 0], [8, 0, 1]] {
            for first in 0..=9 {
                for second in first..=9 {
                    let mut room = lens.map(|len| vec![0; len]);
                    let mut into = room.each_mut().map(|piece| IoSliceMut::new(piece));
                    let mut buffers = ReceiveBuffers::new(&mut into);
                    let rest = &[&payload[first..second], &payload[second..]][..];
                    let data = Data { first: &payload[..first], rest: Rest::of(&rest) };
                    assert!(buffers.deliver_pieces(&data, None));
                    let more = &[&[0; 6][..], &[0; 6]][..];
                    let more = Data { first: &[], rest: Rest::of(&more) };
                    assert!(!buffers.deliver_pieces(&more, None));
                    assert_eq!(buffers.take_delivered(), Some(9));
                    assert_eq!(room.concat()[..9], payload, "{lens:?} {first} {second}");
                }
            }
        }
    }
}
