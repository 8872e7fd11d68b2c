//! The words of the whole copy that point to certain blocks or objects.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::blocks::BlockIndex;
use crate::copy::Image;

/// Addresses that are kept for one target.
const KEPT: usize = 256;

/// Addresses of words.
#[derive(Default)]
pub(crate) struct Words {
    /// That point to a block or into it, by the block's index.
    pub to_blocks: HashMap<usize, Vec<u64>, FixedState>,
    /// That point to an object; their lowest bit may be set.
    pub to_objects: HashMap<u64, Vec<u64>, FixedState>,
}

impl Words {
    /// Searches for pointers to the blocks that are `wanted`, and to these objects.
    pub fn find(copy: &Image, index: &BlockIndex, wanted: &[bool], objects: &[u64]) -> Words {
        let mut words = Words {
            to_objects: objects.iter().map(|object| (*object, Vec::new())).collect(),
            ..Words::default()
        };
        let from = objects.iter().min().copied().unwrap_or(u64::MAX);
        let to = objects.iter().max().copied().unwrap_or(0);
        let blocks = index.span();
        let block_bytes = blocks.end.saturating_sub(blocks.start);
        let object_bytes = (to | 1).checked_sub(from).map_or(0, |bytes| bytes + 1);
        let is_near =
            |value: u64| (value.wrapping_sub(blocks.start) < block_bytes) | (value.wrapping_sub(from) < object_bytes);
        let is_object = |value: u64| value >= from && value <= to | 1 && words.to_objects.contains_key(&(value & !1));
        let found = copy.search(is_near, |address, value| {
            let block = index.find(value).map(|(block, _)| block).filter(|block| wanted[*block]);
            (block.is_some() || is_object(value)).then_some((address, value, block))
        });
        for (address, value, block) in found {
            match block {
                Some(block) => keep(words.to_blocks.entry(block).or_default(), address),
                None => keep(words.to_objects.entry(value & !1).or_default(), address),
            }
        }
        words
    }
}

fn keep(known: &mut Vec<u64>, address: u64) {
    if known.len() < KEPT {
        known.push(address);
    }
}
