//! The heaps of glibc's malloc, walked by the sizes of their chunks.
//!
//! ```text
//! chunk:   │ previous size │ size, flags │ memory …                 │ (previous size of the next) │
//! flags:   1: the previous chunk is in use   2: a mapping of its own   4: not of the main arena
//!
//! [heap]:  │ chunk │ chunk │ … │ top │
//! arena:   │ heap_info │ malloc_state │ chunk │ … │ top │     aligned to 64 MiB; more heaps of it without malloc_state
//! ```
//!
//! Whether a chunk is in use is noted in the next one. Freed chunks in a thread's cache or a fastbin look as if they were in
//! use: see [`free`]. The memory of a process that runs is copied at different times, so sizes of one page and headers
//! of the next may not match. Then the walk goes on at the next place from which several chunks follow each other, and the
//! gap counts as memory of an unknown allocator.

use std::ops::Range;

use super::pages::{Heap, Pages};
use crate::copy::selection::containing;
use crate::copy::{Image, PAGE};
use crate::modules::Modules;

pub mod free;
#[cfg(test)]
mod tests;

/// Size of the area in which a thread's heap grows, and its alignment.
const HEAP: u64 = 64 << 20;
const SMALLEST: u64 = 32;
/// Bytes behind a chunk that is a mapping of its own, from 2.43 on. Before, the chunk ends with the mapping.
const BEHIND: u64 = 16;
/// Places at which a heap's first chunk may be, from the beginning of the heap: after an arena's state, or static
/// thread-local memory of a program without shared libraries.
const FIRST_CHUNK: u64 = 64 << 10;

#[derive(Default)]
pub struct Heaps {
    /// Parts of heaps in which no chunks were recognised, by address.
    pub gaps: Vec<Range<u64>>,
    /// Where the states of the threads' arenas are. That of the main arena is in libc's static memory.
    arenas: Vec<u64>,
    /// Chunks with the size of a thread's cache.
    caches: Vec<u64>,
    /// Heaps by address, with the state of their arena; 0: of the main arena.
    ranges: Vec<(Range<u64>, u64)>,
}

/// Bytes that the program may use of the allocated chunk with this memory.
#[inline]
pub fn usable(copy: &Image, start: u64) -> u64 {
    let word = copy.word(start - 8);
    let (is_mapped, size) = (word & 2 != 0, word & !7);
    let has_header_only = || (size.wrapping_add(copy.word(start - 16) & !1)).is_multiple_of(PAGE);
    size.saturating_sub(if is_mapped && has_header_only() { 16 } else { 8 })
}

/// Finds all chunks: in this anonymous memory, and in `[heap]`.
pub fn find(copy: &Image, modules: &Modules, pages: &mut Pages, memory: &[Range<u64>], brk: &[Range<u64>]) -> Heaps {
    let mut heaps = Heaps::default();
    for range in brk {
        heaps.walk(copy, pages, range.clone());
        heaps.ranges.push((range.clone(), 0));
    }
    for range in memory {
        let mut at = range.start;
        // Several heaps may lie side by side.
        while at < range.end {
            if at.is_multiple_of(HEAP)
                && let Some((arena, size)) = heap_info(copy, at)
            {
                let end = at.saturating_add(size).min(range.end);
                heaps.walk(copy, pages, at + 32..end);
                heaps.ranges.push((at..end, arena));
                if arena & !(HEAP - 1) == at {
                    heaps.arenas.push(arena);
                }
                at = end;
            } else {
                // The main arena is in other memory if `[heap]` cannot grow. In a core file, `[heap]` has no name.
                if at == range.start && has_chain(copy, at, range.end) {
                    heaps.walk(copy, pages, range.clone());
                    heaps.ranges.push((range.clone(), 0));
                    break;
                }
                // Programs reserve terabytes, and core files may claim any size: a heap begins in memory that exists.
                let next = copy.next_copied(at + 1);
                let heap = next.and_then(|next| next.checked_next_multiple_of(HEAP));
                at = heap.unwrap_or(range.end);
            }
        }
    }
    free::remove(copy, modules, pages, &heaps);
    heaps.gaps.sort_by_key(|gap| gap.start);
    heaps.ranges.sort_by_key(|(heap, _)| heap.start);
    heaps
}

/// The address of the arena's state and the size of the heap that begins here.
fn heap_info(copy: &Image, base: u64) -> Option<(u64, u64)> {
    let (arena, previous) = (copy.word(base), copy.word(base + 8));
    let (size, writable) = (copy.word(base + 16), copy.word(base + 24));
    let is_heap = arena & (HEAP - 1) < PAGE
        && arena.is_multiple_of(16)
        && copy.has(arena)
        && previous.is_multiple_of(HEAP)
        && (size.is_multiple_of(PAGE) && size > 0 && size <= writable)
        && (writable.is_multiple_of(PAGE) && writable <= HEAP);
    is_heap.then_some((arena, size))
}

