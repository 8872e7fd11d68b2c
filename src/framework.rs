//! Frameworks with an allocator of their own: whose blocks were recorded, and how PyTorch was set up.
//!
//! A framework's pool and the blocks handed out of it are recorded apart, and told of under two names: the pool by its
//! owner (`PyTorch`, from the stack), the block by its domain (`pytorch`, from the hook). Where blocks are recorded,
//! they are what a reader wants to see and the pool behind them is cached memory; where none are, the pool is all there
//! is. Deliberately absent: sums; see `ledger`.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;

use crate::kind::{Kind, Place};
use crate::site::CallStacks;
use crate::snapshot::{Allocation, Snapshot};

/// Those known by name, as reports write them.
const OWNERS: &[&str] = &["PyTorch", "XLA", "CuPy", "RMM", "TensorFlow", "ONNX Runtime"];

/// `pytorch` is `PyTorch`; a name that a program chose stays as it is.
pub fn owner_of_domain(domain: &str) -> &str {
    let known = OWNERS.iter().find(|owner| owner.eq_ignore_ascii_case(domain));
    known.copied().unwrap_or(domain)
}

/// Whose block a record is.
pub fn block_owner(allocation: &Allocation) -> &str {
    match (&allocation.domain, allocation.kind) {
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
        let within = |allocation: &&Allocation| allocation.kind.place() == Place::Within;
        let mut owners: BTreeSet<&str> = snapshot.allocations.iter().filter(within).map(block_owner).collect();
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

/// The records that blocks lie in, by address: whoever owns the blocks keeps that memory as a pool, whatever its stack says.
pub struct Carriers<'a>(HashMap<u64, &'a str>);

impl<'a> Carriers<'a> {
    pub fn of(snapshot: &'a Snapshot) -> Carriers<'a> {
        let within = |allocation: &&Allocation| allocation.kind.place() == Place::Within;
        let mut blocks: Vec<&Allocation> = snapshot.allocations.iter().filter(within).collect();
        blocks.sort_by_key(|block| block.address);
        let owner = |record: &Allocation| {
            let (start, end) = span(record)?;
            let behind = blocks.partition_point(|block| block.address < start);
            let begins_within = blocks.get(behind).filter(|block| block.address < end);
            // The middle of a block that lies over several mappings.
            let goes_on = || {
                let before = behind.checked_sub(1).map(|nth| blocks[nth])?;
                let reaches = before.address.saturating_add(before.bytes) > start;
                (record.kind == Kind::Mapping && reaches).then_some(before)
            };
            begins_within.copied().or_else(goes_on).map(block_owner)
        };
        let found = snapshot
            .allocations
            .iter()
            .filter_map(|record| Some((record.address, owner(record)?)));
        Carriers(found.collect())
    }

    /// Whose blocks lie in this record.
    pub fn owner(&self, record: &Allocation) -> Option<&'a str> {
        span(record)?;
        self.0.get(&record.address).copied()
    }
}

/// The addresses that a record's blocks can have; none for records that are known by a handle, or lie on the host.
pub fn span(record: &Allocation) -> Option<(u64, u64)> {
    let bytes = match record.kind {
        Kind::Mapping => record.requested,
        Kind::Device | Kind::Pitched | Kind::Async | Kind::Graph => record.bytes,
        _ => return None,
    };
    Some((record.address, record.address.saturating_add(bytes)))
}

/// How PyTorch's allocator was seen to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Segments from cudaMalloc, tensors recorded one by one.
    Caching,
    /// The same with segments that grow (`expandable_segments:True`).
    Expandable,
    /// Segments were seen and never a tensor: the function that tells of them was not reached.
    Untold,
    /// `backend:cudaMallocAsync`: every tensor is an allocation of CUDA's.
    Ordered,
    /// `PYTORCH_NO_CUDA_MEMORY_CACHING=1`: every tensor is an allocation of CUDA's.
    Uncached,
}

/// The modes of PyTorch that the live records show; none in other programs.
pub fn pytorch_modes(snapshot: &Snapshot, stacks: &CallStacks) -> BTreeSet<Mode> {
    let told = Watched::of(snapshot).contains("PyTorch");
    let mut modes = BTreeSet::new();
    // Millions of records, but few stacks.
    let on_device = snapshot
        .allocations
        .iter()
        .filter(|allocation| allocation.kind.place().on_device());
    let ways: BTreeSet<(Option<usize>, Kind)> = on_device
        .map(|allocation| (allocation.stack, allocation.kind))
        .collect();
    for (stack, kind) in ways {
        let stack = stacks.get(stack);
        let through = |name: &str| {
            stack
                .frames
                .iter()
                .any(|frame| frame.function.is_some_and(|f| f.contains(name)))
        };
        match (stack.allocator, kind) {
            (Some("PyTorch"), _) if !told => modes.insert(Mode::Untold),
            (Some("PyTorch"), Kind::Physical) => modes.insert(Mode::Expandable),
            (Some("PyTorch"), _) => modes.insert(Mode::Caching),
            (None, Kind::Async) if through("CudaMallocAsync") => modes.insert(Mode::Ordered),
            (None, Kind::Device) if through("CUDACachingAllocator::Native::NativeCachingAllocator") => {
                modes.insert(Mode::Uncached)
            }
            _ => false,
        };
    }
    if told && modes.is_empty() {
        modes.insert(Mode::Caching);
    }
    modes
}
