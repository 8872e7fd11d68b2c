//! Framework allocators: whose blocks were recorded, and which memory they lie in.
//!
//! A framework's pool and the blocks that it hands out have separate records and two names: the pool has its owner
//! (`PyTorch`, from the stack), the block its domain (`pytorch`, from the hook). If blocks were recorded, reports list
//! them and not the pool; otherwise they list the pool. Deliberately absent: sums; see `ledger`.

use std::collections::BTreeSet;

use foldhash::HashMap;

use crate::kind::{Kind, Place};
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::allocations::{Row, in_two_threads};
use crate::snapshot::{Allocations, Call, Snapshot};

/// Known owners, as reports write them.
pub(crate) const OWNERS: &[&str] = &["PyTorch", "XLA", "CuPy", "RMM", "TensorFlow", "ONNX Runtime"];

/// The owner for a domain: `PyTorch` for `pytorch`. A name that a program chose stays unchanged.
pub fn owner_of_domain(domain: &str) -> &str {
    let known = OWNERS.iter().find(|owner| owner.eq_ignore_ascii_case(domain));
    known.copied().unwrap_or(domain)
}

/// The owner of the blocks that this call describes.
pub fn block_owner(call: &Call) -> &str {
    match (&call.domain, call.kind) {
        (Some(domain), _) => owner_of_domain(domain),
        (None, Kind::Tensor) => "PyTorch",
        (None, Kind::Buffer) => "XLA",
        (None, _) => "an unnamed allocator",
    }
}

/// The frameworks whose blocks were recorded, even if none is live any more.
pub struct Watched<'a>(BTreeSet<&'a str>);

impl<'a> Watched<'a> {
    pub fn of(snapshot: &'a Snapshot) -> Watched<'a> {
        let allocations = &snapshot.allocations;
        let mut in_use = vec![false; allocations.calls.len()];
        allocations.rows.iter().for_each(|row| in_use[row.call as usize] = true);
        let calls = allocations.calls.iter().zip(in_use);
        let within = calls.filter(|(call, in_use)| *in_use && call.kind.place() == Place::Within);
        let mut owners: BTreeSet<&str> = within.map(|(call, _)| block_owner(call)).collect();
        let reporting = snapshot.allocators.iter().filter(|allocator| allocator.events > 0);
        owners.extend(reporting.map(|allocator| owner_of_domain(&allocator.domain)));
        owners.extend(snapshot.domains.iter().map(|domain| owner_of_domain(domain)));
        owners.extend(snapshot.ever_had(Kind::Tensor).then_some("PyTorch"));
        owners.extend(snapshot.ever_had(Kind::Buffer).then_some("XLA"));
        Watched(owners)
    }

    pub fn contains(&self, owner: &str) -> bool {
        self.0.contains(owner)
    }

    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.0.iter().copied()
    }
}

/// A framework's block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub address: u64,
    pub bytes: u64,
    /// Index of its row, which gives the order in time.
    pub row: u32,
    pub call: u32,
}

impl Block {
    /// Whether the block, which begins in this record, is a part of it: it holds memory and is not older. An older one was not freed
    /// before its memory was, whose address another allocation has now. A mapping may be newer: memory is mapped again below a block.
    fn is_of(&self, kind: Kind, row: &Row, rows: &[Row]) -> bool {
        self.bytes > 0 && (kind == Kind::Mapping || rows[self.row as usize].time_ns >= row.time_ns)
    }
}

/// All blocks of frameworks, by address and then by time.
#[derive(Default)]
pub(crate) struct Blocks<'a> {
    pub blocks: Vec<Block>,
    pub calls: &'a [Call],
    /// All records.
    rows: &'a [Row],
}

impl<'a> Blocks<'a> {
    pub fn of(allocations: &'a Allocations) -> Blocks<'a> {
        let within: Vec<bool> = allocations
            .calls
            .iter()
            .map(|call| call.kind.place() == Place::Within)
            .collect();
        let rows = allocations.rows.iter().enumerate();
        let found = rows.filter(|(_, row)| within[row.call as usize]);
        let _progress = Progress::over("sorting blocks", allocations.rows.len() as u64, Unit::Of("records"));
        // Counted first: a vector that grows step by step may end up twice as large.
        let mut blocks = Vec::with_capacity(found.clone().count());
        blocks.extend(found.map(|(number, row)| Block {
            address: row.address,
            bytes: row.bytes,
            row: number as u32,
            call: row.call,
        }));
        let key = |block: &Block| (block.address, block.row);
        in_two_threads(&mut blocks, &|part| part.sort_unstable_by_key(key), &|all, middle| {
            all.select_nth_unstable_by_key(middle, key);
        });
        Blocks {
            blocks,
            calls: &allocations.calls,
            rows: &allocations.rows,
        }
    }

    /// The bytes of the record of this kind that lie in blocks.
    pub fn bytes_in(&self, kind: Kind, row: &Row) -> u64 {
        let Some((start, end)) = span(kind, row) else { return 0 };
        let first = self.blocks.partition_point(|block| block.address < start);
        let blocks = self.blocks[first..].iter().take_while(|block| block.address < end);
        let blocks = blocks.filter(|block| block.is_of(kind, row, self.rows));
        let (mut bytes, mut counted_to) = (0, start);
        for block in blocks {
            let block_end = block.address.saturating_add(block.bytes).min(end);
            bytes += block_end.saturating_sub(block.address.max(counted_to));
            counted_to = counted_to.max(block_end);
        }
        bytes
    }

    pub fn owner(&self, block: &Block) -> &'a str {
        block_owner(&self.calls[block.call as usize])
    }
}

