//! The buffer of copied pages, and the page tables.
//!
//! ```text
//! number  0        1        2 … copied + 1      copied + 2 …
//!         unknown  absent   copied at once      added singly
//! ```
//!
//! Addresses that nothing is mapped near have a page table in which every page is absent, so words that are not pointers
//! cost no memory and no search for their region.

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use culeak::system::anonymous;

use super::room;
use super::selection::append;
use crate::source::PAGE;

/// No one has asked for the page yet.
pub const UNKNOWN: u32 = 0;
/// The page cannot be read; its words are 0.
pub const ABSENT: u32 = 1;
/// The number of the first copied page.
const FIRST: u32 = 2;

/// Pages of one page table: 1 GiB of addresses.
const TABLE: usize = 1 << 18;
/// Page tables: 48 bits of address.
const TABLES: usize = 1 << 18;
const HUGE_PAGE: usize = 2 << 20;

/// In place of a page table: all pages are unknown.
static ALL_UNKNOWN: [AtomicU32; TABLE] = [const { AtomicU32::new(UNKNOWN) }; TABLE];
/// In place of a page table: all pages are absent.
static ALL_ABSENT: OnceLock<Box<[AtomicU32]>> = OnceLock::new();

/// Pages by address. Several threads may read, and add pages.
pub struct Pages {
    /// Pointers to `TABLE` numbers each. The two placeholders are never written.
    directory: Box<[AtomicPtr<AtomicU32>]>,
    mapping: Mapping,
    copied: u32,
    added: Mutex<Added>,
    end: u32,
}

/// What was added singly, or on the way.
struct Added {
    /// The page tables that belong to this value; made by `Box::into_raw`.
    tables: Vec<AtomicPtr<AtomicU32>>,
    /// The number of the next page.
    next: u32,
}

/// Anonymous memory, unmapped in the end.
struct Mapping {
    base: *mut u8,
    bytes: usize,
    /// The first page; aligned as a huge page.
    start: *mut u8,
}

// SAFETY: the memory belongs to the value alone. A page is written before its number is stored, by one thread, and is only read
// from then on.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `Pages::new` with this length; the owner of this value lent all references to it.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let added = self.added.get_mut().unwrap_or_else(PoisonError::into_inner);
        for table in added.tables.drain(..) {
            // SAFETY: made by `Box::into_raw` in `own_table`, once each, and used by this value only.
            drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(table.into_inner(), TABLE)) });
        }
    }
}

impl Pages {
    /// Room for this many pages to be copied at once, and for others to be added singly. Memory is used when it is written.
    ///
    /// # Errors
    /// The machine has not enough memory for the pages to be copied.
    pub fn new(copied: u64, singly: u64) -> io::Result<Pages> {
        let numbers = |pages: u64| u32::try_from(pages).ok().filter(|&pages| pages < u32::MAX - FIRST);
        let too_large = || io::Error::new(io::ErrorKind::OutOfMemory, "more than 16 TiB");
        room::check(copied.saturating_mul(PAGE))?;
        let copied = numbers(copied).ok_or_else(too_large)?;
        let end = numbers(u64::from(copied) + singly).ok_or_else(too_large)? + FIRST;
        let bytes = end as usize * PAGE as usize + HUGE_PAGE;
        let base = anonymous(bytes).map_err(|error| io::Error::from_raw_os_error(error.0))?;
        // The first copied page begins at a multiple of a huge page.
        let skipped = FIRST as usize * PAGE as usize;
        let first = (base as usize + skipped).next_multiple_of(HUGE_PAGE);
        // SAFETY: less than HUGE_PAGE further, for which there is room.
        let start = unsafe { base.add(first - skipped - base as usize) };
        let whole = copied as usize * PAGE as usize / HUGE_PAGE * HUGE_PAGE;
        if whole > 0 {
            // Fewer page faults; a refusal only costs time.
            // SAFETY: advice about a part of the new mapping.
            unsafe { libc::madvise(first as *mut libc::c_void, whole, libc::MADV_HUGEPAGE) };
        }
        let absent = all_absent();
        Ok(Pages {
            directory: (0..TABLES).map(|_| AtomicPtr::new(absent)).collect(),
            mapping: Mapping { base, bytes, start },
            copied,
            added: Mutex::new(Added {
                tables: Vec::new(),
                next: FIRST + copied,
            }),
            end,
        })
    }

    /// Pages in this range are unknown from now on. All others are absent.
    pub fn may_have(&mut self, range: &Range<u64>) {
        let last = (range.end.saturating_sub(1) >> 30).min(TABLES as u64 - 1);
        for entry in range.start >> 30..=last {
            let entry = self.directory[entry as usize].get_mut();
            if *entry == all_absent() {
                *entry = all_unknown();
            }
        }
    }

    pub fn copied(&self) -> u64 {
        u64::from(self.copied)
    }

