//! A model of PyTorch's caching allocator: what it takes from the driver and gives back for a series of requests.
//!
//! ```text
//! request ─► rounded ─► pool: small (up to 1 MiB) or large ─► best fit among the free blocks of its stream ─► split
//!                                                         └─► none: a segment, or more pages of an expandable one
//! free ─► joined with free neighbours ─► back to the pool
//! ```
//!
//! It follows `DeviceCachingAllocator` as in PyTorch 2.6 to 2.12, against which it is tested: the names of its functions are in the
//! comments, and what differs between versions is in [`super::version`]. Streams and private pools are numbers here ("classes"): blocks of different ones never serve each other's requests.
//! Deliberately absent: frees that wait for events of other streams, since the log has when a block was freed and not when its
//! events were complete.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use foldhash::HashMap;

use super::settings::Settings;

const MIB: u64 = 1 << 20;
/// Requests up to this size are served from the small pool (`kSmallSize`).
pub const SMALL: u64 = MIB;
/// Segments of the small pool, and what larger segments are a multiple of (`kSmallBuffer`, `kRoundLarge`).
pub const PAGE: u64 = 2 * MIB;
/// Requests of at least this size have segments of their own size (`kMinLargeAlloc`).
pub const OWN_SEGMENT: u64 = 10 * MIB;
pub const SMALLEST: u64 = 512;
/// A damaged log may have any sizes.
const LARGEST: u64 = 1 << 50;

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Live,
    Free,
    /// Addresses of an expandable segment without memory.
    Unmapped,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    class: u32,
    is_small: bool,
    expandable: bool,
    used: Use,
    address: u64,
    bytes: u64,
    prev: u32,
    next: u32,
    /// The number of requests to the pool before it was freed.
    freed_at: u64,
    /// The number of its record (`registration_counter`).
    record: u64,
}

const SEGMENT: Block = Block {
    class: 0,
    is_small: false,
    expandable: false,
    used: Use::Free,
    address: 0,
    bytes: 0,
    prev: NONE,
    next: NONE,
    freed_at: 0,
    record: 0,
};

/// Blocks by class, size, and address or record: best fit is the first one that is large enough.
type BySize = BTreeSet<(u32, u64, u64, u32)>;

#[derive(Debug, Clone, Default)]
pub struct Model {
    settings: Settings,
    /// The most bytes that the driver gives.
    pub limit: Option<u64>,
    blocks: Vec<Block>,
    spare: Vec<u32>,
    /// Free blocks of the large and the small pool.
    free: [BySize; 2],
    /// Unmapped blocks, by class and address.
    unmapped: [BTreeSet<(u32, u64, u32)>; 2],
    requests: [u64; 2],
    records: u64,
    /// Addresses for segments, by size: among equal blocks, the lowest address is used first.
    addresses: HashMap<u64, VecDeque<u64>>,
    next_address: u64,
    pub reserved: u64,
    pub peak: u64,
    /// Calls that take memory from the driver or give it back.
    pub driver_calls: u64,
    /// Requests that did not fit under the limit. They are served nevertheless, so that the replay can go on.
    pub failed: u64,
}

impl Model {
    pub fn new(settings: Settings, limit: Option<u64>, addresses: HashMap<u64, VecDeque<u64>>) -> Model {
        Model {
            settings,
            limit,
            addresses,
            next_address: 1 << 48,
            ..Model::default()
        }
    }

    /// `malloc`. The result is for [`Model::free`].
    pub fn allocate(&mut self, bytes: u64, class: u32) -> u32 {
        let size = self.settings.round(bytes.min(LARGEST));
        let is_small = size <= SMALL;
        self.requests[usize::from(is_small)] += 1;
        if let Some(id) = self.best_fit(size, class, is_small) {
            return self.hand_out(id, size);
        }
        if self.settings.collect_above > 0.0 {
            self.collect_garbage();
        }
        let mut found = self.take(size, class, is_small);
        if found.is_none() && self.release_oversize(size, class, is_small) {
            found = self.take(size, class, is_small);
        }
        if found.is_none() {
            self.release_cached();
            found = self.take(size, class, is_small);
        }
        let id = found.unwrap_or_else(|| {
            self.failed += 1;
            let limit = self.limit.take();
            let id = self.take(size, class, is_small);
            self.limit = limit;
            id.unwrap_or(NONE)
        });
        self.hand_out(id, size)
    }

