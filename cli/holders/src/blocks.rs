//! The blocks by address: which one does a word point to?
//!
//! Nearly all words point to none, so a filter of the pages that contain blocks is asked first.
//!
//! A pointer to a reserved range of addresses leads to all memory that is mapped there: [`Options::reserved`]. For the walk, such a
//! range is one more block, whose holders hold those in it as well.
//!
//! [`Options::reserved`]: crate::Options::reserved

use std::ops::Range;

use crate::Block;

const PAGE_BITS: u32 = 21;
const FILTER_BITS: u32 = 16;

pub(crate) struct BlockIndex {
    /// Those that were asked for, by address; then the reserved ranges.
    blocks: Vec<Block>,
    asked: usize,
    /// Around all reserved ranges.
    reserved: Range<u64>,
    from: u64,
    to: u64,
    /// One bit per hash of a page.
    filter: Vec<u64>,
}

impl BlockIndex {
    /// The blocks, and the reserved ranges around some of them, are sorted by address.
    pub fn new(blocks: &[Block], reserved: &[Range<u64>]) -> BlockIndex {
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
            from: (blocks.first().map(|block| block.address).into_iter())
                .chain(reserved.first().map(|range| range.start))
                .min()
                .unwrap_or(0),
            to: (blocks.iter().map(end).chain(reserved.iter().map(|range| range.end)))
                .max()
                .unwrap_or(0),
            blocks: blocks
                .iter()
                .copied()
                .chain(reserved.iter().map(range_as_block))
                .collect(),
            asked: blocks.len(),
            reserved: reserved.first().map_or(0, |range| range.start)..reserved.last().map_or(0, |range| range.end),
            filter,
        }
    }

    /// With the reserved ranges.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Each reserved range, by its index, and the indices of the blocks in it.
    pub fn in_reserved(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let before = |address: u64| self.asked().partition_point(|block| block.address < address);
        let ranges = self.blocks.iter().enumerate().skip(self.asked);
        ranges.map(move |(index, range)| (index, before(range.address)..before(end(range))))
    }

    /// The blocks that were asked for.
    pub fn asked(&self) -> &[Block] {
        &self.blocks[..self.asked]
    }

    /// Addresses of the blocks that the driver allocated on request of the program, not those inside PyTorch's segments.
    pub fn of_driver(&self) -> Vec<u64> {
        let own = self.asked().iter().filter(|block| !block.of_torch && !block.is_handle);
        own.map(|block| block.address).collect()
    }

    /// Around all blocks and reserved ranges.
    pub fn span(&self) -> Range<u64> {
        self.from..self.to
    }

    /// The block that ends where this one begins.
    pub fn adjacent(&self, block: usize) -> Option<usize> {
        let address = self.blocks[block].address;
        let before = self
            .asked()
            .partition_point(|other| other.address < address)
            .checked_sub(1)?;
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
        containing(self.asked(), address)
    }

    /// The index of the reserved range that contains this address, and whether the address is not its start.
    #[inline]
    pub fn find_reserved(&self, address: u64) -> Option<(usize, bool)> {
        if !self.reserved.contains(&address) {
            return None;
        }
        let (place, is_inside) = containing(&self.blocks[self.asked..], address)?;
        Some((self.asked + place, is_inside))
    }
}

fn containing(blocks: &[Block], address: u64) -> Option<(usize, bool)> {
    let place = blocks
        .partition_point(|block| block.address <= address)
        .checked_sub(1)?;
    let block = &blocks[place];
    (address < end(block)).then_some((place, address != block.address))
}

fn range_as_block(range: &Range<u64>) -> Block {
    Block {
        address: range.start,
        bytes: range.end - range.start,
        time_ns: 0,
        of_torch: false,
        is_handle: false,
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
        let index = BlockIndex::new(&[block(0x7f00_0000_0000, 512), block(0x7f00_0000_0400, 64 << 20)], &[]);
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
        let index = BlockIndex::new(&[block(1 << 40, u64::MAX)], &[]);
        assert_eq!(index.find(u64::MAX - 1), Some((0, true)));
        assert_eq!(BlockIndex::new(&[], &[]).find(0), None);
    }

    #[test]
    fn a_reserved_range_is_found_apart_from_the_blocks_in_it() {
        let blocks = [
            block(0x1000, 512),
            block(0x7000, 512),
            block(0x7800, 512),
            block(0x9000, 512),
        ];
        let index = BlockIndex::new(&blocks, &[0x6000..0x9000]);
        assert_eq!(index.find(0x7000), Some((1, false)));
        assert_eq!(index.find(0x6000), None);
        assert_eq!(index.find_reserved(0x6000), Some((4, false)));
        assert_eq!(index.find_reserved(0x7000), Some((4, true)));
        assert_eq!(index.find_reserved(0x9000), None);
        assert_eq!(index.in_reserved().collect::<Vec<_>>(), [(4, 1..3)]);
        assert_eq!((index.adjacent(4), index.of_driver().len()), (None, 4));
        assert_eq!(index.span(), 0x1000..0x9200);
        let index = BlockIndex::new(&blocks, &[0x1200..0x8000]);
        assert_eq!(index.adjacent(4), Some(0), "the range may be the end of a block");
    }
}
