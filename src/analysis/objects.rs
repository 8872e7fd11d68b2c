//! Objects without an address, by kind and by call site.
//!
//! Counts are exact. What the objects take is in segments that the driver shares among them, and it keeps some of that for
//! reuse; so an object that is created again and again and never destroyed shows here first.
//!
//! ```text
//! snapshot.objects, and pools, external memory and multicast objects of snapshot.allocations
//!   └► groups: alike in stack and call ─► rows: one for each kind and call site
//! ```
//!
//! Deliberately absent: bytes of objects; the driver does not tell them.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::analysis::filter::Filtering;
use crate::analysis::groups::{Group, Level};
use crate::analysis::report::{By, Row, rows_by};
use crate::analysis::site::{CallStack, CallStacks, Fingerprint};
use crate::kind::{Kind, Place};
use crate::snapshot::{Call, Snapshot};

/// The objects of a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Objects<'a> {
    /// Whether objects were recorded, and those of this point are known. Otherwise `rows` is empty.
    pub known: bool,
    /// Most first.
    pub kinds: Vec<KindOfObject>,
    /// Most first.
    pub rows: Vec<ObjectRow<'a>>,
    /// Rows that were cut off, and their objects.
    pub hidden_rows: usize,
    pub hidden: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct KindOfObject {
    pub kind: &'static str,
    pub live: u64,
    /// Since the recording began; `None`: not known at this point.
    pub created: Option<u64>,
    pub destroyed: Option<u64>,
}

/// Objects of one kind, of one call site.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ObjectRow<'a> {
    pub kind: &'static str,
    /// The function of the call site.
    pub label: String,
    pub count: u64,
    /// The function that made most of them.
    pub api: &'a str,
    /// The CUDA library that made all of them.
    pub library: Option<&'static str>,
    /// Executable graphs: the nodes of the smallest and of the largest.
    pub nodes: Option<(u64, u64)>,
    /// Age of the first one when the snapshot was taken.
    pub oldest_age_ns: u64,
    pub newest_age_ns: u64,
    /// The stack with the most of them.
    pub stack: CallStack<'a>,
    pub stacks_in_all: usize,
}

impl<'a> Objects<'a> {
    /// `top`: the most rows. The filter selects rows and live counts; `created` and `destroyed` are of all objects of a kind.
    pub fn of(
        snapshot: &'a Snapshot,
        stacks: &CallStacks<'a>,
        filtering: &mut Filtering,
        top: Option<usize>,
    ) -> Objects<'a> {
        let groups = groups(snapshot, |call, stack, time_ns| {
            filtering.passes(call, stack, time_ns, stacks)
        });
        let mut live: BTreeMap<Kind, u64> = BTreeMap::new();
        for group in &groups {
            *live.entry(group.call.kind).or_default() += group.count;
        }
        let mut rows = by_site(snapshot, stacks, &groups);
        let beyond = top.map_or_else(Vec::new, |top| rows.split_off(top.min(rows.len())));
        Objects {
            known: snapshot.objects_known,
            kinds: counted(snapshot, &live),
            rows,
            hidden_rows: beyond.len(),
            hidden: beyond.iter().fold(0, |sum, row| sum.saturating_add(row.count)),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }
}

