//! Pools of caching allocators: those that prevent a verdict, because an unknown part of them is in use, and those that are judged as
//! a whole.

use foldhash::HashMap;

use super::limits::Besides;
use super::{Rules, Unseen};
use crate::analysis::framework::OWNERS;
use crate::analysis::groups::{Group, Groups, Level};
use crate::analysis::opaque::OpaquePool;
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::Sieve;
use crate::analysis::words;
use crate::kind::{Kind, Place};
use crate::snapshot::allocations::stack_of;
use crate::snapshot::{Call, Snapshot};
use crate::tally::Tally;

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
    let Tally { bytes, .. } = Tally::total(pools.iter().map(|pool| pool.tally));
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

/// The bytes of blocks in the records of a group, and the number of records that have no other bytes.
type Covered<'a> = HashMap<(*const Call, Option<usize>, Option<&'a str>, bool), (u128, u64)>;

/// What blocks cover of the memory that they lie in. `since_ns`: as in [`beside_their_blocks`].
fn covered<'a>(snapshot: &Snapshot, groups: &Groups<'a>, since_ns: u64) -> Covered<'a> {
    let allocations = &snapshot.allocations;
    let mut covered = Covered::default();
    for row in &allocations.rows {
        let call = &allocations.calls()[row.call as usize];
        let owner = groups.carriers.name(groups.carriers.number(row.address, call.kind));
        if owner.is_some() {
            let is_older = row.time_ns < since_ns;
            let key = (std::ptr::from_ref(call), stack_of(row.stack), owner, is_older);
            let (bytes, full) = covered.entry(key).or_default();
            let of_blocks = groups.blocks.bytes_in(call.kind, row);
            *bytes += u128::from(of_blocks);
            *full += u64::from(of_blocks >= row.bytes);
        }
    }
    covered
}

/// What blocks leave of the memory that they lie in: of pools, whose owner keeps it for reuse. The second sum is of memory that is a
/// pool only because the program says that its own blocks lie in it. A block of one byte makes a pool of any leak, so it has no verdict
/// if this memory could break a limit.
pub(super) fn rest(
    snapshot: &Snapshot,
    groups: &Groups,
    stacks: &CallStacks,
    rules: &Rules,
    since_ns: u64,
) -> (Tally, Tally) {
    let (mut all, mut of_program) = (Tally::default(), Tally::default());
    if rules.limits.judge_pools || groups.is_summed || groups.carriers.is_empty() {
        return (all, of_program);
    }
    let covered = covered(snapshot, groups, since_ns);
    let mut sieve = Sieve::new(&rules.suppressions);
    let kinds = &rules.limits.kinds;
    let is_of_kind =
        |kind: Kind| kinds.is_empty() || kinds.contains(&kind) || kinds.iter().any(|kind| kind.is_within());
    for group in (groups.all.iter()).filter(|group| group.level == Level::Behind && is_of_kind(group.call.kind)) {
        // Mappings and address ranges are no memory.
        let is_memory = Level::of(group.call.kind, true, false) != Level::Claim;
        if !is_memory || group.oldest_ns < since_ns || sieve.rule(group.stack, stacks).is_some() {
            continue;
        }
        let key = (std::ptr::from_ref(group.call), group.stack, group.owner, false);
        let (bytes, full) = covered.get(&key).copied().unwrap_or_default();
        let rest = Group {
            bytes: group.bytes.saturating_sub(bytes),
            count: group.count.saturating_sub(full),
            ..*group
        };
        all.join(rest.tally());
        let allocator = stacks.get(group.stack).allocator;
        if allocator.is_none() && group.owner.is_some_and(|owner| !OWNERS.contains(&owner)) {
            of_program.join(rest.tally());
        }
    }
    (all, of_program)
}

/// That memory cannot be judged, if it could break a limit.
pub(super) fn unseen_rest(rest: Tally, rules: &Rules, besides: &Besides) -> Option<Unseen> {
    let (bytes, is_device) = (words::bytes(rest.bytes), |kind: Kind| kind != Kind::HostPinned);
    rules.could_be_broken_by(rest, besides, is_device).then(|| {
        let what = format!(
            "{bytes} beside blocks that the program itself reports: that this is a pool, which keeps the rest for reuse, is not known \
             otherwise"
        );
        let next = "judge it with --judge-pools, or name the functions that allocate the pool in --suppressions";
        Unseen::part("", what, next)
    })
}

/// Puts what the blocks in a pool leave of it beside them: together they are the pool. `since_ns`: groups contain either only records
/// made before this time, or only later ones.
pub(super) fn beside_their_blocks(snapshot: &Snapshot, groups: &mut Groups, since_ns: u64) {
    if groups.is_summed {
        return; // Sums of a peak have no addresses.
    }
    let covered = covered(snapshot, groups, since_ns);
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
