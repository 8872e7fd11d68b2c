//! The blocks by address: which one does a word point to?
//!
//! Nearly all words point to none, so a filter of the pages that contain blocks is asked first.

use std::ops::Range;

use crate::Block;

const PAGE_BITS: u32 = 21;
const FILTER_BITS: u32 = 16;

pub(crate) struct BlockIndex {
    blocks: Vec<Block>,
    from: u64,
    to: u64,
    /// One bit per hash of a page.
    filter: Vec<u64>,
}

impl BlockIndex {
    /// The blocks are sorted by address.
    pub fn new(blocks: &[Block]) -> BlockIndex {
        let mut filter = vec![0u64; 1 << (FILTER_BITS - 6)];
        for block in blocks {
            let pages = (block.address >> PAGE_BITS)..=((end(block) - 1) >> PAGE_BITS);
            if (pages.end() - pages.start()) >> FILTER_BITS != 0 {
                filter.fill(u64::MAX);
                break;
            }
            for page in pages {
                let bit = hash(page);
                filter[bit >> 6] |= 1 << (bit & 63);
            }
        }
        BlockIndex {
            from: blocks.first().map_or(0, |block| block.address),
            to: blocks.iter().map(end).max().unwrap_or(0),
            blocks: blocks.to_vec(),
            filter,
        }
    }

    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Addresses of the blocks that the driver allocated on request of the program, not those inside PyTorch's segments.
    pub fn of_driver(&self) -> Vec<u64> {
        let own = self.blocks.iter().filter(|block| !block.of_torch && !block.is_handle);
        own.map(|block| block.address).collect()
    }

    /// Around all blocks.
    pub fn span(&self) -> Range<u64> {
        self.from..self.to
    }

    /// The block that ends where this one begins.
    pub fn adjacent(&self, block: usize) -> Option<usize> {
        let before = block.checked_sub(1)?;
        (end(&self.blocks[before]) == self.blocks[block].address).then_some(before)
    }

    pub fn block(&self, block: usize) -> &Block {
        &self.blocks[block]
    }

    pub fn is_of_torch(&self, block: usize) -> bool {
        self.blocks[block].of_torch
    }

    /// The block that contains this address, and whether the address is not its start.
    #[inline]
    pub fn find(&self, address: u64) -> Option<(usize, bool)> {
        if address < self.from || address >= self.to {
            return None;
        }
        let bit = hash(address >> PAGE_BITS);
        if self.filter[bit >> 6] >> (bit & 63) & 1 == 0 {
            return None;
        }
        let after = self.blocks.partition_point(|block| block.address <= address);
        let place = after.checked_sub(1)?;
        let block = &self.blocks[place];
        (address < end(block)).then_some((place, address != block.address))
    }
}

fn end(block: &Block) -> u64 {
    block.address.saturating_add(block.bytes.max(1))
}

fn hash(page: u64) -> usize {
    (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - FILTER_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(address: u64, bytes: u64) -> Block {
        Block {
            address,
            bytes,
            time_ns: 0,
            of_torch: false,
            is_handle: false,
        }
    }

    #[test]
    fn a_block_is_found_by_each_address_in_it() {
        let index = BlockIndex::new(&[block(0x7f00_0000_0000, 512), block(0x7f00_0000_0400, 64 << 20)]);
        assert_eq!(index.find(0x7f00_0000_0000), Some((0, false)));
        assert_eq!(index.find(0x7f00_0000_01ff), Some((0, true)));
        assert_eq!(index.find(0x7f00_0000_0200), None);
        assert_eq!(index.find(0x7f00_0000_0400), Some((1, false)));
        assert_eq!(index.find(0x7f00_0400_03ff), Some((1, true)));
        assert_eq!(index.find(0x7f00_0400_0400), None);
        assert_eq!(index.find(0), None);
    }

    #[test]
    fn a_block_of_all_memory_is_one() {
        let index = BlockIndex::new(&[block(1 << 40, u64::MAX)]);
        assert_eq!(index.find(u64::MAX - 1), Some((0, true)));
        assert_eq!(BlockIndex::new(&[]).find(0), None);
    }
}
