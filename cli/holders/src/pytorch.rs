//! The live blocks of PyTorch's caching allocator, read from a process that was never recorded.
//!
//! ```text
//! libc10_cuda.so: c10::cuda::CUDACachingAllocator::allocator ─► NativeCachingAllocator
//!   … 67 hash tables  { entries, slots - 1, shift and longest probe and load factor, count }
//!        entry { distance from its slot; < 0: empty | address of the memory | Block* }
//!   Block: device, stream at 8, … size, requested size, pool, address of the memory, is allocated, previous, next
//!   pool: a std::set of its free blocks
//! ```
//!
//! No offset is known beforehand. The tables are recognized by the words that `ska::flat_hash_map` has for its number of slots, and
//! their entries by blocks that have the same address in them; an older allocator has one such table. The sum of each device's blocks is
//! looked for among the statistics that the allocator keeps itself, which lie in its objects for the devices, beside the pools: if it is there, the layout is
//! understood. The process goes on meanwhile, so everything is read again if a sum is not found.
//!
//! Live blocks, the free blocks of the pools, and their neighbours make up the segments, whose sum for each device has to be among the
//! statistics too. The pools are in the devices' objects, or beside one to which a live block leads.
//!
//! If the layout is not understood, the storages of tensors are found by their class ([`storages`]).

mod storages;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use crate::budget::{Deadline, UNFINISHED};
use crate::copy::selection::is_special;
use crate::modules::exported_of_loaded;
use crate::modules::headers::word;
use crate::source::{Region, Source, regions_of};
use crate::{Map, Set};

const LIBRARY: &str = "libc10_cuda.so";
const ALLOCATOR: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
/// The tables lie in these bytes of the allocator.
const ALLOCATOR_BYTES: usize = 64 << 10;
/// All tables have no more slots: 4 million blocks.
const MOST_SLOTS: u64 = 1 << 23;
/// A table is a quarter full at least when it has grown, and half at most.
const LOAD_FACTOR: u64 = 0x3f00_0000;
const ENTRY: usize = 24;
const BLOCK_WORDS: usize = 24;
/// In a block, the address of the memory lies between these words. Before it are size, requested size and pool.
const PLACES: Range<usize> = 6..20;
/// Free blocks that are read at most, of all pools.
const MOST_FREE: u64 = 1 << 20;
/// The pools of small and large blocks lie at most so many bytes apart.
const POOLS_APART: u64 = 256;
/// The statistics of a device lie at most this far from each of its pools.
const NEAR: u64 = 16 << 10;
/// The allocator has 67 tables.
const LEAST_TABLES: usize = 32;
/// How often everything is read.
const LOOKS: usize = 8;

/// A block of the allocator that a program has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LiveBlock {
    pub address: u64,
    /// What the allocator counts for it.
    pub bytes: u64,
    pub requested: u64,
    /// CUDA's ordinal in the process.
    pub device: i8,
    /// The handle of the stream; 0: the default stream.
    pub stream: u64,
}

impl LiveBlock {
    /// Of the default stream.
    pub(crate) fn of(address: u64, bytes: u64, requested: u64, device: i8) -> LiveBlock {
        LiveBlock {
            address,
            bytes,
            requested,
            device,
            stream: 0,
        }
    }
}

/// What the allocator of a process has given out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveBlocks {
    /// By address.
    pub blocks: Vec<LiveBlock>,
    /// The allocator's own statistics have the sum of each device.
    pub agrees: bool,
    /// What the allocator has from the driver, by device and address, of each device whose sum the statistics have.
    pub segments: Vec<LiveBlock>,
    /// Of expandable segments, the runs of pages.
    pub runs: Vec<LiveBlock>,
    /// These are the devices that have live blocks or segments.
    pub has_all_segments: bool,
    /// The blocks are storages, found by their class: why the allocator was not read.
    pub by_class: Option<String>,
}

impl LiveBlocks {
    /// The blocks of two allocators.
    fn and(mut self, other: LiveBlocks) -> LiveBlocks {
        self.blocks.extend(other.blocks);
        self.blocks.sort_unstable_by_key(|block| block.address);
        self.blocks.dedup_by_key(|block| block.address);
        self.segments.extend(other.segments);
        self.runs.extend(other.runs);
        self.agrees &= other.agrees;
        self.has_all_segments &= other.has_all_segments;
        self
    }
}

