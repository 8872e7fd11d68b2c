//! Objects without an address against the limits on their numbers.
//!
//! Judged are those that the program made itself, from the mark of `--since` on; suppressed are those that CUDA libraries and
//! frameworks keep, as for memory. A kind without a limit never fails: a clean program has streams and modules at its end.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Breach, Limits, Rules, name_with_place};
use crate::analysis::objects::{self, ObjectRow};
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::Sieve;
use crate::kind::Kind;
use crate::snapshot::Snapshot;

/// Objects of one kind, of one call site.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JudgedObjects<'a> {
    #[serde(flatten)]
    pub row: ObjectRow<'a>,
    /// The limit on all objects of this kind.
    pub limit: u64,
    /// There are more objects of this kind than allowed.
    pub to_blame: bool,
}

pub(super) struct Judgement<'a> {
    pub rows: Vec<JudgedObjects<'a>>,
    pub breaches: Vec<Breach>,
    /// Objects that were created before the mark of `--since`.
    pub before_mark: u64,
}

/// Whether objects are limited, and the snapshot does not have those of the point that it shows.
pub fn lacks_objects(snapshot: &Snapshot, rules: &Rules) -> bool {
    !rules.limits.max_objects.is_empty() && !snapshot.objects_known
}

pub(super) fn judged<'a>(
    snapshot: &'a Snapshot,
    stacks: &CallStacks<'a>,
    sieve: &mut Sieve,
    since_ns: u64,
    limits: &Limits,
) -> Judgement<'a> {
    if limits.max_objects.is_empty() {
        return Judgement {
            rows: Vec::new(),
            breaches: Vec::new(),
            before_mark: 0,
        };
    }
    let mut before_mark = 0;
    let groups = objects::groups(snapshot, |call, stack, time_ns| {
        let is_limited = limits.max_objects.contains_key(&call.kind);
        let is_earlier = time_ns < since_ns;
        before_mark += u64::from(is_limited && is_earlier);
        is_limited && !is_earlier && sieve.lets_objects_through(stack, 1, stacks)
    });
    let mut found: BTreeMap<Kind, u64> = BTreeMap::new();
    for group in &groups {
        *found.entry(group.call.kind).or_default() += group.count;
    }
    let over = |kind: Kind, limit: u64| found.get(&kind).copied().filter(|&found| found > limit);
    let rows = objects::by_site(snapshot, stacks, &groups);
    let breaches = limits.max_objects.iter().filter_map(|(&kind, &limit)| {
        let found = over(kind, limit)?;
        // The first row has most.
        let most = rows.iter().find(|row| row.kind == kind.name())?;
        Some(Breach::Objects {
            kind: kind.name(),
            limit,
            found,
            site: name_with_place(&most.label, most.stack.site()),
            of_site: most.count,
        })
    });
    let breaches = breaches.collect();
    let mut rows: Vec<JudgedObjects> = rows
        .into_iter()
        .filter_map(|row| {
            let kind = Kind::from_name(row.kind)?;
            let limit = *limits.max_objects.get(&kind)?;
            let to_blame = over(kind, limit).is_some();
            Some(JudgedObjects { row, limit, to_blame })
        })
        .collect();
    rows.sort_by_key(|row| !row.to_blame);
    Judgement {
        rows,
        breaches,
        before_mark,
    }
}
