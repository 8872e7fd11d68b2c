//! Total allocations of each stack, whether freed since or not.
//!
//! ```text
//! shard   slots by (stack, kind, device)      rows in the file
//!        ┌───┬───┬───┬───┬───┐               ┌────────────────────────────────┐
//!   7 ──▶│   │ ● │   │ ● │   │ ────────────▶ │ of shard 7: bytes, count        │
//!        └───┴───┴───┴───┴───┘   (or index)  └────────────────────────────────┘
//! ```
//!
//! As for the other counters, each shard has its own rows, so that threads with the same stack do not contend; readers add
//! them up. A row is found through the shard's slots, a cache of the rows used last, or through the index. Deliberately
//! absent: freed bytes, which are the total minus the live records.

use std::sync::atomic::Ordering::*;

use super::Recording;
use crate::format::*;
use crate::lockfree::index::mix;
use crate::lockfree::shards::Shard;
use crate::lockfree::table::Entry;

impl Recording {
    /// Adds an allocation to the total of its stack.
    #[inline]
    pub(super) fn count_at_stack(&self, entry: &Entry, shard: Shard) {
        let key = TotalKey {
            stack: entry.stack,
            kind: entry.attributes.kind as u8,
            slot: entry.attributes.device.wrapping_add(1),
            shard: shard.number() as u8,
        }
        .to_word();
        let hash = mix(key);
        let Some(slot) = self.last_used.slot(shard, hash) else {
            return self.add(Loss::Details, 1);
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
                None => return self.add(Loss::Details, 1),
            },
        };
        shard.add(&row.bytes, entry.bytes);
        shard.add(&row.count, 1);
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
        // Release: pairs with the Acquire in `TotalRow::is` and with readers, which accept a row with a key.
        row.key_plus_one.store(key + 1, Release);
        // Two threads of one shard may add a row at once; the row that lost the race stays at zero.
        let known = self.total_index.intern(hash, number, same).unwrap_or(number);
        at(known)
    }
}
