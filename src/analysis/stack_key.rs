//! Identifies a stack across snapshots, before its names are known.
//!
//! A stack's index in a snapshot changes from one reading to the next, and module addresses change from run to run. A
//! [`StackKey`] is a hash of the frames: module and address of a native frame, recorded names of a Python frame. So the names
//! of a stack are looked up once for all snapshots of a program.
//!
//! Deliberately absent: call sites, which follow from names; see `site`.

use std::hash::{BuildHasher, Hash};

use foldhash::fast::FixedState;

use crate::lockfree::index::mix;
use crate::snapshot::{Location, Snapshot, Stack};

/// Identifies a stack across snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackKey(pub u64);

impl StackKey {
    /// All memory that was recorded without a stack.
    pub const NONE: StackKey = StackKey(0);
}

/// The keys of a snapshot's stacks, in order.
pub fn stack_keys(snapshot: &Snapshot) -> Vec<StackKey> {
    let modules = snapshot.modules.iter();
    let modules: Vec<u64> = modules
        .map(|module| hash_of(&(&module.path, &module.build_id)))
        .collect();
    let locations = snapshot.locations.iter();
    let locations: Vec<u64> = locations.map(|location| location_hash(location, &modules)).collect();
    snapshot
        .stacks
        .iter()
        .map(|stack| stack_key(stack, &locations))
        .collect()
}

/// Native frames are identified by module and address, and generated code, which is in no module, also by its recorded names:
/// another process may have other code at that address. Python frames are identified by their recorded names.
fn location_hash(location: &Location, modules: &[u64]) -> u64 {
    match location.module {
        _ if !location.language.is_native() => hash_of(&location.symbols),
        Some(module) => mix(mix(modules[module]) ^ location.address),
        None if location.symbols.is_empty() => mix(mix(0) ^ location.address),
        None => mix(hash_of(&location.symbols) ^ location.address),
    }
}

fn stack_key(stack: &Stack, locations: &[u64]) -> StackKey {
    let frames = stack.frames.iter();
    let hash = frames.fold(u64::from(stack.truncated) + 1, |hash, &frame| {
        mix(hash ^ locations[frame])
    });
    // 0 is taken.
    StackKey(hash.max(1))
}

fn hash_of(value: &impl Hash) -> u64 {
    FixedState::with_seed(7).hash_one(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::leaky;

    #[test]
    fn a_stack_keeps_its_key_when_its_number_and_load_address_change() {
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
