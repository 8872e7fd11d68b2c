//! From tallies by stack to the rows of the view: the report's call sites, with their change since a mark.
//!
//! A mark keeps tallies by stack, too, so both sides are grouped by the same rules and the same names, even if the names
//! arrive later. As in the report, an allocator's pool is left out where its blocks are listed.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use culeak::analysis::diff::State;
use culeak::analysis::groups::Level;
use culeak::analysis::opaque::OpaquePool;
use culeak::analysis::report::Tally;
use culeak::analysis::site::{Fingerprint, is_pool};
use culeak::facts::Change;
use culeak::kind::{Kind, Place};

use super::names::{Named, Names};
use super::sums::{LiveSums, LiveTally, StackKey, SumKey};
use crate::text::parts::mark_of;

/// A call site. Cached memory has a separate row from held memory of the same call site, and so has each kind of object without
/// an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteKey(pub Fingerprint, pub bool, pub Option<Kind>);

#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub key: SiteKey,
    /// Of the largest stack, as in the report.
    pub named: Arc<Named>,
    pub kinds: Kinds,
    /// Since the mark.
    pub of: Change,
    /// Of live memory, on the recording's clock.
    pub oldest_ns: u64,
    /// Most bytes first.
    pub stacks: Vec<StackRow>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct StackRow {
    pub named: Arc<Named>,
    pub kinds: Kinds,
    pub of: Change,
    pub oldest_ns: u64,
    pub newest_ns: u64,
}

impl Row {
    /// The kind of object, if the row is of objects without an address; they have counts and no bytes.
    pub fn object(&self) -> Option<Kind> {
        self.key.2
    }

    pub fn label(&self) -> &str {
        &self.named.site.label
    }

    /// `  [PyTorch's pool]`: the owner of the pool, or the CUDA library that allocated the memory.
    pub fn mark(&self) -> String {
        let site = &self.named.site;
        mark_of(self.key.1, site.allocator, site.library)
    }

    /// Whether all these words, in lower case, occur in it: in its call site, its kinds, or a frame of its stacks.
    pub fn matches(&self, words: &[String]) -> bool {
        if words.is_empty() {
            return true;
        }
        let own = format!("{} {} {}", self.named.site.label, self.mark(), self.kinds).to_lowercase();
        let stacks = || self.stacks.iter().map(|stack| stack.named.words.as_str());
        (words.iter()).all(|word| own.contains(word) || stacks().any(|stack| stack.contains(word)))
    }

    pub fn state(&self) -> State {
        let (before, after) = (self.of.before, self.of.after);
        match (before.count, after.count) {
            (0, _) => State::New,
            (_, 0) => State::Gone,
            _ => State::between(before, after),
        }
    }
}

/// All rows of one reading, unordered, and their totals.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rows {
    pub rows: Vec<Row>,
    /// Held memory; leaked once the process has ended.
    pub held: Tally,
    pub held_on_host: Tally,
    /// Memory that caching allocators keep.
    pub cached: Tally,
    /// The part of it whose blocks are not recorded.
    pub opaque_pools: Vec<OpaquePool>,
    pub managed: Tally,
    /// Call sites that hold memory.
    pub sites: usize,
    /// Stacks whose names are not known yet, and their live memory.
    pub unnamed: usize,
    pub unnamed_tally: Tally,
}

/// The contribution of one tally to a row.
struct Part<'a> {
    site: SiteKey,
    named: &'a Arc<Named>,
    key: SumKey,
    now: LiveTally,
    before: Tally,
}

