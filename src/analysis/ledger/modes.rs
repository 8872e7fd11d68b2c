//! How PyTorch was set up, told from what it did.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::analysis::groups::Groups;
use crate::analysis::site::CallStacks;
use crate::kind::Kind;

/// How PyTorch's allocator was seen to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Segments from cudaMalloc, tensors recorded one by one.
    Caching,
    /// The same with segments that grow (`expandable_segments:True`).
    Expandable,
    /// Segments were seen and never a tensor: the function that tells of them was not reached.
    Unreported,
    /// `backend:cudaMallocAsync`: every tensor is an allocation of CUDA's.
    Ordered,
    /// `PYTORCH_NO_CUDA_MEMORY_CACHING=1`: every tensor is an allocation of CUDA's.
    Uncached,
}

/// The modes of PyTorch that the live records show; none in other programs.
pub(super) fn pytorch_modes(groups: &Groups, stacks: &CallStacks) -> BTreeSet<Mode> {
    let told = groups.watched.contains("PyTorch");
    let mut modes = BTreeSet::new();
    let on_device = groups.all.iter().filter(|group| group.call.kind.place().on_device());
    let ways: BTreeSet<(Option<usize>, Kind)> = on_device.map(|group| (group.stack, group.call.kind)).collect();
    for (stack, kind) in ways {
        let stack = stacks.get(stack);
        let through = |name: &str| {
            stack
                .frames
                .iter()
                .any(|frame| frame.function.is_some_and(|f| f.contains(name)))
        };
        match (stack.allocator, kind) {
            (Some("PyTorch"), _) if !told => modes.insert(Mode::Unreported),
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
