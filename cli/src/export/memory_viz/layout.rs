//! Where memory lies: segments with a device address, and the blocks of frameworks in them.
//!
//! There may be ten million records, so only indices and addresses of each are kept.

use std::collections::BTreeSet;
use std::ops::Range;

use culeak::analysis::groups::Level;
use culeak::analysis::profile::Seen;
use culeak::analysis::report::Tally;
use culeak::kind::{Kind, Place};
use culeak::snapshot::{Allocation, Snapshot, Stream};

use super::trace::{Final, ordinal};

/// The address layout of all memory.
pub struct Layout<'a> {
    snapshot: &'a Snapshot,
    /// In order of address after `join_mappings`.
    parts: Vec<Part>,
    /// Blocks of frameworks, in order of address after `place_blocks`.
    blocks: Vec<Block>,
    pub segments: Vec<Segment>,
    /// Starts of reserved ranges: segments do not extend across them.
    borders: BTreeSet<u64>,
    pub left_out: Tally,
}

/// One record's memory.
#[derive(Clone, Copy)]
pub struct Part {
    pub start: u64,
    pub end: u64,
    pub record: u32,
    pub path: u32,
    /// CUDA's ordinal. A mapping may have none and take that of its blocks.
    ordinal: Option<u16>,
    /// A framework's blocks lie in it; the rest is free.
    carries: bool,
}

/// A framework's block.
#[derive(Clone, Copy)]
pub struct Block {
    address: u64,
    record: u32,
    path: u32,
}

/// Contiguous memory. Adjacent mappings are one segment, as in PyTorch's expandable segments.
pub struct Segment {
    parts: Range<u32>,
    blocks: Range<u32>,
    pub ordinal: Option<u16>,
}

impl<'a> Layout<'a> {
    pub fn new(snapshot: &'a Snapshot) -> Layout<'a> {
        Layout {
            snapshot,
            parts: Vec::new(),
            blocks: Vec::new(),
            segments: Vec::new(),
            borders: BTreeSet::new(),
            left_out: Tally::default(),
        }
    }

    pub fn record(&self, record: u32) -> Allocation<'a> {
        self.snapshot.allocations.at(record as usize)
    }

    pub fn take(&mut self, allocation: &Allocation, seen: Seen) {
        let (record, path) = (seen.index as u32, seen.path as u32);
        if allocation.kind.place() == Place::Within {
            return self.blocks.push(Block {
                address: allocation.address,
                record,
                path,
            });
        }
        if allocation.kind == Kind::Reserved {
            self.borders.insert(allocation.address);
        }
        match addresses(allocation) {
            Some((start, end)) if end > start => self.parts.push(Part {
                start,
                end,
                record,
                path,
                ordinal: self.ordinal(allocation),
                carries: seen.level == Level::Behind,
            }),
            _ => self.leave_out(allocation, seen.level),
        }
    }

    /// Sorts the parts and makes segments of them, in order of address.
    pub fn join_mappings(&mut self) {
        self.parts
            .sort_unstable_by_key(|part| (part.start, part.end, part.record));
        for nth in 0..self.parts.len() as u32 {
            let part = self.parts[nth as usize];
            let joined = self.segments.last().is_some_and(|last| self.continues(last, &part));
            match self.segments.last_mut() {
                Some(last) if joined => {
                    last.parts.end = nth + 1;
                    last.ordinal = last.ordinal.or(part.ordinal);
                }
                _ => self.segments.push(Segment {
                    parts: nth..nth + 1,
                    blocks: 0..0,
                    ordinal: part.ordinal,
                }),
            }
        }
    }

    fn continues(&self, segment: &Segment, next: &Part) -> bool {
        let (first, last) = (self.first(segment), self.last(segment));
        let is_mapped = |part: &Part| self.record(part.record).kind == Kind::Mapping;
        let one_device = segment.ordinal.is_none() || next.ordinal.is_none() || segment.ordinal == next.ordinal;
        let both = first.carries && next.carries && is_mapped(first) && is_mapped(next);
        both && one_device && last.end == next.start && !self.borders.contains(&next.start)
    }

    pub fn first(&self, segment: &Segment) -> &Part {
        &self.parts[segment.parts.start as usize]
    }

    pub fn last(&self, segment: &Segment) -> &Part {
        &self.parts[segment.parts.end as usize - 1]
    }