/// Objects with the same stack and call for which `wanted` is true.
pub(super) fn groups<'a>(
    snapshot: &'a Snapshot,
    mut wanted: impl FnMut(&'a Call, Option<usize>, u64) -> bool,
) -> Vec<Group<'a>> {
    let mut groups: Vec<Group> = Vec::new();
    // Each kind is in one of the tables only.
    for (allocations, is_plain) in [(&snapshot.objects, true), (&snapshot.allocations, false)] {
        let is_of_table = |kind: Kind| kind.is_object() && (kind.place() == Place::Object) == is_plain;
        let calls = allocations.calls().iter();
        let is_object: Vec<bool> = calls.map(|call| is_of_table(call.kind)).collect();
        if !is_object.contains(&true) {
            continue;
        }
        let mut known: HashMap<(usize, Option<usize>), usize> = HashMap::new();
        for (index, object) in allocations.iter().enumerate() {
            let number = allocations.call_of(index);
            if !is_object[number] || !wanted(object.call, object.stack, object.time_ns) {
                continue;
            }
            let group = *known.entry((number, object.stack)).or_insert_with(|| {
                groups.push(Group {
                    call: object.call,
                    stack: object.stack,
                    level: Level::Held,
                    owner: None,
                    bytes: 0,
                    count: 0,
                    smallest: 0,
                    largest: 0,
                    oldest_ns: object.time_ns,
                    newest_ns: object.time_ns,
                });
                groups.len() - 1
            });
            let group = &mut groups[group];
            group.count = group.count.saturating_add(allocations.count(index));
            group.oldest_ns = group.oldest_ns.min(object.time_ns);
            group.newest_ns = group.newest_ns.max(object.time_ns);
        }
    }
    groups
}

/// Rows of each kind apart, most objects first, for comparisons. Kinds that are in the tables of memory as claims are left out.
pub(super) fn rows<'a>(
    snapshot: &'a Snapshot,
    stacks: &CallStacks<'a>,
    kinds: &[Kind],
    by: By,
) -> Vec<(Kind, Row<'a>)> {
    let is_wanted = |kind: Kind| kind.place() == Place::Object && (kinds.is_empty() || kinds.contains(&kind));
    let groups = groups(snapshot, |call, _, _| is_wanted(call.kind));
    of_each_kind(snapshot, stacks, &groups, by)
}

fn of_each_kind<'a>(
    snapshot: &'a Snapshot,
    stacks: &CallStacks<'a>,
    groups: &[Group<'a>],
    by: By,
) -> Vec<(Kind, Row<'a>)> {
    let of_kind = |kind: Kind| {
        let groups = groups.iter().filter(move |group| group.call.kind == kind);
        let rows = rows_by(snapshot, stacks, groups, by).into_iter();
        rows.map(move |row| (kind, row))
    };
    Kind::objects().flat_map(of_kind).collect()
}

/// One row for each kind and call site, most objects first.
pub(super) fn by_site<'a>(snapshot: &'a Snapshot, stacks: &CallStacks<'a>, groups: &[Group<'a>]) -> Vec<ObjectRow<'a>> {
    let mut nodes: HashMap<Fingerprint, (u64, u64)> = HashMap::new();
    for group in groups {
        if let Some(of_group) = group.call.nodes {
            let site = stacks.get(group.stack).site_fingerprint;
            let (least, most) = nodes.entry(site).or_insert((of_group, of_group));
            (*least, *most) = ((*least).min(of_group), (*most).max(of_group));
        }
    }
    let rows = of_each_kind(snapshot, stacks, groups, By::Site).into_iter();
    let mut rows: Vec<ObjectRow> = rows
        .map(|(kind, mut row)| {
            let stack = row.stacks.swap_remove(0).stack;
            ObjectRow {
                kind: kind.name(),
                label: row.label,
                count: row.count,
                api: row
                    .apis
                    .iter()
                    .max_by_key(|(_, tally)| tally.count)
                    .map_or("", |(api, _)| api),
                library: row.library,
                nodes: nodes
                    .get(&stack.site_fingerprint)
                    .copied()
                    .filter(|_| kind == Kind::GraphExec),
                oldest_age_ns: row.oldest_age_ns,
                newest_age_ns: row.newest_age_ns,
                stack,
                stacks_in_all: row.stacks_in_all,
            }
        })
        .collect();
    // Rows of a kind are in a fixed order already.
    rows.sort_by_key(|row| (std::cmp::Reverse(row.count), row.kind));
    rows
}

