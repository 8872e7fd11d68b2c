//! Where physical memory is mapped.

use std::collections::HashMap;
use std::ops::Range;

use culeak::kind::Kind;
use culeak::snapshot::{Allocation, Snapshot};

use super::handle;

/// Where physical memory is mapped. A recording has the mappings, but not which memory each of them maps. For memory and
/// mappings of one size it follows from their order, if each creation is followed by its mapping.
pub(super) struct Mapped {
    /// The mapping of each record, by its handle and time.
    by_record: HashMap<(u64, u64), Range<u64>>,
}

impl Mapped {
    pub fn of(snapshot: &Snapshot) -> Mapped {
        /// Records of one size in the order of time: of physical memory, or of a mapping.
        type OfSize = Vec<(u64, bool, u64, bool)>;
        let mut sizes: HashMap<u64, OfSize> = HashMap::new();
        for row in snapshot.allocations.iter() {
            let (is_mapping, size) = match row.kind {
                Kind::Physical | Kind::HostPhysical => (false, row.bytes),
                Kind::Mapping => (true, row.requested),
                _ => continue,
            };
            let usual = is_mapping || row.mappings == 1;
            sizes
                .entry(size)
                .or_default()
                .push((row.time_ns, is_mapping, row.address, usual));
        }
        let mut by_record = HashMap::new();
        for (size, mut rows) in sizes {
            rows.sort_unstable();
            let alternates = rows
                .chunks(2)
                .all(|pair| matches!(pair, [(_, false, _, true), (_, true, ..)]));
            if alternates {
                by_record.extend(rows.chunks_exact(2).map(|pair| {
                    let ((time_ns, _, handle, _), (_, _, start, _)) = (pair[0], pair[1]);
                    ((handle, time_ns), start..start.saturating_add(size))
                }));
            }
        }
        Mapped { by_record }
    }

    /// The addresses of the memory. Memory that is not mapped is held by its handle.
    pub fn range(&self, memory: &Allocation) -> Option<Range<u64>> {
        match memory.mappings {
            0 => handle(memory.address),
            _ => self.by_record.get(&(memory.address, memory.time_ns)).cloned(),
        }
    }
}
