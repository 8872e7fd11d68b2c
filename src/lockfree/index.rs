//! A lock-free hash index: 64-bit hash → 32-bit number of a row elsewhere.
//!
//! ```text
//! level 0   │ window │ window │ window │ …        a window is one cache line of 8 words
//! level 1   │ window │ window │ window │ …  (twice as many)
//! word      ┌─ tag: upper half of the hash ─┬─ row number + 1 ─┐      0: free
//! ```
//!
//! A hash has one window in each level, and its entry may be any word of these windows. Removing an entry therefore only
//! clears its word: no probe sequence runs over it, so there are no tombstones and nothing is ever rehashed. New entries go to
//! the newest level but one, and if their window there is full, to the newest level. When that window is full too, a level
//! of twice the size is added; older levels empty as their entries are removed. (If entries went to the newest level only,
//! the first full window would occur while most windows are nearly empty: two levels hold three times as much before they
//! grow.)
//!
//! Why it is correct: every change is one compare-and-swap of one word, but for `Entry::clear`, a load and a plain store,
//! which needs a caller that alone may remove or insert the row's entry (`table.rs` has the proof). An entry is found if it
//! was inserted before the search began and not removed meanwhile, since it never moves. The tag only saves look-ups; the caller's `same`
//! decides, on the row itself, and verifies there that the row was not reused (records carry a generation).
//! A level is announced (`newest`) by every thread that enters something into it, before it does so, and not only by the
//! thread that mapped it: that thread may be stopped in between, and a search begins with the newest level announced.
//! `loom_models` checks this in every interleaving, and with every ordering weakened.
//! For `intern`, two threads with the same hash race for the *first* free word of the same window, so one of them
//! loses the swap and then sees the other's entry. (While a level is being added, both may win: the rows are then
//! duplicates, which readers merge.)
//!
//! The index is private to the process: readers of the recording scan the rows.

use std::sync::atomic::Ordering::*;

use crate::lockfree::sync::{AtomicPtr, AtomicU32, AtomicU64, elements, give_back, prefetch};
use crate::system::{Errno, cold_path};

const WINDOW: usize = if cfg!(loom) { 2 } else { 8 };
const LEVELS: usize = if cfg!(loom) { 2 } else { 20 };
/// Windows in level 0: 512 KiB of address space, of which only used pages are touched. Threads rarely share a window.
const FIRST: usize = if cfg!(loom) { 1 } else { 8192 };

/// All zeros is an empty index. The number of the newest level and the first levels share a cache line.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct Index {
    /// Number of the newest level.
    newest: AtomicU32,
    levels: [AtomicPtr<AtomicU64>; LEVELS],
}

/// The place of an entry, by which it can be removed without another search.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    pub row: u32,
    word: &'a AtomicU64,
    seen: u64,
}

/// The levels that [`Index::find_first`] has left out: those below the newest but one, and the newest, with this number.
#[derive(Clone, Copy)]
pub struct Rest(usize);

impl Rest {
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Entry<'_> {
    /// Removes this entry. False: it was already removed.
    pub fn remove(self) -> bool {
        self.word.compare_exchange(self.seen, 0, Relaxed, Relaxed).is_ok()
    }

    /// As `remove`, if no other thread may remove or insert an entry of this row: an unchanged word then stays unchanged until
    /// the store. False: the row's entry is elsewhere.
    #[inline]
    pub fn clear(self) -> bool {
        let same = self.word.load(Relaxed) == self.seen;
        if same {
            self.word.store(0, Relaxed);
        }
        same
    }
}

const fn word(hash: u64, row: u32) -> u64 {
    (hash & 0xffff_ffff_0000_0000) | (row as u64 + 1)
}

impl Index {
    #[inline]
    fn window(&self, level: usize, hash: u64) -> Option<&[AtomicU64; WINDOW]> {
        // Acquire: pairs with the Release in `add_level`, so the memory is mapped before it is used.
        let base = self.levels[level].load(Acquire);
        if base.is_null() {
            return None;
        }
        let window = hash as usize & ((FIRST << level) - 1);
        // SAFETY: the level was mapped with (FIRST << level) windows of WINDOW words, zeroed, and is never unmapped.
        Some(unsafe { &*base.add(window * WINDOW).cast() })
    }

    #[inline(never)]
    fn add_level(&self, level: usize) -> Result<(), Errno> {
        let words = (FIRST << level) * WINDOW;
        let memory = elements(words)?;
        // Release: pairs with the Acquire in `window`.
        if self.levels[level]
            .compare_exchange(std::ptr::null_mut(), memory, Release, Relaxed)
            .is_err()
        {
            // SAFETY: mapped above with this length; no other thread has its address.
            unsafe { give_back(memory, words) };
        }
        Ok(())
    }

