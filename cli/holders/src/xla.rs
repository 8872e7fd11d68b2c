//! The live buffers of XLA's allocator (JAX), read from a process that was never recorded.
//!
//! ```text
//! tsl::BFCAllocator, one for each device ("GPU_0_bfc") ─► vector of chunks, which cover its memory without gaps
//!   chunk: size, requested size, number of the allocation (-1: free), address, previous, next, …
//! ```
//!
//! Objects of the class are found by its virtual table, in all copied memory. The size of a chunk differs between versions; the right one
//! is that for which each chunk ends where its next one begins. The allocator counts the bytes in use itself, and must agree.

use std::ops::Range;

use crate::budget::{Budget, Deadline, UNFINISHED};
use crate::copy::Image;
use crate::native::rtti::Classes;
use crate::pytorch::LiveBlock;
use crate::source::{Region, Source, regions_of};

/// In the path of a file with the allocator.
const FILES: [&str; 2] = ["xla_cuda_plugin.so", "xla_extension.so"];
/// How the mangled name of the class ends.
const CLASS: &str = "12BFCAllocatorE";
/// The allocator has no more words.
const WORDS: u64 = 512;
/// The bytes of a chunk.
const CHUNK: Range<u64> = 48..256;
/// How often everything is read.
const LOOKS: usize = 3;
const UNIT: u64 = 256;
const FREE: u64 = u64::MAX;
const NONE: u64 = u64::MAX;

/// Reads them, by address. `None`: the process has no such allocator for a GPU.
///
/// # Errors
/// Why they cannot be read, as a sentence.
pub fn live_blocks(source: &dyn Source, mut deadline: Deadline) -> Result<Option<Vec<LiveBlock>>, String> {
    let regions = regions_of(source)?;
    let of_allocator = |region: &&Region| FILES.iter().any(|file| region.name.contains(file));
    let mut files = regions.iter().filter(of_allocator).map(|region| &region.range);
    let Some(first) = files.next() else { return Ok(None) };
    let tables = first.start..files.next_back().unwrap_or(first).end;
    // The process goes on, so a chunk may have changed while the others were copied.
    let mut read = look(source, &tables, deadline);
    for _ in 1..LOOKS {
        if read.is_err() && !deadline.is_over() {
            read = look(source, &tables, deadline);
        }
    }
    read
}

/// Reads everything once.
fn look(source: &dyn Source, tables: &Range<u64>, deadline: Deadline) -> Result<Option<Vec<LiveBlock>>, String> {
    let copy = Image::take(source, &[]).map_err(|error| error.to_string())?;
    let mut classes = Classes::new(&copy);
    let mut budget = Budget::new(&copy, deadline);
    let (mut blocks, mut place, mut unread) = (Vec::new(), None, Vec::new());
    for run in copy.runs() {
        let places = run.step_by(8).filter(|place| tables.contains(&copy.word(*place)));
        for object in places {
            let class = classes.object(&copy, object);
            if !class.is_some_and(|class| classes.mangled_name(class).ends_with(CLASS)) {
                continue;
            }
            budget.spend(WORDS);
            let mut own: Vec<u64> = (0..WORDS).map(|nth| copy.word(object + nth * 8)).collect();
            // The next allocator may lie behind it.
            let next = own[1..].iter().position(|word| *word == own[0]);
            own.truncate(next.map_or(own.len(), |next| next + 1));
            let Some(device) = device(&own) else { continue };
            let chunks = chunks(&copy, &own, device, &mut budget);
            if budget.stopped().is_some() {
                return Err(format!("the chunks of XLA's allocators in it: {UNFINISHED}"));
            }
            match chunks {
                Some((found, chunks)) => {
                    // Without a chunk in use, it may be that of another vector.
                    place = if chunks.is_empty() {
                        place.or(Some(found))
                    } else {
                        Some(found)
                    };
                    blocks.extend(chunks);
                }
                None => unread.push(own),
            }
        }
    }
    // That of a device without a buffer so far has no chunks where the others have them.
    let is_unused = |own: &Vec<u64>| place.is_some_and(|place| own.get(place..place + 3) == Some(&[0; 3]));
    if !unread.iter().all(is_unused) {
        return Err("the layout of XLA's allocator in it is not understood (an unknown version)".to_owned());
    }
    blocks.sort_unstable();
    blocks.dedup_by_key(|block: &mut LiveBlock| block.address);
    Ok(place.map(|_| blocks))
}

/// The number in the allocator's name, which is in the object itself: `GPU_0_bfc`. `None`: it is for the memory of the host.
fn device(own: &[u64]) -> Option<i8> {
    let bytes: Vec<u8> = own.iter().flat_map(|word| word.to_le_bytes()).collect();
    let start = bytes.windows(4).position(|name| name == b"GPU_")?;
    let name = bytes[start..].split(|byte| *byte == 0).next()?;
    let parts = std::str::from_utf8(name).ok()?.split('_');
    parts.filter_map(|part| part.parse().ok()).next_back()
}

/// The place of the vector of chunks, in words, and the chunks in use. `None`: no vector in the object is one of chunks that add up to what the allocator counts.
fn chunks(copy: &Image, own: &[u64], device: i8, budget: &mut Budget) -> Option<(usize, Vec<LiveBlock>)> {
    let mut best: Option<(usize, Vec<LiveBlock>)> = None;
    for (place, at) in own.windows(3).enumerate() {
        let (first, end, limit) = (at[0], at[1], at[2]);
        if first == 0 || first >= end || end > limit {
            continue;
        }
        for bytes in CHUNK.step_by(8).filter(|bytes| (end - first) % bytes == 0) {
            let blocks = in_use(copy, first..end, bytes, device, budget);
            let sum = |blocks: &[LiveBlock]| blocks.iter().fold(0u64, |sum, block| sum.saturating_add(block.bytes));
            let blocks = blocks.filter(|blocks| own.contains(&sum(blocks)));
            // Without a chunk in use, other vectors look the same.
            let found = blocks.map(|blocks| (place, blocks));
            best = found.into_iter().chain(best).max_by_key(|(_, blocks)| blocks.len());
        }
    }
    best
}

/// The chunks in use of a vector whose elements have this size. `None`: they are no chunks.
fn in_use(copy: &Image, vector: Range<u64>, bytes: u64, device: i8, budget: &mut Budget) -> Option<Vec<LiveBlock>> {
    let count = (vector.end - vector.start) / bytes;
    let field = |nth: u64, word: u64| copy.word(vector.start + nth * bytes + word * 8);
    let mut blocks = Vec::new();
    for nth in 0..count {
        budget.spend(1).then_some(())?;
        let [size, requested, number, address, _, next] = [0, 1, 2, 3, 4, 5].map(|word| field(nth, word));
        if number == FREE {
            continue;
        }
        let is_whole = size > 0 && size % UNIT == 0 && address % UNIT == 0 && address != 0 && requested <= size;
        let end = address.checked_add(size)?;
        let is_linked = next == NONE || next < count && field(next, 3) == end && field(next, 4) == nth;
        if !is_whole || !is_linked {
            return None;
        }
        blocks.push(LiveBlock::of(address, size, requested, device));
    }
    Some(blocks)
}