/// The records that blocks lie in, by address. The owner of the blocks uses this memory as a pool, even if its stack does
/// not show that.
pub(crate) struct Carriers<'a> {
    by_address: HashMap<u64, u32>,
    owners: Vec<&'a str>,
}

impl<'a> Carriers<'a> {
    pub fn of(allocations: &Allocations, blocks: &Blocks<'a>) -> Carriers<'a> {
        let mut carriers = Carriers {
            by_address: HashMap::default(),
            owners: Vec::new(),
        };
        let all = &blocks.blocks;
        // Sums have no addresses.
        let without = all.is_empty() || allocations.is_summed();
        let spanning = if without { &[][..] } else { &allocations.rows };
        let mut behind = 0;
        let progress = Progress::over("finding segments", spanning.len() as u64, Unit::Of("records"));
        for (nth, row) in spanning.iter().enumerate() {
            progress.tick(nth);
            let kind = allocations.calls[row.call as usize].kind;
            if let Some(block) = block_in(all, &allocations.rows, kind, row, &mut behind) {
                carriers.enter(row.address, blocks.owner(block));
            }
        }
        carriers
    }

    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    fn enter(&mut self, address: u64, owner: &'a str) {
        let known = self.owners.iter().position(|known| *known == owner);
        let number = known.unwrap_or_else(|| {
            self.owners.push(owner);
            self.owners.len() - 1
        });
        self.by_address.insert(address, number as u32 + 1);
    }

    /// The owner of the blocks in the record of this kind at this address, as a number; 0 if there are no blocks.
    pub fn number(&self, address: u64, kind: Kind) -> u32 {
        if self.by_address.is_empty() || !can_carry(kind) {
            return 0;
        }
        self.by_address.get(&address).copied().unwrap_or(0)
    }

    /// The owner for a number from [`Carriers::number`].
    pub fn name(&self, number: u32) -> Option<&'a str> {
        Some(self.owners[number.checked_sub(1)? as usize])
    }
}

/// One of these blocks (sorted by address) that lies in the record; `rows` are those of the blocks. `behind` caches the number of
/// blocks before the previous record: consecutive allocations are often adjacent, with no block in between.
fn block_in<'b>(all: &'b [Block], rows: &[Row], kind: Kind, row: &Row, behind: &mut usize) -> Option<&'b Block> {
    let (start, end) = span(kind, row)?;
    let before = |nth: usize| all.get(nth).is_some_and(|block| block.address < start);
    if before(*behind) || *behind > 0 && !before(*behind - 1) {
        *behind = all.partition_point(|block| block.address < start);
    }
    let mut begin_within = all[*behind..].iter().take_while(|block| block.address < end);
    // The middle of a block that lies over several mappings.
    let goes_on = || {
        let before = behind.checked_sub(1).map(|nth| &all[nth])?;
        let reaches = before.address.saturating_add(before.bytes) > start;
        (kind == Kind::Mapping && reaches && before.is_of(kind, row, rows)).then_some(before)
    };
    begin_within.find(|block| block.is_of(kind, row, rows)).or_else(goes_on)
}

/// Whether blocks can lie in records of this kind: not if they are identified by a handle or lie on the host.
pub(crate) fn can_carry(kind: Kind) -> bool {
    use Kind::*;
    matches!(kind, Mapping | Device | Pitched | Async | Graph | Managed)
}

/// The range of addresses that blocks in the record can have; `None` if it cannot contain blocks.
pub(crate) fn span(kind: Kind, row: &Row) -> Option<(u64, u64)> {
    let bytes = if kind == Kind::Mapping {
        row.requested
    } else {
        row.bytes
    };
    can_carry(kind).then_some((row.address, row.address.saturating_add(bytes)))
}
