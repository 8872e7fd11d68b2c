//! Hash maps for numbers: a multiplication and a shift a word, where the standard hash takes ten times as long.
//!
//! The numbers may come from a damaged or hostile file, so every process mixes in a number of its own: nobody can choose
//! ones that collide. Deliberately absent: use for text, for which the standard hash is as fast.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

pub type Quick<K, V> = HashMap<K, V, Seeded>;

#[derive(Debug, Clone, Copy)]
pub struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Seeded {
        static SEED: OnceLock<u64> = OnceLock::new();
        Seeded(*SEED.get_or_init(|| RandomState::new().hash_one(0)))
    }
}

impl BuildHasher for Seeded {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer(self.0)
    }
}

/// Takes in a word at a time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mixer(pub u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 29;
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_fall_into_different_places() {
        let mut map = Quick::default();
        let mut upper = std::collections::BTreeSet::new();
        for number in 0..10_000u64 {
            map.insert((number, number as u32), number);
            let hash = Seeded::default().hash_one(number);
            upper.insert((hash >> 57, hash & 0xff));
        }
        assert!((0..10_000).all(|number| map.get(&(number, number as u32)) == Some(&number)));
        // 128 tags and 256 places: ten thousand of them fill most of the pairs that they can.
        assert!(upper.len() > 5_000, "{}", upper.len());
    }
}
