//! Bytes and a count together: the unit of every sum in a report.

use serde::Serialize;

/// Bytes, and the number of records that they belong to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Tally {
    pub bytes: u64,
    pub count: u64,
}

impl Tally {
    /// Adds one record. A file may contain any numbers, so sums saturate.
    pub fn add(&mut self, bytes: u64) {
        self.join(Tally { bytes, count: 1 });
    }

    /// Adds another tally.
    pub fn join(&mut self, other: Tally) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.count = self.count.saturating_add(other.count);
    }

    pub fn total(tallies: impl IntoIterator<Item = Tally>) -> Tally {
        let mut total = Tally::default();
        for tally in tallies {
            total.join(tally);
        }
        total
    }
}
