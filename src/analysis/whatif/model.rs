//! A model of PyTorch's caching allocator: what it takes from the driver and gives back for a series of requests.
//!
//! ```text
//! request ─► rounded ─► pool: small (up to 1 MiB) or large ─► best fit among the free blocks of its stream ─► split
//!                                                         └─► none: a segment, or more pages of an expandable one
//! free ─► joined with free neighbours ─► back to the pool
//! ```
//!
//! It follows `DeviceCachingAllocator` as in PyTorch 2.6 to 2.12, against which it is tested: the names of its functions are in the
//! comments, and what differs between versions is in [`super::version`]. Streams and private pools are numbers here ("classes"): blocks
//! of different ones never serve each other's requests.
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

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Use {
    Live,
    #[default]
    Free,
    /// Addresses of an expandable segment without memory.
    Unmapped,
}

#[derive(Debug, Clone, Copy, Default)]
struct Block {
    class: u32,
    is_small: bool,
    expandable: bool,
    used: Use,
    address: u64,
    bytes: u64,
    /// The blocks before and after it in its segment; 0: none.
    prev: u32,
    next: u32,
    /// The number of requests to the pool before it was freed.
    freed_at: u64,
    /// The number of its record (`registration_counter`).
    record: u64,
}

/// Class, size, and address or record of a block, and its number: best fit is the first one that is large enough.
type Key = (u32, u64, u64, u32);

/// Those of a class with at least so many bytes.
fn of_class(class: u32, bytes: u64) -> Range<Key> {
    (class, bytes, 0, 0)..(class + 1, 0, 0, 0)
}

#[derive(Debug, Clone, Default)]
pub struct Model {
    settings: Settings,
    /// The most bytes that the driver gives.
    pub limit: Option<u64>,
    /// The first one stands for none.
    blocks: Vec<Block>,
    spare: Vec<u32>,
    /// Free blocks of the large and the small pool.
    free: [BTreeSet<Key>; 2],
    /// Unmapped blocks, by class and address.
    unmapped: [BTreeSet<Key>; 2],
    requests: [u64; 2],
    records: u64,
    /// Addresses for segments, by size: among equal blocks, the lowest address is used first.
    addresses: HashMap<u64, VecDeque<u64>>,
    next_address: u64,
    pub reserved: u64,
    pub peak: u64,
    /// Sizes of segments, or of pages of expandable ones, and how many were taken or, if less than 0, given back.
    pub changed: Vec<(u64, i64)>,
    /// Calls that take memory from the driver or give it back.
    pub driver_calls: u64,
    /// Requests that did not fit under the limit. They are served nevertheless, so that the replay can go on.
    pub failed: u64,
}