    /// What the driver is asked for if no free block serves a request.
    pub fn segment_for(&self, bytes: u64) -> u64 {
        self.settings.segment_for(bytes)
    }

    /// `free`, of a block that no other stream uses.
    pub fn free(&mut self, id: u32) {
        self.block_mut(id).used = Use::Free;
        self.join(id);
        let is_small = self.block(id).is_small;
        self.block_mut(id).freed_at = self.requests[usize::from(is_small)];
        self.enter(id);
    }

    /// `release_cached_blocks`: what `empty_cache()` does.
    pub fn release_cached(&mut self) {
        let free: Vec<u32> = self.free.iter().flatten().map(|entry| entry.3).collect();
        for id in free {
            match self.whole(id) {
                part if part.is_empty() => {}
                part if self.block(id).expandable => self.unmap(id, part),
                _ => self.release(id),
            }
        }
    }

    fn block(&self, id: u32) -> Block {
        self.blocks[id as usize]
    }

    fn block_mut(&mut self, id: u32) -> &mut Block {
        &mut self.blocks[id as usize]
    }

    fn new_record(&mut self) -> u64 {
        self.records += 1;
        self.records
    }

    fn add(&mut self, block: Block) -> u32 {
        match self.spare.pop() {
            Some(id) => {
                self.blocks[id as usize] = block;
                id
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() as u32 - 1
            }
        }
    }

    /// Enters a block that is not live into its pool.
    fn enter(&mut self, id: u32) {
        let of = self.block(id);
        match of.used {
            Use::Free => self.free[usize::from(of.is_small)].insert(self.by_size(&of, id)),
            _ => self.unmapped[usize::from(of.is_small)].insert((of.class, of.address, id)),
        };
    }

    /// `BlockComparatorSize`, or `BlockComparatorRegistrationCounter`.
    fn by_size(&self, of: &Block, id: u32) -> (u32, u64, u64, u32) {
        let first = if self.settings.oldest_record_first {
            of.record
        } else {
            of.address
        };
        (of.class, of.bytes, first, id)
    }

    fn leave(&mut self, id: u32) {
        let of = self.block(id);
        match of.used {
            Use::Free => self.free[usize::from(of.is_small)].remove(&self.by_size(&of, id)),
            _ => self.unmapped[usize::from(of.is_small)].remove(&(of.class, of.address, id)),
        };
    }

    /// `get_free_block`.
    fn best_fit(&mut self, size: u64, class: u32, is_small: bool) -> Option<u32> {
        let mut fitting = self.free[usize::from(is_small)].range((class, size, 0, 0)..(class + 1, 0, 0, 0));
        let mut id = fitting.next()?.3;
        if self.block(id).expandable {
            // What a block can grow to counts as its size.
            let can_be = |id: u32| {
                let of = self.block(id);
                let next = (of.next != NONE).then(|| self.block(of.next));
                of.bytes
                    + next
                        .filter(|next| next.used == Use::Unmapped)
                        .map_or(0, |next| next.bytes)
            };
            for next in fitting {
                if can_be(next.3) >= can_be(id) {
                    break;
                }
                id = next.3;
            }
        }
        let bytes = self.block(id).bytes;
        self.settings.accepts(size, bytes).then_some(())?;
        self.leave(id);
        Some(id)
    }

    /// `alloc_found_block`: the block, or its first part.
    fn hand_out(&mut self, id: u32, size: u64) -> u32 {
        let of = self.block(id);
        let rest = of.bytes - size;
        // `should_split`
        let splits = match of.is_small || self.settings.expandable {
            true => rest >= SMALLEST,
            false => size < self.settings.max_split && rest > SMALL,
        };
        if !splits {
            self.block_mut(id).used = Use::Live;
            return id;
        }
        let rest = self.split(id, size, true);
        self.block_mut(rest).used = Use::Free;
        self.enter(rest);
        self.block_mut(id).used = Use::Live;
        id
    }

    /// Cuts a block, which is in no pool, after so many bytes. Returns the rest, which is in none either. One of them gets a new record.
    fn split(&mut self, id: u32, bytes: u64, first_is_new: bool) -> u32 {
        let of = self.block(id);
        let new = self.new_record();
        let (address, left) = (of.address + bytes, of.bytes - bytes);
        let rest = self.add(Block {
            address,
            bytes: left,
            prev: id,
            record: if first_is_new { of.record } else { new },
            ..of
        });
        if of.next != NONE {
            self.block_mut(of.next).prev = rest;
        }
        let block = self.block_mut(id);
        (block.bytes, block.next) = (bytes, rest);
        if first_is_new {
            block.record = new;
        }
        rest
    }