/// Reads the process until the time is over.
struct Reader<'a> {
    source: &'a dyn Source,
    deadline: Deadline,
}

/// Reads them, of each copy of the library. `None`: the process has not loaded this allocator.
///
/// # Errors
/// Why they cannot be read, as a sentence: it is another allocator, or its layout is not understood, and there is no storage.
pub fn live_blocks(source: &dyn Source, mut deadline: Deadline) -> Result<Option<LiveBlocks>, String> {
    let regions = regions_of(source)?;
    let mut all: Option<LiveBlocks> = None;
    for allocator in allocators(source, &regions, deadline)? {
        let found = best((0..LOOKS).map(|_| look(&Reader { source, deadline }, allocator)));
        if deadline.is_over() && found.as_ref().is_none_or(|found| !found.agrees) {
            return Err(format!("the blocks of PyTorch's allocator in it: {UNFINISHED}"));
        }
        let Some(found) = found else {
            let why = format!(
                "PyTorch's allocator in it has a layout that is not understood ({LIBRARY}: another backend than the native one, or an \
                 unknown version)"
            );
            let found = by_class(source, &regions, deadline, why.clone())?;
            return found
                .map(Some)
                .ok_or_else(|| format!("{why}, and no tensor of it has memory on a GPU"));
        };
        all = Some(match all {
            None => found,
            Some(others) => others.and(found),
        });
    }
    // Without caching, each tensor has memory of the driver.
    let of_driver = all.as_ref().filter(|found| found.blocks.is_empty()).map(|_| {
        let why =
            "PyTorch's allocator in it has given out no block, as with PYTORCH_NO_CUDA_MEMORY_CACHING=1".to_owned();
        by_class(source, &regions, deadline, why)
    });
    Ok(of_driver.transpose()?.flatten().or(all))
}

/// The memory of tensors by their class; `None`: no tensor has any on a GPU.
fn by_class(
    source: &dyn Source,
    regions: &[Region],
    deadline: Deadline,
    why: String,
) -> Result<Option<LiveBlocks>, String> {
    let blocks = storages::storages(source, regions, deadline).map_err(|unread| format!("{why}; {unread}"))?;
    Ok((!blocks.is_empty()).then(|| LiveBlocks {
        blocks,
        by_class: Some(why),
        ..LiveBlocks::default()
    }))
}

/// Where libraries begin. Other mapped files are data, and to read a device asks its driver.
fn libraries(regions: &[Region]) -> impl Iterator<Item = &Region> {
    let code = regions.iter().filter(|region| region.executable);
    let names: BTreeSet<&str> = code.map(|region| region.name.as_str()).collect();
    let is_library = move |first: &&Region| !first.shared && !is_special(first) && names.contains(first.name.as_str());
    regions
        .iter()
        .filter(|first| first.is_start_of_file())
        .filter(is_library)
}

/// The first that is complete, else the last of the most complete ones.
fn best(looks: impl Iterator<Item = Option<LiveBlocks>>) -> Option<LiveBlocks> {
    let mut best: Option<LiveBlocks> = None;
    let rank = |found: &LiveBlocks| (found.agrees, found.has_all_segments);
    for found in looks.flatten() {
        let is_complete = rank(&found) == (true, true);
        if best.as_ref().is_none_or(|best| rank(&found) >= rank(best)) {
            best = Some(found);
        }
        if is_complete {
            break;
        }
    }
    best
}