impl Model {
    pub fn new(settings: Settings, limit: Option<u64>, addresses: HashMap<u64, VecDeque<u64>>) -> Model {
        let none = Block {
            used: Use::Live,
            ..Block::default()
        };
        Model {
            settings,
            limit,
            addresses,
            blocks: vec![none],
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
        self.collect_garbage();
        let mut found = self.take(size, class, is_small);
        if found.is_none() && self.release_oversize(size, class, is_small) {
            found = self.take(size, class, is_small);
        }
        if found.is_none() {
            self.release_cached();
            found = self.take(size, class, is_small);
        }
        if found.is_none() {
            self.failed += 1;
            let limit = self.limit.take();
            found = self.take(size, class, is_small);
            self.limit = limit;
        }
        self.hand_out(found.unwrap_or_default(), size)
    }

    /// `free`, of a block that no other stream uses.
    pub fn free(&mut self, id: u32) {
        let of = &mut self.blocks[id as usize];
        of.freed_at = self.requests[usize::from(of.is_small)];
        self.put(id, Use::Free);
    }

    /// `release_cached_blocks`: what `empty_cache()` does.
    pub fn release_cached(&mut self) {
        let free: Vec<u32> = self.free.iter().flatten().map(|entry| entry.3).collect();
        for id in free {
            match self.whole(id) {
                part if part.is_empty() => {}
                part if self.block(id).expandable => self.unmap(id, part),
                _ => drop(self.release(id)),
            }
        }
    }

    fn block(&self, id: u32) -> Block {
        self.blocks[id as usize]
    }

    fn block_mut(&mut self, id: u32) -> &mut Block {
        &mut self.blocks[id as usize]
    }

    /// Adds a block with a new record.
    fn add(&mut self, block: Block) -> u32 {
        self.records += 1;
        let record = self.records;
        let id = self.spare.pop().unwrap_or(self.blocks.len() as u32);
        self.blocks.resize(self.blocks.len().max(id as usize + 1), block);
        self.blocks[id as usize] = Block { record, ..block };
        id
    }

    /// The pool of a block that is not live, and its place there: `BlockComparatorSize`, or `BlockComparatorRegistrationCounter`.
    fn pool(&mut self, id: u32) -> (&mut BTreeSet<Key>, Key) {
        let of = self.block(id);
        let first = match self.settings.oldest_record_first {
            true => of.record,
            false => of.address,
        };
        match of.used {
            Use::Unmapped => (
                &mut self.unmapped[usize::from(of.is_small)],
                (of.class, 0, of.address, id),
            ),
            _ => (
                &mut self.free[usize::from(of.is_small)],
                (of.class, of.bytes, first, id),
            ),
        }
    }

    fn enter(&mut self, id: u32) {
        let (pool, key) = self.pool(id);
        pool.insert(key);
    }

    fn leave(&mut self, id: u32) {
        let (pool, key) = self.pool(id);
        pool.remove(&key);
    }

    /// `get_free_block`.
    fn best_fit(&mut self, size: u64, class: u32, is_small: bool) -> Option<u32> {
        let mut fitting = self.free[usize::from(is_small)].range(of_class(class, size));
        let mut id = fitting.next()?.3;
        if self.block(id).expandable {
            // What a block can grow to counts as its size.
            let can_be = |id: u32| match (self.block(id), self.block(self.block(id).next)) {
                (of, next) if next.used == Use::Unmapped => of.bytes + next.bytes,
                (of, _) => of.bytes,
            };
            for next in fitting {
                if can_be(next.3) >= can_be(id) {
                    break;
                }
                id = next.3;
            }
        }
        self.settings.accepts(size, self.block(id).bytes).then_some(())?;
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
        if splits {
            let rest = self.split(id, size, true);
            self.enter(rest);
        }
        self.block_mut(id).used = Use::Live;
        id
    }

    /// Cuts a block, which is in no pool, after so many bytes. Returns the rest, which is in none either. One of them gets the new record.
    fn split(&mut self, id: u32, bytes: u64, first_is_new: bool) -> u32 {
        let of = self.block(id);
        let rest = self.add(Block {
            address: of.address + bytes,
            bytes: of.bytes - bytes,
            prev: id,
            ..of
        });
        self.block_mut(of.next).prev = rest;
        let new = self.block(rest).record;
        let (first, second) = if first_is_new {
            (new, of.record)
        } else {
            (of.record, new)
        };
        self.block_mut(rest).record = second;
        let block = self.block_mut(id);
        (block.bytes, block.next, block.record) = (bytes, rest, first);
        rest
    }

    /// Puts a block into a pool, joined with neighbours of the same use (`try_merge_blocks`).
    fn put(&mut self, id: u32, used: Use) {
        self.block_mut(id).used = used;
        for is_prev in [true, false] {
            let of = self.block(id);
            let other = if is_prev { of.prev } else { of.next };
            let from = self.block(other);
            if from.used != used {
                continue;
            }
            self.leave(other);
            let block = self.block_mut(id);
            block.bytes += from.bytes;
            if is_prev {
                (block.address, block.prev) = (from.address, from.prev);
                self.block_mut(from.prev).next = id;
            } else {
                block.next = from.next;
                self.block_mut(from.next).prev = id;
            }
            self.spare.push(other);
        }
        self.enter(id);
    }

    /// Whether the driver gives this much, in segments or pages of `size`.
    fn driver_gives(&mut self, bytes: u64, size: u64) -> bool {
        let with_it = self.reserved.saturating_add(bytes);
        let gives = self.limit.is_none_or(|limit| with_it <= limit);
        if gives {
            self.reserved = with_it;
            self.peak = self.peak.max(with_it);
            self.changed.push((size, (bytes / size) as i64));
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
        self.driver_gives(bytes, bytes).then_some(())?;
        let known = self.addresses.get_mut(&bytes).and_then(VecDeque::pop_front);
        let address = known.unwrap_or(self.next_address);
        if known.is_none() {
            self.next_address = address.wrapping_add(bytes);
        }
        Some(self.add(Block {
            class,
            is_small,
            address,
            bytes,
            ..Block::default()
        }))
    }

    fn page(&self, is_small: bool) -> u64 {
        if is_small { PAGE } else { self.settings.large_segment }
    }

    /// `try_allocate_expandable_block`.
    fn grow(&mut self, size: u64, class: u32, is_small: bool) -> Option<u32> {
        let mut id = self.room(size, class, is_small);
        while self.block(id).used == Use::Unmapped || self.block(id).bytes < size {
            let (next, missing) = match self.block(id) {
                of if of.used == Use::Unmapped => (id, size),
                of => (of.next, size - of.bytes),
            };
            let most = self.block(next).bytes.min(missing);
            self.map(next, most)?;
            id = next;
        }
        self.leave(id);
        Some(id)
    }

    /// `find_expandable_block`: the first block of a range of free and unmapped ones with room for a request.
    fn room(&mut self, size: u64, class: u32, is_small: bool) -> u32 {
        for &(.., id) in self.unmapped[usize::from(is_small)].range(of_class(class, 0)) {
            let prev = self.block(id).prev;
            let first = if self.block(prev).used == Use::Free { prev } else { id };
            let (mut at, mut bytes) = (first, 0);
            while bytes < size && self.block(at).used != Use::Live {
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
        let id = self.add(Block {
            class,
            is_small,
            expandable: true,
            used: Use::Unmapped,
            address,
            bytes: span,
            ..Block::default()
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
        self.driver_gives(bytes, page).then_some(())?;
        self.leave(id);
        if bytes < of.bytes {
            let rest = self.split(id, bytes, false);
            self.enter(rest);
        }
        self.put(id, Use::Free);
        Some(())
    }

    /// What of a free block [`Model::release_cached`] gives back: whole pages, or a whole segment.
    fn whole(&self, id: u32) -> Range<u64> {
        let of = self.block(id);
        let page = self.page(of.is_small);
        match of.expandable {
            true => of.address.next_multiple_of(page)..(of.address + of.bytes) / page * page,
            false if (of.prev, of.next) == (0, 0) => of.address..of.address + of.bytes,
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
        self.put(id, Use::Unmapped);
        self.reserved -= end - start;
        let page = self.page(of.is_small);
        self.changed.push((page, -(((end - start) / page) as i64)));
        self.driver_calls += 2 * ((end - start) / page);
    }

    /// `release_block`: gives a free segment back. Returns its size.
    fn release(&mut self, id: u32) -> u64 {
        self.leave(id);
        self.reserved -= self.block(id).bytes;
        self.changed.push((self.block(id).bytes, -1));
        self.driver_calls += 1;
        self.spare.push(id);
        self.block(id).bytes
    }

    /// `release_available_cached_blocks`: gives back blocks that are too large to be split, as many as the request needs.
    fn release_oversize(&mut self, size: u64, class: u32, is_small: bool) -> bool {
        let max_split = self.settings.max_split;
        if max_split == u64::MAX || self.settings.expandable {
            return false;
        }
        let wanted = size.max(max_split);
        let free = &self.free[usize::from(is_small)];
        let (fitting, largest) = (
            free.range(of_class(class, wanted)),
            free.range(of_class(class, max_split)),
        );
        let ids: Vec<u32> = fitting.take(1).chain(largest.rev()).map(|entry| entry.3).collect();
        let mut released = 0;
        for id in ids {
            if released < wanted {
                released += self.release(id);
            }
        }
        released >= wanted
    }

    /// `garbage_collect_cached_blocks`: gives back the segments that were unused for longest.
    fn collect_garbage(&mut self) {
        let part = self.settings.collect_above;
        let Some(limit) = self.limit.filter(|_| self.settings.limits_memory && part > 0.0) else {
            return;
        };
        let wanted = self.reserved.saturating_sub((part * limit as f64) as u64);
        let mut reclaimed = 0;
        while reclaimed < wanted {
            let is_whole = |block: &Block| !block.expandable && (block.prev, block.next) == (0, 0);
            let ids = self.free[0].iter().map(|entry| entry.3);
            let ids: Vec<u32> = ids.filter(|&id| is_whole(&self.block(id))).collect();
            let age = |id: u32| self.requests[0] - self.block(id).freed_at;
            let mean = ids.iter().map(|&id| age(id)).sum::<u64>() as f64 / ids.len() as f64;
            let old: Vec<u32> = ids.into_iter().filter(|&id| age(id) as f64 >= mean).collect();
            if old.is_empty() {
                return;
            }
            reclaimed += old.into_iter().map(|id| self.release(id)).sum::<u64>();
        }
    }
}

#[cfg(test)]
mod tests;
