//! The live records of one process, added up by stack: what a look at a recording leaves behind.
//!
//! A stack's number in a snapshot changes from one look to the next, and so does where modules are loaded in the next
//! run. What does not change is what the stack is made of, so stacks are known by a hash over it ([`StackKey`]). Names are
//! no part of it: they may be found long after the stack was first seen.
//!
//! Deliberately absent: call sites, and what is held and what is cached. Both follow from names; see `rows`.

use std::hash::{DefaultHasher, Hash, Hasher};

use culeak::analysis::report::Tally;
use culeak::kind::Kind;
use culeak::lockfree::index::mix;
use culeak::reader::StackSums;
use culeak::snapshot::{Location, Snapshot, Stack};
use foldhash::HashMap;

/// A stack, whichever number it has in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackKey(pub u64);

impl StackKey {
    /// Of everything that was recorded without its stack.
    pub const NONE: StackKey = StackKey(0);
}

/// What records must share to be added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub stack: StackKey,
    pub kind: Kind,
    /// Blocks that somebody else told of lie in it.
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
    pub sums: HashMap<Key, LiveTally>,
    /// By device of the snapshot.
    pub devices: Vec<Tally>,
    /// The frameworks whose blocks are recorded one by one.
    pub watched: Vec<String>,
}

impl LiveSums {
    /// `stacks`: the keys of all stacks that this sight and those before told of.
    pub fn of(stack_sums: &StackSums, stacks: &[StackKey]) -> LiveSums {
        let mut devices = vec![Tally::default(); stack_sums.snapshot.devices.len()];
        let mut sums: HashMap<Key, LiveTally> = HashMap::default();
        sums.reserve(stack_sums.sums.len());
        for sum in &stack_sums.sums {
            let key = Key {
                stack: sum.stack.map_or(StackKey::NONE, |stack| stacks[stack]),
                kind: sum.kind,
                carries_blocks: sum.carries_blocks,
            };
            sums.entry(key).or_default().join(LiveTally {
                tally: sum.tally,
                oldest_ns: sum.oldest_ns,
                newest_ns: sum.newest_ns,
            });
            if let Some(device) = sum.device
                && sum.kind.place().on_device()
            {
                devices[device].join(sum.tally);
            }
        }
        LiveSums {
            sums,
            devices,
            watched: stack_sums.watched.clone(),
        }
    }
}

/// A key for every stack of a snapshot, in order.
pub fn stack_keys(snapshot: &Snapshot) -> Vec<StackKey> {
    let modules: Vec<u64> = snapshot
        .modules
        .iter()
        .map(|module| hash_of(&(&module.path, &module.build_id)))
        .collect();
    let locations: Vec<u64> = snapshot
        .locations
        .iter()
        .map(|location| location_hash(location, &modules))
        .collect();
    snapshot
        .stacks
        .iter()
        .map(|stack| stack_key(stack, &locations))
        .collect()
}

/// Native frames are told by module and address, Python's by what was read of them when they were recorded.
fn location_hash(location: &Location, modules: &[u64]) -> u64 {
    let module = location.module.map_or(0, |module| modules[module]);
    if location.language.is_native() {
        mix(mix(module) ^ location.address)
    } else {
        hash_of(&location.symbols)
    }
}

fn stack_key(stack: &Stack, locations: &[u64]) -> StackKey {
    let frames = stack.frames.iter();
    let hash = frames.fold(u64::from(stack.truncated) + 1, |hash, &frame| {
        mix(mix(hash) ^ locations[frame])
    });
    // 0 is taken.
    StackKey(hash.max(1))
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::sample::leaky;

    #[test]
    fn sums_are_those_of_the_records() {
        let snapshot = leaky();
        let sums = LiveSums::of(&StackSums::of(snapshot.clone()), &stack_keys(&snapshot));
        let total = Tally::total(sums.sums.values().map(|amount| amount.tally));
        assert_eq!(total.count, snapshot.allocations.len() as u64);
        assert_eq!(
            total.bytes,
            snapshot.allocations.iter().map(|record| record.bytes).sum::<u64>()
        );
    }

    #[test]
    fn a_stack_is_known_again_whatever_its_number_and_place_in_memory() {
        let snapshot = leaky();
        let mut other = leaky();
        other.stacks.reverse();
        for module in &mut other.modules {
            module.bias += 0x1000;
        }
        let mut keys = stack_keys(&other);
        keys.reverse();
        assert_eq!(stack_keys(&snapshot), keys);
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
    }
}
