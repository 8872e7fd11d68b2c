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

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

use crate::analysis::filter::{Filter, Filtering};
use crate::analysis::groups::{Group, Level};
use crate::analysis::report::{By, KERNELS, OfObjects, Row, rows_by};
use crate::analysis::site::{CallStacks, Fingerprint};
use crate::analysis::suppressions::Sieve;
use crate::analysis::why::words::whole_path_text;
use crate::kind::{Kind, Place};
use crate::snapshot::{Call, Counter, Snapshot};

/// The objects of a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Objects<'a> {
    /// Whether objects were recorded, and those of this point are known. Otherwise `rows` is empty.
    pub known: bool,
    /// Most first.
    pub kinds: Vec<KindOfObject>,
    /// One for each kind and call site, most first.
    pub rows: Vec<Row<'a>>,
    /// Rows that were cut off, and their objects.
    pub hidden_rows: usize,
    pub hidden: u64,
    /// Objects that the filter leaves out.
    pub left_out: u64,
    /// Call sites of `rows` and of rows that were cut off, without those of claims.
    pub call_sites: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KindOfObject {
    pub kind: &'static str,
    pub live: u64,
    /// The part of `live` that suppressions removed from the rows.
    pub suppressed: u64,
    /// Since the recording began; `None`: not known at this point, or for a part that a filter selects by stack or time.
    pub created: Option<u64>,
    pub destroyed: Option<u64>,
}

impl<'a> Objects<'a> {
    /// `top`: the most rows. What suppressions remove is added to `sieve`; `with_claims`: also objects that are among the claims
    /// of memory.
    pub fn of(
        snapshot: &'a Snapshot,
        stacks: &CallStacks<'a>,
        filtering: &mut Filtering,
        sieve: &mut Sieve,
        top: Option<usize>,
        with_claims: bool,
    ) -> Objects<'a> {
        let mut left_out: u64 = 0;
        let mut groups = groups(snapshot, |call, stack, time_ns| {
            let passes = filtering.passes(call, stack, time_ns, stacks);
            left_out = left_out.saturating_add(u64::from(!passes));
            passes
        });
        let mut live: BTreeMap<Kind, Live> = BTreeMap::new();
        groups.retain(|group| {
            let kind = group.call.kind;
            let counted = if with_claims || is_plain(kind) { group.count } else { 0 };
            let stays = sieve.lets_objects_through(group.stack, counted, stacks);
            let live = live.entry(kind).or_default();
            live.count = live.count.saturating_add(group.count);
            live.suppressed = live.suppressed.saturating_add(if stays { 0 } else { group.count });
            stays
        });
        let plain = groups.iter().filter(|group| is_plain(group.call.kind));
        let sites: BTreeSet<Fingerprint> = plain.map(|group| stacks.get(group.stack).site_fingerprint).collect();
        let mut rows = by_site(snapshot, stacks, &groups);
        add_holders(&mut rows, snapshot, stacks);
        let beyond = top.map_or_else(Vec::new, |top| rows.split_off(top.min(rows.len())));
        Objects {
            known: snapshot.objects_known,
            kinds: counted(snapshot, &live, filtering),
            rows,
            hidden_rows: beyond.len(),
            hidden: beyond.iter().fold(0, |sum, row| sum.saturating_add(row.count)),
            left_out,
            call_sites: sites.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }
}

/// Objects of one kind that exist, and the part of them that is suppressed.
#[derive(Default)]
struct Live {
    count: u64,
    suppressed: u64,
}

/// Whether objects of this kind are in the table of objects; others are claims in the table of memory.
fn is_plain(kind: Kind) -> bool {
    kind.place() == Place::Object
}

/// Objects with the same stack and call for which `wanted` is true.
pub fn groups<'a>(
    snapshot: &'a Snapshot,
    mut wanted: impl FnMut(&'a Call, Option<usize>, u64) -> bool,
) -> Vec<Group<'a>> {
    let mut groups: Vec<Group> = Vec::new();
    // Each kind is in one of the tables only.
    for (allocations, of_plain) in [(&snapshot.objects, true), (&snapshot.allocations, false)] {
        let is_of_table = |kind: Kind| kind.is_object() && is_plain(kind) == of_plain;
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
                    estimate: None,
                    is_left_out: false,
                    apart: 0,
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

/// Rows of each kind apart, most objects first, for comparisons: by what memory is compared by, as far as objects have it. Kinds that
/// are in the tables of memory as claims are left out.
pub(crate) fn rows<'a>(snapshot: &'a Snapshot, stacks: &CallStacks<'a>, filter: &Filter, by: By) -> Vec<Row<'a>> {
    let mut filtering = Filtering::new(filter, snapshot);
    let groups = groups(snapshot, |call, stack, time_ns| {
        is_plain(call.kind) && filtering.passes(call, stack, time_ns, stacks)
    });
    of_each_kind(snapshot, stacks, &groups, by.of_objects())
}

fn of_each_kind<'a>(snapshot: &'a Snapshot, stacks: &CallStacks<'a>, groups: &[Group<'a>], by: By) -> Vec<Row<'a>> {
    let of_kind = |kind: Kind| {
        let groups = groups.iter().filter(move |group| group.call.kind == kind);
        let rows = rows_by(snapshot, stacks, groups, by).into_iter();
        rows.map(move |mut row| {
            row.objects = Some(OfObjects {
                kind,
                nodes: None,
                kernels: Vec::new(),
                held_by: None,
            });
            row
        })
    };
    Kind::objects().flat_map(of_kind).collect()
}

