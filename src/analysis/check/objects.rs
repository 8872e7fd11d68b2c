//! Objects without an address against the limits on their numbers, and against a baseline.
//!
//! Judged are those that the program made itself, from the mark of `--since` on; suppressed are those that CUDA libraries and
//! frameworks keep, as for memory. A kind without a limit fails only against a baseline: a clean program has streams and modules
//! at its end.

use super::{Rules, Unseen};
use crate::analysis::objects;
use crate::analysis::report::Row;
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::Sieve;
use crate::kind::Kind;
use crate::point::Point;
use crate::snapshot::Snapshot;

/// The objects of the point that is judged, if the snapshot does not have them.
pub(super) fn unseen(snapshot: &Snapshot, rules: &Rules) -> Vec<Unseen> {
    if snapshot.objects_known {
        return Vec::new();
    }
    let (what, next) = match snapshot.taken.point {
        Some(Point::Peak) => (
            "recordings have no objects of the peak",
            "choose another point with --at",
        ),
        _ => (
            "it has no record of objects",
            "record again with this version of culeak",
        ),
    };
    let limited = rules.limits.of_objects().next();
    let limited = limited.map(|_| Unseen::all("--allow OBJECT=N", what, next));
    let compared = rules.compares_objects().then(|| Unseen::part("--baseline", what, next));
    limited.into_iter().chain(compared).collect()
}

/// The objects that a baseline of this snapshot has. `None`: they are not known.
pub(super) fn for_baseline<'a>(
    snapshot: &'a Snapshot,
    stacks: &CallStacks<'a>,
    sieve: &mut Sieve,
    since_ns: u64,
) -> Option<Vec<Row<'a>>> {
    let groups = objects::groups(snapshot, |_, stack, time_ns| {
        time_ns >= since_ns && sieve.lets_objects_through(stack, 1, stacks)
    });
    snapshot
        .objects_known
        .then(|| objects::by_site(snapshot, stacks, &groups))
}

/// Whether objects of this kind are judged.
pub(super) fn are_judged(kind: Kind, rules: &Rules) -> bool {
    rules.compares_objects() || rules.limits.of_objects().any(|limited| limited == kind)
}

/// The judged objects, and the number of others that were created before the mark of `--since`.
pub(super) fn rows<'a>(
    snapshot: &'a Snapshot,
    stacks: &CallStacks<'a>,
    sieve: &mut Sieve,
    since_ns: u64,
    rules: &Rules,
) -> (Vec<Row<'a>>, u64) {
    let mut before_mark = 0;
    let groups = objects::groups(snapshot, |call, stack, time_ns| {
        let is_limited = rules.limits.of_objects().any(|kind| kind == call.kind);
        let is_judged = is_limited || rules.compares_objects() && snapshot.objects_known;
        let is_earlier = time_ns < since_ns;
        before_mark += u64::from(is_judged && is_earlier);
        is_judged && !is_earlier && sieve.lets_objects_through(stack, 1, stacks)
    });
    (objects::by_site(snapshot, stacks, &groups), before_mark)
}
