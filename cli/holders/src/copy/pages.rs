//! The buffer of copied pages, and the page tables.
//!
//! ```text
//! number  0        1        2 … copied + 1      copied + 2 …
//!         unknown  absent   copied at once      added singly
//! ```
//!
//! Addresses that nothing is mapped near have a page table in which every page is absent, so words that are not pointers
//! cost no memory and no search for their region.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;

use culeak::system::anonymous;

use super::{PAGE, room};

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
static ALL_UNKNOWN: [u32; TABLE] = [UNKNOWN; TABLE];
/// In place of a page table: all pages are absent.
static ALL_ABSENT: OnceLock<Box<[u32]>> = OnceLock::new();

/// Pages by address. Used by one thread.
pub struct Pages {
    /// Pointers to `TABLE` numbers each. The two placeholders are never written.
    directory: Box<[Cell<*mut u32>]>,
    /// The page tables that belong to this value.
    tables: Cell<Vec<*mut u32>>,
    mapping: Mapping,
    copied: u32,
    next: Cell<u32>,
    end: u32,
}

/// Anonymous memory, unmapped in the end.
struct Mapping {
    base: *mut u8,
    bytes: usize,
    /// The first page; aligned as a huge page.
    start: *mut u8,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: mapped in `Pages::new` with this length; the owner of this value lent all references to it.
            unsafe { libc::munmap(self.base.cast(), self.bytes) };
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        for table in self.tables.take() {
            // SAFETY: made by `Box::into_raw` in `own_table`, once each, and used by this value only.
            drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(table, TABLE)) });
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
        Ok(Pages::over(Mapping { base, bytes, start }, copied, end))
    }

    /// Without any page.
    pub fn none() -> Pages {
        let start = ZEROS.as_ptr().cast_mut().cast();
        Pages::over(
            Mapping {
                base: start,
                bytes: 0,
                start,
            },
            0,
            FIRST,
        )
    }

    fn over(mapping: Mapping, copied: u32, end: u32) -> Pages {
        let absent = all_absent();
        Pages {
            directory: vec![Cell::new(absent); TABLES].into(),
            tables: Cell::default(),
            mapping,
            copied,
            next: Cell::new(FIRST + copied),
            end,
        }
    }

    /// Pages in this range are unknown from now on. All others are absent.
    pub fn may_have(&mut self, range: &Range<u64>) {
        let last = (range.end.saturating_sub(1) >> 30).min(TABLES as u64 - 1);
        for entry in range.start >> 30..=last {
            let entry = &self.directory[entry as usize];
            if entry.get() == all_absent() {
                entry.set(all_unknown());
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
        let mut runs: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        let mut missing = missing.iter().copied().peekable();
        let mut place = 0;
        for range in ranges {
            for page in range.clone().step_by(PAGE as usize) {
                if missing.next_if_eq(&place).is_some() {
                    self.set(page, ABSENT);
                } else {
                    self.set(page, FIRST + place);
                    match runs.last_mut() {
                        Some(last) if last.end == page => last.end += PAGE,
                        _ => runs.push(page..page + PAGE),
                    }
                }
                place += 1;
            }
        }
        runs
    }

    /// Adds a page if `read` fills its memory; it is absent otherwise. Returns its number.
    pub(super) fn add(&self, page: u64, read: impl FnOnce(&mut [u8]) -> bool) -> u32 {
        let number = self.next.get();
        let mut added = ABSENT;
        if number < self.end {
            // SAFETY: inside the mapping; no other reference exists, since no page has this number yet.
            let memory = unsafe { std::slice::from_raw_parts_mut(self.pointer(number), PAGE as usize) };
            if read(memory) {
                added = number;
                self.next.set(number + 1);
            }
        }
        self.set(page, added);
        added
    }

    fn set(&self, address: u64, number: u32) {
        let Some(entry) = self.directory.get((address >> 30) as usize) else {
            return;
        };
        let table = self.own_table(entry);
        // SAFETY: a table has `TABLE` numbers, and no reference to one is kept.
        unsafe { table.add((address / PAGE) as usize % TABLE).write(number) };
    }

    /// The page table of an entry, in place of a placeholder.
    fn own_table(&self, entry: &Cell<*mut u32>) -> *mut u32 {
        let table = entry.get();
        if table != all_unknown() && table != all_absent() {
            return table;
        }
        let table = Box::into_raw(vec![UNKNOWN; TABLE].into_boxed_slice()).cast();
        entry.set(table);
        let mut tables = self.tables.take();
        tables.push(table);
        self.tables.set(tables);
        table
    }

    /// The number of the page that contains this address.
    #[inline]
    pub(super) fn number(&self, address: u64) -> u32 {
        match self.directory.get((address >> 30) as usize) {
            // SAFETY: every entry points to `TABLE` numbers.
            Some(table) => unsafe { table.get().add((address / PAGE) as usize % TABLE).read() },
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

fn all_unknown() -> *mut u32 {
    ALL_UNKNOWN.as_ptr().cast_mut()
}

fn all_absent() -> *mut u32 {
    let table = ALL_ABSENT.get_or_init(|| vec![ABSENT; TABLE].into_boxed_slice());
    table.as_ptr().cast_mut()
}

/// The pages "unknown" and "absent" of [`Pages::none`].
static ZEROS: [u64; 1024] = [0; 1024];
