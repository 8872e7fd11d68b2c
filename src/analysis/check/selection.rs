//! Which records a check judges: those of the selected kinds, allocated since the mark, and not suppressed.

use super::{BySite, Limits, Rules, objects, pools, unknown_since};
use crate::analysis::filter::mark_time;
use crate::analysis::groups::{Group, Groups, Level};
use crate::analysis::report::Tally;
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::Sieve;
use crate::kind::Kind;
use crate::point::Point;
use crate::snapshot::Snapshot;

/// Memory that is not judged, each record by the first reason that applies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ignored {
    /// Allocated before the mark of `--since`.
    pub before_mark: Tally,
    /// Of a kind that `--kind` does not name.
    pub other_kinds: Tally,
    /// Kept for reuse by caching allocators.
    pub cached: Tally,
}

impl Ignored {
    pub fn all(&self) -> Tally {
        Tally::total([self.before_mark, self.other_kinds, self.cached])
    }
}

/// The records of a snapshot, by how they are treated.
pub(super) struct Sorted<'c, 'a> {
    pub judged: Vec<Group<'a>>,
    pub ignored: Ignored,
    pub sieve: Sieve<'c>,
}

pub(super) fn sort<'c, 'a>(
    snapshot: &Snapshot,
    groups: &Groups<'a>,
    stacks: &CallStacks,
    rules: &'c Rules,
) -> Sorted<'c, 'a> {
    let limits = &rules.limits;
    let since = since(snapshot, rules);
    let mut earlier = Vec::new();
    let mut sorted = Sorted {
        judged: Vec::new(),
        ignored: Ignored::default(),
        sieve: Sieve::new(&rules.suppressions),
    };
    for group in &groups.all {
        let named = limits.kinds.contains(&group.call.kind);
        // No group contains records from before and after the mark.
        if group.oldest_ns < since || !is_selected(group, limits) {
            let is_compared = rules.previous.is_some() && is_selected(group, limits);
            // Counted as suppressed is only what was allocated since.
            if is_compared && sorted.sieve.lets_through(group.stack, Tally::default(), stacks) {
                earlier.push(*group);
            }
            if group.level.is_counted() && since != NOTHING {
                let reason = if group.oldest_ns < since {
                    &mut sorted.ignored.before_mark
                } else if !limits.kinds.is_empty() && !named {
                    &mut sorted.ignored.other_kinds
                } else {
                    &mut sorted.ignored.cached
                };
                reason.join(group.tally());
            }
        } else if sorted.sieve.lets_through(group.stack, group.tally(), stacks) {
            sorted.judged.push(*group);
        }
    }
    if let Some(previous) = &rules.previous {
        let earlier = BySite::of(earlier.iter(), stacks);
        let taken = previous.reduce(&mut sorted.judged, &earlier, stacks);
        sorted.ignored.before_mark.join(taken);
    }
    sorted
}

/// Whether a check judges memory of this kind and level.
pub(super) fn is_selected(group: &Group, limits: &Limits) -> bool {
    selects(group.call.kind, group.level, limits)
}

fn selects(kind: Kind, level: Level, limits: &Limits) -> bool {
    let named = limits.kinds.contains(&kind);
    match level {
        Level::Held => limits.kinds.is_empty() || named,
        Level::Cached => limits.judge_pools && (limits.kinds.is_empty() || named),
        Level::Behind => false,
        Level::Claim => named,
    }
}

/// Whether this memory counts as a pool because of its stack alone.
pub(super) fn is_pool_by_stack(group: &Group, stacks: &CallStacks) -> bool {
    let is_pool = matches!(group.level, Level::Cached | Level::Behind);
    let kind = group.call.kind;
    is_pool
        && Level::of(kind, false, group.owner.is_some()) == Level::Held
        && stacks.get(group.stack).allocator.is_some()
}

