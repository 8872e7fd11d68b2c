//! Blocks within the memory of their allocators: how much of each segment is in use, and how fragmented the rest is.
//!
//! ```text
//! records     |===== segment =====|    |= segment =|     cudaMalloc: one segment each
//! mappings    |==|==|==|==|                              expandable segments: adjacent mappings are one segment,
//!                                                        within one reserved range
//! blocks       ##  #####    ##          ####
//! free        .  ..     ....  .....    .    ......       largest free run of the left segment: 5
//! ```
//!
//! - A block is found by its first address. It counts as far as there is memory: to the end of a record, or over all
//!   adjacent mappings, whichever segments these belong to. Overlapping blocks count once. The bytes of all blocks in a
//!   segment therefore never exceed the segment.
//! - A segment made of mappings holds no bytes: the physical memory has its own record, from which the blocks are
//!   subtracted.
//! - If a program maps its own memory where a framework's blocks lie, the memory counts as the framework's.
//!   Programs that put PyTorch's memory to sleep and wake it up do this.
//! - The device of a mapping may be unknown, because a thread may map without a current device. It is then that of the
//!   adjacent mappings.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::analysis::framework::{Block, Blocks, span};
use crate::analysis::groups::Groups;
use crate::analysis::site::CallStacks;
use crate::kind::{Kind, Place};
use crate::snapshot::allocations::stack_of;
use crate::snapshot::{Allocation, Snapshot};
use crate::tally::Tally;

/// What requested memory from the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holder<'a> {
    Pool(&'a str),
    Library(&'static str),
    Program,
}

/// One caching allocator on one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Cache<'a> {
    pub owner: &'a str,
    pub bytes: u64,
    pub live_bytes: u64,
    pub free_bytes: u64,
    /// The longest range without a live block: the largest request that can be satisfied without the driver.
    pub largest_free_run: u64,
    /// The fraction of the free memory outside its largest run, 0 to 1; 0 if nothing is free.
    pub fragmentation: f64,
    /// Largest first.
    pub segments: Vec<CacheSegment>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CacheSegment {
    pub address: u64,
    pub bytes: u64,
    pub live_bytes: u64,
    pub blocks: u64,
    pub largest_free_run: u64,
    /// The segment consists of mappings, so it can grow.
    pub expandable: bool,
}

/// A tally whose bytes may exceed 64 bits.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LedgerTally {
    pub bytes: i128,
    pub count: u64,
}

impl LedgerTally {
    pub fn join(&mut self, bytes: i128, count: u64) {
        self.bytes += bytes;
        self.count += count;
    }
}

/// A range of addresses that blocks can lie in.
#[derive(Clone)]
pub(super) struct Range<'a> {
    pub start: u64,
    pub end: u64,
    pub device: Option<usize>,
    pub holder: Holder<'a>,
    pub mapped: bool,
    pub stack: Option<usize>,
    /// End of the last block so far.
    reached: u64,
    live: u64,
    blocks: u64,
    largest_free: u64,
}

impl Range<'_> {
    /// Whether both are mappings and adjacent, so a block may span both.
    fn is_followed_by(&self, next: &Range) -> bool {
        self.mapped && next.mapped && self.end == next.start
    }

    /// Adds the part of a block that lies in the range; returns how many of its bytes no earlier block covers.
    fn take(&mut self, start: u64, end: u64) -> u64 {
        let (start, end) = (start.max(self.reached), end.min(self.end));
        if end <= start {
            return 0;
        }
        self.largest_free = self.largest_free.max(start - self.reached);
        self.reached = end;
        self.live += end - start;
        end - start
    }

    fn segment(&self) -> CacheSegment {
        CacheSegment {
            address: self.start,
            bytes: self.end - self.start,
            live_bytes: self.live,
            blocks: self.blocks,
            largest_free_run: self.largest_free.max(self.end - self.reached),
            expandable: self.mapped,
        }
    }
}