impl Rows {
    pub fn of(now: &LiveSums, before: Option<&LiveSums>, names: &Names) -> Rows {
        let mut rows = Rows::default();
        let mut unnamed: HashSet<StackKey> = HashSet::new();
        let mut holders: foldhash::HashSet<Fingerprint> = foldhash::HashSet::default();
        let mut parts: Vec<Part> = Vec::with_capacity(now.tallies.len());
        for (&key, &live) in &now.tallies {
            let Some(named) = names.get(&key.stack) else {
                unnamed.insert(key.stack);
                if object_of(&key).is_none() {
                    // Whether memory is cached depends on names; until they are known it counts as held.
                    rows.unnamed_tally.join(live.tally);
                    rows.count(&key, Level::Held, live.tally);
                }
                continue;
            };
            let level = level(&key, named, now);
            rows.count(&key, level, live.tally);
            if let Some(owner) = named.site.allocator.filter(|_| level == Level::Cached) {
                let on_host = key.kind.place() == Place::Host;
                rows.opaque_pools.push(OpaquePool::new(owner, on_host, live.tally));
            }
            if level == Level::Held && object_of(&key).is_none() {
                holders.insert(named.site.fingerprint);
            }
            if level.is_listed() {
                parts.push(Part::new(key, named, live, Tally::default()));
            }
        }
        if let Some(before) = before {
            for (&key, live) in &before.tallies {
                let Some(named) = names.get(&key.stack) else { continue };
                if level(&key, named, before).is_listed() {
                    parts.push(Part::new(key, named, LiveTally::default(), live.tally));
                }
            }
        }
        rows.opaque_pools = OpaquePool::merged(std::mem::take(&mut rows.opaque_pools));
        rows.sites = holders.len();
        rows.unnamed = unnamed.len();
        // Sorting brings the parts of a row together; with many parts this is faster than a map of maps.
        parts.sort_unstable_by_key(|part| (part.site, part.named.stack, part.key));
        rows.rows = parts.chunk_by(|a, b| a.site == b.site).map(row).collect();
        rows
    }

    fn count(&mut self, key: &SumKey, level: Level, tally: Tally) {
        let sum = match (level, key.kind.place()) {
            (_, Place::Nowhere | Place::Object) => return,
            (Level::Held, _) => &mut self.held,
            // A part of memory that is already counted.
            (_, Place::Within) => return,
            _ => &mut self.cached,
        };
        sum.join(tally);
        match key.kind.place() {
            Place::Host if level == Level::Held => self.held_on_host.join(tally),
            Place::Managed => self.managed.join(tally),
            _ => {}
        }
    }
}

/// The kind, if it is that of objects without an address.
fn object_of(key: &SumKey) -> Option<Kind> {
    Some(key.kind).filter(|kind| kind.place() == Place::Object)
}

fn level(key: &SumKey, named: &Named, sums: &LiveSums) -> Level {
    let watched = |owner: &str| sums.watched.iter().any(|name| name == owner);
    let blocks_are_known = key.carries_blocks || named.site.allocator.is_some_and(watched);
    Level::of(key.kind, named.pool, blocks_are_known)
}

impl<'a> Part<'a> {
    fn new(key: SumKey, named: &'a Arc<Named>, now: LiveTally, before: Tally) -> Part<'a> {
        Part {
            site: SiteKey(named.site.fingerprint, is_pool(key.kind, named.pool), object_of(&key)),
            named,
            key,
            now,
            before,
        }
    }
}

/// The row of one site from its parts, which are sorted by stack. Stacks that differ only inside the runtime are one.
fn row(parts: &[Part]) -> Row {
    let mut stacks: Vec<StackRow> = parts
        .chunk_by(|a, b| a.named.stack == b.named.stack)
        .map(stack_row)
        .collect();
    // The sort is stable: equal stacks keep the order of their fingerprints.
    stacks.sort_by_key(|stack| std::cmp::Reverse((stack.of.after.bytes, stack.of.after.count, stack.of.before.bytes)));
    let mut row = Row {
        key: parts[0].site,
        named: Arc::clone(&stacks[0].named),
        kinds: Kinds::default(),
        of: Change::default(),
        oldest_ns: u64::MAX,
        stacks,
    };
    for stack in &row.stacks {
        row.kinds.0 |= stack.kinds.0;
        row.of.join(&stack.of);
        row.oldest_ns = row.oldest_ns.min(stack.oldest_ns);
    }
    row
}

fn stack_row(parts: &[Part]) -> StackRow {
    let mut stack = StackRow {
        named: Arc::clone(parts[0].named),
        kinds: Kinds::default(),
        of: Change::default(),
        oldest_ns: u64::MAX,
        newest_ns: 0,
    };
    for part in parts {
        stack.kinds.add(part.key.kind);
        stack.of.after.join(part.now.tally);
        stack.of.before.join(part.before);
        stack.oldest_ns = stack.oldest_ns.min(part.now.oldest_ns);
        stack.newest_ns = stack.newest_ns.max(part.now.newest_ns);
    }
    stack
}

/// A set of kinds, one bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kinds(u64);

impl Kinds {
    fn add(&mut self, kind: Kind) {
        self.0 |= 1 << kind as u32;
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let is_in = move |kind: &&Kind| self.0 & 1 << **kind as u32 != 0;
        Kind::ALL.iter().filter(is_in).map(|kind| kind.name())
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names().collect();
        out.write_str(&names.join(", "))
    }
}

const _: () = assert!(Kind::from_number(64).is_none(), "one bit each");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::names;
    use crate::live::sums::stack_keys;
    use crate::text::sample::{Sample, leaky, serving};
    use culeak::analysis::report::{Options, Report};
    use culeak::snapshot::Snapshot;

