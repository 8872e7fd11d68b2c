//! The pages of a device that blocks from `cuMemAlloc` touch, and the block that keeps each page that is not full.
//!
//! ```text
//! pages     |-------- 2 MiB --------|-----------------------|-----------------------|
//! blocks     ###  ##          ######|#######################|#####
//! free          ..  ..........                                    ..................
//!            kept by its oldest block                        kept by the block that ends in it
//! ```
//!
//! The driver takes whole pages for such blocks, and gives a page back when no block touches it. So the memory that it holds is
//! the number of pages times their size, and a page with free memory is held by its blocks; the oldest of them stands for all.

use std::collections::BTreeMap;

/// The size of a page.
pub const PAGE: u64 = 2 << 20;
const SHIFT: u32 = PAGE.trailing_zeros();

/// A block that lies in pages.
#[derive(Debug, Clone, Copy)]
pub struct PagedBlock {
    pub address: u64,
    pub bytes: u64,
    /// The block's row in its table, which is in order of age.
    pub number: u32,
}
const _: () = assert!(size_of::<PagedBlock>() == 24, "there may be ten million");

/// What a block keeps besides itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    pub free_bytes: u64,
    pub pages: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Pages that blocks touch.
    pub count: u64,
    /// Free memory in pages, by the number of the block that keeps it.
    pub kept: BTreeMap<u32, Kept>,
}

/// The page of the last block so far.
struct LastPage {
    number: u64,
    free: u64,
    keeper: u32,
}

impl Pages {
    /// Sorts the blocks. Blocks may overlap, since a file may contain any.
    pub fn of(blocks: &mut [PagedBlock]) -> Pages {
        blocks.sort_unstable_by_key(|block| (block.address, block.bytes, block.number));
        let mut pages = Pages::default();
        let mut last: Option<LastPage> = None;
        let mut reached = 0;
        for block in blocks.iter() {
            let (start, end) = (block.address.max(reached), block.address.saturating_add(block.bytes));
            if end <= start {
                continue;
            }
            reached = end;
            let keeper = block.number;
            let (first_page, last_page) = (start >> SHIFT, (end - 1) >> SHIFT);
            let in_first = if first_page == last_page {
                end - start
            } else {
                PAGE - (start & (PAGE - 1))
            };
            match &mut last {
                Some(page) if page.number == first_page => {
                    page.free -= in_first;
                    page.keeper = page.keeper.min(keeper);
                }
                _ => {
                    let before = last.replace(LastPage {
                        number: first_page,
                        free: PAGE - in_first,
                        keeper,
                    });
                    pages.add(before);
                }
            }
            if last_page > first_page {
                pages.count += last_page - first_page - 1;
                let before = last.replace(LastPage {
                    number: last_page,
                    free: PAGE - 1 - ((end - 1) & (PAGE - 1)),
                    keeper,
                });
                pages.add(before);
            }
        }
        pages.add(last);
        pages
    }

    /// The bytes of all pages.
    pub fn bytes(&self) -> i128 {
        i128::from(self.count) * i128::from(PAGE)
    }

    fn add(&mut self, page: Option<LastPage>) {
        let Some(page) = page else { return };
        self.count += 1;
        if page.free > 0 {
            let kept = self.kept.entry(page.keeper).or_default();
            kept.free_bytes = kept.free_bytes.saturating_add(page.free);
            kept.pages += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn block(number: u32, address: u64, bytes: u64) -> PagedBlock {
        PagedBlock { address, bytes, number }
    }

    #[test]
    fn a_page_is_kept_by_its_oldest_block() {
        let mut blocks = [
            block(3, 0, 512),
            block(1, 512, 512),
            block(2, 10 * MIB, 3 * MIB),
            block(4, 20 * MIB, 4 * MIB),
        ];
        let pages = Pages::of(&mut blocks);
        assert_eq!(pages.count, 1 + 2 + 2);
        let kept = |free_bytes| Kept { free_bytes, pages: 1 };
        assert_eq!(pages.kept, BTreeMap::from([(1, kept(2 * MIB - 1024)), (2, kept(MIB))]));
    }

    /// An allocator as measured: blocks up to 1 MiB share pages, larger ones have their own.
    #[test]
    fn after_24_000_random_allocations_and_frees_the_free_bytes_are_those_of_the_touched_pages() {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        // Address by start of its page, so blocks of a page lie at multiples of their largest size.
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        for _ in 0..24_000 {
            let small = next(10) > 0;
            let bytes = 1 + next(if small { MIB } else { 32 * MIB });
            let page = next(4096);
            let address = if small {
                page * 64 * MIB + next(2) * MIB
            } else {
                page * 64 * MIB + 4 * MIB
            };
            if live.remove(&address).is_none() {
                live.insert(address, bytes);
            }
        }
        let touched: BTreeSet<u64> = live
            .iter()
            .flat_map(|(at, bytes)| at / PAGE..=(at + bytes - 1) / PAGE)
            .collect();
        let mut blocks: Vec<_> = (live.iter().enumerate())
            .map(|(number, (&at, &bytes))| block(number as u32, at, bytes))
            .collect();
        let pages = Pages::of(&mut blocks);
        assert_eq!(pages.count, touched.len() as u64);
        let asked: u64 = live.values().sum();
        let free: u64 = pages.kept.values().map(|kept| kept.free_bytes).sum();
        assert_eq!(pages.count * PAGE - asked, free);
        assert!(asked < pages.count * PAGE);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn hostile_blocks_are_counted_once(blocks in proptest::collection::vec(
            (prop_oneof![0..8 * PAGE, any::<u64>()], prop_oneof![0..3 * PAGE, any::<u64>()]), 0..20))
        {
            let mut blocks: Vec<_> = blocks.iter().enumerate().map(|(nth, &(at, bytes))| block(nth as u32, at, bytes)).collect();
            let pages = Pages::of(&mut blocks);
            let free: u128 = pages.kept.values().map(|kept| u128::from(kept.free_bytes)).sum();
            prop_assert!(u128::from(pages.count) * u128::from(PAGE) >= free);
            prop_assert!(pages.count <= 1 << (64 - SHIFT));
        }
    }
}