/// Every kind of which an object exists or was ever created.
fn counted(snapshot: &Snapshot, live: &BTreeMap<Kind, u64>) -> Vec<KindOfObject> {
    let mut sums: BTreeMap<Kind, (u64, u64)> = BTreeMap::new();
    let counters = snapshot.object_counters.iter().chain(&snapshot.counters);
    for counter in counters.filter(|counter| counter.kind.is_object() && counter.total_count > 0) {
        let (created, destroyed) = sums.entry(counter.kind).or_default();
        *created = created.saturating_add(counter.total_count);
        *destroyed = destroyed.saturating_add(counter.freed_count);
    }
    let all = Kind::objects().filter(|kind| live.contains_key(kind) || sums.contains_key(kind));
    let mut kinds: Vec<KindOfObject> = all
        .map(|kind| KindOfObject {
            kind: kind.name(),
            live: live.get(&kind).copied().unwrap_or(0),
            created: sums.get(&kind).map(|sums| sums.0),
            destroyed: sums.get(&kind).map(|sums| sums.1),
        })
        .collect();
    kinds.sort_by_key(|of| (std::cmp::Reverse((of.live, of.created)), of.kind));
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::filter::Filter;
    use crate::sample::{MAIN, RUNTIME, Sample, serving};

    fn objects_of(snapshot: &Snapshot, filter: &Filter) -> Vec<(String, &'static str, u64)> {
        let stacks = CallStacks::of(snapshot);
        let objects = Objects::of(snapshot, &stacks, &mut Filtering::new(filter, snapshot), None);
        let rows = objects.rows.iter();
        rows.map(|row| (row.label.clone(), row.kind, row.count)).collect()
    }

    #[test]
    fn each_kind_of_a_call_site_is_a_row() {
        let mut sample = Sample::new();
        let serve = sample.stack(&[RUNTIME, ("serve", "/src/serve.cu:8", "/opt/app"), MAIN]);
        sample.makes(Kind::Stream, "cudaStreamCreate", 3, serve);
        sample.makes(Kind::Event, "cudaEventCreate", 5, serve);
        sample.holds(Kind::Pool, "cudaMemPoolCreate", 0, 2, serve);
        let snapshot = sample.finish(0, 0);
        let rows = objects_of(&snapshot, &Filter::default());
        let expected = [("event", 5), ("stream", 3), ("pool", 2)];
        assert_eq!(rows, expected.map(|(kind, count)| ("serve".to_owned(), kind, count)));
        let only = Filter {
            kinds: vec![Kind::Stream],
            ..Filter::default()
        };
        assert_eq!(objects_of(&snapshot, &only).len(), 1);
    }

    #[test]
    fn executables_have_the_numbers_of_their_nodes() {
        let snapshot = serving();
        let stacks = CallStacks::of(&snapshot);
        let filter = Filter::default();
        let objects = Objects::of(&snapshot, &stacks, &mut Filtering::new(&filter, &snapshot), Some(1));
        assert_eq!(
            (objects.rows[0].kind, objects.rows[0].nodes),
            ("graph-exec", Some((48, 52)))
        );
        assert!(objects.known && objects.hidden_rows > 0);
    }

    #[test]
    fn hostile_counts_do_not_overflow() {
        let mut snapshot = serving();
        snapshot.objects.counts = vec![0; snapshot.objects.len()];
        snapshot.objects.counts[0] = u64::MAX;
        let pool = snapshot.objects.at(1).call.clone();
        let pool = Call {
            kind: Kind::Pool,
            ..pool
        };
        snapshot.allocations.change_last(|_, call| *call = pool);
        snapshot.allocations.counts = vec![u64::MAX];
        snapshot.objects.change(|nth, _, call| {
            if nth > 30 {
                call.kind = Kind::Pool;
            }
        });
        snapshot.validate().expect("each table is valid by itself");
        let stacks = CallStacks::of(&snapshot);
        let filter = Filter::default();
        let objects = Objects::of(&snapshot, &stacks, &mut Filtering::new(&filter, &snapshot), Some(0));
        assert_eq!(objects.hidden, u64::MAX);
    }
}
