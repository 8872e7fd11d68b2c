//! What each copied page is, and where allocated chunks start in it.
//!
//! ```text
//! page:    │     #1      │     #2      │     #3      │     one bit per 16 bytes: an allocated chunk starts here
//! starts:  │..A...B...C..│.............│..D..........│     one number per page: how far back the chunk starts that
//! back:    │      0      │    C: 60    │    C: 316   │     continues into the page, in units of 16 bytes
//! ```
//!
//! So the chunk that contains an address is found with a constant number of reads, and all chunks together need 1 % of the
//! copied memory, however many there are. Where a chunk ends is read from its own header in the copy.
//!
//! The order of the copied pages is that of [`Image::granule`]: 256 granules of 16 bytes per page.

use std::ops::Range;

use crate::bits::Bits;
use crate::copy::selection::containing;
use crate::copy::{Image, PAGE};

const GRANULES: usize = 256;

/// Whose memory a page or a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Heap {
    /// Static memory, stacks and files: no chunks.
    #[default]
    None,
    /// A heap of glibc's malloc.
    Glibc,
    /// CPython's allocator of small objects.
    Python,
    /// Anonymous memory of an allocator whose chunks are not known: a chunk of it begins at exactly the address that was asked for.
    Unknown,
}

/// An allocated piece of heap memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    pub start: u64,
    pub bytes: u64,
    pub heap: Heap,
}

/// Whose memory a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// CPython's allocator for small objects.
    Python,
    /// An arena of malloc: the address of its state; 0: the main arena.
    Arena(u64),
    /// A chunk of malloc that is a mapping of its own.
    Mapped,
    Stack,
}

/// The pages of a copy.
#[derive(Default)]
pub struct Pages {
    /// Present memory, whole pages by address.
    runs: Vec<Range<u64>>,
    kinds: Vec<Heap>,
    starts: Bits,
    back: Vec<u32>,
    /// Chunks with pages that do not exist, by address.
    sparse: Vec<Range<u64>>,
}

impl Pages {
    pub fn new(copy: &Image) -> Pages {
        let pages = copy.granules() / GRANULES;
        Pages {
            runs: copy.runs(),
            kinds: vec![Heap::None; pages],
            starts: Bits::new(copy.granules()),
            back: vec![0; pages],
            sparse: Vec::new(),
        }
    }

    /// The present parts of a range, whole pages.
    pub fn present(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let first = self.runs.partition_point(|run| run.end <= range.start);
        let clipped = move |run: &Range<u64>| run.start.max(range.start & !(PAGE - 1))..run.end.min(range.end);
        let runs = self.runs[first..].iter().map(clipped);
        runs.take_while(|run| run.start < run.end)
    }

    /// The addresses of the present pages of a range.
    pub fn addresses(&self, range: Range<u64>) -> Vec<u64> {
        self.present(range).flat_map(|run| run.step_by(PAGE as usize)).collect()
    }

    pub fn bytes(&self, range: Range<u64>) -> u64 {
        self.present(range).map(|run| run.end - run.start).sum()
    }

    #[inline]
    pub fn kind(&self, granule: usize) -> Heap {
        self.kinds.get(granule / GRANULES).copied().unwrap_or_default()
    }

    pub fn kind_at(&self, copy: &Image, address: u64) -> Heap {
        copy.granule(address).map_or(Heap::None, |granule| self.kind(granule))
    }

    pub fn set_kind(&mut self, copy: &Image, range: Range<u64>, kind: Heap) {
        for page in self.addresses(range) {
            if let Some(granule) = copy.granule(page) {
                self.kinds[granule / GRANULES] = kind;
            }
        }
    }

    /// Bytes of all pages of a kind.
    pub fn bytes_of(&self, kind: Heap) -> u64 {
        self.kinds.iter().filter(|of| **of == kind).count() as u64 * PAGE
    }

