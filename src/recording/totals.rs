//! What was asked for at each stack, freed since or not.
//!
//! ```text
//! lane   slots by (stack, kind, device)      rows in the file
//!        ┌───┬───┬───┬───┬───┐               ┌────────────────────────────────┐
//!   7 ──▶│   │ ● │   │ ● │   │ ────────────▶ │ of lane 7: bytes, count        │
//!        └───┴───┴───┴───┴───┘   (or index)  └────────────────────────────────┘
//! ```
//!
//! As the other counters, every lane has rows of its own, so that threads with the same stack do not meet; readers add
//! them up. A row is found through a few slots per lane that remember what was last used, else through the index.
//! Deliberately absent: what of it was freed; that is what is not among the live records.

use std::sync::atomic::{AtomicPtr, Ordering::*};

use super::Recording;
use crate::file::anonymous;
use crate::index::mix;
use crate::layout::*;
use crate::table::Entry;

/// Per lane; a power of two.
const SLOTS: usize = 256;
const BYTES: usize = LANES * SLOTS * size_of::<AtomicPtr<TotalRow>>();

/// The rows that each lane used last. All zeros is an empty one.
#[repr(C)]
pub struct LastUsed(AtomicPtr<AtomicPtr<TotalRow>>);

impl LastUsed {
    fn slot(&self, lane: u32, hash: u64) -> Option<&AtomicPtr<TotalRow>> {
        let mut base = self.0.load(Acquire);
        if base.is_null() {
            base = self.map()?;
        }
        let place = lane as usize % LANES * SLOTS + hash as usize % SLOTS;
        // SAFETY: mapped for LANES * SLOTS pointers, zeroed and never unmapped; `place` is below that.
        Some(unsafe { &*base.add(place) })
    }

    #[cold]
    fn map(&self) -> Option<*mut AtomicPtr<TotalRow>> {
        let memory = anonymous(BYTES).ok()?;
        match self
            .0
            .compare_exchange(std::ptr::null_mut(), memory.cast(), AcqRel, Acquire)
        {
            Ok(_) => Some(memory.cast()),
            Err(other) => {
                // SAFETY: mapped just now with this length; nobody has seen it.
                unsafe { libc::munmap(memory.cast(), BYTES) };
                Some(other)
            }
        }
    }
}

impl Recording {
    /// Adds an allocation to what its stack has asked for.
    #[inline]
    pub(super) fn count_at_stack(&self, entry: &Entry) {
        let lane = entry.thread % LANES as u32;
        let of = TotalOf {
            stack: entry.stack,
            kind: entry.what.kind as u8,
            slot: entry.what.device.wrapping_add(1),
            lane: lane as u8,
        }
        .to_word();
        let hash = mix(of);
        let Some(slot) = self.last_used.slot(lane, hash) else {
            return self.add(Loss::Details, 1);
        };
        // SAFETY: null, or a row in an extent that is never unmapped.
        let last = unsafe { slot.load(Acquire).as_ref() };
        let row = match last.filter(|row| row.is(of)) {
            Some(row) => row,
            None => match self.total(of, hash) {
                Some(row) => {
                    // Release: pairs with the Acquire above; a thread that shares the lane sees whose row it is.
                    slot.store(std::ptr::from_ref(row).cast_mut(), Release);
                    row
                }
                None => return self.add(Loss::Details, 1),
            },
        };
        row.bytes.fetch_add(entry.bytes, Relaxed);
        row.count.fetch_add(1, Relaxed);
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
        // Two threads of one lane may come here together; the row that lost stays at zero.
        let known = self.total_index.intern(hash, number, same).unwrap_or(number);
        at(known)
    }
}