/// One row for each kind and call site, most objects first.
pub(super) fn by_site<'a>(snapshot: &'a Snapshot, stacks: &CallStacks<'a>, groups: &[Group<'a>]) -> Vec<Row<'a>> {
    let mut nodes: HashMap<Fingerprint, (u64, u64)> = HashMap::new();
    for group in groups {
        if let Some(of_group) = group.call.nodes {
            let site = stacks.get(group.stack).site_fingerprint;
            let (least, most) = nodes.entry(site).or_insert((of_group, of_group));
            (*least, *most) = ((*least).min(of_group), (*most).max(of_group));
        }
    }
    let mut kernels: HashMap<(Kind, Fingerprint), BTreeSet<&str>> = HashMap::new();
    for group in groups {
        if let Some(kernel) = &group.call.kernel {
            let site = stacks.get(group.stack).site_fingerprint;
            let of_site = kernels.entry((group.call.kind, site)).or_default();
            of_site.insert(kernel);
            if of_site.len() > KERNELS {
                of_site.pop_last();
            }
        }
    }
    let mut rows = of_each_kind(snapshot, stacks, groups, By::Site);
    for row in &mut rows {
        let site = row.stack().site_fingerprint;
        if let Some(of) = &mut row.objects {
            of.nodes = nodes.get(&site).copied().filter(|_| of.kind == Kind::GraphExec);
            let names = kernels.remove(&(of.kind, site)).unwrap_or_default();
            of.kernels = names.into_iter().collect();
        }
    }
    // Rows of a kind are in a fixed order already.
    rows.sort_by_key(|row| (std::cmp::Reverse(row.count), row.kind_of_objects().map(Kind::name)));
    rows
}

/// The rows of objects whose holders are known, most objects first.
pub(crate) fn held<'a>(snapshot: &'a Snapshot, stacks: &CallStacks<'a>) -> Vec<Row<'a>> {
    let groups = groups(snapshot, |call, _, _| is_plain(call.kind));
    let mut rows = by_site(snapshot, stacks, &groups);
    add_holders(&mut rows, snapshot, stacks);
    rows.retain(|row| row.objects.as_ref().is_some_and(|of| of.held_by.is_some()));
    rows
}

/// Adds what holds most of the objects of each row that were searched for.
fn add_holders(rows: &mut [Row], snapshot: &Snapshot, stacks: &CallStacks) {
    let Some(holders) = snapshot.holders.as_ref().filter(|holders| !holders.objects.is_empty()) else {
        return;
    };
    let objects = holders.objects.iter();
    let path_of: HashMap<(u64, u64), usize> = objects.map(|held| ((held.address, held.time_ns), held.path)).collect();
    let mut counts: HashMap<(Kind, Fingerprint), BTreeMap<usize, u64>> = HashMap::new();
    for object in snapshot.objects.iter() {
        if let Some(path) = path_of.get(&(object.address, object.time_ns)) {
            let site = stacks.get(object.stack).site_fingerprint;
            let of_row = counts.entry((object.kind, site)).or_default();
            *of_row.entry(*path).or_default() += 1;
        }
    }
    for row in rows {
        let site = row.stack().site_fingerprint;
        if let Some(of) = &mut row.objects {
            let paths = counts.get(&(of.kind, site));
            let most = paths.and_then(|paths| paths.iter().max_by_key(|(_, count)| **count));
            let path = most.and_then(|(path, _)| holders.paths.get(*path));
            of.held_by = path.map(whole_path_text);
        }
    }
}

