//! Handles of physical memory (`cuMemCreate`): which memory is mapped, which only a mapping or only a handle keeps.
//!
//! Memory that was mapped and has neither is free. A program that unmaps to sleep and forgets a release keeps the memory, and no
//! address shows it.

use serde::Serialize;

use crate::kind::Kind;
use crate::snapshot::Snapshot;
use crate::tally::Tally;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Handles {
    /// Created since the recording began.
    pub created: u64,
    pub freed: u64,
    /// Live, with a reference to the handle and a mapping.
    pub mapped: Tally,
    /// All references were released; a mapping keeps it.
    pub released: Tally,
    /// There is no mapping; references to the handle keep it.
    pub unmapped: Tally,
    /// The part of these that has several references (`cuMemRetainAllocationHandle`), each of which needs a release.
    pub retained: Tally,
    /// Releases that the driver refused, for example second ones.
    pub failed_releases: u64,
}

impl Handles {
    /// `None` if none was created, or their state is not known at the point that the snapshot shows.
    pub fn of(snapshot: &Snapshot) -> Option<Handles> {
        let is_physical = |kind: Kind| matches!(kind, Kind::Physical | Kind::HostPhysical);
        let mut handles = Handles {
            failed_releases: snapshot.losses.failed_releases,
            ..Handles::default()
        };
        for counter in snapshot.counters.iter().filter(|counter| is_physical(counter.kind)) {
            handles.created = handles.created.saturating_add(counter.total_count);
            handles.freed = handles.freed.saturating_add(counter.freed_count);
        }
        for row in snapshot.allocations.iter().filter(|row| is_physical(row.kind)) {
            let state = match (row.references, row.mappings) {
                // Made by hand: what is live has a reference or a mapping.
                (0, 0) => return None,
                (_, 0) => &mut handles.unmapped,
                (0, _) => &mut handles.released,
                _ => &mut handles.mapped,
            };
            state.add(row.bytes);
            if row.references > 1 {
                handles.retained.add(row.bytes);
            }
        }
        (handles.created > 0 && !snapshot.allocations.is_summed()).then_some(handles)
    }

    /// Whether memory is live that no mapping shows, or whose handle needs several releases, or a release has failed.
    pub fn is_odd(&self) -> bool {
        self.unmapped.count > 0 || self.retained.count > 0 || self.failed_releases > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Allocation, Call, Counter};

    fn snapshot(states: &[(u32, u32)]) -> Snapshot {
        let mut snapshot = Snapshot::empty();
        for &(references, mappings) in states {
            let call = Call {
                references,
                mappings,
                ..Call::new(Kind::Physical, "cuMemCreate", None, 0)
            };
            snapshot.allocations.push(Allocation {
                address: 1,
                bytes: 10,
                requested: 10,
                time_ns: 0,
                stack: None,
                call: &call,
            });
        }
        snapshot.counters.push(Counter {
            device: None,
            kind: Kind::Physical,
            live_bytes: 0,
            live_count: 0,
            peak_bytes: 0,
            peak_ns: 0,
            total_bytes: 0,
            total_count: 9,
            freed_count: 4,
            failed_count: 0,
        });
        snapshot
    }

    #[test]
    fn memory_is_mapped_or_kept_by_a_mapping_or_by_a_handle_alone() {
        let handles = Handles::of(&snapshot(&[(1, 1), (0, 2), (2, 0), (1, 0), (3, 1)])).expect("handles");
        let tally = |count| Tally::new(10 * count, count);
        let expected = Handles {
            created: 9,
            freed: 4,
            mapped: tally(2),
            released: tally(1),
            unmapped: tally(2),
            retained: tally(2),
            failed_releases: 0,
        };
        assert_eq!(handles, expected);
        assert!(handles.is_odd());
        assert!(!Handles::of(&snapshot(&[(1, 1), (0, 2)])).expect("handles").is_odd());
    }

    #[test]
    fn without_counts_of_references_and_mappings_nothing_is_said() {
        assert_eq!(Handles::of(&snapshot(&[(1, 1), (0, 0)])), None);
    }
}
