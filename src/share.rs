//! Bytes and the number of records they lie in: what every sum in a report is made of.

use serde::Serialize;

/// Bytes and the number of records they lie in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    pub bytes: u64,
    pub count: u64,
}

impl Share {
    /// Adds one record. A file may claim anything, so sums stop at the largest number instead of wrapping.
    pub fn add(&mut self, bytes: u64) {
        self.join(Share { bytes, count: 1 });
    }

    /// Adds several.
    pub fn join(&mut self, other: Share) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.count = self.count.saturating_add(other.count);
    }

    pub fn total(shares: impl IntoIterator<Item = Share>) -> Share {
        let mut total = Share::default();
        for share in shares {
            total.join(share);
        }
        total
    }
}
