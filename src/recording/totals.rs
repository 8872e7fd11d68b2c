//! Total allocations and frees of each stack, and what was live at each stack at the peak.
//!
//! ```text
//! shard   slots by stack                      rows in the file
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
//! publishes it (`lockfree/peak.rs`). In a shard that threads share, a thread that is stopped while it saves a row may save a later
//! value. Readers compare the rows' sum with the peak, which is always exact.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

use super::Recording;
use crate::format::*;
use crate::kind::Kind;
use crate::lockfree::index::mix;
use crate::lockfree::shards::Shard;
use crate::lockfree::table::{Attributes, Key, Summed};
use crate::system::aside;

impl Recording {
    /// The total of an allocation's stack, to which the caller adds an event. `peak`: the current peak of the sum in which the
    /// memory counts.
    #[inline(always)]
    pub(super) fn total_of(&self, summed: &Summed, of: Key, shard: Shard, peak: u64) -> Option<&TotalRow> {
        let key = total_key(summed, of, shard);
        let slot = self.often.last_used.slot(shard, summed.stack);
        // Acquire: pairs with the Release in `find_total`, so a thread that shares the shard sees the row's key.
        // SAFETY: null, or a row in an extent that is never unmapped.
        let last = slot.and_then(|slot| unsafe { slot.load(Acquire).as_ref() });
        let row = match last.filter(|row| row.is(key)) {
            Some(row) => row,
            None => self.find_total(key, slot)?,
        };
        if row.saved_peak.load(Relaxed) != peak {
            row.save(peak);
        }
        Some(row)
    }

    #[cold]
    #[inline(never)]
    fn find_total(&self, key: u64, slot: Option<&AtomicPtr<TotalRow>>) -> Option<&TotalRow> {
        let row = self.total(key, mix(key));
        match (row, slot) {
            // Release: pairs with the Acquire in `total_of`.
            (Some(row), Some(slot)) => slot.store(std::ptr::from_ref(row).cast_mut(), Release),
            _ => self.add(Loss::Details, 1),
        }
        row
    }

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

/// [`TotalKey`] as a word.
#[inline(always)]
fn total_key(summed: &Summed, of: Key, shard: Shard) -> u64 {
    let parts = Attributes::parts(summed.attributes);
    let name = match summed.kind {
        Kind::Block => domain_of(&aside(summed), of, parts.flags),
        _ => parts.api,
    };
    TotalKey {
        stack: summed.stack,
        kind: parts.kind,
        slot: parts.device.wrapping_add(1),
        shard: shard.number() as u8,
        name,
    }
    .to_word()
}

#[cold]
fn domain_of(summed: &Summed, of: Key, flags: u8) -> u16 {
    let in_heap = flags & Attributes::IN_HEAP != 0;
    if in_heap {
        summed.pool as u8
    } else {
        block_parts(of.address).0
    }
    .into()
}

impl TotalRow {
    /// Saves the row's live bytes and count as those at this peak, before they change for the first time since.
    #[inline(never)]
    fn save(&self, peak: u64) {
        let live = |all: &AtomicU64, freed: &AtomicU64| all.load(Relaxed).wrapping_sub(freed.load(Relaxed));
        self.saved_bytes.store(live(&self.bytes, &self.freed_bytes), Relaxed);
        self.saved_count
            .store(live(&self.count, &self.freed_count) as u32, Relaxed);
        // Release: pairs with readers, which use the two words above if this one is the current peak.
        self.saved_peak.store(peak, Release);
    }
}
