//! Pools of caching allocators: those that prevent a verdict, because an unknown part of them is in use, and those that are judged as
//! a whole.

use foldhash::HashMap;

use super::limits::Besides;
use super::{Rules, Unseen};
use crate::analysis::groups::{Group, Groups, Level};
use crate::analysis::opaque::OpaquePool;
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::Sieve;
use crate::analysis::tally::Tally;
use crate::kind::{Kind, Place};
use crate::snapshot::Snapshot;
use crate::snapshot::allocations::stack_of;

/// Each opaque pool whose blocks could break a limit. A pool whose blocks cannot be recorded is not among them: no recording would
/// ever pass. When the pool was allocated does not matter, since its blocks may be younger.
pub(super) fn unseen(groups: &[Group], stacks: &CallStacks, rules: &Rules, besides: &Besides) -> Vec<Unseen> {
    let limits = &rules.limits;
    if limits.judge_pools {
        return Vec::new();
    }
    let mut sieve = Sieve::new(&rules.suppressions);
    let is_judged = |group: &&Group| {
        let mut kinds = limits.kinds.iter();
        // Blocks of the pool would be of these kinds.
        limits.kinds.is_empty() || kinds.any(|&kind| kind == group.call.kind || kind.place() == Place::Within)
    };
    let in_question: Vec<&Group> = (groups.iter().filter(is_judged))
        .filter(|group| sieve.rule(group.stack, stacks).is_none())
        .collect();
    let pools = OpaquePool::among(in_question, stacks);
    let pools: Vec<&OpaquePool> = pools.iter().filter(|pool| pool.remedy.is_some()).collect();
    let bytes = pools.iter().fold(0, |sum: u64, pool| sum.saturating_add(pool.bytes));
    // Of any number of blocks.
    let count = if bytes > 0 { u64::MAX } else { 0 };
    let kinds = |kind: Kind| kind.place() == Place::Within || kind == Kind::Device;
    if !rules.could_be_broken_by(Tally { bytes, count }, besides, kinds) {
        return Vec::new();
    }
    let unseen = |pool: &&OpaquePool| {
        let (what, next) = pool.parts(None);
        Unseen::part("", what, format!("{next}; or judge the whole pool with --judge-pools"))
    };
    pools.iter().map(unseen).collect()
}

/// Puts what the blocks in a pool leave of it beside them: together they are the pool. `since_ns`: groups contain either only records
/// made before this time, or only later ones.
pub(super) fn beside_their_blocks(snapshot: &Snapshot, groups: &mut Groups, since_ns: u64) {
    let allocations = &snapshot.allocations;
    if groups.is_summed {
        return; // Sums of a peak have no addresses.
    }
    // Bytes of blocks, and the number of records that have no other bytes.
    let mut covered: HashMap<_, (u128, u64)> = HashMap::default();
    for row in &allocations.rows {
        let call = &allocations.calls()[row.call as usize];
        let owner = groups.carriers.name(groups.carriers.number(row.address, call.kind));
        if owner.is_some() {
            let key = (
                std::ptr::from_ref(call),
                stack_of(row.stack),
                owner,
                row.time_ns < since_ns,
            );
            let (bytes, full) = covered.entry(key).or_default();
            let of_blocks = groups.blocks.bytes_in(call.kind, row);
            *bytes += u128::from(of_blocks);
            *full += u64::from(of_blocks >= row.bytes);
        }
    }
    for group in groups.all.iter_mut().filter(|group| group.level == Level::Behind) {
        let level = Level::of(group.call.kind, true, false);
        if level != Level::Claim {
            let key = (
                std::ptr::from_ref(group.call),
                group.stack,
                group.owner,
                group.oldest_ns < since_ns,
            );
            let (bytes, full) = covered.get(&key).copied().unwrap_or_default();
            (group.level, group.estimate) = (level, None);
            (group.bytes, group.count) = (group.bytes.saturating_sub(bytes), group.count.saturating_sub(full));
        }
    }
    groups.all.retain(|group| group.count > 0);
}
