//! The Internet checksum (RFC 1071).
//!
//! Owns ones' complement arithmetic; knows nothing of headers.
//!
//! A [`Sum`] is kept unfolded and in the machine's byte order. RFC 1071 section 2(B) shows that
//! the sum is the same in either order except for a final swap, so only [`Sum::fold`] swaps.

/// A running ones' complement sum of 16-bit words.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of no bytes.
    pub const ZERO: Sum = Sum(0);

    /// The sum of a piece of a packet; an odd last byte counts as if a zero byte followed it
    /// (RFC 1071 section 1).
    #[inline]
    #[must_use]
    pub fn of(bytes: &[u8]) -> Sum {
        if bytes.len() < 64 { Sum(sum_short(bytes)) } else { Sum(sum_long(bytes)) }
    }

    /// The sum of the concatenated pieces, whatever their lengths.
    #[must_use]
    pub fn of_pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Sum {
        let mut sum = Sum::ZERO;
        let mut odd = false;
        for piece in pieces {
            let s = Sum::of(piece);
            sum = sum.plus(if odd { s.shifted() } else { s });
            odd ^= piece.len() % 2 == 1;
        }
        sum
    }

    /// This sum plus another, both of pieces that begin at an even offset.
    #[inline]
    #[must_use]
    pub fn plus(self, other: Sum) -> Sum {
        // 2^64 - 1 is a multiple of 2^16 - 1: an end-around carry of 64 bits is one of 16 bits.
        let (sum, carry) = self.0.overflowing_add(other.0);
        Sum(sum + u64::from(carry))
    }

    /// This sum plus one word.
    #[inline]
    #[must_use]
    pub fn plus_word(self, word: u16) -> Sum {
        self.plus(Sum(u64::from(word.to_be())))
    }

    /// The sum of the same piece at an odd offset: the bytes of every word are swapped (RFC 1071
    /// section 2(B)).
    #[inline]
    #[must_use]
    pub fn shifted(self) -> Sum {
        Sum(u64::from(fold(self.0).swap_bytes()))
    }

    /// The 16-bit sum, not complemented: the value of a partial checksum. Zero only if every word
    /// was zero.
    #[inline]
    #[must_use]
    pub fn fold(self) -> u16 {
        u16::from_be(fold(self.0))
    }

    /// The checksum: the complement of the sum.
    #[inline]
    #[must_use]
    pub fn checksum(self) -> u16 {
        !self.fold()
    }

    /// Whether the packet is intact, if this is the sum of the whole packet including its checksum.
    #[inline]
    #[must_use]
    pub fn is_intact(self) -> bool {
        self.fold() == 0xffff
    }
}

/// The checksum after one 16-bit word it covers changed from `old` to `new`.
///
/// RFC 1624 section 3, equation 3: `HC' = ~(~HC + ~m + m')`. The older equation of RFC 1141 is
/// wrong if the result should be zero. This one is wrong only if every word has become zero: it
/// gives 0 instead of 0xffff. This cannot happen in an IP header, but can in an ICMP message.
#[inline]
#[must_use]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u64::from(!checksum) + u64::from(!old) + u64::from(new);
    !fold(sum)
}

#[inline]
fn fold(sum: u64) -> u16 {
    // The carry goes around.
    let (half, carry) = ((sum >> 32) as u32).overflowing_add(sum as u32);
    let half = half + u32::from(carry);
    let (word, carry) = ((half >> 16) as u16).overflowing_add(half as u16);
    word + u16::from(carry)
}

/// For headers and small packets, where setting up vectors costs more than it saves.
#[inline]
fn sum_short(bytes: &[u8]) -> u64 {
    let (words, mut rest) = bytes.as_chunks::<4>();
    let mut sum: u64 = words.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum();
    if let [a, b, tail @ ..] = rest {
        sum += u64::from(u16::from_ne_bytes([*a, *b]));
        rest = tail;
    }
    if let [last] = rest {
        sum += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    sum
}

/// Sixteen 64-bit lanes of 32-bit words: without carries between them the compiler can vectorize the
/// loop, and with so many no addition waits for another. A lane overflows only after 2^32 words.
#[inline(never)]
fn sum_long(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<64>();
    let mut lanes = [0u64; 16];
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let sum = lanes.iter().fold(Sum::ZERO, |sum, lane| sum.plus(Sum(*lane)));
    sum.plus(Sum(sum_short(rest))).0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The algorithm of RFC 1071 section 1, literally.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut x = 0x2545_f491u32;
        let next = |_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x as u8
        };
        (0..len).map(next).collect()
    }

    #[test]
    fn the_example_of_rfc_1071() {
        let sum = Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.fold(), 0xddf2);
        assert_eq!(sum.checksum(), 0x220d);
    }

    #[test]
    fn the_sum_equals_the_naive_sum_at_every_length_and_alignment() {
        let bytes = noise(1600);
        for start in 0..16 {
            for len in (0..=200).chain(1440..=1584) {
                let piece = &bytes[start..start + len];
                assert_eq!(Sum::of(piece).fold(), naive(piece), "start {start}, length {len}");
            }
        }
    }

    #[test]
    fn all_ones_fold_to_0xffff_and_all_zeroes_to_0() {
        for len in [2, 60, 64, 1500, 65536] {
            assert_eq!(Sum::of(&vec![0xff; len]).fold(), 0xffff, "length {len}");
            assert_eq!(Sum::of(&vec![0; len]).fold(), 0, "length {len}");
        }
        assert_eq!(Sum(u64::MAX).plus(Sum(u64::MAX)).fold(), 0xffff);
    }

    #[test]
    fn the_sum_of_pieces_does_not_depend_on_where_they_are_cut() {
        let bytes = noise(97);
        for a in 0..=bytes.len() {
            for b in a..=bytes.len() {
                let pieces = [&bytes[..a], &bytes[a..b], &bytes[b..]];
                assert_eq!(Sum::of_pieces(pieces).fold(), naive(&bytes), "cut at {a} and {b}");
            }
        }
    }

    #[test]
    fn an_update_equals_a_new_sum() {
        // The example of RFC 1624 section 4, where RFC 1141 yields 0xffff.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);

        let mut bytes = noise(40);
        for at in (0..40).step_by(2) {
            for new in [0, 1, 0x00ff, 0x8000, 0xfffe, 0xffff] {
                let before = Sum::of(&bytes).checksum();
                let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
                bytes[at..at + 2].copy_from_slice(&u16::to_be_bytes(new));
                assert_eq!(update(before, old, new), Sum::of(&bytes).checksum());
            }
        }
    }
}
