//! Pools that prevent a verdict: an unknown part of them is in use, which may be leaked.

use super::{Rules, Unseen};
use crate::analysis::groups::Group;
use crate::analysis::opaque::OpaquePool;
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::Sieve;
use crate::kind::{Kind, Place};

/// Each opaque pool whose blocks could break a limit. `judged`: the most bytes that are judged besides. A pool whose blocks cannot
/// be recorded is not among them: no recording would ever pass. When the pool was allocated does not matter, since its blocks may
/// be younger.
pub(super) fn unseen(groups: &[Group], stacks: &CallStacks, rules: &Rules, judged: u64) -> Vec<Unseen> {
    let limits = &rules.limits;
    if limits.judge_pools || limits.are_of_objects(rules.boundary.is_some(), rules.baseline.is_some()) {
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
    if bytes == 0 || !could_break(rules, judged, bytes) {
        return Vec::new();
    }
    let unseen = |pool: &&OpaquePool| {
        let (what, next) = pool.parts(None);
        Unseen::part("", what, format!("{next}; or judge the whole pool with --judge-pools"))
    };
    pools.iter().map(unseen).collect()
}

/// Whether blocks with so many bytes in all, whose number, stacks and holders are unknown, could break a limit.
fn could_break(rules: &Rules, judged: u64, bytes: u64) -> bool {
    let limits = &rules.limits;
    let (total, count) = limits.effective(rules.baseline.is_some());
    let of_kinds = limits.per_kind.iter();
    let mut of_kinds = of_kinds.filter(|(kind, _)| kind.place() == Place::Within || **kind == Kind::Device);
    count.is_some()
        || rules.baseline.is_some()
        || limits.outliers
        || !limits.classes.is_empty()
        || total.is_some_and(|limit| judged.saturating_add(bytes) > limit)
        || limits.max_per_site.is_some_and(|limit| bytes > limit)
        || limits.budgets.iter().any(|budget| bytes > budget.bytes)
        || of_kinds.any(|(_, &limit)| bytes > limit)
}