    /// The entry with this hash whose row satisfies `same`.
    #[inline]
    pub fn find(&self, hash: u64, mut same: impl FnMut(u32) -> bool) -> Option<Entry<'_>> {
        match self.find_first(hash, &mut same) {
            (None, rest) => self.find_in_rest(rest, hash, same),
            (found, _) => found,
        }
    }

    /// As `find`, in the newest level but one, which has the most entries. Also returns the other levels: for a caller whose `same` is
    /// cheap only where it is inlined.
    #[inline(always)]
    pub fn find_first(&self, hash: u64, same: impl FnMut(u32) -> bool) -> (Option<Entry<'_>>, Rest) {
        let newest = self.newest.load(Relaxed) as usize;
        (self.find_in(newest.saturating_sub(1), hash, same), Rest(newest))
    }

    /// As `find`, in the levels that `find_first` has left out.
    #[inline]
    pub fn find_in_rest(&self, Rest(newest): Rest, hash: u64, mut same: impl FnMut(u32) -> bool) -> Option<Entry<'_>> {
        if newest == 0 {
            return None;
        }
        self.find_in(newest, hash, &mut same).or_else(|| {
            let mut older = (0..newest - 1).rev();
            older.find_map(|level| self.find_in(level, hash, &mut same))
        })
    }

    #[inline(always)]
    fn find_in(&self, level: usize, hash: u64, mut same: impl FnMut(u32) -> bool) -> Option<Entry<'_>> {
        let window = self.window(level, hash)?;
        // All tags first, without a branch: most words have another one, and `same` is inlined once instead of eight times.
        let mut left = with_tag(window, hash);
        if left == 0 {
            cold_path();
            return None;
        }
        while left != 0 {
            let word = &window[left.trailing_zeros() as usize % WINDOW];
            left &= left - 1;
            // Acquire: pairs with the Release in `put`, so the row is written before its number is seen.
            let seen = word.load(Acquire);
            if (seen ^ hash) >> 32 == 0 && seen != 0 {
                let row = seen as u32 - 1;
                if same(row) {
                    return Some(Entry { row, word, seen });
                }
            }
        }
        None
    }

    /// Returns false only if no entry has this hash. Takes less time than [`Index::find`].
    #[inline(always)]
    pub fn may_contain(&self, hash: u64) -> bool {
        let newest = self.newest.load(Relaxed) as usize;
        let is_near = |level| {
            self.window(level, hash)
                .is_some_and(|window| with_tag(window, hash) != 0)
        };
        match newest {
            0 => is_near(0),
            1 => is_near(0) || is_near(1),
            _ => true,
        }
    }

    /// Prefetches the cache line into which this hash will be inserted.
    #[inline]
    pub fn prepare(&self, hash: u64) {
        let level = (self.newest.load(Relaxed) as usize).saturating_sub(1);
        if let Some(window) = self.window(level, hash) {
            prefetch(&window[0]);
        }
    }

    /// Inserts a row. The caller guarantees that the row has no entry yet.
    ///
    /// # Errors
    /// Why no level could be added, or `ENOSPC` if there are too many.
    #[inline(always)]
    pub fn insert(&self, hash: u64, row: u32) -> Result<(), Errno> {
        // Most windows have no entry, so the first word is tried here.
        let level = (self.newest.load(Relaxed) as usize).saturating_sub(1);
        let first = self.window(level, hash).map(|window| &window[0]);
        let new = word(hash, row);
        // Release: pairs with the Acquire in `find`, as in `put`.
        let takes =
            |first: &AtomicU64| first.load(Relaxed) == 0 && first.compare_exchange(0, new, Release, Relaxed).is_ok();
        if first.is_some_and(takes) {
            return Ok(());
        }
        self.put(hash, row, |_| false).map(|_| ())
    }

    /// Inserts a row unless there is an equal one; returns the row that is in the index.
    ///
    /// # Errors
    /// As `insert`.
    pub fn intern(&self, hash: u64, row: u32, same: impl Fn(u32) -> bool) -> Result<u32, Errno> {
        self.put(hash, row, same)
    }

    #[unsafe(link_section = ".text.culeak_events")]
    fn put(&self, hash: u64, row: u32, same: impl Fn(u32) -> bool) -> Result<u32, Errno> {
        let new = word(hash, row);
        let newest = self.newest.load(Relaxed) as usize;
        let mut level = newest.saturating_sub(1);
        while level < LEVELS {
            if self.window(level, hash).is_none() {
                cold_path();
                self.add_level(level)?;
            }
            if level > newest {
                cold_path();
                // Announced before anything is inserted there, even if another thread mapped the level: that thread may not
                // have announced it yet, and a search begins with the newest level announced.
                self.newest.fetch_max(level as u32, Relaxed);
            }
            let Some(window) = self.window(level, hash) else {
                return Err(Errno(libc::ENOMEM));
            };
            for word in window {
                // Acquire, Release: as in `find`.
                let mut seen = word.load(Acquire);
                if seen == 0 {
                    match word.compare_exchange(0, new, AcqRel, Acquire) {
                        Ok(_) => return Ok(row),
                        Err(other) => seen = other,
                    }
                }
                if (seen ^ hash) >> 32 == 0 && same(seen as u32 - 1) {
                    return Ok(seen as u32 - 1);
                }
            }
            level += 1;
        }
        Err(Errno(libc::ENOSPC))
    }
}