/// All live records, split at the mark of `--since`. With `--judge-pools`, pools count beside the blocks in them.
pub(super) fn groups<'a>(snapshot: &'a Snapshot, stacks: &CallStacks, rules: &Rules) -> Groups<'a> {
    let since = since(snapshot, rules);
    let mut groups = Groups::split_at(snapshot, stacks, since);
    if rules.limits.judge_pools {
        pools::beside_their_blocks(snapshot, &mut groups, since);
    }
    groups
}

/// If stacks were sampled, what the records of each stack stand for, in place of the records.
pub(super) fn by_stack<'a>(snapshot: &Snapshot, groups: Groups<'a>) -> Groups<'a> {
    match snapshot.sampling {
        Some(_) => groups.by_stack(),
        None => groups,
    }
}

/// No memory was allocated so late.
const NOTHING: u64 = u64::MAX;

/// Only what was allocated from this time on is judged.
pub(super) fn since(snapshot: &Snapshot, rules: &Rules) -> u64 {
    if unknown_since(snapshot, rules).is_some() {
        return NOTHING;
    }
    let name = rules.limits.since.as_deref();
    let mark = name.and_then(|name| mark_time(snapshot, name)).unwrap_or(0);
    let previous = rules.boundary.as_ref().and_then(|boundary| boundary.previous_ns);
    mark.max(previous.map_or(0, |time_ns| time_ns + 1))
}

/// The memory that a check with these rules judges.
pub fn judged(snapshot: &Snapshot, rules: &Rules) -> Tally {
    let stacks = CallStacks::of(snapshot);
    let groups = groups(snapshot, &stacks, rules);
    let sorted = sort(snapshot, &groups, &stacks, rules);
    Tally::total(sorted.judged.iter().map(|group| group.tally()))
}

/// The memory that a check with these rules judges, by call site.
pub fn judged_by_site(snapshot: &Snapshot, rules: &Rules) -> BySite {
    let stacks = CallStacks::of(snapshot);
    let groups = by_stack(snapshot, groups(snapshot, &stacks, rules));
    BySite::of(sort(snapshot, &groups, &stacks, rules).judged.iter(), &stacks)
}

/// Memory, and the number of objects, that a check of the end does not judge, because they are younger: those that it would judge
/// otherwise.
pub(super) fn after_end(
    snapshot: &Snapshot,
    groups: &Groups,
    stacks: &CallStacks,
    sieve: &mut Sieve,
    rules: &Rules,
) -> (Tally, u64) {
    let limits = &rules.limits;
    let (mut memory, mut count) = (Tally::default(), 0);
    for row in &snapshot.allocated_after_end {
        if row.kind.is_object() {
            count +=
                u64::from(objects::are_judged(row.kind, rules) && sieve.lets_objects_through(row.stack, 0, stacks));
        } else {
            let is_selected = selects(row.kind, groups.level(&row, stacks), limits);
            if is_selected && sieve.lets_through(row.stack, Tally::default(), stacks) {
                memory.add(row.bytes);
            }
        }
    }
    (memory, count)
}

/// What `--since` and `--kind` select of the memory that exit callbacks and the interpreter's shutdown freed.
pub(super) fn freed_at_shutdown(snapshot: &Snapshot, stacks: &CallStacks, rules: &Rules) -> Tally {
    let shows_exit = matches!(snapshot.taken.point, None | Some(Point::Exit));
    if !shows_exit || snapshot.freed_after_end.is_empty() || snapshot.usual_point() != Point::End {
        return Tally::default();
    }
    let Ok(view) = snapshot.at(&Point::End) else {
        return Tally::default();
    };
    let groups = Groups::of(&view, stacks);
    let (since, kinds) = (since(snapshot, rules), &rules.limits.kinds);
    let mut freed = Tally::default();
    for allocation in &snapshot.freed_after_end {
        let selected = allocation.time_ns >= since && (kinds.is_empty() || kinds.contains(&allocation.kind));
        if selected && groups.level(&allocation, stacks) == Level::Held {
            freed.add(allocation.bytes);
        }
    }
    freed
}