    /// Assigns each framework block to the segment that contains it.
    pub fn place_blocks(&mut self) {
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.sort_unstable_by_key(|block| (block.address, self.record(block.record).bytes, block.record));
        let (mut placed, mut behind, mut free) = (0, 0, 0);
        for nth in 0..blocks.len() {
            let block = blocks[nth];
            let allocation = self.record(block.record);
            while self
                .segments
                .get(behind)
                .is_some_and(|next| self.first(next).start <= block.address)
            {
                behind += 1;
                free = 0;
            }
            let end = block.address.checked_add(allocation.bytes);
            let fits = behind.checked_sub(1).filter(|&segment| {
                let segment = &self.segments[segment];
                self.first(segment).carries
                    && allocation.bytes > 0
                    && block.address >= free
                    && end.is_some_and(|end| end <= self.last(segment).end)
            });
            let Some(segment) = fits else {
                self.leave_out(&allocation, Level::Held);
                continue;
            };
            free = end.unwrap_or(u64::MAX);
            let ordinal = self.ordinal(&allocation);
            let segment = &mut self.segments[segment];
            segment.ordinal = segment.ordinal.or(ordinal);
            if segment.blocks.is_empty() {
                segment.blocks.start = placed;
            }
            blocks[placed as usize] = block;
            placed += 1;
            segment.blocks.end = placed;
        }
        blocks.truncate(placed as usize);
        self.blocks = blocks;
    }

    pub fn leave_out_unknown_devices(&mut self) {
        let segments = std::mem::take(&mut self.segments);
        let (shown, nowhere): (Vec<_>, Vec<_>) = segments.into_iter().partition(|segment| segment.ordinal.is_some());
        for segment in &nowhere {
            for record in self.held(segment).map(|(record, _)| record).collect::<Vec<_>>() {
                self.leave_out(&self.record(record), Level::Held);
            }
        }
        self.segments = shown;
    }

    fn leave_out(&mut self, allocation: &Allocation, level: Level) {
        let at_its_mappings = allocation.kind == Kind::Physical && allocation.mappings > 0;
        if level.is_counted() && !at_its_mappings {
            self.left_out.add(allocation.bytes);
        }
    }

    /// CUDA's ordinal of the device, if the viewer supports it.
    fn ordinal(&self, allocation: &Allocation) -> Option<u16> {
        let snapshot = self.snapshot;
        let device = allocation
            .device
            .or_else(|| snapshot.contexts[allocation.context?].device);
        ordinal(snapshot, device)
    }

    /// Record and path of the memory in use in a segment: its blocks, or all of it if none are known.
    pub fn held(&self, segment: &Segment) -> impl Iterator<Item = (u32, u32)> + Clone {
        let first = self.first(segment);
        let whole = (!first.carries).then_some((first.record, first.path));
        let blocks = &self.blocks[segment.blocks.start as usize..segment.blocks.end as usize];
        let blocks = blocks.iter().map(|block| (block.record, block.path));
        whole.into_iter().chain(blocks)
    }

    pub fn parts_of(&self, segment: &Segment) -> &[Part] {
        &self.parts[segment.parts.start as usize..segment.parts.end as usize]
    }

    /// The device of each segment's rows, and whether blocks lie in them.
    pub fn rows(&self) -> Final {
        let of_segment = |segment: &Segment| {
            let ordinal = segment.ordinal;
            let parts = self.parts_of(segment).iter();
            parts
                .map(|part| (part.record, (ordinal, part.carries)))
                .collect::<Vec<_>>()
        };
        self.segments.iter().flat_map(of_segment).collect()
    }

    /// When the memory at an address of a segment was mapped; a block there cannot be older.
    pub fn mapped_at(&self, segment: &Segment, address: u64) -> u64 {
        let parts = self.parts_of(segment);
        let behind = parts.partition_point(|part| part.start <= address);
        parts[..behind]
            .last()
            .map_or(0, |part| self.record(part.record).time_ns)
    }
}

/// The size of a record's address range.
pub fn bytes(allocation: &Allocation) -> u64 {
    addresses(allocation).map_or(allocation.bytes, |(start, end)| end - start)
}

/// The requested size; the viewer shows the allocator's rounding separately.
pub fn requested(allocation: &Allocation) -> u64 {
    allocation.requested.min(bytes(allocation))
}

/// A record's address range, if it has device addresses.
pub fn addresses(allocation: &Allocation) -> Option<(u64, u64)> {
    let bytes = match allocation.kind {
        Kind::Mapping => allocation.requested,
        Kind::Device | Kind::Pitched | Kind::Async | Kind::Graph | Kind::Managed => allocation.bytes,
        _ => return None,
    };
    Some((allocation.address, allocation.address.checked_add(bytes)?))
}

/// The id of a private pool, as PyTorch writes it: of a segment in PyTorch's own snapshots, or of memory that the program allocated in a pool
/// that it made. The viewer draws an envelope around its blocks.
pub fn pool(allocation: &Allocation, snapshot: &Snapshot) -> (u64, u64) {
    let is_pool = snapshot.taken.covers_allocators_only() || allocation.kind == Kind::Async;
    let id = allocation.pool.filter(|_| is_pool).unwrap_or(0);
    (id >> 32, id & u64::from(u32::MAX))
}

pub fn stream(allocation: &Allocation) -> u64 {
    match allocation.stream {
        // CUDA's handles of its default streams.
        None | Some(Stream::LegacyDefault) => 0,
        Some(Stream::PerThreadDefault) => 2,
        Some(Stream::Handle(handle)) => handle,
    }
}
