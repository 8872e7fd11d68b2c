//! The live records of one process, added up by stack.
//!
//! A stack's index in a snapshot changes from one reading to the next, and module addresses change from run to run. So
//! stacks are identified by a hash of their frames ([`StackKey`]), which contains no names: those may be found long
//! after the stack was first seen.
//!
//! Deliberately absent: call sites, and whether memory is held or cached. Both follow from names; see `rows`.

use culeak::analysis::groups::Groups;
use culeak::analysis::objects;
use culeak::analysis::report::Tally;
pub use culeak::analysis::stack_key::{StackKey, stack_keys};
use culeak::kind::{Kind, Place};
use culeak::snapshot::Snapshot;
use foldhash::HashMap;

/// Records with equal keys are added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SumKey {
    pub stack: StackKey,
    pub kind: Kind,
    /// Recorded blocks of a framework lie in it.
    pub carries_blocks: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveTally {
    pub tally: Tally,
    /// On the recording's clock.
    pub oldest_ns: u64,
    pub newest_ns: u64,
}

impl LiveTally {
    pub fn join(&mut self, other: LiveTally) {
        self.tally.join(other.tally);
        self.oldest_ns = self.oldest_ns.min(other.oldest_ns);
        self.newest_ns = self.newest_ns.max(other.newest_ns);
    }
}

impl Default for LiveTally {
    fn default() -> LiveTally {
        LiveTally {
            tally: Tally::default(),
            oldest_ns: u64::MAX,
            newest_ns: 0,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct LiveSums {
    pub tallies: HashMap<SumKey, LiveTally>,
    /// By device of the snapshot.
    pub devices: Vec<Tally>,
    /// The frameworks whose blocks are recorded one by one.
    pub watched: Vec<String>,
}

impl LiveSums {
    /// `keys`: of the snapshot's stacks.
    pub fn of(snapshot: &Snapshot, keys: &[StackKey]) -> LiveSums {
        let groups = Groups::without_stacks(snapshot);
        let objects = objects::groups(snapshot, |call, _, _| call.kind.place() == Place::Object);
        let mut devices = vec![Tally::default(); snapshot.devices.len()];
        let mut tallies: HashMap<SumKey, LiveTally> = HashMap::default();
        for group in groups.all.iter().chain(&objects) {
            let kind = group.call.kind;
            let key = SumKey {
                stack: group.stack.map_or(StackKey::NONE, |stack| keys[stack]),
                kind,
                carries_blocks: group.owner.is_some(),
            };
            // Of memory whose stack was not taken, only the sum of the device is known.
            let at_stack = group.at_stack();
            if at_stack.count > 0 {
                tallies.entry(key).or_default().join(LiveTally {
                    tally: at_stack,
                    oldest_ns: group.oldest_ns,
                    newest_ns: group.newest_ns,
                });
            }
            if let Some(device) = group.call.device
                && kind.place().on_device()
            {
                devices[device].join(group.tally());
            }
        }
        LiveSums {
            tallies,
            devices,
            watched: groups.watched.names().map(str::to_owned).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::sample::leaky;

    #[test]
    fn sums_are_those_of_the_records() {
        let snapshot = leaky();
        let sums = LiveSums::of(&snapshot, &stack_keys(&snapshot));
        let total = Tally::total(sums.tallies.values().map(|live| live.tally));
        assert_eq!(total.count, snapshot.allocations.len() as u64);
        assert_eq!(
            total.bytes,
            snapshot.allocations.iter().map(|record| record.bytes).sum::<u64>()
        );
    }
}
