//! Objects without an address against the limits on their numbers, and against a baseline.
//!
//! Judged are those that the program made itself, from the mark of `--since` on; suppressed are those that CUDA libraries and
//! frameworks keep, as for memory. A kind without a limit fails only against a baseline: a clean program has streams and modules
//! at its end.

use std::collections::BTreeMap;

use serde::Serialize;

use super::sites::name_with_place;
use super::{Breach, FailOn, Limits, Rules, Standing, Tolerance, Unseen, Verdict};
use crate::analysis::objects::{self, ObjectRow};
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::Sieve;
use crate::kind::Kind;
use crate::point::Point;
use crate::snapshot::Snapshot;

/// Objects of one kind, of one call site.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JudgedObjects<'a> {
    #[serde(flatten)]
    pub row: ObjectRow<'a>,
    /// The limit on all objects of this kind; `None`: there is none.
    pub limit: Option<u64>,
    /// `None` without objects in a baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standing: Option<Standing>,
    /// How many the baseline has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known: Option<u64>,
    /// There are more objects of this kind than allowed, or of this call site than the baseline allows.
    pub to_blame: bool,
}

impl Limits {
    /// Only objects without an address have limits, so memory is not judged.
    pub(super) fn are_of_objects(&self, at_boundary: bool, against_baseline: bool) -> bool {
        let without = Limits {
            max_objects: BTreeMap::new(),
            ..self.clone()
        };
        !self.max_objects.is_empty() && !at_boundary && without.allow_nothing(against_baseline)
    }
}

impl Verdict<'_> {
    /// Only objects without an address have limits, so memory is not judged.
    pub fn judges_only_objects(&self) -> bool {
        self.limits.are_of_objects(self.boundary.is_some(), self.baseline)
    }

    /// The judged objects of each kind that has a limit.
    pub fn objects_found(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.limits.max_objects.keys().map(|kind| {
            let rows = self.objects.iter().filter(|of| of.row.kind == kind.name());
            let found = rows.fold(0, |sum: u64, of| sum.saturating_add(of.row.count));
            (kind.name(), found)
        })
    }
}

pub(super) struct Judgement<'a> {
    pub rows: Vec<JudgedObjects<'a>>,
    pub breaches: Vec<Breach>,
    /// Objects that were created before the mark of `--since`.
    pub before_mark: u64,
}

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
    let is_limited = !rules.limits.max_objects.is_empty();
    let limited = is_limited.then(|| Unseen::all("--allow OBJECT=N", what, next));
    let compared = are_compared(rules).then(|| Unseen::part("--baseline", what, next));
    limited.into_iter().chain(compared).collect()
}

/// Whether objects are compared with a baseline. A check of marks compares memory only.
pub(super) fn are_compared(rules: &Rules) -> bool {
    let known = rules.baseline.as_ref().and_then(|baseline| baseline.objects.as_ref());
    known.is_some() && rules.boundary.is_none()
}

/// The objects that a baseline of this snapshot has. `None`: they are not known.
pub(super) fn for_baseline<'a>(
    snapshot: &'a Snapshot,
    stacks: &CallStacks<'a>,
    sieve: &mut Sieve,
    since_ns: u64,
) -> Option<Vec<ObjectRow<'a>>> {
    let groups = objects::groups(snapshot, |_, stack, time_ns| {
        time_ns >= since_ns && sieve.lets_objects_through(stack, 1, stacks)
    });
    snapshot
        .objects_known
        .then(|| objects::by_site(snapshot, stacks, &groups))
}

pub(super) fn judged<'a>(
    snapshot: &'a Snapshot,
    stacks: &CallStacks<'a>,
    sieve: &mut Sieve,
    since_ns: u64,
    rules: &Rules,
) -> Judgement<'a> {
    let limits = &rules.limits;
    let baseline = rules
        .baseline
        .as_ref()
        .filter(|_| are_compared(rules) && snapshot.objects_known);
    if limits.max_objects.is_empty() && baseline.is_none() {
        return Judgement {
            rows: Vec::new(),
            breaches: Vec::new(),
            before_mark: 0,
        };
    }
    let mut before_mark = 0;
    let groups = objects::groups(snapshot, |call, stack, time_ns| {
        let is_judged = baseline.is_some() || limits.max_objects.contains_key(&call.kind);
        let is_earlier = time_ns < since_ns;
        before_mark += u64::from(is_judged && is_earlier);
        is_judged && !is_earlier && sieve.lets_objects_through(stack, 1, stacks)
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
    let mut breaches: Vec<Breach> = breaches.collect();
    let known = baseline.and_then(|baseline| baseline.known_objects(&rows));
    let mut judged = Vec::with_capacity(rows.len());
    for (number, row) in rows.into_iter().enumerate() {
        let limit = Kind::from_name(row.kind).and_then(|kind| Some((kind, *limits.max_objects.get(&kind)?)));
        let known = known.as_ref().map(|known| known[number]);
        let of_baseline = known.and_then(|known| compared(&row, known, limits));
        judged.push(JudgedObjects {
            limit: limit.map(|(_, limit)| limit),
            standing: known.map(|known| match (known, &of_baseline) {
                (None, _) => Standing::New,
                (Some(_), Some(_)) => Standing::Grown,
                (Some(_), None) => Standing::Known,
            }),
            known: known.flatten(),
            to_blame: of_baseline.is_some() || limit.is_some_and(|(kind, limit)| over(kind, limit).is_some()),
            row,
        });
        breaches.extend(of_baseline);
    }
    judged.sort_by_key(|row| !row.to_blame);
    Judgement {
        rows: judged,
        breaches,
        before_mark,
    }
}

/// Why the objects of a call site fail against a baseline that has this many. A tolerance in percent is one of their number. No
/// number of known objects fails by itself, since every program has some.
fn compared(row: &ObjectRow, known: Option<u64>, limits: &Limits) -> Option<Breach> {
    let site = || name_with_place(&row.label, row.stack.site());
    let Some(known) = known else {
        return Some(Breach::NewObjects {
            kind: row.kind,
            site: site(),
            found: row.count,
        });
    };
    let limit = match limits.tolerance {
        Tolerance::Bytes(_) => known,
        percent => percent.allows(known),
    };
    (row.count > limit && limits.fail_on != FailOn::New).then(|| Breach::GrownObjects {
        kind: row.kind,
        site: site(),
        known,
        limit,
        found: row.count,
    })
}