    /// An allocated chunk starts here.
    pub fn add(&mut self, copy: &Image, start: u64) {
        if let Some(granule) = copy.granule(start) {
            self.starts.set(granule);
        }
    }

    /// As above, for a chunk of pages of its own, the first of which may not exist.
    pub fn add_mapped(&mut self, copy: &Image, chunk: Range<u64>) {
        self.add(copy, chunk.start);
        if copy.granule(chunk.start).is_none() {
            self.sparse.push(chunk.clone());
            for page in self.addresses((chunk.start & !(PAGE - 1)) + PAGE..chunk.end) {
                if let Some(granule) = copy.granule(page) {
                    self.back[granule / GRANULES] = u32::try_from((page - chunk.start) / 16).unwrap_or(0);
                }
            }
        }
    }

    /// The chunk here is free after all. Returns whether it counted as allocated.
    pub fn remove(&mut self, copy: &Image, start: u64) -> bool {
        start.is_multiple_of(16) && copy.granule(start).is_some_and(|granule| self.starts.clear(granule))
    }

    #[inline]
    pub fn is_start(&self, granule: usize) -> bool {
        self.starts.get(granule)
    }

    /// The last start at or before this address, whose granule is given.
    #[inline]
    pub fn start_before(&self, granule: usize, address: u64) -> Option<u64> {
        let page = granule / GRANULES;
        let of_address = address & !15;
        match self.starts.last(page * GRANULES, granule) {
            Some(found) => Some(of_address - (granule - found) as u64 * 16),
            None => match self.back[page] {
                0 => None,
                back => Some((address & !(PAGE - 1)) - u64::from(back) * 16),
            },
        }
    }

    /// Completes `back` once all chunks of glibc are known.
    pub fn finish(&mut self, copy: &Image, end_of: impl Fn(u64) -> u64) {
        let (mut start, mut end) = (0, 0);
        let mut next = 0;
        for page in self.addresses(0..u64::MAX) {
            if end > next && page > next {
                self.sparse.push(start..end);
            }
            next = page + PAGE;
            let Some(granule) = copy.granule(page) else { continue };
            if self.kind(granule) != Heap::Glibc {
                continue;
            }
            if page < end {
                // A chunk of more than 64 GiB is found by its first 64 GiB only.
                self.back[granule / GRANULES] = u32::try_from((page - start) / 16).unwrap_or(0);
            }
            if let Some(last) = self.starts.last(granule, granule + GRANULES - 1) {
                start = page + (last - granule) as u64 * 16;
                end = end_of(start);
            }
        }
        if end > next {
            self.sparse.push(start..end);
        }
        self.sparse.sort_unstable_by_key(|chunk| chunk.start);
    }

    /// Starts that are in pages that do not exist.
    pub fn absent_starts(&self, copy: &Image) -> impl Iterator<Item = u64> {
        let starts = self.sparse.iter().map(|chunk| chunk.start);
        starts.filter(|start| copy.granule(*start).is_none())
    }

    /// The start of the chunk with this address, whose page does not exist.
    pub fn start_of_absent(&self, address: u64) -> Option<u64> {
        containing(&self.sparse, address, Range::clone).map(|chunk| chunk.start)
    }

    /// All starts in pages of this kind in these present ranges, whole pages; by address.
    pub fn each_start_in(&self, copy: &Image, ranges: &[Range<u64>], of: Heap, see: &mut dyn FnMut(u64)) {
        for page in ranges.iter().flat_map(|range| range.clone().step_by(PAGE as usize)) {
            let Some(first) = copy.granule(page) else { continue };
            if self.kind(first) != of {
                continue;
            }
            for part in 0..GRANULES / 64 {
                let mut word = self.starts.0[first / 64 + part];
                while word != 0 {
                    let granule = part * 64 + word.trailing_zeros() as usize;
                    word &= word - 1;
                    see(page + granule as u64 * 16);
                }
            }
        }
    }
}
