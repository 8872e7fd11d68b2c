//! Host memory that is not simply a block of the program: PyTorch's pinned cache, and what the driver pins for itself.

use std::collections::HashMap;

use serde::Serialize;

use super::driver_calls::{DriverCall, Purpose};
use crate::analysis::groups::Groups;
use crate::analysis::site::CallStacks;
use crate::kind::{Kind, Place};
use crate::snapshot::Snapshot;
use crate::tally::Tally;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostLine {
    pub what: HostLineKind,
    #[serde(flatten)]
    pub tally: Tally,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HostLineKind {
    /// PyTorch's cache of pinned memory, which rounds sizes up. Included in the tally of its kind.
    PinnedCache,
    /// What the driver pinned for contexts. In no tally of a kind.
    DriverContexts,
    /// What the driver pinned in other calls, except for the program's own blocks. In no tally of a kind.
    DriverOther,
}

/// The lines with any bytes.
pub(super) fn lines(snapshot: &Snapshot, stacks: &CallStacks, groups: &Groups) -> Vec<HostLine> {
    let pools = groups
        .of_place(Place::Host)
        .filter(|group| stacks.get(group.stack).allocator == Some("PyTorch"));
    let cache = Tally::total(pools.map(|group| group.tally()));
    let (mut contexts, mut other) = (Tally::default(), Tally::default());
    let mut purposes: HashMap<Option<usize>, Purpose> = HashMap::new();
    for segment in snapshot
        .segments
        .iter()
        .filter(|segment| segment.kind == Kind::HostSegment)
    {
        let purpose = purposes
            .entry(segment.stack)
            .or_insert_with(|| DriverCall::of(stacks.get(segment.stack)).purpose);
        match purpose {
            Purpose::Context => contexts.add(segment.bytes),
            Purpose::Host => {}
            _ => other.add(segment.bytes),
        }
    }
    let lines = [
        (HostLineKind::PinnedCache, cache),
        (HostLineKind::DriverContexts, contexts),
        (HostLineKind::DriverOther, other),
    ];
    let lines = lines.into_iter().filter(|(_, tally)| tally.count > 0);
    lines.map(|(what, tally)| HostLine { what, tally }).collect()
}
