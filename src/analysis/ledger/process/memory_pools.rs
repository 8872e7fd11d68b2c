//! CUDA's memory pools, one by one: the chunks that each took from the kernel driver, and the live blocks in them.
//!
//! A chunk belongs to the pool of the allocation that took it. Pools that the program did not create are one row: the devices'
//! default pools, which the program may also use by their handles. The memory of graphs is in a pool of the driver's own.

use std::collections::BTreeMap;

use serde::Serialize;

use super::sorted::Segment;
use crate::analysis::ledger::driver_calls::Purpose;
use crate::analysis::site::CallStacks;
use crate::kind::Kind;
use crate::point::Point;
use crate::snapshot::{Allocation, Snapshot};

/// Which pool it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PoolOf {
    /// The program created it.
    Program,
    /// The device's default pool.
    Device,
    /// Memory of launched graphs.
    Graphs,
}

/// A memory pool on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MemoryPool {
    pub of: PoolOf,
    /// The handle of a pool that the program created.
    pub handle: Option<u64>,
    /// Bytes and number of its chunks.
    pub bytes: u64,
    pub chunks: u64,
    /// Bytes and number of the live blocks in them.
    pub live_bytes: u64,
    pub blocks: u64,
    /// The call site that created it; `None` if it is destroyed, or is none of the program's.
    pub name: Option<String>,
    /// File and line of that call site.
    pub place: Option<String>,
}

/// Whether the pools of these chunks and of the blocks in them are known. At an earlier time, those of what was freed since are
/// not, unless the program had only the devices' default pools.
pub(super) fn are_known(snapshot: &Snapshot, device: usize, chunks: &[Segment]) -> bool {
    let is_earlier = matches!(snapshot.taken.point, Some(Point::Time(_) | Point::Mark(_)));
    if !is_earlier || !snapshot.ever_had(Kind::Pool) {
        return true;
    }
    let is_block = |row: &Allocation| row.kind == Kind::Async && row.device == Some(device);
    // A block that is still live has its stream.
    let mut blocks = snapshot.allocations.iter().filter(is_block);
    blocks.all(|row| row.stream.is_some()) && chunks.iter().all(|chunk| !chunk.is_gone)
}

/// The pools with these chunks, largest first.
pub(super) fn of(snapshot: &Snapshot, device: usize, chunks: &[Segment], stacks: &CallStacks) -> Vec<MemoryPool> {
    let mut pools: BTreeMap<(PoolOf, Option<u64>), MemoryPool> = BTreeMap::new();
    for chunk in chunks {
        let key = match chunk.pool {
            _ if chunk.call.purpose != Purpose::Pool => (PoolOf::Graphs, None),
            Some(handle) => (PoolOf::Program, Some(handle)),
            None => (PoolOf::Device, None),
        };
        let pool = pools.entry(key).or_insert(MemoryPool {
            of: key.0,
            handle: key.1,
            bytes: 0,
            chunks: 0,
            live_bytes: 0,
            blocks: 0,
            name: None,
            place: None,
        });
        pool.bytes = pool.bytes.saturating_add(chunk.bytes);
        pool.chunks += 1;
    }
    for row in snapshot.allocations.iter() {
        let key = match row.kind {
            Kind::Pool => {
                if let Some(pool) = pools.get_mut(&(PoolOf::Program, Some(row.address))) {
                    let (name, place) = stacks.get(row.stack).site_names();
                    (pool.name, pool.place) = (Some(name), place);
                }
                continue;
            }
            Kind::Async if row.device == Some(device) => match row.pool {
                Some(handle) if pools.contains_key(&(PoolOf::Program, Some(handle))) => (PoolOf::Program, Some(handle)),
                _ => (PoolOf::Device, None),
            },
            Kind::Graph if row.device == Some(device) => (PoolOf::Graphs, None),
            _ => continue,
        };
        if let Some(pool) = pools.get_mut(&key) {
            pool.live_bytes = pool.live_bytes.saturating_add(row.bytes);
            pool.blocks += 1;
        }
    }
    let mut pools: Vec<MemoryPool> = pools.into_values().collect();
    pools.sort_by_key(|pool| std::cmp::Reverse(pool.bytes));
    pools
}
