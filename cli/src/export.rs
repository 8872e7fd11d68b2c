//! Snapshots in the formats of other people's viewers.
//!
//! Two sorts. Formats of stacks (folded lines, flame graphs, pprof, speedscope, Firefox) are made of
//! [`culeak::analysis::profile::Profile`], so that they add up to what the report lists. Formats of records (tables, PyTorch's
//! viewer, traces over time) go over the live allocations themselves. Every one says in its own file what it can and cannot
//! hold. Deliberately absent: numbers that a recording does not know; a format that has a place for them stays without.

pub mod csv;
pub mod curve;
pub mod firefox;
pub mod flamegraph;
pub mod folded;
pub mod memory_viz;
pub mod names;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod perfetto;
pub mod pprof;
pub mod records;
pub mod speedscope;

#[cfg(test)]
mod tests;
