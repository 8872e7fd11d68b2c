//! Bytes and a count together: the unit of every sum in a report.

use serde::Serialize;

use crate::snapshot::Failed;

/// Bytes, and the number of records that they belong to.
// Ordered by bytes, then by count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Tally {
    pub bytes: u64,
    pub count: u64,
}

/// A tally that is below 0 where a log lacks events or frees more than it allocates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignedTally {
    bytes: i64,
    pub count: i64,
}

impl SignedTally {
    /// Adds one record, or takes it away if `sign` is -1.
    pub fn add(&mut self, bytes: u64, sign: i64) {
        self.bytes = self.bytes.wrapping_add((bytes as i64).wrapping_mul(sign));
        self.count = self.count.wrapping_add(sign);
    }

    pub fn join(&mut self, other: SignedTally) {
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.count = self.count.wrapping_add(other.count);
    }

    #[must_use]
    pub fn minus(self, other: SignedTally) -> SignedTally {
        SignedTally {
            bytes: self.bytes.wrapping_sub(other.bytes),
            count: self.count.wrapping_sub(other.count),
        }
    }

    /// 0 in place of what is below it.
    pub fn tally(self) -> Tally {
        Tally::new(self.bytes.max(0) as u64, self.count.max(0) as u64)
    }

    pub fn bytes(self) -> i64 {
        self.bytes
    }
}

impl Tally {
    pub const fn new(bytes: u64, count: u64) -> Tally {
        Tally { bytes, count }
    }

    /// Adds one record. A file may contain any numbers, so sums saturate.
    pub fn add(&mut self, bytes: u64) {
        self.join(Tally { bytes, count: 1 });
    }

    /// Adds another tally.
    pub fn join(&mut self, other: Tally) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.count = self.count.saturating_add(other.count);
    }

    /// What is left without another tally.
    #[must_use]
    pub fn less(self, other: Tally) -> Tally {
        Tally::new(
            self.bytes.saturating_sub(other.bytes),
            self.count.saturating_sub(other.count),
        )
    }

    /// At most as many bytes, and at most as many records.
    #[must_use]
    pub fn within(self, most: Tally) -> Tally {
        Tally::new(self.bytes.min(most.bytes), self.count.min(most.count))
    }

    pub fn total(tallies: impl IntoIterator<Item = Tally>) -> Tally {
        let mut total = Tally::default();
        for tally in tallies {
            total.join(tally);
        }
        total
    }
}

/// Memory of the same thing on two sides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Change {
    pub before: Tally,
    pub after: Tally,
}

impl Change {
    pub fn of(before: Tally, after: Tally) -> Change {
        Change { before, after }
    }

    pub fn bytes(&self) -> i128 {
        i128::from(self.after.bytes) - i128::from(self.before.bytes)
    }

    pub fn count(&self) -> i128 {
        i128::from(self.after.count) - i128::from(self.before.count)
    }

    /// The size of the change, by which rows are sorted: bytes, then count.
    pub fn size(&self) -> (u128, u128) {
        (self.bytes().unsigned_abs(), self.count().unsigned_abs())
    }

    pub fn join(&mut self, other: Change) {
        self.before.join(other.before);
        self.after.join(other.after);
    }
}

/// The memory of equal requests that failed.
impl From<&Failed> for Tally {
    fn from(failed: &Failed) -> Tally {
        Tally::new(failed.bytes.saturating_mul(failed.count), failed.count)
    }
}
