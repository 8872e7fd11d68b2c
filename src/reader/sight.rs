//! What a recording shows at one moment, for those who need no single allocation: sums by stack and call.

use crate::census::{Batch, Census};
use crate::kind::Kind;
use crate::share::Share;
use crate::snapshot::Snapshot;

/// What a recording shows at one moment.
#[derive(Debug, Clone)]
pub struct Sight {
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
    pub share: Share,
    pub oldest_ns: u64,
    pub newest_ns: u64,
}

impl Sight {
    /// Of a snapshot, as the first and only sight.
    pub fn of(snapshot: Snapshot) -> Sight {
        let census = Census::without_stacks(&snapshot);
        let sum = |batch: &Batch| Sum {
            stack: batch.stack,
            kind: batch.call.kind,
            device: batch.call.device,
            carries_blocks: batch.owner.is_some(),
            share: batch.share(),
            oldest_ns: batch.oldest_ns,
            newest_ns: batch.newest_ns,
        };
        let sums = census.batches.iter().map(sum).collect();
        let watched = census.watched.names().map(str::to_owned).collect();
        Sight {
            snapshot,
            known_stacks: 0,
            sums,
            watched,
        }
    }
}