    /// The memory of the pages that are copied at once.
    pub fn copied_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has room for them, no reference to them exists, since `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(FIRST), self.copied as usize * PAGE as usize) }
    }

    /// Enters the pages of these ranges, which were copied in this order, except for the missing ones, whose positions are
    /// in ascending order. Returns the ranges without those.
    pub fn enter(&mut self, ranges: &[Range<u64>], missing: &[u32]) -> Vec<Range<u64>> {
        let mut added = self.lock();
        let mut runs: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        let mut missing = missing.iter().copied().peekable();
        let mut place = 0;
        for range in ranges {
            for page in range.clone().step_by(PAGE as usize) {
                if missing.next_if_eq(&place).is_some() {
                    self.set(&mut added, page, ABSENT);
                } else {
                    self.set(&mut added, page, FIRST + place);
                    append(&mut runs, page..page + PAGE);
                }
                place += 1;
            }
        }
        runs
    }

    /// Adds consecutive pages of which none is known, or just this one, which is among them, if `read` fills their memory. A
    /// page that cannot be read is absent. Returns its number.
    pub(super) fn add(&self, page: u64, around: &Range<u64>, read: impl Fn(Range<u64>, &mut [u8]) -> bool) -> u32 {
        let mut added = self.lock();
        // Another thread may have added it.
        let number = self.number(page);
        if number != UNKNOWN {
            return number;
        }
        for range in [around.clone(), page..page + PAGE] {
            let count = ((range.end - range.start) / PAGE) as u32;
            let pages = || range.clone().step_by(PAGE as usize);
            if count > self.end - added.next || pages().any(|page| self.number(page) != UNKNOWN) {
                continue;
            }
            // SAFETY: inside the mapping; no other reference exists, since no page has these numbers yet and the lock is held.
            let memory =
                unsafe { std::slice::from_raw_parts_mut(self.pointer(added.next), count as usize * PAGE as usize) };
            if read(range.clone(), memory) {
                for page in pages() {
                    let number = added.next;
                    added.next += 1;
                    self.set(&mut added, page, number);
                }
                return self.number(page);
            }
        }
        self.set(&mut added, page, ABSENT);
        ABSENT
    }

    /// Whether another page can be added.
    pub(super) fn has_room(&self) -> bool {
        self.lock().next < self.end
    }

    fn lock(&self) -> MutexGuard<'_, Added> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, added: &mut Added, address: u64, number: u32) {
        let Some(entry) = self.directory.get((address >> 30) as usize) else {
            return;
        };
        let table = self.own_table(added, entry);
        // SAFETY: a table has `TABLE` numbers.
        let place = unsafe { &*table.add((address / PAGE) as usize % TABLE) };
        // Release: pairs with the Acquire in `number`, so the page's memory is visible once it has a number.
        place.store(number, Release);
    }

    /// The page table of an entry, in place of a placeholder. Tables are made under the lock.
    fn own_table(&self, added: &mut Added, entry: &AtomicPtr<AtomicU32>) -> *mut AtomicU32 {
        let table = entry.load(Relaxed);
        if table != all_unknown() && table != all_absent() {
            return table;
        }
        let numbers: Box<[AtomicU32]> = (0..TABLE).map(|_| AtomicU32::new(UNKNOWN)).collect();
        let table: *mut AtomicU32 = Box::into_raw(numbers).cast();
        // Release: pairs with the Acquire in `number`, so the table's numbers are visible with the table.
        entry.store(table, Release);
        added.tables.push(AtomicPtr::new(table));
        table
    }

    /// The number of the page that contains this address.
    #[inline]
    pub(super) fn number(&self, address: u64) -> u32 {
        match self.directory.get((address >> 30) as usize) {
            Some(table) => {
                // Acquire: pairs with the Release in `own_table`.
                let table = table.load(Acquire);
                // SAFETY: every entry points to `TABLE` numbers.
                let place = unsafe { &*table.add((address / PAGE) as usize % TABLE) };
                // Acquire: pairs with the Release in `set`.
                place.load(Acquire)
            }
            None => ABSENT,
        }
    }

    #[inline]
    pub(super) fn is_copied(&self, number: u32) -> bool {
        number.wrapping_sub(FIRST) < self.copied
    }

    /// The position of a page among those copied at once.
    #[inline]
    pub(super) fn place(&self, number: u32) -> Option<usize> {
        self.is_copied(number).then(|| (number - FIRST) as usize)
    }

    /// A word of a page. The number is one that `number` or `add` of these pages returned, here and below. The
    /// offset is at most PAGE - 8.
    #[inline]
    pub(super) fn word(&self, number: u32, offset: u64) -> u64 {
        debug_assert!(offset <= PAGE - 8);
        // SAFETY: `copy`, which alone can call this, passes numbers of these pages, so the page is inside the mapping; it
        // checks that the word is in the page.
        unsafe { self.pointer(number).add(offset as usize).cast::<u64>().read_unaligned() }
    }

    /// Starts to load the word at this offset of a page into the processor's cache.
    #[inline]
    pub(super) fn prefetch(&self, number: u32, offset: u64) {
        super::prefetch(self.pointer(number).wrapping_add(offset as usize));
    }

    /// The words of a page.
    pub(super) fn words(&self, number: u32) -> &[u64; 512] {
        // SAFETY: as above; the page is aligned and is not written again.
        unsafe { &*self.pointer(number).cast() }
    }

    /// The bytes of a page from an offset on.
    pub(super) fn bytes(&self, number: u32, offset: u64) -> &[u8] {
        let offset = offset as usize;
        debug_assert!(offset < PAGE as usize);
        // SAFETY: as above; `copy` passes the remainder of an address by the size of a page.
        unsafe { std::slice::from_raw_parts(self.pointer(number).add(offset), PAGE as usize - offset) }
    }

    #[inline]
    fn pointer(&self, number: u32) -> *mut u8 {
        debug_assert!(number <= self.end);
        // SAFETY: numbers that `number` and `add` return are below `end`, for which the mapping has room, and `add` asks only
        // for those. The end of the mapping is a valid address.
        unsafe { self.mapping.start.add(number as usize * PAGE as usize) }
    }
}

fn all_unknown() -> *mut AtomicU32 {
    ALL_UNKNOWN.as_ptr().cast_mut()
}

fn all_absent() -> *mut AtomicU32 {
    let table = ALL_ABSENT.get_or_init(|| (0..TABLE).map(|_| AtomicU32::new(ABSENT)).collect());
    table.as_ptr().cast_mut()
}
