//! A fixed-size map from 64-bit keys to non-zero words, read and written without locks.
//!
//! An entry is two words: the value, and the key mixed with the value. A reader that sees the words of two writers gets
//! a key that matches nothing, so a torn entry is a miss. An entry may be overwritten at any time; a miss costs the
//! caller another look-up. A key may be in any of [`WAYS`] slots, so that two keys in constant use do not evict each
//! other.

use std::sync::atomic::{AtomicU64, Ordering::*};

/// Slots that a key may be in.
const WAYS: usize = 8;

pub struct Memo<const SLOTS: usize>([(AtomicU64, AtomicU64); SLOTS]);

impl<const SLOTS: usize> Memo<SLOTS> {
    pub const fn new() -> Memo<SLOTS> {
        assert!(SLOTS.is_power_of_two() && SLOTS >= WAYS);
        Memo([const { (AtomicU64::new(0), AtomicU64::new(0)) }; SLOTS])
    }

    fn slots(&self, key: u64) -> impl Iterator<Item = &(AtomicU64, AtomicU64)> {
        (0..WAYS).map(move |way| &self.0[(key as usize).wrapping_add(way) % SLOTS])
    }

    /// The value of a key. The key is a hash of the question: equal keys mean equal questions.
    #[inline(always)]
    pub fn get(&self, key: u64) -> Option<u64> {
        value_of(&self.0[key as usize % SLOTS], key).or_else(|| self.get_further(key))
    }

    /// The key is not in its first slot.
    #[cold]
    #[inline(never)]
    fn get_further(&self, key: u64) -> Option<u64> {
        self.slots(key).find_map(|slot| value_of(slot, key))
    }

    /// Stores a value. If all slots of the key are taken, the first is overwritten.
    pub fn put(&self, key: u64, value: u64) {
        let free = self.slots(key).find(|(check, known)| {
            let known = known.load(Relaxed);
            known == 0 || check.load(Relaxed) ^ known == key
        });
        let (check, known) = free.unwrap_or(&self.0[key as usize % SLOTS]);
        known.store(value, Relaxed);
        check.store(value ^ key, Relaxed);
    }

    /// Removes a key.
    pub fn forget(&self, key: u64) {
        for (check, value) in self.slots(key) {
            let known = value.load(Relaxed);
            if known != 0 && check.load(Relaxed) ^ known == key {
                value.store(0, Relaxed);
            }
        }
    }

    /// Removes all keys.
    pub fn clear(&self) {
        for (_, value) in &self.0 {
            value.store(0, Relaxed);
        }
    }
}

#[inline(always)]
fn value_of((check, value): &(AtomicU64, AtomicU64), key: u64) -> Option<u64> {
    let value = value.load(Relaxed);
    (value != 0 && check.load(Relaxed) ^ value == key).then_some(value)
}
