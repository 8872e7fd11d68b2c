//! Numbers that look random and follow from a seed (xorshift*), for fuzzers and for generated programs.

use std::cell::Cell;

pub struct Random(Cell<u64>);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    pub fn next(&self) -> u64 {
        let mut word = self.0.get();
        word ^= word >> 12;
        word ^= word << 25;
        word ^= word >> 27;
        self.0.set(word);
        word.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&self, end: usize) -> usize {
        (self.next() >> 16) as usize % end.max(1)
    }

    pub fn one_in(&self, n: usize) -> bool {
        self.below(n) == 0
    }
}
