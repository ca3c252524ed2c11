//! What a datagram is made of: one piece of memory, or several laid end to end.

use crate::wire::checksum::Sum;
use std::io::IoSlice;

/// A datagram's data.
pub trait Payload {
    /// Bytes in all.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Their sum.
    fn sum(&self) -> Sum;
    /// Copies them to `to`, which has exactly their length.
    fn copy_to(&self, to: &mut [u8]);
}

impl Payload for [u8] {
    #[inline]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn sum(&self) -> Sum {
        Sum::of(self)
    }

    #[inline]
    fn copy_to(&self, to: &mut [u8]) {
        // Equal lengths; the smaller of both keeps it from panicking if ever they are not.
        let len = self.len().min(to.len());
        to[..len].copy_from_slice(&self[..len]);
    }
}

impl Payload for [IoSlice<'_>] {
    fn len(&self) -> usize {
        self.iter().map(|piece| piece.len()).fold(0, usize::saturating_add)
    }

    fn sum(&self) -> Sum {
        Sum::of_pieces(self.iter().map(|piece| &piece[..]))
    }

    fn copy_to(&self, mut to: &mut [u8]) {
        for piece in self {
            let len = piece.len().min(to.len());
            let (here, rest) = to.split_at_mut(len);
            here.copy_from_slice(&piece[..len]);
            to = rest;
        }
    }
}
