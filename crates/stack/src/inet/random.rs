//! Unpredictable numbers, all from one seed, so that a test can repeat a run.

use crate::{
    sync::{AtomicU64, Ordering},
    word_hash::write_words,
};
use siphasher::sip::SipHasher24;
use std::hash::{BuildHasher, Hash, Hasher};

/// The secret key of a hash (SipHash-2-4, as Linux's `siphash`): without it the output for a new input is
/// unpredictable, however many outputs are known.
#[derive(Clone, Copy)]
pub(super) struct Key([u64; 2]);

impl Key {
    /// A hasher under this key, without input yet.
    #[inline]
    pub(super) fn hasher(&self) -> SipHasher24 {
        let [first, second] = self.0;
        SipHasher24::new_with_keys(first, second)
    }
}

impl From<u128> for Key {
    fn from(bits: u128) -> Key {
        Key([bits as u64, (bits >> 64) as u64])
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// A stream of numbers: the hash of a counter, keyed by the seed.
#[derive(Debug)]
pub(super) struct Random {
    seed: Key,
    count: AtomicU64,
}

impl Random {
    pub(super) fn new(seed: u128) -> Random {
        Random { seed: seed.into(), count: AtomicU64::new(0) }
    }

    pub(super) fn next(&self) -> u64 {
        let mut hash = self.seed.hasher();
        hash.write_u64(self.count.fetch_add(1, Ordering::Relaxed));
        hash.finish()
    }

    /// A new key.
    pub(super) fn key(&self) -> Key {
        Key([self.next(), self.next()])
    }

    /// A number below `limit`, which is not 0.
    pub(super) fn below(&self, limit: u32) -> u32 {
        (((self.next() >> 32) * u64::from(limit)) >> 32) as u32
    }

    /// A number that depends only on the value and the seed.
    pub(super) fn hash(&self, value: impl Hash) -> u64 {
        // The input is longer than a counter, so the result is no output of `next`.
        let mut hash = self.seed.hasher();
        (u64::MAX, value).hash(&mut hash);
        hash.finish()
    }

    /// A new keyed hash function.
    pub(super) fn hasher(&self) -> Keyed {
        Keyed { first: self.next(), second: self.next() | 1 }
    }
}

/// A keyed hash of a few instructions for short keys: without the secret a peer cannot fill one bucket on purpose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keyed {
    first: u64,
    second: u64,
}

impl BuildHasher for Keyed {
    type Hasher = Mix;

    #[inline]
    fn build_hasher(&self) -> Mix {
        Mix { state: self.first, key: self.second }
    }
}

/// Each word is mixed in by a full 64 x 64 -> 128 bit multiplication, folded.
pub(super) struct Mix {
    state: u64,
    key: u64,
}

impl Hasher for Mix {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.key ^ word.rotate_left(32));
        self.state = (product as u64) ^ ((product >> 64) as u64);
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write(&mut self, bytes: &[u8]) {
        write_words(self, bytes);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first vectors of the reference (SipHash-2-4, key 00 01 ... 0f): they show that the key is used as the key.
    #[test]
    fn a_keyed_hash_equals_the_siphash_2_4_reference() {
        let key = Key::from(u128::from_le_bytes(std::array::from_fn(|i| i as u8)));
        let of = |bytes: &[u8]| {
            let mut hash = key.hasher();
            hash.write(bytes);
            hash.finish()
        };
        assert_eq!(of(&[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(of(&[0, 1, 2, 3, 4, 5, 6, 7]), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn both_halves_of_the_seed_change_the_numbers() {
        let first = |seed| Random::new(seed).next();
        let all = [first(7), first(8), first(7 << 64), first(7 | 7 << 64)];
        assert!((1..4).all(|i| !all[..i].contains(&all[i])), "{all:?}");
        let random = Random::new(7);
        assert_ne!(random.next(), random.next());
        assert_eq!(random.hash(1), random.hash(1));
    }
}
