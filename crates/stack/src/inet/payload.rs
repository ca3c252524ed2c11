//! The payload of a datagram: one buffer, or several in a row.

use crate::wire::checksum::Sum;
use std::io::IoSlice;

/// A datagram's data.
pub trait Payload {
    /// The number of bytes.
    fn len(&self) -> usize;
    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The checksum sum of the bytes.
    fn sum(&self) -> Sum;
    /// Copies the bytes to `to`, which has exactly their length.
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
        // The lengths are equal; `min` avoids a panic if they ever are not.
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
