//! Objects without an address, by kind and by call site.
//!
//! Counts are exact. What the objects take is in segments that the driver shares among them, and it keeps some of that for
//! reuse; so an object that is created again and again and never destroyed shows here first.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::analysis::filter::Filtering;
use crate::analysis::site::{CallStack, CallStacks, Fingerprint};
use crate::kind::{Kind, Place};
use crate::snapshot::Snapshot;

/// The objects of a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Objects<'a> {
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
    /// Since the recording began.
    pub created: u64,
    pub destroyed: u64,
}

/// Objects of one kind, of one call site.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ObjectRow<'a> {
    pub kind: &'static str,
    pub count: u64,
    /// The function that made most of them.
    pub api: &'a str,
    /// Age of the first one when the snapshot was taken.
    pub oldest_age_ns: u64,
    pub newest_age_ns: u64,
    /// The stack with the most of them.
    pub stack: CallStack<'a>,
    pub stacks_in_all: usize,
}

/// What the objects of a row have in common: the kind, and the call site.
type Site = (Kind, Fingerprint);

#[derive(Default)]
struct Sum<'a> {
    count: u64,
    oldest_ns: u64,
    newest_ns: u64,
    stacks: BTreeMap<Option<usize>, u64>,
    apis: BTreeMap<&'a str, u64>,
}

impl<'a> Objects<'a> {
    /// `top`: the most rows. Kinds are those that the filter accepts.
    pub fn of(
        snapshot: &'a Snapshot,
        stacks: &CallStacks<'a>,
        filtering: &mut Filtering,
        top: Option<usize>,
    ) -> Objects<'a> {
        let mut sums: HashMap<Site, Sum> = HashMap::new();
        for object in snapshot.objects.iter() {
            if !filtering.passes(object.call, object.stack, object.time_ns, stacks) {
                continue;
            }
            let site = (object.kind, stacks.get(object.stack).site_fingerprint);
            let sum = sums.entry(site).or_insert_with(|| Sum {
                oldest_ns: object.time_ns,
                ..Sum::default()
            });
            sum.count += 1;
            sum.oldest_ns = sum.oldest_ns.min(object.time_ns);
            sum.newest_ns = sum.newest_ns.max(object.time_ns);
            *sum.stacks.entry(object.stack).or_default() += 1;
            *sum.apis.entry(object.api()).or_default() += 1;
        }
        let mut live: BTreeMap<Kind, u64> = BTreeMap::new();
        for ((kind, _), sum) in &sums {
            *live.entry(*kind).or_default() += sum.count;
        }
        let mut kinds: Vec<KindOfObject> = counted(snapshot, &live);
        kinds.sort_by_key(|of| (std::cmp::Reverse((of.live, of.created)), of.kind));
        let now = snapshot.taken.at_ns;
        let row = |((kind, _), sum): (Site, Sum<'a>)| ObjectRow {
            kind: kind.name(),
            count: sum.count,
            api: most(&sum.apis).unwrap_or_default(),
            oldest_age_ns: now.saturating_sub(sum.oldest_ns),
            newest_age_ns: now.saturating_sub(sum.newest_ns),
            stack: stacks.get(most(&sum.stacks).flatten()).clone(),
            stacks_in_all: sum.stacks.len(),
        };
        let mut rows: Vec<ObjectRow> = sums.into_iter().map(row).collect();
        rows.sort_by(|a, b| {
            let order = |row: &ObjectRow| (std::cmp::Reverse(row.count), row.kind);
            order(a)
                .cmp(&order(b))
                .then_with(|| a.stack.site_fingerprint.cmp(&b.stack.site_fingerprint))
        });
        let beyond = top.map_or_else(Vec::new, |top| rows.split_off(top.min(rows.len())));
        Objects {
            kinds,
            rows,
            hidden_rows: beyond.len(),
            hidden: beyond.iter().map(|row| row.count).sum(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }
}

/// Every kind of which an object was ever created.
fn counted(snapshot: &Snapshot, live: &BTreeMap<Kind, u64>) -> Vec<KindOfObject> {
    let mut kinds: BTreeMap<Kind, KindOfObject> = BTreeMap::new();
    let of = |kind: Kind| KindOfObject {
        kind: kind.name(),
        live: live.get(&kind).copied().unwrap_or(0),
        created: 0,
        destroyed: 0,
    };
    let counters = snapshot.object_counters.iter();
    for counter in counters.filter(|counter| counter.kind.place() == Place::Object) {
        let kind = kinds.entry(counter.kind).or_insert_with(|| of(counter.kind));
        kind.created += counter.total_count;
        kind.destroyed += counter.freed_count;
    }
    kinds.into_values().filter(|kind| kind.created > 0).collect()
}

/// The key with the highest number.
fn most<K: Copy + Ord>(numbers: &BTreeMap<K, u64>) -> Option<K> {
    numbers.iter().max_by_key(|(_, number)| **number).map(|(key, _)| *key)
}
