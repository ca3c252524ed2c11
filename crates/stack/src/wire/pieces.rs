//! The bytes of a packet that lies in several buffers.
//!
//! Its headers are in the first buffer, in one run, so the views work on that; only the data goes on
//! behind it. Nearly every packet lies in one buffer and has no other pieces.

/// What follows the first piece of a packet, or of its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest<'a> {
    /// One word: every frame carries it.
    pieces: Option<&'a &'a [&'a [u8]]>,
}

impl<'a> Rest<'a> {
    /// Nothing follows.
    pub const NONE: Rest<'static> = Rest { pieces: None };

    /// These pieces follow, one after the other.
    #[inline]
    #[must_use]
    pub fn of(pieces: &'a &'a [&'a [u8]]) -> Rest<'a> {
        Rest { pieces: Some(pieces).filter(|pieces| !pieces.is_empty()) }
    }

    /// Bytes in all.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.map_or(0, |pieces| total(pieces))
    }

    /// Whether nothing follows.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_none()
    }

    /// The pieces.
    #[inline]
    #[must_use]
    pub fn pieces(&self) -> &'a [&'a [u8]] {
        self.pieces.map_or(&[], |pieces| pieces)
    }
}

#[inline(never)]
fn total(pieces: &[&[u8]]) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

/// Data in pieces: the first, and what follows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Data<'a> {
    /// Its first piece.
    pub first: &'a [u8],
    /// What follows.
    pub rest: Rest<'a>,
}

impl<'a> Data<'a> {
    /// Bytes in all.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    /// Whether there is not a byte.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces, in order.
    #[inline]
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        std::iter::once(self.first).chain(self.rest.pieces().iter().copied())
    }

    /// The pieces of the bytes from `from` to `to`; what is beyond the end is left out.
    #[inline]
    pub fn range(&self, from: usize, to: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut at = 0;
        self.pieces().filter_map(move |piece| {
            let (start, end) = (at, at + piece.len());
            at = end;
            piece.get(from.max(start) - start..to.min(end).saturating_sub(start))
        })
    }

    /// The byte at `at`.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<u8> {
        self.range(at, at.checked_add(1)?).find_map(|piece| piece.first().copied())
    }

    /// Copies the bytes to `to`, as far as it has room.
    pub fn copy_to(&self, mut to: &mut [u8]) {
        for piece in self.pieces() {
            let (here, rest) = to.split_at_mut(piece.len().min(to.len()));
            here.copy_from_slice(&piece[..here.len()]);
            to = rest;
        }
    }

    /// All bytes in one run, copied.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.pieces().for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }
}

impl<'a> From<&'a [u8]> for Data<'a> {
    #[inline]
    fn from(first: &'a [u8]) -> Data<'a> {
        Data { first, rest: Rest::NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_the_same_wherever_the_bytes_are_cut() {
        let bytes: Vec<u8> = (0..12).collect();
        for a in 0..=12 {
            for b in a..=12 {
                let rest = &[&bytes[a..b], &bytes[b..]][..];
                let data = Data { first: &bytes[..a], rest: Rest::of(&rest) };
                assert_eq!((data.len(), data.rest.len()), (12, 12 - a));
                assert_eq!((data.to_vec(), data.is_empty()), (bytes.clone(), false));
                for room in [0, 5, 12, 13] {
                    let mut copy = vec![99; room];
                    data.copy_to(&mut copy);
                    assert_eq!(copy[..room.min(12)], bytes[..room.min(12)]);
                }
                for from in 0..=13 {
                    assert_eq!(data.get(from), bytes.get(from).copied());
                    for to in from..=14 {
                        let expected: Vec<u8> =
                            bytes.iter().copied().skip(from).take(to - from).collect();
                        let found: Vec<&[u8]> = data.range(from, to).collect();
                        assert_eq!(found.concat(), expected, "{a} {b} {from} {to}");
                    }
                }
            }
        }
        assert!(Data::default().is_empty() && Data::from(&bytes[..]).rest.is_empty());
    }
}
