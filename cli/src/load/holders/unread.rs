//! Managed memory. It is not searched, because reading it may move its pages, and it may have the only pointer to a block.
//!
//! So if something has some of this memory, no other block is lost for certain. Memory that is lost itself holds nothing. Blocks of
//! PyTorch's allocator are held by objects only, which are in the memory of malloc.

use std::collections::HashMap;

use culeak::analysis::words;
use culeak::kind::Kind;
use culeak::snapshot::{Class, HeldBlock, HolderPath, Holders, Snapshot};

/// Makes the blocks that are lost possibly lost, if memory that is not lost was not searched. `is_of_torch`: a block of PyTorch's
/// allocator. `holders` names blocks as the snapshot does.
pub(super) fn doubt_lost(holders: &mut Holders, snapshot: &Snapshot, is_of_torch: impl Fn(&HeldBlock) -> bool) {
    let paths = &mut holders.paths;
    let first = paths.len();
    let is_lost = |held: &&mut HeldBlock| paths[held.path].class == Class::Lost;
    let lost: Vec<&mut HeldBlock> = (holders.blocks.iter_mut())
        .filter(|held| held.path < first)
        .filter(is_lost)
        .collect();
    let unread = snapshot.allocations.iter().filter(|row| row.kind == Kind::Managed);
    let mut unread: HashMap<(u64, u64), u64> = unread.map(|row| ((row.address, row.time_ns), row.bytes)).collect();
    for held in &lost {
        unread.remove(&(held.address, held.time_ns));
    }
    let bytes = unread.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    if bytes == 0 {
        return;
    }
    let mut doubted: HashMap<usize, usize> = HashMap::new();
    for held in lost.into_iter().filter(|held| !is_of_torch(held)) {
        held.path = *doubted.entry(held.path).or_insert_with(|| {
            let path = paths[held.path].clone();
            paths.push(HolderPath { possibly: true, ..path });
            paths.len() - 1
        });
    }
    if paths.len() > first {
        let said = format!(
            "{} of managed memory was not searched: a block that only it points to is possibly lost",
            words::bytes(bytes)
        );
        // First, since a verdict that lacks this names few of them.
        holders.search.limits.insert(0, said);
    }
}
