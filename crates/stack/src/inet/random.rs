//! Numbers an outsider cannot guess, all from one seed, so that a test can repeat a run.

use crate::sync::{AtomicU64, Ordering};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};

/// A stream of numbers: SipHash of the seed and a count.
#[derive(Debug)]
pub(super) struct Random {
    seed: u64,
    count: AtomicU64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random { seed, count: AtomicU64::new(0) }
    }

    pub(super) fn next(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        hash.write_u64(self.seed);
        hash.write_u64(self.count.fetch_add(1, Ordering::Relaxed));
        hash.finish()
    }

    /// A number below `limit`, which is not 0.
    pub(super) fn below(&self, limit: u32) -> u32 {
        (((self.next() >> 32) * u64::from(limit)) >> 32) as u32
    }

    /// The same number for the same value, as long as the seed is the same.
    pub(super) fn hash(&self, value: impl Hash) -> u64 {
        let mut hash = DefaultHasher::new();
        (self.seed, value).hash(&mut hash);
        hash.finish()
    }

    /// A hash function of its own.
    pub(super) fn hasher(&self) -> Keyed {
        Keyed { first: self.next(), second: self.next() | 1 }
    }
}

/// A keyed hash for short keys, a few instructions: whoever does not know the keys cannot fill one bucket.
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
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.state
    }
}
