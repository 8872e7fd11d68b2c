//! What was asked for at each stack, freed since or not.
//!
//! ```text
//! shard   slots by (stack, kind, device)      rows in the file
//!        ┌───┬───┬───┬───┬───┐               ┌────────────────────────────────┐
//!   7 ──▶│   │ ● │   │ ● │   │ ────────────▶ │ of shard 7: bytes, count        │
//!        └───┴───┴───┴───┴───┘   (or index)  └────────────────────────────────┘
//! ```
//!
//! As the other counters, every shard has rows of its own, so that threads with the same stack do not meet; readers add
//! them up. A row is found through a few slots per shard that remember what was last used, else through the index.
//! Deliberately absent: what of it was freed; that is what is not among the live records.

use std::sync::atomic::Ordering::*;

use super::Recording;
use crate::format::*;
use crate::lockfree::index::mix;
use crate::lockfree::shards::Shard;
use crate::lockfree::table::Entry;

impl Recording {
    /// Adds an allocation to what its stack has asked for.
    #[inline]
    pub(super) fn count_at_stack(&self, entry: &Entry, shard: Shard) {
        let of = TotalOf {
            stack: entry.stack,
            kind: entry.attributes.kind as u8,
            slot: entry.attributes.device.wrapping_add(1),
            shard: shard.number() as u8,
        }
        .to_word();
        let hash = mix(of);
        let Some(slot) = self.last_used.slot(shard, hash) else {
            return self.add(Loss::Details, 1);
        };
        // SAFETY: null, or a row in an extent that is never unmapped.
        let last = unsafe { slot.load(Acquire).as_ref() };
        let row = match last.filter(|row| row.is(of)) {
            Some(row) => row,
            None => match self.total(of, hash) {
                Some(row) => {
                    // Release: pairs with the Acquire above; a thread that shares the shard sees whose row it is.
                    slot.store(std::ptr::from_ref(row).cast_mut(), Release);
                    row
                }
                None => return self.add(Loss::Details, 1),
            },
        };
        shard.add(&row.bytes, entry.bytes);
        shard.add(&row.count, 1);
    }

    #[cold]
    #[inline(never)]
    fn total(&self, of: u64, hash: u64) -> Option<&TotalRow> {
        let backing = self.backing(Section::Totals);
        let at = |number| self.totals.get(backing, number);
        let same = |number| at(number).is_some_and(|row: &TotalRow| row.is(of));
        if let Some(known) = self.total_index.find(hash, same) {
            return at(known.row);
        }
        let (number, row) = self.row(Section::Totals, &self.totals)?;
        // Release: readers take a row that says what it is about.
        row.of_plus_one.store(of + 1, Release);
        // Two threads of one shard may come here together; the row that lost stays at zero.
        let known = self.total_index.intern(hash, number, same).unwrap_or(number);
        at(known)
    }
}