/// The allocators in use, by their symbol: the library may have another name, and the process copies of it.
fn allocators(source: &dyn Source, regions: &[Region], mut deadline: Deadline) -> Result<Vec<u64>, String> {
    let (mut found, mut unread) = (Vec::new(), None);
    for first in libraries(regions) {
        if deadline.is_over() {
            return Err(format!("the files that are mapped in it: {UNFINISHED}"));
        }
        let name = first.name.strip_suffix(" (deleted)").unwrap_or(&first.name);
        let symbol = exported_of_loaded(source, first.range.start, ALLOCATOR);
        let pointer = symbol.map(|symbol| Reader { source, deadline }.words(symbol, 1).map_or(0, |words| words[0]));
        match pointer {
            Some(pointer) if pointer != 0 => found.push(pointer),
            Some(_) => unread = Some("PyTorch has not initialized its allocator for CUDA in it".to_owned()),
            None if Path::new(name).file_name().is_some_and(|name| name == LIBRARY) => {
                unread = Some(format!("{name} has no {ALLOCATOR}, or cannot be read"));
            }
            None => {}
        }
    }
    found.sort_unstable();
    found.dedup();
    match (found.is_empty(), unread) {
        (true, Some(why)) => Err(why),
        _ => Ok(found),
    }
}

/// Reads everything once. `None`: no table was found.
fn look(reader: &Reader, allocator: u64) -> Option<LiveBlocks> {
    let own = reader.words_as_far(allocator, ALLOCATOR_BYTES / 8);
    let mut pairs: Vec<(u64, u64)> = Vec::new();
    let (mut tables, mut left) = (0, MOST_SLOTS);
    for at in own.windows(4) {
        let [entries, last, policy, count] = at else { continue };
        let Some(slots) = slots(*last, *policy).filter(|slots| count <= slots) else {
            continue;
        };
        tables += 1;
        let longest = policy >> 8 & 0xff;
        if *count > 0 {
            left = left.checked_sub(slots)?;
            // The last one marks the end.
            let room = (slots + longest - 1) as usize;
            if let Some(table) = reader.bytes(*entries, room * ENTRY) {
                pairs.extend(pairs_of(&table));
            }
        }
    }
    // Other memory may begin like an empty table.
    if pairs.is_empty() && tables < LEAST_TABLES {
        return None;
    }
    let (place, read) = blocks_of(reader, &pairs)?;
    let blocks: Vec<(LiveBlock, u64)> = (read.values())
        .filter(|words| is_live(words, place))
        .map(|words| (block_of(words, place), words[place - 1]))
        .collect();
    let mut sums: BTreeMap<i8, (u64, Vec<u64>)> = BTreeMap::new();
    for (block, pool) in &blocks {
        let (sum, pools) = sums.entry(block.device).or_default();
        *sum = sum.saturating_add(block.bytes);
        if !pools.contains(pool) && pools.len() < 64 {
            pools.push(*pool);
        }
    }
    let devices = devices(reader, &own);
    let is_stated = |sum: &u64, pools: &[u64]| {
        let is_near = |pool: &u64| {
            let start = pool.saturating_sub(NEAR) & !7;
            // Pages around the object may not exist.
            (start..pool.saturating_add(NEAR))
                .step_by(1 << 10)
                .any(|start| reader.words(start, 128).is_some_and(|words| words.contains(sum)))
        };
        // A private pool is not part of its device's allocator.
        pools.iter().chain(&devices).any(is_near)
    };
    let agrees = sums.values().all(|(sum, pools)| is_stated(sum, pools));
    let pools = sums.values().flat_map(|(_, pools)| pools);
    let around = pools.map(|pool| pool.saturating_sub(POOLS_APART)..pool.saturating_add(POOLS_APART));
    let within = devices.iter().map(|device| *device..device.saturating_add(NEAR));
    let (mut segments, mut runs) = segments(reader, place, read, around.chain(within)).unwrap_or_default();
    let reserved = (segments.iter().chain(&runs)).fold(BTreeMap::new(), |mut sums: BTreeMap<i8, u64>, segment| {
        let sum = sums.entry(segment.device).or_default();
        *sum = sum.saturating_add(segment.bytes);
        sums
    });
    let of_device = |device: &i8| sums.get(device).map_or(&[][..], |(_, pools)| pools);
    let is_reserved = |device: &i8| {
        let sum = reserved.get(device);
        sum.is_some_and(|sum| is_stated(sum, of_device(device)))
    };
    let complete: BTreeSet<i8> = reserved.keys().copied().filter(is_reserved).collect();
    let has_all_segments = (sums.keys().chain(reserved.keys())).all(|device| complete.contains(device));
    for memory in [&mut segments, &mut runs] {
        memory.retain(|segment| complete.contains(&segment.device));
    }
    let mut blocks: Vec<LiveBlock> = blocks.into_iter().map(|(block, _)| block).collect();
    blocks.sort_unstable();
    blocks.dedup_by_key(|block| block.address);
    Some(LiveBlocks {
        blocks,
        agrees,
        segments,
        runs,
        has_all_segments,
        by_class: None,
    })
}

