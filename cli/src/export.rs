//! Snapshots in the formats of other tools.
//!
//! Formats of stacks (folded stacks, flame graphs, pprof, speedscope, Firefox) are made from
//! [`culeak::analysis::profile::Profile`], so that they add up to what the report lists. Formats of records (tables,
//! PyTorch's viewer, traces over time) iterate over the live allocations. Each module documents what its format can and
//! cannot hold. Deliberately absent: values that a recording does not contain; their fields stay empty.

pub mod csv;
pub mod curve;
pub mod firefox;
pub mod flamegraph;
pub mod folded;
pub mod memory_viz;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod perfetto;
pub mod pprof;
pub mod records;
pub mod speedscope;
pub mod window;

use culeak::analysis::job::member::Member;
use culeak::snapshot::Snapshot;

/// The name of a process among several: `rank 5`, or `node1:4711`.
pub fn called(snapshot: &Snapshot) -> String {
    let member = Member::of(snapshot);
    match member.rank {
        Some(rank) => format!("rank {rank}"),
        None => format!("{}:{}", member.host, member.pid),
    }
}

#[cfg(test)]
mod tests;
