//! CPython's small-object allocator: pools of equal blocks.
//!
//! A pool is aligned to its size and starts with a header, which is recognised by a redundancy: the last offset at which a
//! block fits is the size of the pool minus the size of a block, which the index of the size class gives too.

use std::ops::Range;

use super::mimalloc;
use super::pages::{Heap, Pages};
use crate::copy::{Image, PAGE};

const HEADER: u64 = 48;

/// Equal blocks side by side.
pub(super) struct Blocks {
    pub first: u64,
    pub block: u64,
    /// Those that have been given out at least once.
    pub carved: u64,
}

impl Blocks {
    /// Calls `see` with each block that is in none of the lists of free ones that begin here.
    pub fn each_used(&self, copy: &Image, lists: &[u64], mut see: impl FnMut(u64)) {
        let mut is_free = vec![false; self.carved as usize];
        for list in lists {
            let mut at = *list;
            // A block occurs once, so a torn list ends at a block that was seen.
            while let Some(index) = self.index(at)
                && !std::mem::replace(&mut is_free[index as usize], true)
            {
                at = copy.word(at);
            }
        }
        for (index, is_free) in (0..).zip(is_free) {
            if !is_free {
                see(self.first + index * self.block);
            }
        }
    }

    fn index(&self, block: u64) -> Option<u64> {
        let offset = block.checked_sub(self.first)?;
        let index = offset / self.block;
        (offset.is_multiple_of(self.block) && index < self.carved).then_some(index)
    }
}

/// The blocks of the pool that is here, how many are in use, and the first free one.
fn pool(copy: &Image, base: u64, bytes: u64) -> Option<(Blocks, u64, u64)> {
    let class = u64::from(copy.half(base + 36));
    let block = (class + 1) * 16;
    if class >= 32 || u64::from(copy.half(base + 44)) != bytes - block {
        return None;
    }
    let next = u64::from(copy.half(base + 40));
    let used = u64::from(copy.half(base));
    let free = copy.word(base + 8);
    let first = base + HEADER;
    let carved = next.min(bytes).saturating_sub(HEADER) / block;
    let is_pool = next >= HEADER
        && (next - HEADER).is_multiple_of(block)
        && used <= carved
        && (free == 0 || (first..base + bytes).contains(&free));
    let carved = carved.min((bytes - HEADER) / block);
    is_pool.then_some((Blocks { first, block, carved }, used, free))
}

/// Finds the pools in anonymous memory without another owner. `pool_bytes`: 0 if the allocator is mimalloc.
pub fn find(copy: &Image, pages: &mut Pages, memory: &[Range<u64>], pool_bytes: u64) {
    if pool_bytes == 0 {
        return mimalloc::find(copy, pages, memory);
    }
    if !pool_bytes.is_power_of_two() || !(PAGE..=16 * 1024).contains(&pool_bytes) {
        return;
    }
    for range in memory {
        for base in pages.addresses(range.clone()) {
            if !base.is_multiple_of(pool_bytes) || pages.kind_at(copy, base) != Heap::Unknown {
                continue;
            }
            if let Some((blocks, used, free)) = pool(copy, base, pool_bytes) {
                pages.set_kind(copy, base..base + pool_bytes, Heap::Python);
                if used > 0 {
                    blocks.each_used(copy, &[free], |block| pages.add(copy, block));
                }
            }
        }
    }
}

/// The size of the blocks of the pool that contains this address.
#[inline]
pub fn block_bytes(copy: &Image, address: u64, pool_bytes: u64) -> u64 {
    if pool_bytes == 0 {
        return mimalloc::block_bytes(copy, address);
    }
    let base = address & !(pool_bytes - 1);
    (u64::from(copy.half(base + 36)) + 1) * 16
}

/// The start of the block that contains this address, whether it is in use or not.
pub fn block_around(copy: &Image, address: u64, pool_bytes: u64) -> Option<u64> {
    if pool_bytes == 0 {
        return mimalloc::block_around(copy, address);
    }
    let first = (address & !(pool_bytes - 1)) + HEADER;
    let bytes = block_bytes(copy, address, pool_bytes);
    let index = address.checked_sub(first)? / bytes;
    Some(first + index * bytes)
}
