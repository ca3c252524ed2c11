//! Direct delivery: a datagram that a receiver's own busy poll finds is copied from the frame straight into the
//! receiver's buffers, if none is queued before it. The path over the queue takes two locks, a third of the time that
//! the stack adds to a round trip, and copies once more.

use super::buffer::scatter;
use crate::{inet::Meta, napi::DirectBuffer, wire::Data};
use std::io::IoSliceMut;

/// The buffers of a receive call. They take one datagram.
pub(super) struct ReceiveBuffers<'a, 'b> {
    pub(super) into: &'a mut [IoSliceMut<'b>],
    /// What is known of the datagram received: written by the call, read by the caller, and not moved between them.
    pub(super) meta: Option<Meta>,
    /// How many of its bytes had room, until the call has returned that.
    delivered: Option<usize>,
}

impl<'a, 'b> ReceiveBuffers<'a, 'b> {
    #[inline]
    pub(super) fn new(into: &'a mut [IoSliceMut<'b>]) -> ReceiveBuffers<'a, 'b> {
        ReceiveBuffers { into, meta: None, delivered: None }
    }

    /// How many bytes of the datagram delivered had room, if there is one. Resets it.
    #[inline]
    pub(super) fn take_delivered(&mut self) -> Option<usize> {
        self.delivered.take()
    }
}

impl DirectBuffer<Meta> for ReceiveBuffers<'_, '_> {
    #[inline]
    fn is_filled(&self) -> bool {
        self.delivered.is_some()
    }

    #[inline]
    fn deliver(&mut self, payload: &[u8], meta: Option<&Meta>) -> bool {
        let Some(meta) = meta.filter(|_| self.delivered.is_none()) else {
            return false;
        };
        let copied = match &mut *self.into {
            [one] => {
                let copied = payload.len().min(one.len());
                one[..copied].copy_from_slice(&payload[..copied]);
                copied
            }
            pieces => scatter([payload], pieces),
        };
        (self.meta, self.delivered) = (Some(*meta), Some(copied));
        true
    }

    fn deliver_pieces(&mut self, payload: &Data<'_>, meta: Option<&Meta>) -> bool {
        let Some(meta) = meta.filter(|_| self.delivered.is_none()) else {
            return false;
        };
        let copied = scatter(payload.pieces(), self.into);
        (self.meta, self.delivered) = (Some(*meta), Some(copied));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{socket::UNSPECIFIED, time::Instant, wire::Rest};

    #[test]
    fn one_datagram_is_delivered_and_cut_to_the_size_of_the_buffers() {
        let lens: [&[usize]; 8] = [&[], &[0], &[3], &[9], &[3, 0], &[0, 4], &[2, 2], &[4, 9]];
        for lens in lens {
            let mut room: Vec<_> = lens.iter().map(|&len| vec![0; len]).collect();
            let mut into: Vec<_> = room.iter_mut().map(|it| IoSliceMut::new(it)).collect();
            let mut buffers = ReceiveBuffers::new(&mut into);
            let arrived = Instant::ZERO;
            let meta = Meta {
                len: 4,
                napi: None,
                from: UNSPECIFIED,
                to: UNSPECIFIED,
                ttl: 1,
                tos: 2,
                arrived,
            };
            let pieces = &[&b"ou"[..], b"r"][..];
            let pieces = Data { first: b"f", rest: Rest::of(&pieces) };
            let mut both = [Vec::new(), Vec::new()];
            for (in_pieces, found) in [false, true].into_iter().zip(&mut both) {
                let delivered = match in_pieces {
                    false => buffers.deliver(b"four", Some(&meta)),
                    true => buffers.deliver_pieces(&pieces, Some(&meta)),
                };
                assert!(delivered && buffers.is_filled());
                assert!(!buffers.deliver(b"more", Some(&meta)));
                assert!(!buffers.deliver_pieces(&pieces, Some(&meta)));
                let copied = buffers.take_delivered().unwrap();
                assert_eq!((buffers.meta.unwrap().len, copied), (4, 4.min(lens.iter().sum())));
                *found = buffers.into.iter().flat_map(|piece| piece.to_vec()).collect();
                assert_eq!(found[..copied], b"four"[..copied]);
                buffers.into.iter_mut().for_each(|piece| piece.fill(0));
            }
            assert_eq!(both[0], both[1]);
        }
    }
}
