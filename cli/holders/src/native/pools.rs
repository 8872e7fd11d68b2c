//! CPython's small-object allocator: pools of equal blocks.
//!
//! A pool is aligned to its size and starts with a header, which is recognised by a redundancy: the last offset at which a
//! block fits is the size of the pool minus the size of a block, which the index of the size class gives too.

use std::ops::Range;

use super::mimalloc;
use super::pages::{Heap, Pages};
use crate::copy::{Image, PAGE};

const HEADER: u64 = 48;

struct Pool {
    base: u64,
    block: u64,
    /// Blocks that have been given out at least once.
    carved: u64,
    used: u64,
    free: u64,
}

impl Pool {
    fn read(copy: &Image, base: u64, bytes: u64) -> Option<Pool> {
        let class = u64::from(copy.half(base + 36));
        let block = (class + 1) * 16;
        if class >= 32 || u64::from(copy.half(base + 44)) != bytes - block {
            return None;
        }
        let next = u64::from(copy.half(base + 40));
        let used = u64::from(copy.half(base));
        let free = copy.word(base + 8);
        let carved = next.min(bytes).saturating_sub(HEADER) / block;
        let is_pool = next >= HEADER
            && (next - HEADER).is_multiple_of(block)
            && used <= carved
            && (free == 0 || (base + HEADER..base + bytes).contains(&free));
        is_pool.then_some(Pool {
            base,
            block,
            carved: carved.min((bytes - HEADER) / block),
            used,
            free,
        })
    }

    /// Calls `see` with each block that is in use.
    fn each_block(&self, copy: &Image, mut see: impl FnMut(u64)) {
        if self.used == 0 {
            return;
        }
        let mut is_free = [0u64; 16];
        let mut at = self.free;
        // A block occurs once, so a torn list ends at a block that was seen.
        while let Some(index) = self.index(at) {
            let (word, bit) = (&mut is_free[index as usize / 64], 1 << (index % 64));
            if *word & bit != 0 {
                break;
            }
            *word |= bit;
            at = copy.word(at);
        }
        for index in 0..self.carved {
            if is_free[index as usize / 64] >> (index % 64) & 1 == 0 {
                see(self.base + HEADER + index * self.block);
            }
        }
    }

    fn index(&self, block: u64) -> Option<u64> {
        let offset = block.checked_sub(self.base + HEADER)?;
        let index = offset / self.block;
        (offset.is_multiple_of(self.block) && index < self.carved).then_some(index)
    }
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
            if let Some(pool) = Pool::read(copy, base, pool_bytes) {
                pages.set_kind(copy, base..base + pool_bytes, Heap::Python);
                pool.each_block(copy, |block| pages.add(copy, block));
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
