//! CPython's allocator in free-threaded builds: mimalloc 2.1, as 3.13 and 3.14 contain it.
//!
//! ```text
//! segment, aligned to 32 MiB:  header, a record for each slice │ slices of 64 KiB: blocks of one size in one or more of them
//! record of the first slice:   number of slices │ blocks that were given out at least once │ their size │ lists of free ones
//! ```
//!
//! A segment is recognized by its size, which the header has in bytes and in slices.

use std::ops::Range;

use super::pages::{Heap, Pages};
use super::pools::Blocks;
use crate::copy::{Image, PAGE};

const SEGMENT: u64 = 32 << 20;
const SLICE: u64 = 64 << 10;
/// In a segment's header: the segment's bytes and slices, the slices of the header, the number of records, and the first record.
const BYTES: u64 = 32;
const SLICES: u64 = 224;
const HEADER_SLICES: u64 = 232;
const RECORDS: u64 = 248;
const FIRST_RECORD: u64 = 264;
const RECORD: u64 = 96;
const MOST_RECORDS: u64 = 512;
/// Of a record: the lists of blocks that are free, that the thread freed later, and that others freed (with two bits of flags).
const LISTS: [u64; 3] = [16, 32, 40];
/// Larger blocks are as large as their slices.
const LARGEST: u64 = 2 << 30;

/// Blocks of one size.
struct Run {
    record: u64,
    end: u64,
    blocks: Blocks,
}

/// The number of records of the segment that is here.
fn records(copy: &Image, segment: u64) -> Option<u64> {
    let word = |at: u64| copy.word(segment + at);
    let (slices, records) = (word(SLICES), word(RECORDS));
    let is_segment = copy.has(segment)
        && slices.checked_mul(SLICE) == Some(word(BYTES))
        && word(HEADER_SLICES) == (FIRST_RECORD + (MOST_RECORDS + 1) * RECORD).div_ceil(SLICE)
        && (1..=MOST_RECORDS).contains(&records)
        && records <= slices;
    is_segment.then_some(records)
}

impl Run {
    /// The blocks whose first slice has this number.
    fn of(copy: &Image, segment: u64, slice: u64) -> Option<Run> {
        let record = segment + FIRST_RECORD + slice * RECORD;
        let (slices, carved) = (u64::from(copy.half(record)), copy.word(record + 8) >> 16 & 0xffff);
        let block = u64::from(copy.half(record + 28));
        if slices == 0 || slice + slices > copy.word(segment + SLICES) {
            return None;
        }
        let start = segment + slice * SLICE;
        let end = start.checked_add(slices * SLICE)?;
        let first = match block {
            // Free slices have none.
            ..8 => return None,
            8..=64 => start + 3 * block,
            65..=512 => start + block,
            _ => start,
        };
        let block = if block < LARGEST { block } else { end - start };
        let fits = carved > 0 && carved.checked_mul(block)? <= end.checked_sub(first)?;
        let blocks = Blocks { first, block, carved };
        fits.then_some(Run { record, end, blocks })
    }

    /// The blocks around this address.
    fn around(copy: &Image, address: u64) -> Option<Run> {
        let segment = address & !(SEGMENT - 1);
        let slice = (address - segment) / SLICE;
        records(copy, segment).filter(|records| slice < *records)?;
        // In bytes of records.
        let offset = u64::from(copy.half(segment + FIRST_RECORD + slice * RECORD + 4));
        Run::of(copy, segment, slice.checked_sub(offset / RECORD)?)
            .filter(|run| (run.blocks.first..run.end).contains(&address))
    }
}

