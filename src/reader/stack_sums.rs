//! What a recording shows at one moment, for those who need no single allocation: sums by stack and call.

use crate::analysis::groups::{Group, Groups};
use crate::analysis::tally::Tally;
use crate::kind::Kind;
use crate::snapshot::Snapshot;

/// What a recording shows at one moment.
#[derive(Debug, Clone)]
pub struct StackSums {
    /// All but the allocations. Stacks, and the locations of their frames, are those that no sight before had.
    pub snapshot: Snapshot,
    /// Stacks in the sights before; those of this one are numbered from there on.
    pub known_stacks: usize,
    pub sums: Vec<Sum>,
    /// The frameworks whose blocks were recorded.
    pub watched: Vec<String>,
}

/// Live records of one stack that were asked for in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    /// Numbered over all sights.
    pub stack: Option<usize>,
    pub kind: Kind,
    /// Of the snapshot.
    pub device: Option<usize>,
    /// Blocks that somebody else told of lie in them.
    pub carries_blocks: bool,
    pub tally: Tally,
    pub oldest_ns: u64,
    pub newest_ns: u64,
}

impl StackSums {
    /// Of a snapshot, as the first and only sight.
    pub fn of(snapshot: Snapshot) -> StackSums {
        let groups = Groups::without_stacks(&snapshot);
        let sum = |group: &Group| Sum {
            stack: group.stack,
            kind: group.call.kind,
            device: group.call.device,
            carries_blocks: group.owner.is_some(),
            tally: group.tally(),
            oldest_ns: group.oldest_ns,
            newest_ns: group.newest_ns,
        };
        let sums = groups.all.iter().map(sum).collect();
        let watched = groups.watched.names().map(str::to_owned).collect();
        StackSums {
            snapshot,
            known_stacks: 0,
            sums,
            watched,
        }
    }
}