/// The memory that the blocks are in, and the runs of pages that they are in. `blocks`: the words of live blocks by address; `places`:
/// where the pools are.
fn segments(
    reader: &Reader,
    place: usize,
    mut blocks: Map<u64, Vec<u64>>,
    places: impl Iterator<Item = Range<u64>>,
) -> Option<(Vec<LiveBlock>, Vec<LiveBlock>)> {
    let block_words = |block: u64| reader.words(block, BLOCK_WORDS);
    let (mut pools_read, mut wanted) = (Set::default(), Vec::new());
    for range in places {
        let words = reader.words_as_far(range.start, (range.end - range.start) as usize / 8 + SET);
        for (at, set) in (range.start..).step_by(8).zip(words.windows(SET)) {
            // The color of a set's own node is red.
            let is_set = set[1] as u32 == 0 && set[2] != 0 && set[5] > 0;
            let first = || reader.words(set[2], NODE).and_then(|node| block_words(node[4]));
            let is_pool = is_set && first().is_some_and(|block| block[place - 1] == at);
            if is_pool && pools_read.insert(at) {
                wanted.extend(set_of(reader, set, MOST_FREE.checked_sub(wanted.len() as u64)?)?);
            }
        }
    }
    let neighbours = |words: &[u64]| [words[place + 2], words[place + 3]];
    wanted.extend(blocks.values().flat_map(|words| neighbours(words)));
    // Blocks that wait for a stream before they are free are in no pool.
    while let Some(block) = wanted.pop() {
        if block != 0 && !blocks.contains_key(&block) {
            let words = block_words(block).filter(|_| (blocks.len() as u64) < MOST_SLOTS)?;
            wanted.extend(neighbours(&words));
            blocks.insert(block, words);
        }
    }
    Some(joined(&blocks, place))
}

/// Blocks that follow each other in memory, as whole segments and as runs of pages. Each block that has another one before or after
/// it is in memory, except in expandable segments, whose ends have none.
fn joined(blocks: &Map<u64, Vec<u64>>, place: usize) -> (Vec<LiveBlock>, Vec<LiveBlock>) {
    let is_mapped = |words: &[u64]| words[place + 1] >> 8 & 0xff == 1;
    let mut mapped: Vec<&Vec<u64>> = blocks.values().filter(|words| is_mapped(words)).collect();
    mapped.sort_unstable_by_key(|words| (words[0] as i8, words[place]));
    let mut segments: Vec<(LiveBlock, bool)> = Vec::new();
    for words in mapped {
        let block = block_of(words, place);
        let is_next = |(last, _): &&mut (LiveBlock, bool)| {
            words[place + 2] != 0
                && last.device == block.device
                && last.address.checked_add(last.bytes) == Some(block.address)
        };
        let is_run = |beside: usize| blocks.get(&words[beside]).is_some_and(|other| !is_mapped(other));
        let is_run = is_run(place + 2) || is_run(place + 3);
        match segments.last_mut().filter(is_next) {
            Some((last, of_run)) => {
                (last.bytes, *of_run) = (last.bytes.saturating_add(block.bytes), *of_run || is_run);
                last.requested = last.bytes;
            }
            None => segments.push((
                LiveBlock {
                    requested: block.bytes,
                    ..block
                },
                is_run,
            )),
        }
    }
    let (runs, whole): (Vec<_>, Vec<_>) = segments.into_iter().partition(|(_, is_run)| *is_run);
    let memory = |of: Vec<(LiveBlock, bool)>| of.into_iter().map(|(segment, _)| segment).collect();
    (memory(whole), memory(runs))
}

/// The words of a `std::set`: comparison, color, root, first, last, count.
const SET: usize = 6;
/// The words of its nodes: color, parent, left, right, value.
const NODE: usize = 5;