    fn rows(now: &Snapshot, before: Option<&Snapshot>) -> Rows {
        let sums = |snapshot: &Snapshot| LiveSums::of(snapshot, &stack_keys(snapshot));
        let mut names = names::all(now, &stack_keys(now));
        if let Some(before) = before {
            names.extend(names::all(before, &stack_keys(before)));
        }
        Rows::of(&sums(now), before.map(sums).as_ref(), &names)
    }

    #[test]
    fn call_sites_are_those_of_the_report() {
        for snapshot in [
            leaky(),
            crate::text::sample::training().finish(9, 9),
            Sample::new().finish(0, 0),
        ] {
            let report = Report::of(&snapshot, &Options::default());
            let rows = rows(&snapshot, None);
            let of_memory = rows.rows.iter().filter(|row| row.object().is_none());
            let mut ours: Vec<_> = of_memory
                .map(|row| {
                    (
                        row.key.0,
                        row.key.1,
                        row.of.after.bytes,
                        row.of.after.count,
                        row.stacks.len(),
                    )
                })
                .collect();
            let mut theirs: Vec<_> = report
                .rows
                .iter()
                .map(|row| {
                    let site = row.stacks[0].stack.site_fingerprint;
                    (site, row.pool, row.bytes, row.count, row.stacks_in_all)
                })
                .collect();
            ours.sort();
            theirs.sort();
            assert_eq!(ours, theirs);
            assert_eq!(rows.held, report.totals.held.total());
            assert_eq!(rows.held_on_host, report.totals.held.host);
            assert_eq!(rows.cached, report.totals.pool);
            assert_eq!(rows.opaque_pools, report.opaque_pools);
            assert_eq!(rows.sites, report.totals.call_sites);
        }
    }

    #[test]
    fn rows_of_objects_are_those_of_the_report() {
        let snapshot = serving();
        let report = Report::of(&snapshot, &Options::default());
        let rows = rows(&snapshot, None);
        let ours = rows.rows.iter().filter_map(|row| Some((row.object()?.name(), row)));
        let mut ours: Vec<_> = ours
            .map(|(kind, row)| {
                (
                    kind,
                    row.key.0,
                    row.of.after.count,
                    row.of.after.bytes,
                    row.stacks.len(),
                )
            })
            .collect();
        let theirs = report.objects.rows.iter();
        let mut theirs: Vec<_> = theirs
            .filter_map(|row| {
                let kind = row.kind_of_objects()?.name();
                let site = row.stack().site_fingerprint;
                Some((kind, site, row.count, row.bytes, row.stacks_in_all))
            })
            .collect();
        ours.sort_unstable();
        theirs.sort_unstable();
        assert!(!theirs.is_empty());
        assert_eq!(ours, theirs);
        assert_eq!(rows.held, report.totals.held.total());
        assert_eq!(rows.sites, report.totals.call_sites);
    }

    #[test]
    fn a_site_that_is_gone_since_the_mark_keeps_its_row() {
        let rows = rows(&Sample::new().finish(0, 0), Some(&leaky()));
        assert!(!rows.rows.is_empty());
        assert!(
            rows.rows
                .iter()
                .all(|row| row.state() == State::Gone && row.of.bytes() <= 0)
        );
        assert_eq!(rows.held, Tally::default());
    }

    #[test]
    fn memory_without_names_is_in_the_total_and_in_no_row() {
        let snapshot = leaky();
        let sums = LiveSums::of(&snapshot, &stack_keys(&snapshot));
        let rows = Rows::of(&sums, None, &Names::default());
        assert!(rows.rows.is_empty());
        assert_eq!(rows.unnamed_tally.count, snapshot.allocations.len() as u64);
    }
}
