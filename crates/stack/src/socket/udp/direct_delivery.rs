//! Direct delivery: a datagram that a receiver's own busy poll finds is copied from the frame straight into the
//! receiver's buffers, if none is queued before it. The path over the queue takes two locks, a third of the time that
//! the stack adds to a round trip, and copies once more.

use super::buffer::{Meta, scatter};
use crate::napi::DirectBuffer;
use std::{any::Any, io::IoSliceMut};

/// The buffers of a receive call. They take one datagram.
pub(super) struct ReceiveBuffers<'a, 'b> {
    pub(super) into: &'a mut [IoSliceMut<'b>],
    delivered: Option<(Meta, usize)>,
}

impl<'a, 'b> ReceiveBuffers<'a, 'b> {
    #[inline]
    pub(super) fn new(into: &'a mut [IoSliceMut<'b>]) -> ReceiveBuffers<'a, 'b> {
        ReceiveBuffers { into, delivered: None }
    }

    /// The datagram delivered, if any, and how many of its bytes had room. Resets it.
    #[inline]
    pub(super) fn take_delivered(&mut self) -> Option<(Meta, usize)> {
        self.delivered.take()
    }
}

impl DirectBuffer for ReceiveBuffers<'_, '_> {
    #[inline]
    fn is_filled(&self) -> bool {
        self.delivered.is_some()
    }

    #[inline]
    fn deliver(&mut self, payload: &[u8], label: &dyn Any) -> bool {
        let Some(meta) = label.downcast_ref::<Meta>().filter(|_| self.delivered.is_none()) else {
            return false;
        };
        let copied = match &mut *self.into {
            [one] => {
                let copied = payload.len().min(one.len());
                one[..copied].copy_from_slice(&payload[..copied]);
                copied
            }
            pieces => scatter([payload, &[]], pieces),
        };
        self.delivered = Some((*meta, copied));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{socket::UNSPECIFIED, time::Instant};

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
            assert!(!buffers.is_filled() && buffers.deliver(b"four", &meta));
            assert!(buffers.is_filled() && !buffers.deliver(b"more", &meta));
            let (found, copied) = buffers.take_delivered().unwrap();
            assert_eq!((found.len, copied), (4, 4.min(lens.iter().sum())));
            assert_eq!(room.concat()[..copied], b"four"[..copied]);
        }
    }
}
