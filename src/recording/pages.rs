//! Pages of the program's own pools, by state and owner.
//!
//! A row is a pool, or an owner of pages in one, such as a request of a server. It is used again after its owner has ended and
//! holds nothing, so their number is bounded by what exists at one time. Phases are not: their rows and names stay.
//!
//! ```text
//! unused ──► written ──► used ──► unused, in the next generation
//!      begin       begin     end, or the last page of an owner that has ended
//! ```
//!
//! An id contains the row's generation: the id of an owner that is gone has no effect. Counts are plain stores, so calls
//! with one id that overlap leave the counts of either.

use std::sync::atomic::{Ordering::*, fence};

use super::{Recording, beginning, store_bytes};
use crate::format::*;

/// The most pools and owners at one time.
const MOST: u64 = if cfg!(test) { 100 } else { 4096 };
/// The longest name, in bytes; longer names are truncated.
const NAME_MAX: usize = 112;

/// A pool or an owner: row + 1 in the low half, generation in the high half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagesId(pub u64);

impl Recording {
    /// Begins a pool of the allocator called `name`, or, with the id of a pool, an owner in it. `None` if there is no such pool, or no
    /// room, which is counted.
    pub fn begin_pages(&self, pool: Option<PagesId>, name: &[u8], page_bytes: u64) -> Option<PagesId> {
        if let Some(pool) = pool {
            let row = self.pages_of(pool).filter(|row| row.pool.load(Relaxed) == 0)?;
            row.owners.fetch_add(1, Relaxed);
        }
        let Some((number, row, generation)) = (0..3).find_map(|_| self.unused_pages()) else {
            self.add(Loss::Details, 1);
            return None;
        };
        row.pool.store(pool.map_or(0, |pool| pool.0), Relaxed);
        row.begin_ns.store(self.now(), Relaxed);
        row.end_plus_one.store(0, Relaxed);
        row.page_bytes.store(page_bytes, Relaxed);
        row.owners.store(0, Relaxed);
        row.pages.iter().for_each(|count| count.store(0, Relaxed));
        store_bytes(&row.name, beginning(name, NAME_MAX));
        // Release: pairs with readers, which accept a row that is used.
        row.state.store(pack(PagesState::Used as u32, generation), Release);
        Some(PagesId(pack(number + 1, generation)))
    }

    /// Stores how many pages an owner or a pool has: live, reclaimable, waiting, free.
    pub fn set_pages(&self, id: PagesId, pages: [u64; 4]) {
        let Some(row) = self.pages_of(id) else { return };
        for (count, pages) in row.pages.iter().zip(pages) {
            count.store(pages, Relaxed);
        }
        // Pairs with the one in `end_pages`: at least one of two that overlap sees that the owner has ended and holds nothing.
        fence(SeqCst);
        if row.end_plus_one.load(Relaxed) != 0 && holds_nothing(row) {
            release(row, id);
        }
    }

    /// An owner has ended: its row stays as long as it holds pages. Or a pool, whose owners end with it.
    pub fn end_pages(&self, id: PagesId) {
        let Some(row) = self.pages_of(id) else { return };
        if row.pool.load(Relaxed) == 0 {
            let count = self.elements(Section::Pages).load(Relaxed) as u32;
            for (number, owner) in (0..count).filter_map(|number| Some((number, self.pages_row(number)?))) {
                // Acquire: the pool is that of the owner in this generation, which `release` compares.
                let (state, generation) = halves(owner.state.load(Acquire));
                if state == PagesState::Used as u32 && owner.pool.load(Relaxed) == id.0 {
                    release(owner, PagesId(pack(number + 1, generation)));
                }
            }
            return release(row, id);
        }
        let _ = row.end_plus_one.compare_exchange(0, self.now() + 1, Relaxed, Relaxed);
        // Pairs with the one in `set_pages`.
        fence(SeqCst);
        if holds_nothing(row) {
            release(row, id);
        }
    }

    fn pages_row(&self, number: u32) -> Option<&PagesRow> {
        self.pages.get(self.backing(Section::Pages), number)
    }

    /// The row of a pool or an owner that exists. After the end of the program's own work there is none: what it held then stays.
    fn pages_of(&self, id: PagesId) -> Option<&PagesRow> {
        let (row_plus_one, generation) = halves(id.0);
        let row = self.pages_row(row_plus_one.checked_sub(1)?)?;
        // Acquire: pairs with the Release in `begin_pages`.
        let is_used = row.state.load(Acquire) == pack(PagesState::Used as u32, generation);
        (is_used && !self.has_ended()).then_some(row)
    }

    /// A row that no other thread has, and its generation.
    fn unused_pages(&self) -> Option<(u32, &PagesRow, u32)> {
        let count = self.elements(Section::Pages).load(Relaxed);
        let (is_full, count) = (count >= MOST, count as u32);
        let from = self.next_pages.load(Relaxed);
        for number in (0..count).map(|place| from.wrapping_add(place) % count) {
            if let Some((row, generation)) = self.pages_row(number).and_then(|row| Some((row, taken(row)?))) {
                self.next_pages.store(number + 1, Relaxed);
                return Some((number, row, generation));
            }
        }
        let (number, row) = (!is_full).then(|| self.row(Section::Pages, &self.pages))??;
        // Another thread may have found it already.
        Some((number, row, taken(row)?))
    }
}

/// Takes an unused row, and returns its generation.
fn taken(row: &PagesRow) -> Option<u32> {
    let (state, generation) = halves(row.state.load(Relaxed));
    if state != PagesState::Unused as u32 {
        return None;
    }
    let written = pack(PagesState::Written as u32, generation);
    // Acquire: pairs with the Release in `release`, after all stores for the owner before.
    let taken = row
        .state
        .compare_exchange(pack(state, generation), written, Acquire, Relaxed);
    taken.is_ok().then_some(generation)
}

fn holds_nothing(row: &PagesRow) -> bool {
    row.pages.iter().all(|count| count.load(Relaxed) == 0)
}

/// Only the first call for an owner has an effect.
fn release(row: &PagesRow, id: PagesId) {
    let (_, generation) = halves(id.0);
    let next = pack(PagesState::Unused as u32, generation.wrapping_add(1));
    // Release: pairs with the Acquire in `taken`.
    let used = pack(PagesState::Used as u32, generation);
    let _ = row.state.compare_exchange(used, next, Release, Relaxed);
}
