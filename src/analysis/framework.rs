//! Frameworks with an allocator of their own: whose blocks were recorded, and which memory they lie in.
//!
//! A framework's pool and the blocks handed out of it are recorded apart, and told of under two names: the pool by its
//! owner (`PyTorch`, from the stack), the block by its domain (`pytorch`, from the hook). Where blocks are recorded,
//! they are what a reader wants to see and the pool behind them is cached memory; where none are, the pool is all there
//! is. Deliberately absent: sums; see `ledger`.

use std::collections::BTreeSet;

use foldhash::HashMap;

use crate::kind::{Kind, Place};
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::allocations::{Row, in_two_threads};
use crate::snapshot::{Allocations, Call, Snapshot};

/// Those known by name, as reports write them.
const OWNERS: &[&str] = &["PyTorch", "XLA", "CuPy", "RMM", "TensorFlow", "ONNX Runtime"];

/// `pytorch` is `PyTorch`; a name that a program chose stays as it is.
pub fn owner_of_domain(domain: &str) -> &str {
    let known = OWNERS.iter().find(|owner| owner.eq_ignore_ascii_case(domain));
    known.copied().unwrap_or(domain)
}

/// Whose block a record of this call is.
pub fn block_owner(call: &Call) -> &str {
    match (&call.domain, call.kind) {
        (Some(domain), _) => owner_of_domain(domain),
        (None, Kind::Tensor) => "PyTorch",
        (None, Kind::Buffer) => "XLA",
        (None, _) => "an unnamed allocator",
    }
}

/// The frameworks whose blocks were recorded, also when none is live any more.
pub struct Watched<'a>(BTreeSet<&'a str>);

impl<'a> Watched<'a> {
    pub fn of(snapshot: &'a Snapshot) -> Watched<'a> {
        let allocations = &snapshot.allocations;
        let mut in_use = vec![false; allocations.calls.len()];
        allocations.rows.iter().for_each(|row| in_use[row.call as usize] = true);
        let calls = allocations.calls.iter().zip(in_use);
        let within = calls.filter(|(call, in_use)| *in_use && call.kind.place() == Place::Within);
        let mut owners: BTreeSet<&str> = within.map(|(call, _)| block_owner(call)).collect();
        let told = snapshot.allocators.iter().filter(|allocator| allocator.events > 0);
        owners.extend(told.map(|allocator| owner_of_domain(&allocator.domain)));
        let ever = |kind| {
            snapshot
                .counters
                .iter()
                .any(|counter| counter.kind == kind && counter.total_count > 0)
        };
        owners.extend(ever(Kind::Tensor).then_some("PyTorch"));
        owners.extend(ever(Kind::Buffer).then_some("XLA"));
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
    /// Its row, and so the order of time.
    pub row: u32,
    pub call: u32,
}

/// All blocks of frameworks, in order of address and then of time.
#[derive(Default)]
pub(crate) struct Blocks<'a> {
    pub blocks: Vec<Block>,
    pub calls: &'a [Call],
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
        // Counted first: a vector that grows as it goes may end up twice as large.
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
        }
    }

    pub fn owner(&self, block: &Block) -> &'a str {
        block_owner(&self.calls[block.call as usize])
    }
}

/// The records that blocks lie in, by address: whoever owns the blocks keeps that memory as a pool, whatever its stack says.
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
        let spanning = if all.is_empty() { &[][..] } else { &allocations.rows };
        let mut behind = 0;
        let progress = Progress::over("finding segments", spanning.len() as u64, Unit::Of("records"));
        for (nth, row) in spanning.iter().enumerate() {
            progress.tick(nth);
            let kind = allocations.calls[row.call as usize].kind;
            if let Some(block) = block_in(all, kind, row, &mut behind) {
                carriers.enter(row.address, blocks.owner(block));
            }
        }
        carriers
    }

    fn enter(&mut self, address: u64, owner: &'a str) {
        let known = self.owners.iter().position(|known| *known == owner);
        let number = known.unwrap_or_else(|| {
            self.owners.push(owner);
            self.owners.len() - 1
        });
        self.by_address.insert(address, number as u32 + 1);
    }

    /// Whose blocks lie in the record of this kind at this address, as a number; 0: nobody's.
    pub fn number(&self, address: u64, kind: Kind) -> u32 {
        if self.by_address.is_empty() || !can_carry(kind) {
            return 0;
        }
        self.by_address.get(&address).copied().unwrap_or(0)
    }

    /// What such a number stands for.
    pub fn name(&self, number: u32) -> Option<&'a str> {
        Some(self.owners[number.checked_sub(1)? as usize])
    }
}

/// One of these blocks, which are in order of address, that lies in the record. `behind`: how many lie before the record
/// asked about last, since memory made one after the other often lies side by side, with no block in between.
pub(crate) fn block_in<'b>(all: &'b [Block], kind: Kind, row: &Row, behind: &mut usize) -> Option<&'b Block> {
    let (start, end) = span(kind, row)?;
    let before = |nth: usize| all.get(nth).is_some_and(|block| block.address < start);
    if before(*behind) || *behind > 0 && !before(*behind - 1) {
        *behind = all.partition_point(|block| block.address < start);
    }
    let begins_within = all.get(*behind).filter(|block| block.address < end);
    // The middle of a block that lies over several mappings.
    let goes_on = || {
        let before = behind.checked_sub(1).map(|nth| &all[nth])?;
        let reaches = before.address.saturating_add(before.bytes) > start;
        (kind == Kind::Mapping && reaches).then_some(before)
    };
    begins_within.or_else(goes_on)
}

/// Whether blocks can lie in records of this kind: not in what is known by a handle, or lies on the host.
pub(crate) fn can_carry(kind: Kind) -> bool {
    use Kind::*;
    matches!(kind, Mapping | Device | Pitched | Async | Graph)
}

/// The addresses that a record's blocks can have.
pub(crate) fn span(kind: Kind, row: &Row) -> Option<(u64, u64)> {
    let bytes = if kind == Kind::Mapping {
        row.requested
    } else {
        row.bytes
    };
    can_carry(kind).then_some((row.address, row.address.saturating_add(bytes)))
}