/// Mapped memory, by device, holder and size.
#[derive(Default)]
pub(super) struct Mapped<'a> {
    /// Number of allocations of physical memory.
    memory: BTreeMap<(usize, Holder<'a>, u64), u64>,
    /// Number of mappings that contain the blocks of another holder, whose name is last.
    for_others: BTreeMap<(Option<usize>, Holder<'a>, u64, &'a str), u64>,
}

type ByOwner<'a> = BTreeMap<&'a str, LedgerTally>;

/// All driver-level records of a snapshot, by device and holder, with the blocks in them.
#[derive(Default)]
pub(super) struct Spread<'a> {
    held: BTreeMap<(usize, Holder<'a>), LedgerTally>,
    blocks: BTreeMap<(usize, Holder<'a>), ByOwner<'a>>,
    outside: BTreeMap<usize, Tally>,
    /// Pools that contain blocks of unknown address, so the use of their segments is not known.
    scattered: BTreeSet<(usize, &'a str)>,
    caches: BTreeMap<(usize, &'a str), Vec<CacheSegment>>,
}

impl<'a> Spread<'a> {
    /// Whether the addresses of a pool's blocks are not known.
    pub fn is_scattered(&self, device: usize, owner: &'a str) -> bool {
        self.scattered.contains(&(device, owner))
    }

    pub fn of(snapshot: &'a Snapshot, stacks: &CallStacks, groups: &Groups<'a>) -> Spread<'a> {
        let mut spread = Spread::default();
        for group in &groups.all {
            if group.call.kind.place() == Place::Device
                && let Some(device) = group.call.device
            {
                let holder = holder(group.stack, group.owner, stacks);
                let held = spread.held.entry((device, holder)).or_default();
                held.join(i128::try_from(group.bytes).unwrap_or(i128::MAX), group.count);
            }
        }
        // If there is only one device, mappings of unknown device are on it.
        let only = (snapshot.devices.len() == 1).then_some(0);
        let mut mapped = Mapped::default();
        let mut ranges = pieces(snapshot, stacks, groups, &mut mapped);
        join(&mut ranges, snapshot);
        spread.give_to_owners(&mapped, only);
        spread.lay_blocks(&groups.blocks, &mut ranges);
        spread.limit_to_held();
        for range in &ranges {
            if let (Holder::Pool(owner), Some(device)) = (range.holder, range.device.or(only))
                && groups.watched.contains(owner)
                && !spread.scattered.contains(&(device, owner))
            {
                spread.caches.entry((device, owner)).or_default().push(range.segment());
            }
        }
        spread
    }

    /// Moves physical memory to the framework whose blocks lie where it is mapped. Which memory a mapping maps is not
    /// recorded, so any memory of the same size and holder is taken, and each only once.
    fn give_to_owners(&mut self, mapped: &Mapped<'a>, only: Option<usize>) {
        let mut left = mapped.memory.clone();
        for (&(device, by, bytes, owner), &mappings) in &mapped.for_others {
            let Some(device) = device.or(only) else { continue };
            let Some(left) = left.get_mut(&(device, by, bytes)) else {
                continue;
            };
            let count = mappings.min(*left);
            *left -= count;
            let given = i128::from(bytes) * i128::from(count);
            if let Some(held) = self.held.get_mut(&(device, by)) {
                (held.bytes, held.count) = (held.bytes - given, held.count.saturating_sub(count));
            }
            let pool = self.held.entry((device, Holder::Pool(owner))).or_default();
            pool.join(given, count);
        }
    }

    fn lay_blocks(&mut self, blocks: &Blocks<'a>, ranges: &mut [Range<'a>]) {
        // The range in which the previous block ended. Ranges below it are done, so each range is visited once.
        let mut last = 0;
        for block in &blocks.blocks {
            let behind = ranges.partition_point(|range| range.start <= block.address);
            let first = behind.checked_sub(1).filter(|&nth| block.address < ranges[nth].end);
            match first {
                Some(first) => {
                    ranges[first].blocks += 1;
                    last = self.lay(block, blocks, ranges, first.max(last));
                }
                None => self.unplaced(block, blocks),
            }
        }
    }

    /// Lays a block over the range with this index and the adjacent mappings after it; returns the index of the last
    /// range.
    fn lay(&mut self, block: &Block, blocks: &Blocks<'a>, ranges: &mut [Range<'a>], mut nth: usize) -> usize {
        let owner = blocks.owner(block);
        let end = block.address.saturating_add(block.bytes);
        let mut count = 1;
        loop {
            let goes_on = ranges.get(nth + 1).is_some_and(|next| ranges[nth].is_followed_by(next));
            let range = &mut ranges[nth];
            // The device of a mapping may be unknown, but that of its blocks is known.
            range.device = range.device.or(blocks.calls[block.call as usize].device);
            let bytes = range.take(block.address, end);
            let rest = end.saturating_sub(range.end);
            if let Some(device) = range.device {
                let blocks = self.blocks.entry((device, range.holder)).or_default();
                let tally = blocks.entry(owner).or_default();
                tally.join(bytes.into(), count);
                if rest > 0 && !goes_on {
                    let outside = self.outside.entry(device).or_default();
                    outside.join(Tally { bytes: rest, count: 0 });
                }
            }
            if rest == 0 || !goes_on {
                return nth;
            }
            count = 0;
            nth += 1;
        }
    }

    /// Counts a block outside all recorded memory. An XLA buffer is identified by its handle unless addresses are
    /// recorded: it lies in XLA's pool at an unknown address. Other blocks count as outside.
    fn unplaced(&mut self, block: &Block, blocks: &Blocks<'a>) {
        let call = &blocks.calls[block.call as usize];
        let Some(device) = call.device else { return };
        let owner = blocks.owner(block);
        let pool = (device, Holder::Pool(owner));
        if call.kind == Kind::Buffer && self.held.contains_key(&pool) {
            let blocks = self.blocks.entry(pool).or_default();
            blocks.entry(owner).or_default().join(block.bytes.into(), 1);
            self.scattered.insert((device, owner));
        } else {
            self.outside.entry(device).or_default().add(block.bytes);
        }
    }

    /// Memory that is mapped twice can contain blocks twice; bytes beyond the size of the memory count as outside.
    fn limit_to_held(&mut self) {
        for (key, blocks) in &mut self.blocks {
            let held = self.held.get(key).map_or(0, |held| held.bytes);
            let mut over = blocks.values().map(|block| block.bytes).sum::<i128>() - held;
            for tally in blocks.values_mut().rev() {
                let cut = over.clamp(0, tally.bytes);
                tally.bytes -= cut;
                over -= cut;
                if cut > 0 {
                    let outside = self.outside.entry(key.0).or_default();
                    outside.bytes = outside.bytes.saturating_add(u64::try_from(cut).unwrap_or(u64::MAX));
                }
            }
            self.held.entry(*key).or_default();
        }
    }

    /// Every holder of memory on this device, with its tally and the blocks in it by owner.
    pub fn held(&self, device: usize) -> impl Iterator<Item = (Holder<'a>, LedgerTally, ByOwner<'a>)> {
        let on_device = self.held.iter().filter(move |((on, _), _)| *on == device);
        on_device.map(|(key, held)| (key.1, *held, self.blocks.get(key).cloned().unwrap_or_default()))
    }

    pub fn outside(&self, device: usize) -> Tally {
        self.outside.get(&device).copied().unwrap_or_default()
    }

    pub fn take_caches(&mut self, device: usize) -> Vec<Cache<'a>> {
        let keys: Vec<_> = self.caches.keys().copied().filter(|key| key.0 == device).collect();
        let caches = keys
            .into_iter()
            .filter_map(|key| Some(cache(key.1, self.caches.remove(&key)?)));
        caches.collect()
    }
}

