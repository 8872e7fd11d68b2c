//! Sums by stack and call: a snapshot without individual allocations.

use crate::analysis::groups::{Group, Groups};
use crate::analysis::objects;
use crate::analysis::tally::Tally;
use crate::kind::{Kind, Place};
use crate::snapshot::Snapshot;

/// The state of a recording at one point in time.
#[derive(Debug, Clone)]
pub struct StackSums {
    /// Everything except the allocations. Of stacks and their locations, only those that no earlier read returned.
    pub snapshot: Snapshot,
    /// The number of stacks that earlier reads returned; the stacks of this one are numbered from there on.
    pub known_stacks: usize,
    pub sums: Vec<Sum>,
    /// The frameworks whose blocks were recorded.
    pub watched: Vec<String>,
}

/// The live records of one stack, kind and device; objects without an address too, with 0 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    /// Numbered over all reads.
    pub stack: Option<usize>,
    pub kind: Kind,
    /// A row of the snapshot.
    pub device: Option<usize>,
    /// Recorded blocks of a framework allocator lie inside them.
    pub carries_blocks: bool,
    pub tally: Tally,
    /// What the records stand for if stacks were sampled, and 0 for those without a stack; otherwise the same.
    pub at_stack: Tally,
    pub oldest_ns: u64,
    pub newest_ns: u64,
}

impl StackSums {
    /// The sums of a snapshot, as the first and only read.
    pub fn of(snapshot: Snapshot) -> StackSums {
        let groups = Groups::without_stacks(&snapshot);
        let sum = |group: &Group| Sum {
            stack: group.stack,
            kind: group.call.kind,
            device: group.call.device,
            carries_blocks: group.owner.is_some(),
            tally: group.tally(),
            at_stack: group.at_stack(),
            oldest_ns: group.oldest_ns,
            newest_ns: group.newest_ns,
        };
        let of_objects = objects::groups(&snapshot, |call, _, _| call.kind.place() == Place::Object);
        let sums = groups.all.iter().chain(&of_objects).map(sum).collect();
        let watched = groups.watched.names().map(str::to_owned).collect();
        StackSums {
            snapshot,
            known_stacks: 0,
            sums,
            watched,
        }
    }
}
