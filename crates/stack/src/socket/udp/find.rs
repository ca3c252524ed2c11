//! What a receiver's own busy poll finds for it while nothing is queued before it: the datagram goes from the frame
//! straight into the receiver's buffers. The two locks of the way over the queue are a third of what the stack adds to
//! a round trip, and it copies once more.

use super::buffer::{Meta, scatter};
use crate::napi::Direct;
use std::{any::Any, io::IoSliceMut};

/// The buffers of a receive, which take one datagram.
pub(super) struct Find<'a, 'b> {
    pub(super) into: &'a mut [IoSliceMut<'b>],
    found: Option<(Meta, usize)>,
}

impl<'a, 'b> Find<'a, 'b> {
    #[inline]
    pub(super) fn new(into: &'a mut [IoSliceMut<'b>]) -> Find<'a, 'b> {
        Find { into, found: None }
    }

    /// What was found, and how many of its bytes there was room for.
    #[inline]
    pub(super) fn take(&mut self) -> Option<(Meta, usize)> {
        self.found.take()
    }
}

impl Direct for Find<'_, '_> {
    #[inline]
    fn is_filled(&self) -> bool {
        self.found.is_some()
    }

    #[inline]
    fn put(&mut self, find: &[u8], label: &dyn Any) -> bool {
        let Some(meta) = label.downcast_ref::<Meta>().filter(|_| self.found.is_none()) else {
            return false;
        };
        let copied = match &mut *self.into {
            [one] => {
                let copied = find.len().min(one.len());
                one[..copied].copy_from_slice(&find[..copied]);
                copied
            }
            pieces => scatter([find, &[]], pieces),
        };
        self.found = Some((*meta, copied));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{socket::NOBODY, time::Instant};

    #[test]
    fn one_datagram_is_found_and_cut_to_the_room_there_is() {
        let lens: [&[usize]; 8] = [&[], &[0], &[3], &[9], &[3, 0], &[0, 4], &[2, 2], &[4, 9]];
        for lens in lens {
            let mut room: Vec<_> = lens.iter().map(|&len| vec![0; len]).collect();
            let mut into: Vec<_> = room.iter_mut().map(|it| IoSliceMut::new(it)).collect();
            let mut buffers = Find::new(&mut into);
            let arrived = Instant::ZERO;
            let meta =
                Meta { len: 4, napi: None, from: NOBODY, to: NOBODY, ttl: 1, tos: 2, arrived };
            assert!(!buffers.is_filled() && buffers.put(b"four", &meta));
            assert!(buffers.is_filled() && !buffers.put(b"more", &meta));
            let (found, copied) = buffers.take().unwrap();
            assert_eq!((found.len, copied), (4, 4.min(lens.iter().sum())));
            assert_eq!(room.concat()[..copied], b"four"[..copied]);
        }
    }
}
