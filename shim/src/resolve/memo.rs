//! A fixed-size map from 64-bit keys to non-zero words, read and written without locks.
//!
//! An entry is two words: the value, and the key mixed with the value. A reader that sees the words of two writers gets a
//! key that matches nothing, so a torn entry is a miss. An entry may be overwritten at any time; a miss costs the
//! caller the look-up that it wanted to save. A key may lie in any of [`WAYS`] places, so that two keys in constant
//! use do not keep evicting each other.

use std::sync::atomic::{AtomicU64, Ordering::*};

/// Places in which a key may lie.
const WAYS: usize = 8;

pub struct Memo<const SLOTS: usize>([(AtomicU64, AtomicU64); SLOTS]);

impl<const SLOTS: usize> Memo<SLOTS> {
    pub const fn new() -> Memo<SLOTS> {
        assert!(SLOTS.is_power_of_two() && SLOTS >= WAYS);
        Memo([const { (AtomicU64::new(0), AtomicU64::new(0)) }; SLOTS])
    }

    fn places(&self, key: u64) -> impl Iterator<Item = &(AtomicU64, AtomicU64)> {
        (0..WAYS).map(move |way| &self.0[(key as usize).wrapping_add(way) % SLOTS])
    }

    /// The value of a key; the key is a hash, so that equal keys mean equal questions.
    #[inline]
    pub fn get(&self, key: u64) -> Option<u64> {
        self.places(key).find_map(|(check, value)| {
            let value = value.load(Relaxed);
            (value != 0 && check.load(Relaxed) ^ value == key).then_some(value)
        })
    }

    /// Keeps a value. Where all places are taken, the key's own first place is overwritten.
    pub fn put(&self, key: u64, value: u64) {
        let free = self.places(key).find(|(check, known)| {
            let known = known.load(Relaxed);
            known == 0 || check.load(Relaxed) ^ known == key
        });
        let (check, known) = free.unwrap_or(&self.0[key as usize % SLOTS]);
        known.store(value, Relaxed);
        check.store(value ^ key, Relaxed);
    }

    /// Forgets a key.
    pub fn forget(&self, key: u64) {
        for (check, value) in self.places(key) {
            let known = value.load(Relaxed);
            if known != 0 && check.load(Relaxed) ^ known == key {
                value.store(0, Relaxed);
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&self) {
        for (_, value) in &self.0 {
            value.store(0, Relaxed);
        }
    }
}