/// The words of a window that have the tag of this hash, one bit each. They may change at once, so they must be examined again.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[inline(always)]
fn with_tag(window: &[AtomicU64; WINDOW], hash: u64) -> u32 {
    let (lower, upper): (u32, u32);
    // SAFETY: reads the 64 bytes of the window, and changes nothing else. A processor reads each aligned half of a word at once.
    unsafe {
        std::arch::asm!(
            "movd {tag}, {wanted:e}",
            "pshufd {tag}, {tag}, 0",
            "movups {a}, [{words}]",
            "movups {b}, [{words} + 16]",
            "shufps {a}, {b}, 0xdd", // the upper halves of four words
            "movups {b}, [{words} + 32]",
            "movups {c}, [{words} + 48]",
            "shufps {b}, {c}, 0xdd",
            "pcmpeqd {a}, {tag}",
            "pcmpeqd {b}, {tag}",
            "movmskps {lower:e}, {a}",
            "movmskps {upper:e}, {b}",
            words = in(reg) window.as_ptr(),
            wanted = in(reg) (hash >> 32) as u32,
            tag = out(xmm_reg) _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            lower = lateout(reg) lower,
            upper = lateout(reg) upper,
            options(readonly, nostack, preserves_flags),
        );
    }
    lower | upper << 4
}

#[cfg(any(not(target_arch = "x86_64"), loom, miri))]
#[inline(always)]
fn with_tag(window: &[AtomicU64; WINDOW], hash: u64) -> u32 {
    window.iter().enumerate().fold(0, |found, (place, word)| {
        found | u32::from((word.load(Relaxed) ^ hash) >> 32 == 0) << place
    })
}

/// Mixes 64 bits so that every input bit reaches every output bit (the finalizer of SplitMix64).
#[inline]
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;
    use std::collections::HashMap;

    /// The number of entries in all levels.
    pub(crate) fn entries(index: &Index) -> usize {
        let windows = |level| (0..FIRST << level).map_while(move |at| index.window(level, at as u64));
        let words = (0..LEVELS).flat_map(windows).flatten();
        words.filter(|word| word.load(Relaxed) != 0).count()
    }

    pub(crate) fn empty() -> Box<Index> {
        // SAFETY: documented: all zeros is an empty index.
        Box::new(unsafe { std::mem::zeroed() })
    }

    #[test]
    fn entries_are_found_until_removed_through_many_levels() {
        const ROWS: u32 = if cfg!(miri) { 300 } else { 100_000 };
        let index = empty();
        for row in 0..ROWS {
            index.insert(mix(u64::from(row)), row).unwrap();
        }
        for row in 0..ROWS {
            assert_eq!(index.find(mix(u64::from(row)), |found| found == row).unwrap().row, row);
        }
        for row in (0..ROWS).step_by(2) {
            assert!(index.find(mix(u64::from(row)), |found| found == row).unwrap().remove());
        }
        for row in 0..ROWS {
            assert_eq!(
                index.find(mix(u64::from(row)), |found| found == row).is_some(),
                row % 2 == 1
            );
        }
    }

    #[test]
    fn a_full_window_spills_into_the_next_level() {
        let index = empty();
        for row in 0..40 {
            index.insert(0x5_0000_0001, row).unwrap();
        }
        for row in 0..40 {
            assert!(index.find(0x5_0000_0001, |found| found == row).is_some(), "row {row}");
        }
    }

    #[test]
    fn an_entry_in_any_word_of_any_level_may_be_contained() {
        let index = empty();
        // Words of one window, each with a tag of its own; the last ones are in higher levels.
        let hash = |row: u32| u64::from(row + 1) << 32 | 7;
        for row in 0..40 {
            if row < 8 {
                assert!(!index.may_contain(hash(row)), "row {row}");
            }
            index.insert(hash(row), row).unwrap();
            for known in 0..=row {
                assert!(index.may_contain(hash(known)), "row {known} of {row}");
            }
        }
        assert!(index.newest.load(Relaxed) > 1);
    }

    #[test]
    fn threads_interning_the_same_values_agree_on_their_rows() {
        let index = empty();
        let rows: Vec<HashMap<u64, u32>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4u32)
                .map(|worker| {
                    let index = &index;
                    scope.spawn(move || {
                        (0..if cfg!(miri) { 20 } else { 500u64 })
                            .map(|value| {
                                let mine = value as u32 * 4 + worker;
                                let same = |row: u32| u64::from(row / 4) == value;
                                (value, index.intern(mix(value), mine, same).unwrap())
                            })
                            .collect()
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        assert!(rows.iter().all(|seen| *seen == rows[0]));
    }
}
