//! A bit for each of many numbers: of granules, of nodes.

/// Bits by number.
#[derive(Default)]
pub struct Bits(pub Vec<u64>);

impl Bits {
    pub fn new(count: usize) -> Bits {
        Bits(vec![0; count.div_ceil(64)])
    }

    /// These of so many bits.
    pub fn of(count: usize, set: impl IntoIterator<Item = usize>) -> Bits {
        let mut bits = Bits::new(count);
        for place in set {
            bits.set(place);
        }
        bits
    }

    /// Has room for this many bits.
    pub fn grow(&mut self, count: usize) {
        self.0.resize(count.div_ceil(64).max(self.0.len()), 0);
    }

    /// Whether there is room for no bit.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub fn get(&self, place: usize) -> bool {
        (self.0.get(place / 64)).is_some_and(|word| word >> (place % 64) & 1 != 0)
    }

    /// Whether the bit was clear.
    pub fn set(&mut self, place: usize) -> bool {
        let (word, bit) = (&mut self.0[place / 64], 1 << (place % 64));
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// Whether the bit was set.
    pub fn clear(&mut self, place: usize) -> bool {
        let (word, bit) = (&mut self.0[place / 64], 1 << (place % 64));
        let was = *word & bit != 0;
        *word &= !bit;
        was
    }

    /// The last set bit of `from..=to`.
    #[inline]
    pub fn last(&self, from: usize, to: usize) -> Option<usize> {
        let mut at = to / 64;
        let mut word = self.0[at] & (u64::MAX >> (63 - to % 64));
        loop {
            if word != 0 {
                let found = at * 64 + 63 - word.leading_zeros() as usize;
                return (found >= from).then_some(found);
            }
            if at * 64 <= from {
                return None;
            }
            at -= 1;
            word = self.0[at];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bit_is_found_across_words_but_not_before_the_range() {
        let mut bits = Bits::new(512);
        for granule in [0, 70, 300] {
            assert!(bits.set(granule));
        }
        assert_eq!(bits.last(0, 69), Some(0));
        assert_eq!(bits.last(0, 70), Some(70));
        assert_eq!(bits.last(0, 299), Some(70));
        assert_eq!(bits.last(256, 299), None);
        assert_eq!(bits.last(256, 511), Some(300));
        assert!(!bits.set(70) && bits.clear(70) && !bits.clear(70));
        assert_eq!(bits.last(1, 255), None);
    }
}