/// Finds the segments in anonymous memory.
pub fn find(copy: &Image, pages: &mut Pages, memory: &[Range<u64>]) {
    for range in memory {
        for segment in (range.start.next_multiple_of(SEGMENT)..range.end).step_by(SEGMENT as usize) {
            let records = records(copy, segment).unwrap_or(0);
            let mut slice = 0;
            while slice < records {
                let Some(run) = Run::of(copy, segment, slice) else {
                    slice += 1;
                    continue;
                };
                let start = segment + slice * SLICE;
                for page in pages.addresses(start..run.end) {
                    if pages.kind_at(copy, page) == Heap::Unknown {
                        pages.set_kind(copy, page..page + PAGE, Heap::Python);
                    }
                }
                let lists = LISTS.map(|list| copy.word(run.record + list) & !3);
                run.blocks.each_used(copy, &lists, |block| {
                    if pages.kind_at(copy, block) == Heap::Python {
                        pages.add(copy, block);
                    }
                });
                slice += (run.end - start) / SLICE;
            }
        }
    }
}

/// The size of the block that starts here.
#[inline]
pub fn block_bytes(copy: &Image, start: u64) -> u64 {
    Run::around(copy, start).map_or(0, |run| run.blocks.block)
}

/// The start of the block that contains this address, whether it is in use or not.
pub fn block_around(copy: &Image, address: u64) -> Option<u64> {
    let Blocks { first, block, .. } = Run::around(copy, address)?.blocks;
    Some(address - (address - first) % block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_tests::{Victim, pages as fresh_pages};

    #[test]
    fn blocks_in_the_three_lists_of_free_ones_are_not_in_use() {
        let words = fresh_pages((2 * SEGMENT / PAGE) as usize);
        let memory = words.as_ptr() as u64;
        let segment = memory.next_multiple_of(SEGMENT);
        let mut put = |at: u64, value: u64| words[((at - memory) / 8) as usize] = value;
        for (at, value) in [
            (BYTES, SEGMENT),
            (SLICES, MOST_RECORDS),
            (HEADER_SLICES, 1),
            (RECORDS, MOST_RECORDS),
        ] {
            put(segment + at, value);
        }
        let record = |slice: u64| segment + FIRST_RECORD + slice * RECORD;
        // One slice with blocks of 64 bytes, six of which were given out; eight slices with one block.
        // The last two are not understood: one has no slices, the other more than the segment.
        for (slice, slices, capacity, block) in [
            (1, 1, 6, 64),
            (2, 8, 1, 8 * SLICE),
            (20, 0, 1, LARGEST),
            (30, MOST_RECORDS, 1, LARGEST),
        ] {
            put(record(slice), slices);
            put(record(slice) + 8, capacity << 16);
            put(record(slice) + 24, block << 32);
        }
        put(record(9), (7 * RECORD) << 32);
        let small = |number: u64| segment + SLICE + 3 * 64 + number * 64;
        put(record(1) + LISTS[0], small(0));
        put(small(0), small(3));
        put(record(1) + LISTS[1], small(1));
        put(record(1) + LISTS[2], small(4) | 1);
        let large = segment + 2 * SLICE;
        put(large + 7 * SLICE, 1);
        let victim = Victim::fork();
        let process = victim.process();
        let copy = Image::take(&process, &[]).unwrap();
        let mut pages = Pages::new(&copy);
        pages.set_kind(&copy, memory..memory + 2 * SEGMENT, Heap::Unknown);
        find(&copy, &mut pages, &[memory..memory + 2 * SEGMENT]);
        let is_used = |number| pages.is_start(copy.granule(small(number)).unwrap());
        let used: Vec<u64> = (0..8).filter(|number| is_used(*number)).collect();
        assert_eq!(used, [2, 5]);
        assert_eq!(block_bytes(&copy, small(2)), 64);
        assert_eq!(block_around(&copy, small(5) + 63), Some(small(5)));
        assert_eq!(block_around(&copy, large + 7 * SLICE + 1), Some(large));
        assert_eq!(block_around(&copy, segment + 20 * SLICE), None);
        assert_eq!(block_around(&copy, segment + 30 * SLICE), None);
        assert_eq!(block_around(&copy, segment + SEGMENT), None);
        assert_eq!(pages.kind_at(&copy, large + 7 * SLICE), Heap::Python);
    }
}