fn holder<'a>(stack: Option<usize>, owner: Option<&'a str>, stacks: &CallStacks) -> Holder<'a> {
    let stack = stacks.get(stack);
    match (stack.allocator.or(owner), stack.library) {
        (Some(owner), _) => Holder::Pool(owner),
        (None, Some(library)) => Holder::Library(library),
        (None, None) => Holder::Program,
    }
}

/// The ranges that blocks can lie in, by address: mappings; records that contain blocks; and empty segments of pools whose
/// blocks are recorded. Fills in `mapped_memory`.
pub(super) fn pieces<'a>(
    snapshot: &Snapshot,
    stacks: &CallStacks,
    groups: &Groups<'a>,
    mapped_memory: &mut Mapped<'a>,
) -> Vec<Range<'a>> {
    let calls = snapshot.allocations.calls();
    let watched = |stack: Option<usize>| {
        let allocator = stacks.get(stack).allocator;
        allocator.is_some_and(|allocator| groups.watched.contains(allocator))
    };
    // There are millions of records, but few stacks.
    let of_stacks: Vec<bool> = (0..snapshot.stacks.len()).map(|stack| watched(Some(stack))).collect();
    let mut ranges: Vec<Range> = Vec::new();
    for row in &snapshot.allocations.rows {
        let call = &calls[row.call as usize];
        if call.kind == Kind::Physical
            && call.mappings > 0
            && let Some(device) = call.device
        {
            let by = holder(stack_of(row.stack), None, stacks);
            *mapped_memory.memory.entry((device, by, row.bytes)).or_default() += 1;
        }
        let Some((start, end)) = span(call.kind, row) else {
            continue;
        };
        let (stack, mapped) = (stack_of(row.stack), call.kind == Kind::Mapping);
        let owner = groups.carriers.name(groups.carriers.number(row.address, call.kind));
        if let Some(owner) = owner.filter(|_| mapped) {
            let by = holder(stack, None, stacks);
            if by != Holder::Pool(owner) {
                let key = (call.device, by, end - start, owner);
                *mapped_memory.for_others.entry(key).or_default() += 1;
            }
        }
        if mapped || owner.is_some() || stack.is_some_and(|stack| of_stacks[stack]) {
            ranges.push(Range {
                start,
                end,
                device: call.device,
                holder: holder(stack, owner, stacks),
                mapped,
                stack,
                reached: start,
                live: 0,
                blocks: 0,
                largest_free: 0,
            });
        }
    }
    ranges.sort_by_key(|range| (range.start, range.end));
    ranges
}