/// Every kind of which an object exists or was ever created.
fn counted(snapshot: &Snapshot, live: &BTreeMap<Kind, Live>, filtering: &Filtering) -> Vec<KindOfObject> {
    let mut sums: BTreeMap<Kind, (u64, u64)> = BTreeMap::new();
    let counters = snapshot.object_counters.iter().chain(&snapshot.counters);
    let passes = |counter: &&Counter| filtering.counters_pass(counter.kind, counter.device) == Some(true);
    for counter in counters
        .filter(|counter| counter.kind.is_object() && counter.total_count > 0)
        .filter(passes)
    {
        let (created, destroyed) = sums.entry(counter.kind).or_default();
        *created = created.saturating_add(counter.total_count);
        *destroyed = destroyed.saturating_add(counter.freed_count);
    }
    let all = Kind::objects().filter(|kind| live.contains_key(kind) || sums.contains_key(kind));
    let mut kinds: Vec<KindOfObject> = all
        .map(|kind| KindOfObject {
            kind: kind.name(),
            live: live.get(&kind).map_or(0, |live| live.count),
            suppressed: live.get(&kind).map_or(0, |live| live.suppressed),
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
    use crate::analysis::filter::Location;
    use crate::analysis::suppressions::{Pattern, Suppressions};
    use crate::sample::{MAIN, RUNTIME, Sample, serving};

    fn all<'a>(snapshot: &'a Snapshot, filter: &Filter, rules: &Suppressions, top: Option<usize>) -> Objects<'a> {
        let (stacks, mut sieve) = (CallStacks::of(snapshot), Sieve::new(rules));
        Objects::of(
            snapshot,
            &stacks,
            &mut Filtering::new(filter, snapshot),
            &mut sieve,
            top,
            false,
        )
    }

    fn name(row: &Row) -> &'static str {
        row.kind_of_objects().map_or("", Kind::name)
    }

    fn objects_of(snapshot: &Snapshot, filter: &Filter) -> Vec<(String, &'static str, u64)> {
        let objects = all(snapshot, filter, &Suppressions::default(), None);
        let rows = objects.rows.iter();
        rows.map(|row| (row.label.clone(), name(row), row.count)).collect()
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
        let objects = all(&snapshot, &Filter::default(), &Suppressions::default(), Some(1));
        assert_eq!(
            objects.rows[0].objects.as_ref().map(|of| (of.kind, of.nodes)),
            Some((Kind::GraphExec, Some((48, 52))))
        );
        assert!(objects.known && objects.hidden_rows > 0);
    }

    /// The sum of the rows of each kind is its live number without the suppressed part.
    fn assert_sums(objects: &Objects) {
        for of in &objects.kinds {
            let rows = objects.rows.iter().filter(|row| name(row) == of.kind);
            let sum: u64 = rows.map(|row| row.count).sum();
            assert_eq!(sum, of.live - of.suppressed, "{of:?}");
            if let (Some(created), Some(destroyed)) = (of.created, of.destroyed) {
                assert_eq!(created - destroyed, of.live, "{of:?}");
            }
        }
    }

    #[test]
    fn every_number_of_a_kind_is_of_what_the_filter_selects() {
        let snapshot = serving();
        let none = Suppressions::default();
        let whole = all(&snapshot, &Filter::default(), &none, None);
        assert_sums(&whole);
        assert!(whole.kinds.iter().all(|of| of.created.is_some()));
        let streams = Filter {
            kinds: vec![Kind::Stream],
            ..Filter::default()
        };
        let of_kind = all(&snapshot, &streams, &none, None);
        assert_sums(&of_kind);
        let [stream] = of_kind.kinds[..] else {
            panic!("{of_kind:?}")
        };
        assert!(whole.kinds.contains(&stream) && of_kind.left_out > 0);
        let elsewhere = Filter {
            devices: vec![Location::Gpu(1)],
            ..Filter::default()
        };
        assert!(all(&snapshot, &elsewhere, &none, None).kinds.is_empty());
        // Counters have no stacks.
        let by_stack = Filter {
            focus: vec![Pattern::parse("Server::decode").expect("a pattern")],
            ..Filter::default()
        };
        let by_stack = all(&snapshot, &by_stack, &none, None);
        assert_sums(&by_stack);
        assert!(!by_stack.kinds.is_empty());
        assert!(by_stack.kinds.iter().all(|of| of.live > 0 && of.created.is_none()));
    }

    #[test]
    fn a_rule_hides_the_rows_of_its_call_site_and_counts_them() {
        let snapshot = serving();
        let mut rules = Suppressions::default();
        rules
            .add("leak:Server::decode\nleak:Nothing::at_all", "x")
            .expect("rules");
        let filter = Filter::default();
        let objects = all(&snapshot, &filter, &rules, None);
        assert_sums(&objects);
        assert!(objects.rows.iter().all(|row| !row.label.contains("decode")));
        let hidden: u64 = objects.kinds.iter().map(|of| of.suppressed).sum();
        let (stacks, mut sieve) = (CallStacks::of(&snapshot), Sieve::new(&rules));
        Objects::of(
            &snapshot,
            &stacks,
            &mut Filtering::new(&filter, &snapshot),
            &mut sieve,
            None,
            false,
        );
        let used: Vec<u64> = sieve.used().iter().map(|used| used.objects).collect();
        assert!(hidden > 0);
        assert_eq!((used, sieve.suppressed_objects()), (vec![hidden, 0], hidden));
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
        snapshot.object_counters.clear();
        snapshot.validate().expect("each table is valid by itself");
        let objects = all(&snapshot, &Filter::default(), &Suppressions::default(), Some(0));
        assert_eq!(objects.hidden, u64::MAX);
    }
}