/// The values of a set of pointers. `None`: it is none, changes, or has more than `most`.
fn set_of(reader: &Reader, set: &[u64], most: u64) -> Option<Vec<u64>> {
    let count = Some(set[5]).filter(|count| *count <= most)?;
    let (mut values, mut wanted) = (Vec::new(), vec![set[2]]);
    while let Some(node) = wanted.pop().filter(|_| values.len() as u64 <= count) {
        let node = reader.words(node, NODE)?;
        wanted.extend([node[2], node[3]].into_iter().filter(|child| *child != 0));
        values.push(node[4]);
    }
    (values.len() as u64 == count).then_some(values)
}

/// The allocators of the devices, and what else vectors of pointers in the allocator lead to.
fn devices(reader: &Reader, own: &[u64]) -> Vec<u64> {
    const MOST: u64 = 64;
    let vectors = own.windows(3).filter_map(|at| {
        let [first, end, limit] = at else { return None };
        let bytes = end.checked_sub(*first)?;
        let is_vector = bytes > 0 && bytes % 8 == 0 && bytes / 8 <= MOST && end <= limit;
        is_vector.then(|| reader.words(*first, bytes as usize / 8)).flatten()
    });
    vectors.flatten().filter(|pointer| *pointer != 0).take(256).collect()
}

/// The slots of a table whose second and third words these are: the shift of its hash and its number of slots say the same.
fn slots(last: u64, policy: u64) -> Option<u64> {
    let is_one = |slots: &u64| slots.is_power_of_two() && *slots <= MOST_SLOTS;
    let slots = last.checked_add(1).filter(is_one)?;
    let (shift, longest) = (policy & 0xff, policy >> 8 & 0xff);
    let is_right = policy >> 32 == LOAD_FACTOR && policy >> 16 & 0xffff == 0 && (1..64).contains(&longest);
    // A table without entries has one slot, and the shift of two.
    let is_shift = shift == 64 - u64::from(slots.max(2).trailing_zeros());
    (is_right && is_shift).then_some(slots)
}

/// The addresses and blocks of a table's entries.
fn pairs_of(table: &[u8]) -> impl Iterator<Item = (u64, u64)> + '_ {
    (table.chunks_exact(ENTRY))
        .filter(|entry| entry[0] < 0x80)
        .map(move |entry| (word(entry, 8), word(entry, 16)))
        .filter(|(address, block)| *address != 0 && *block != 0)
}

/// The words of the blocks that have the address of their memory at one place, by the addresses of the blocks, and this place.
/// `None` if there is no such place.
fn blocks_of(reader: &Reader, pairs: &[(u64, u64)]) -> Option<(usize, Map<u64, Vec<u64>>)> {
    /// Blocks that are freed while they are read have another address, or none.
    const MOST_CHANGED: usize = 8;
    let read: Vec<(u64, u64, Vec<u64>)> = (pairs.iter())
        .filter_map(|(address, block)| Some((*address, *block, reader.words(*block, BLOCK_WORDS)?)))
        .collect();
    let is_at = |place: usize| {
        let agree = |(address, _, words): &&(u64, u64, Vec<u64>)| words[place] == *address;
        read.iter().filter(agree).count()
    };
    let place = PLACES.rev().max_by_key(|place| is_at(*place))?;
    if is_at(place) + MOST_CHANGED < pairs.len() || is_at(place) * 2 < pairs.len() {
        return None;
    }
    let blocks: Map<u64, Vec<u64>> = (read.into_iter())
        .filter(|(address, _, words)| words[place] == *address && is_live(words, place))
        .map(|(_, block, words)| (block, words))
        .collect();
    (blocks.len() * 2 >= pairs.len()).then_some((place, blocks))
}

/// `words`: a block's; `place`: where in them the address of its memory is.
fn block_of(words: &[u64], place: usize) -> LiveBlock {
    LiveBlock {
        stream: words[1],
        ..LiveBlock::of(words[place], words[place - 3], words[place - 2], words[0] as i8)
    }
}