/// Joins mappings that are adjacent within one reserved range.
pub(super) fn join(ranges: &mut Vec<Range>, snapshot: &Snapshot) {
    let of_reserved = |record: &Allocation| record.kind == Kind::Reserved;
    let reserved = snapshot.allocations.iter().filter(of_reserved);
    let starts: BTreeSet<u64> = reserved.map(|record| record.address).collect();
    ranges.dedup_by(|next, range| {
        let same_device = range.device.is_none() || next.device.is_none() || range.device == next.device;
        let joins =
            range.is_followed_by(next) && range.holder == next.holder && same_device && !starts.contains(&next.start);
        if joins {
            range.end = next.end;
            range.device = range.device.or(next.device);
        }
        joins
    });
}

fn cache(owner: &str, mut segments: Vec<CacheSegment>) -> Cache<'_> {
    segments.sort_by_key(|segment| (std::cmp::Reverse(segment.bytes), segment.address));
    let sum = |part: fn(&CacheSegment) -> u64| segments.iter().map(part).fold(0, u64::saturating_add);
    let (bytes, live_bytes) = (sum(|segment| segment.bytes), sum(|segment| segment.live_bytes));
    let free_bytes = bytes - live_bytes.min(bytes);
    let largest_free_run = segments
        .iter()
        .map(|segment| segment.largest_free_run)
        .max()
        .unwrap_or(0);
    let outside_the_run = free_bytes.saturating_sub(largest_free_run);
    Cache {
        owner,
        bytes,
        live_bytes,
        free_bytes,
        largest_free_run,
        fragmentation: if free_bytes == 0 {
            0.0
        } else {
            outside_the_run as f64 / free_bytes as f64
        },
        segments,
    }
}