enum Header {
    /// Size and whether the previous chunk is in use.
    Chunk(u64, bool),
    /// The end of a part of the heap.
    Fence,
    Damaged,
}

#[inline]
fn header(copy: &Image, at: u64, end: u64) -> Header {
    let word = copy.word(at + 8);
    let size = word & !7;
    if size == 16 && word & 1 != 0 {
        Header::Fence
    } else if size < SMALLEST || !size.is_multiple_of(16) || word & 2 != 0 || size > end - at {
        Header::Damaged
    } else {
        Header::Chunk(size, word & 1 != 0)
    }
}

/// Whether several chunks follow each other from here, or chunks up to the end of the heap.
fn has_chain(copy: &Image, mut at: u64, end: u64) -> bool {
    const LENGTH: usize = 8;
    let mut size = match header(copy, at, end) {
        Header::Chunk(size, _) => size,
        _ => return false,
    };
    for _ in 0..LENGTH {
        at += size;
        if at == end {
            return true;
        }
        if end - at < 16 {
            return false;
        }
        match header(copy, at, end) {
            // A free chunk's size is repeated at its end.
            Header::Chunk(_, false) if copy.word(at) != size => return false,
            Header::Chunk(next, _) => size = next,
            Header::Fence => return true,
            Header::Damaged => return false,
        }
    }
    true
}

/// The first place from which several chunks follow each other.
fn next_chain(copy: &Image, range: Range<u64>) -> Option<u64> {
    let mut at = range.start.next_multiple_of(16);
    while at + SMALLEST <= range.end {
        if !copy.has(at + 8) {
            at = ((at + 8) & !(PAGE - 1)) + PAGE;
        } else if has_chain(copy, at, range.end) {
            return Some(at);
        } else {
            at += 16;
        }
    }
    None
}

impl Heaps {
    /// Notes all allocated chunks between a heap's beginning and end.
    fn walk(&mut self, copy: &Image, pages: &mut Pages, heap: Range<u64>) {
        let first = heap.start..heap.end.min(heap.start + FIRST_CHUNK);
        let mut places = first.step_by(16).take_while(|at| heap.end - at >= SMALLEST);
        let Some(mut at) = places.find(|at| has_chain(copy, *at, heap.end)) else {
            return;
        };
        pages.set_kind(copy, heap.clone(), Heap::Glibc);
        loop {
            let size = match header(copy, at, heap.end) {
                Header::Chunk(size, _) => size,
                // Fences also end a heap that another one of the same arena continues.
                _ if heap.end - at <= 64 => return,
                Header::Fence => {
                    at += 16;
                    continue;
                }
                Header::Damaged => {
                    let next = next_chain(copy, at + 16..heap.end);
                    self.gaps.push(at..next.unwrap_or(heap.end));
                    let Some(next) = next else { return };
                    at = next;
                    continue;
                }
            };
            let next = at + size;
            if next + 16 > heap.end {
                // The top chunk, which is free.
                return;
            }
            if copy.word(next + 8) & 1 != 0 {
                pages.add(copy, at + 16);
                if free::CACHE_SIZES.contains(&size) {
                    self.caches.push(at + 16);
                }
            }
            at = next;
        }
    }

    /// The arena whose heap contains this address, as [`Heaps::ranges`] has it.
    pub fn arena(&self, address: u64) -> Option<u64> {
        containing(&self.ranges, address, |(heap, _)| heap.clone()).map(|(_, arena)| *arena)
    }

    pub fn in_gap(&self, address: u64) -> bool {
        containing(&self.gaps, address, Range::clone).is_some()
    }
}

/// Finds chunks that are mappings of their own, in anonymous memory without another owner.
pub fn find_mapped(copy: &Image, pages: &mut Pages, memory: &[Range<u64>]) {
    for range in memory {
        let mut end = 0;
        for page in pages.addresses(range.clone()) {
            if page < end || pages.kind_at(copy, page) != Heap::Unknown {
                continue;
            }
            // Of aligned memory, the chunk starts 16 bytes before the first aligned address, and an older header remains at
            // the start of the mapping.
            let places = (5..=12).rev().map(|bits| (1 << bits) - 16).chain([0]);
            for offset in places {
                let (before, word) = (copy.word(page + offset), copy.word(page + offset + 8));
                let size = word & !7;
                let whole = |behind: u64| {
                    let all = size.checked_add(offset + behind)?;
                    (all.is_multiple_of(PAGE) && all <= range.end - page).then_some(all)
                };
                // From 2.43 on, the lowest bit marks huge pages.
                let is_chunk = before & !1 == offset && word & 7 == 2 && size > 0;
                if let Some(all) = whole(0).or_else(|| whole(BEHIND)).filter(|_| is_chunk) {
                    end = page + all;
                    pages.set_kind(copy, page..end, Heap::Glibc);
                    pages.add_mapped(copy, page + offset + 16..end);
                    break;
                }
            }
        }
    }
}
