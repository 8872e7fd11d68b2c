//! Total allocations and frees of each stack, and what was live at each stack at the peak.
//!
//! ```text
//! shard   slots by (stack, kind, device)      rows in the file
//!        ┌───┬───┬───┬───┬───┐               ┌────────────────────────────────┐
//!   7 ──▶│   │ ● │   │ ● │   │ ────────────▶ │ of shard 7: bytes, count        │
//!        └───┴───┴───┴───┴───┘   (or index)  └────────────────────────────────┘
//! ```
//!
//! As for the other counters, each shard has its own rows, so that threads with the same stack do not contend; readers add
//! them up. A row is found through the shard's slots, a cache of the rows used last, or through the index.
//!
//! The memory live at the peak is found without visiting all rows at each new peak. A row that changes for the first time
//! since a peak saves its live bytes first, together with the peak:
//!
//! ```text
//! saved_peak == the current peak       the row changed since: saved_bytes were live at the peak
//! otherwise                            the row did not change since: its live bytes are those at the peak
//! ```
//!
//! Peaks only rise, so their bytes identify them. An allocation changes its row before the sum whose peak counts, and a free
//! afterwards; so with one thread the rows are exact. With several threads, the rows lack or include the events of other
//! threads that overlap the instant at which the peak was reached: between the swap that reaches it and the addition that
//! publishes it (`lockfree/peak.rs`). Readers compare the rows' sum with the peak, which is always exact.

use std::sync::atomic::{AtomicU64, Ordering::*};

use super::Recording;
use crate::format::*;
use crate::kind::Kind;
use crate::lockfree::index::mix;
use crate::lockfree::shards::Shard;
use crate::lockfree::table::{Attributes, Entry, Key};

impl Recording {
    /// Adds an allocation to the total of its stack, or a free. `peak`: the current peak of the sum in which the memory counts.
    #[inline]
    pub(super) fn count_at_stack(&self, of: Key, entry: &Entry, shard: Shard, op: Op, peak: u64) -> Option<u32> {
        let key = total_key(of, entry, shard).to_word();
        let hash = mix(key);
        let Some(slot) = self.last_used.slot(shard, hash) else {
            self.add(Loss::Details, 1);
            return None;
        };
        // SAFETY: null, or a row in an extent that is never unmapped.
        let last = unsafe { slot.load(Acquire).as_ref() };
        let row = match last.filter(|row| row.is(key)) {
            Some(row) => row,
            None => match self.total(key, hash) {
                Some(row) => {
                    // Release: pairs with the Acquire above, so a thread that shares the shard sees the row's key.
                    slot.store(std::ptr::from_ref(row).cast_mut(), Release);
                    row
                }
                None => {
                    self.add(Loss::Details, 1);
                    return None;
                }
            },
        };
        row.save(peak);
        let (bytes, count, sign) = match op {
            Op::Allocated => (&row.bytes, &row.count, 1),
            Op::Freed => (&row.freed_bytes, &row.freed_count, 1),
            Op::Restored => (&row.freed_bytes, &row.freed_count, 1u64.wrapping_neg()),
        };
        shard.add(bytes, entry.bytes.wrapping_mul(sign));
        shard.add(count, sign);
        Some(row.number.load(Relaxed))
    }

    #[cold]
    #[inline(never)]
    fn total(&self, key: u64, hash: u64) -> Option<&TotalRow> {
        let backing = self.backing(Section::Totals);
        let at = |number| self.totals.get(backing, number);
        let same = |number| at(number).is_some_and(|row: &TotalRow| row.is(key));
        if let Some(known) = self.total_index.find(hash, same) {
            return at(known.row);
        }
        let (number, row) = self.row(Section::Totals, &self.totals)?;
        row.number.store(number, Relaxed);
        // Release: pairs with the Acquire in `TotalRow::is` and with readers, which accept a row with a key.
        row.key_plus_one.store(key + 1, Release);
        // Two threads of one shard may add a row at once; the row that lost the race stays at zero.
        let known = self.total_index.intern(hash, number, same).unwrap_or(number);
        at(known)
    }
}

#[inline]
fn total_key(key: Key, entry: &Entry, shard: Shard) -> TotalKey {
    let attributes = entry.attributes;
    let name = if attributes.kind != Kind::Block {
        attributes.api
    } else if attributes.flags & Attributes::IN_HEAP != 0 {
        (entry.pool as u8).into()
    } else {
        block_parts(key.address).0.into()
    };
    TotalKey {
        stack: entry.stack,
        kind: attributes.kind as u8,
        slot: attributes.device.wrapping_add(1),
        shard: shard.number() as u8,
        name,
    }
}

impl TotalRow {
    /// Saves the row's live bytes and count as those at this peak, before they change for the first time since.
    #[inline]
    fn save(&self, peak: u64) {
        if self.saved_peak.load(Relaxed) == peak {
            return;
        }
        let live = |all: &AtomicU64, freed: &AtomicU64| all.load(Relaxed).wrapping_sub(freed.load(Relaxed));
        self.saved_bytes.store(live(&self.bytes, &self.freed_bytes), Relaxed);
        self.saved_count
            .store(live(&self.count, &self.freed_count) as u32, Relaxed);
        // Release: pairs with readers, which use the two words above if this one is the current peak.
        self.saved_peak.store(peak, Release);
    }
}