    /// Joins a block with neighbours of the same use (`try_merge_blocks`). It must be in no pool.
    fn join(&mut self, id: u32) {
        for is_prev in [true, false] {
            let of = self.block(id);
            let other = if is_prev { of.prev } else { of.next };
            if other == NONE || self.block(other).used != of.used {
                continue;
            }
            self.leave(other);
            let from = self.block(other);
            let block = self.block_mut(id);
            block.bytes += from.bytes;
            match is_prev {
                true => (block.address, block.prev) = (from.address, from.prev),
                false => block.next = from.next,
            }
            let beyond = if is_prev { from.prev } else { from.next };
            if beyond != NONE {
                let beyond = self.block_mut(beyond);
                *(if is_prev { &mut beyond.next } else { &mut beyond.prev }) = id;
            }
            self.spare.push(other);
        }
    }

    /// Whether the driver gives this much.
    fn driver_gives(&mut self, bytes: u64) -> bool {
        let gives = self
            .limit
            .is_none_or(|limit| self.reserved.saturating_add(bytes) <= limit);
        if gives {
            self.reserved = self.reserved.saturating_add(bytes);
            self.peak = self.peak.max(self.reserved);
        }
        gives
    }

    /// `alloc_block`: a free block from new memory, which is in no pool.
    fn take(&mut self, size: u64, class: u32, is_small: bool) -> Option<u32> {
        if self.settings.expandable {
            return self.grow(size, class, is_small);
        }
        let bytes = self.settings.segment_for(size);
        self.driver_calls += 1;
        if !self.driver_gives(bytes) {
            return None;
        }
        let known = self.addresses.get_mut(&bytes).and_then(VecDeque::pop_front);
        let address = known.unwrap_or_else(|| {
            self.next_address = self.next_address.wrapping_add(bytes);
            self.next_address.wrapping_sub(bytes)
        });
        let record = self.new_record();
        Some(self.add(Block {
            class,
            is_small,
            address,
            bytes,
            record,
            ..SEGMENT
        }))
    }

    fn page(&self, is_small: bool) -> u64 {
        if is_small { PAGE } else { self.settings.large_segment }
    }

    /// `try_allocate_expandable_block`.
    fn grow(&mut self, size: u64, class: u32, is_small: bool) -> Option<u32> {
        let mut id = self.room(size, class, is_small);
        if self.block(id).used == Use::Unmapped {
            let most = self.block(id).bytes.min(size);
            self.map(id, most)?;
        }
        while self.block(id).bytes < size {
            let next = self.block(id).next;
            let most = self.block(next).bytes.min(size - self.block(id).bytes);
            self.map(next, most)?;
            id = next;
        }
        self.leave(id);
        Some(id)
    }

    /// `find_expandable_block`: the first block of a range of free and unmapped ones with room for a request.
    fn room(&mut self, size: u64, class: u32, is_small: bool) -> u32 {
        let unmapped = &self.unmapped[usize::from(is_small)];
        for &(_, _, id) in unmapped.range((class, 0, 0)..(class + 1, 0, 0)) {
            let prev = self.block(id).prev;
            let first = if prev != NONE && self.block(prev).used == Use::Free {
                prev
            } else {
                id
            };
            let (mut at, mut bytes) = (first, 0);
            while at != NONE && bytes < size && self.block(at).used != Use::Live {
                bytes += self.block(at).bytes;
                at = self.block(at).next;
            }
            if bytes >= size {
                return first;
            }
        }
        // More addresses than any device has memory. Pages are counted from the first one.
        let page = self.page(is_small);
        let span = (page << 20).max(size.next_multiple_of(page));
        let address = self.next_address.next_multiple_of(span);
        self.next_address = address.wrapping_add(span);
        let (used, expandable, bytes, record) = (Use::Unmapped, true, span, self.new_record());
        let id = self.add(Block {
            class,
            is_small,
            expandable,
            used,
            address,
            bytes,
            record,
            ..SEGMENT
        });
        self.enter(id);
        id
    }

