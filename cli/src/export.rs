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

#[cfg(test)]
mod tests;