fn is_live(words: &[u64], place: usize) -> bool {
    let block = block_of(words, place);
    words[place + 1] & 0xff == 1 && block.device >= 0 && block.bytes > 0 && block.requested <= block.bytes
}

impl Reader<'_> {
    fn bytes(&self, at: u64, count: usize) -> Option<Vec<u8>> {
        let mut deadline = self.deadline;
        if deadline.is_over() {
            return None;
        }
        let mut buffer = vec![0; count];
        let range = at..at.checked_add(count as u64)?;
        (self.source.read(&[range], &mut buffer) == count).then_some(buffer)
    }

    fn words(&self, at: u64, count: usize) -> Option<Vec<u64>> {
        let bytes = self.bytes(at, count * 8)?;
        Some(bytes.chunks_exact(8).map(|bytes| word(bytes, 0)).collect())
    }

    /// As [`Reader::words`], up to the first page that cannot be read.
    fn words_as_far(&self, at: u64, count: usize) -> Vec<u64> {
        const PART: usize = 64;
        let mut all = Vec::with_capacity(count);
        while all.len() < count
            && let Some(part) = self.words(at.saturating_add(all.len() as u64 * 8), PART)
        {
            all.extend(part);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_says_its_slots_twice() {
        // As PyTorch 2.11 had them on a GPU: four, sixteen and no slots.
        assert_eq!(slots(3, 0x3f00_0000_0000_043e), Some(4));
        assert_eq!(slots(15, 0x3f00_0000_0000_043c), Some(16));
        assert_eq!(slots(0, 0x3f00_0000_0000_033f), Some(1));
        assert_eq!(slots(7, 0x3f00_0000_0000_043c), None);
        assert_eq!(slots(3, 0x3f80_0000_0000_043e), None);
        assert_eq!(slots(u64::MAX, 0x3f00_0000_0000_043e), None);
    }

    #[test]
    fn empty_slots_are_left_out() {
        let mut table = vec![0; 3 * ENTRY];
        (table[0], table[8], table[16]) = (0xff, 1, 2);
        (table[24], table[32], table[40]) = (2, 3, 4);
        assert_eq!(pairs_of(&table).collect::<Vec<_>>(), [(3, 4)]);
    }

    #[test]
    fn blocks_beside_addresses_without_memory_are_runs_of_pages() {
        const PLACE: usize = 6;
        // Address, bytes, whether it has memory, and the blocks before and after it.
        let block = |address, bytes, is_mapped: bool, before, after| {
            let mut words = vec![0; BLOCK_WORDS];
            (words[PLACE], words[PLACE - 3]) = (address, bytes);
            (words[PLACE + 1], words[PLACE + 2], words[PLACE + 3]) = (u64::from(is_mapped) << 8, before, after);
            words
        };
        let blocks = [
            (1, block(100, 10, true, 0, 2)),
            (2, block(110, 10, true, 1, 0)),
            // Adjacent, and not the same segment.
            (3, block(120, 10, true, 0, 4)),
            (4, block(130, 10, true, 3, 5)),
            (5, block(140, 10, false, 4, 6)),
            (6, block(150, 10, true, 5, 0)),
        ];
        let (whole, runs) = joined(&Map::from_iter(blocks), PLACE);
        let shown = |of: &[LiveBlock]| of.iter().map(|of| (of.address, of.bytes)).collect::<Vec<_>>();
        assert_eq!(
            (shown(&whole), shown(&runs)),
            (vec![(100, 20)], vec![(120, 20), (150, 10)])
        );
    }

    #[test]
    fn everything_is_read_again_until_blocks_and_segments_agree() {
        let look = |agrees, has_all_segments| {
            let found = LiveBlocks {
                agrees,
                has_all_segments,
                ..LiveBlocks::default()
            };
            Some(found)
        };
        let mut looks = [
            None,
            look(true, false),
            look(false, true),
            look(true, true),
            look(true, true),
        ]
        .into_iter();
        assert_eq!(best(&mut looks), look(true, true));
        assert_eq!(looks.len(), 1);
        assert_eq!(
            best([look(true, false), look(false, true), None].into_iter()),
            look(true, false)
        );
        assert_eq!(best([None].into_iter()), None);
    }
}
