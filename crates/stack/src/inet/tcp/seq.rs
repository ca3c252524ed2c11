//! Sequence numbers: a circle of 2^32, on which "before" and "after" mean the shorter way round
//! (RFC 9293 section 3.4).

use std::{
    fmt,
    ops::{Add, AddAssign, Sub},
};

/// A sequence number. Comparisons hold for numbers less than 2^31 apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// Whether this comes before `other`.
    #[inline]
    pub fn before(self, other: Seq) -> bool {
        self.distance(other) > 0
    }

    /// Whether this comes after `other`.
    #[inline]
    pub fn after(self, other: Seq) -> bool {
        other.before(self)
    }

    /// Whether this is `other` or comes before it.
    #[inline]
    pub fn at_most(self, other: Seq) -> bool {
        !other.before(self)
    }

    /// How far it is from here to `to`; negative if `to` comes before.
    #[inline]
    pub fn distance(self, to: Seq) -> i32 {
        to.0.wrapping_sub(self.0) as i32
    }

    /// The later of the two.
    #[inline]
    pub fn max(self, other: Seq) -> Seq {
        if self.before(other) { other } else { self }
    }

    /// The earlier of the two.
    #[inline]
    pub fn min(self, other: Seq) -> Seq {
        if self.before(other) { self } else { other }
    }
}

impl Add<u32> for Seq {
    type Output = Seq;

    #[inline]
    fn add(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for Seq {
    #[inline]
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for Seq {
    type Output = Seq;

    #[inline]
    fn sub(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_sub(bytes))
    }
}

/// How many bytes lie from `earlier` to this; 0 if this is not after it.
impl Sub<Seq> for Seq {
    type Output = u32;

    #[inline]
    fn sub(self, earlier: Seq) -> u32 {
        earlier.distance(self).max(0) as u32
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_and_after_hold_across_the_wrap() {
        let (a, b) = (Seq(u32::MAX - 1), Seq(3));
        assert!(a.before(b) && b.after(a) && !b.before(a) && a.at_most(a) && !a.before(a));
        assert_eq!((b - a, a - b, a.distance(b), b.distance(a)), (5, 0, 5, -5));
        assert_eq!((a + 5, b - 5, a.max(b), a.min(b)), (b, a, b, a));
    }
}