    /// `map_block`: gives memory to the first bytes of an unmapped block, in whole pages.
    fn map(&mut self, id: u32, bytes: u64) -> Option<()> {
        let of = self.block(id);
        let page = self.page(of.is_small);
        let bytes = bytes.next_multiple_of(page);
        self.driver_calls += 2 * (bytes / page) + 1;
        self.driver_gives(bytes).then_some(())?;
        self.leave(id);
        if bytes < of.bytes {
            let rest = self.split(id, bytes, false);
            self.enter(rest);
        }
        self.block_mut(id).used = Use::Free;
        self.join(id);
        self.enter(id);
        Some(())
    }

    /// What of a free block [`Model::release_cached`] gives back: whole pages, or a whole segment.
    fn whole(&self, id: u32) -> Range<u64> {
        let of = self.block(id);
        let page = self.page(of.is_small);
        match of.expandable {
            true => of.address.next_multiple_of(page)..(of.address + of.bytes) / page * page,
            false if of.prev == NONE && of.next == NONE => of.address..of.address + of.bytes,
            false => 0..0,
        }
    }

    /// What [`Model::release_cached`] would give back.
    pub fn idle(&self) -> u64 {
        let whole = self.free.iter().flatten().map(|entry| self.whole(entry.3));
        whole.map(|part| part.end.saturating_sub(part.start)).sum()
    }

    /// `unmap_block`: gives the whole pages of a free block back.
    fn unmap(&mut self, mut id: u32, Range { start, end }: Range<u64>) {
        let of = self.block(id);
        self.leave(id);
        if start > of.address {
            let whole = self.split(id, start - of.address, true);
            self.enter(std::mem::replace(&mut id, whole));
        }
        if end < of.address + of.bytes {
            let after = self.split(id, end - start, false);
            self.enter(after);
        }
        self.block_mut(id).used = Use::Unmapped;
        self.join(id);
        self.enter(id);
        self.reserved -= end - start;
        self.driver_calls += 2 * ((end - start) / self.page(of.is_small));
    }

    /// `release_block`: gives a free segment back.
    fn release(&mut self, id: u32) {
        self.leave(id);
        self.reserved -= self.block(id).bytes;
        self.driver_calls += 1;
        self.spare.push(id);
    }

    /// `release_available_cached_blocks`: gives back blocks that are too large to be split, as many as the request needs.
    fn release_oversize(&mut self, size: u64, class: u32, is_small: bool) -> bool {
        let max_split = self.settings.max_split;
        if max_split == u64::MAX || self.settings.expandable {
            return false;
        }
        let wanted = size.max(max_split);
        let of_class = |from: u64| (class, from, 0, 0)..(class + 1, 0, 0, 0);
        let free = &self.free[usize::from(is_small)];
        if let Some(&(.., id)) = free.range(of_class(wanted)).next() {
            self.release(id);
            return true;
        }
        let mut released = 0;
        let largest: Vec<(u64, u32)> = free
            .range(of_class(max_split))
            .rev()
            .map(|entry| (entry.1, entry.3))
            .collect();
        for (bytes, id) in largest {
            if released >= wanted {
                break;
            }
            released += bytes;
            self.release(id);
        }
        released >= wanted
    }

    /// `garbage_collect_cached_blocks`: gives back the segments that were unused for longest.
    fn collect_garbage(&mut self) {
        let Some(limit) = self.limit.filter(|_| self.settings.limits_memory) else {
            return;
        };
        let above = (self.settings.collect_above * limit as f64) as u64;
        let wanted = self.reserved.saturating_sub(above);
        let mut reclaimed = 0;
        while reclaimed < wanted {
            let whole = |id: &u32| {
                let block = self.block(*id);
                !block.expandable && block.prev == NONE && block.next == NONE
            };
            let ids: Vec<u32> = self.free[0].iter().map(|entry| entry.3).filter(whole).collect();
            let age = |id: &u32| self.requests[0] - self.block(*id).freed_at;
            let total: u64 = ids.iter().map(age).sum();
            let oldest = |id: &u32| age(id) as f64 >= total as f64 / ids.len() as f64;
            let old: Vec<u32> = ids.iter().copied().filter(oldest).collect();
            if old.is_empty() {
                return;
            }
            for id in old {
                reclaimed += self.block(id).bytes;
                self.release(id);
            }
        }
    }
}

#[cfg(test)]
mod tests;
