//! The modes of PyTorch's allocator, inferred from its allocations.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::analysis::groups::Groups;
use crate::analysis::site::CallStacks;
use crate::kind::Kind;

/// How PyTorch's allocator gets memory from CUDA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Segments from cudaMalloc; each tensor is recorded.
    Caching,
    /// Segments that grow (`expandable_segments:True`); each tensor is recorded.
    Expandable,
    /// Segments were recorded, but no tensor: the function that reports tensors was not hooked.
    NoTensorEvents,
    /// `backend:cudaMallocAsync`: each tensor is a CUDA allocation.
    Ordered,
    /// `PYTORCH_NO_CUDA_MEMORY_CACHING=1`: each tensor is a CUDA allocation.
    Uncached,
}

/// The modes that the live records show; empty for programs without PyTorch.
pub(super) fn pytorch_modes(groups: &Groups, stacks: &CallStacks) -> BTreeSet<Mode> {
    let tensors_recorded = groups.watched.contains("PyTorch");
    let mut modes = BTreeSet::new();
    let on_device = groups.all.iter().filter(|group| group.call.kind.place().on_device());
    let stacks_and_kinds: BTreeSet<(Option<usize>, Kind)> =
        on_device.map(|group| (group.stack, group.call.kind)).collect();
    for (stack, kind) in stacks_and_kinds {
        let stack = stacks.get(stack);
        let through = |name: &str| {
            stack
                .frames
                .iter()
                .any(|frame| frame.function.is_some_and(|f| f.contains(name)))
        };
        match (stack.allocator, kind) {
            (Some("PyTorch"), _) if !tensors_recorded => modes.insert(Mode::NoTensorEvents),
            (Some("PyTorch"), Kind::Physical) => modes.insert(Mode::Expandable),
            (Some("PyTorch"), _) => modes.insert(Mode::Caching),
            (None, Kind::Async) if through("CudaMallocAsync") => modes.insert(Mode::Ordered),
            (None, Kind::Device) if through("CUDACachingAllocator::Native::NativeCachingAllocator") => {
                modes.insert(Mode::Uncached)
            }
            _ => false,
        };
    }
    if tensors_recorded && modes.is_empty() {
        modes.insert(Mode::Caching);
    }
    modes
}
