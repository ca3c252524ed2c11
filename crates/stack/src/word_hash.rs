//! Hash maps for keys that this process makes itself: addresses of its own objects, descriptors. No peer can choose
//! them, so the hash needs no secret and takes a few instructions.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// A map with such keys.
pub type WordMap<K, V> = HashMap<K, V, BuildHasherDefault<WordHasher>>;

/// Multiplies each word by a constant and folds the 128 bits of the product.
#[derive(Clone, Copy, Debug, Default)]
pub struct WordHasher(u64);

impl Hasher for WordHasher {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    #[inline]
    fn write_i32(&mut self, word: i32) {
        self.write_u64(u64::from(word.cast_unsigned()));
    }

    fn write(&mut self, bytes: &[u8]) {
        write_words(self, bytes);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Hashes bytes as words, the last one padded with zeros.
pub(crate) fn write_words(hasher: &mut impl Hasher, bytes: &[u8]) {
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hasher.write_u64(u64::from_ne_bytes(word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        collections::HashSet,
        hash::{BuildHasher, Hash},
    };

    /// The map takes the bucket from the low bits and compares the upper seven.
    #[test]
    fn keys_that_differ_in_a_few_bits_differ_in_the_low_and_the_upper_bits() {
        let hasher = BuildHasherDefault::<WordHasher>::default();
        let keys =
            (0..64usize).flat_map(|at| (0..64u64).map(move |fd| (0x7f00_0000_0000 + at * 256, fd)));
        let hashes: Vec<u64> = keys.map(|key| hasher.hash_one(key)).collect();
        let different = |part: fn(u64) -> u64| {
            hashes.iter().map(|hash| part(*hash)).collect::<HashSet<_>>().len()
        };
        // 4,096 random numbers have about 2,589 different values in 4,096.
        assert!(different(|hash| hash & 4095) > 2_300);
        assert_eq!(different(|hash| hash >> 57), 128);
    }

    #[test]
    fn bytes_are_all_hashed() {
        let of = |text: &str| {
            let mut hasher = WordHasher::default();
            text.hash(&mut hasher);
            hasher.finish()
        };
        assert_ne!(of("ten bytes a"), of("ten bytes b"));
    }
}
