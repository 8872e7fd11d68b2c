//! From sums by stack to the rows of the view: call sites as the report has them, with what changed since a mark.
//!
//! The mark is a tally like the present one, so both are grouped by the same rules and with the same names, whenever
//! those came. What a caching allocator keeps behind listed blocks is left out here as it is there.

use std::collections::{BTreeSet, HashMap};

use culeak::census::Level;
use culeak::diff::State as Change;
use culeak::kind::Place;
use culeak::report::Share;
use culeak::site::{Fingerprint, is_pool};

use super::names::{Named, Names};
use super::tally::{Amount, Key, StackKey, Tally};

/// A call site; pools apart from what is held, though one line may cause both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteKey(pub Fingerprint, pub bool);

#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub key: SiteKey,
    pub label: String,
    pub place: String,
    /// Whose pool, or which library of CUDA's asked.
    pub owner: String,
    pub kinds: BTreeSet<&'static str>,
    pub now: Share,
    pub before: Share,
    /// On the recording's clock; of what is live now.
    pub oldest_ns: u64,
    /// Most bytes first.
    pub stacks: Vec<StackRow>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct StackRow {
    pub stack: StackKey,
    pub kinds: BTreeSet<&'static str>,
    pub now: Share,
    pub before: Share,
    pub oldest_ns: u64,
    pub newest_ns: u64,
}

impl Row {
    pub fn bytes_change(&self) -> i128 {
        i128::from(self.now.bytes) - i128::from(self.before.bytes)
    }

    pub fn count_change(&self) -> i128 {
        i128::from(self.now.count) - i128::from(self.before.count)
    }

    pub fn change(&self) -> Change {
        match (self.before.count, self.now.count) {
            (0, _) => Change::New,
            (_, 0) => Change::Gone,
            _ => match (self.now.bytes, self.now.count).cmp(&(self.before.bytes, self.before.count)) {
                std::cmp::Ordering::Less => Change::Shrunk,
                std::cmp::Ordering::Equal => Change::Unchanged,
                std::cmp::Ordering::Greater => Change::Grown,
            },
        }
    }
}

/// All rows of one look, in no order, and what they add up to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rows {
    pub rows: Vec<Row>,
    /// What somebody holds: leaked, once the process is over.
    pub held: Share,
    pub held_on_host: Share,
    /// What caching allocators hold.
    pub cached: Share,
    pub managed: Share,
    /// Call sites that hold memory.
    pub sites: usize,
    /// Stacks whose names are being looked up, and what they asked for.
    pub unnamed: usize,
    pub unnamed_share: Share,
}

impl Rows {
    pub fn of(now: &Tally, before: Option<&Tally>, names: &Names) -> Rows {
        let mut rows = Rows::default();
        let mut groups: HashMap<SiteKey, Group> = HashMap::new();
        let mut unnamed: BTreeSet<StackKey> = BTreeSet::new();
        let mut holders: BTreeSet<Fingerprint> = BTreeSet::new();
        for (key, amount) in &now.sums {
            let Some(named) = names.get(&key.stack) else {
                unnamed.insert(key.stack);
                // Who asked decides what it is, so until that is known it counts as held.
                rows.unnamed_share.join(amount.share);
                rows.count(key, Level::Held, amount.share);
                continue;
            };
            let level = level(key, named, now);
            rows.count(key, level, amount.share);
            if level == Level::Held {
                holders.insert(named.site);
            }
            if level.is_listed() {
                Group::of(&mut groups, key, named).add(key, named, *amount, Share::default());
            }
        }
        if let Some(before) = before {
            for (key, amount) in &before.sums {
                let Some(named) = names.get(&key.stack) else { continue };
                if level(key, named, before).is_listed() {
                    Group::of(&mut groups, key, named).add(key, named, Amount::default(), amount.share);
                }
            }
        }
        rows.sites = holders.len();
        rows.unnamed = unnamed.len();
        rows.rows = groups.into_values().map(Group::finish).collect();
        rows
    }

    fn count(&mut self, key: &Key, level: Level, share: Share) {
        let sum = match (level, key.kind.place()) {
            (_, Place::Nowhere) => return,
            (Level::Held, _) => &mut self.held,
            // A part of memory that is counted already.
            (_, Place::Within) => return,
            _ => &mut self.cached,
        };
        sum.join(share);
        match key.kind.place() {
            Place::Host if level == Level::Held => self.held_on_host.join(share),
            Place::Managed => self.managed.join(share),
            _ => {}
        }
    }
}

fn level(key: &Key, named: &Named, tally: &Tally) -> Level {
    let watched = |owner: &str| tally.watched.iter().any(|name| name == owner);
    let blocks_are_known = key.carries_blocks || named.allocator.is_some_and(watched);
    Level::of(key.kind, named.pool, blocks_are_known)
}

/// A row in the making: equal stacks are one, however many ways through the runtime led to them.
struct Group {
    row: Row,
    stacks: HashMap<Fingerprint, StackRow>,
    labels: HashMap<Fingerprint, (String, String)>,
}

impl Group {
    fn of<'a>(groups: &'a mut HashMap<SiteKey, Group>, key: &Key, named: &Named) -> &'a mut Group {
        let pool = is_pool(key.kind, named.pool);
        let site = SiteKey(named.site, pool);
        groups.entry(site).or_insert_with(|| Group {
            row: Row {
                key: site,
                label: String::new(),
                place: String::new(),
                owner: match (pool, named.allocator, named.library) {
                    (true, Some(owner), _) => format!("{owner}'s pool"),
                    (true, None, _) => "pool".to_owned(),
                    (false, _, Some(library)) => library.to_owned(),
                    (false, _, None) => String::new(),
                },
                kinds: BTreeSet::new(),
                now: Share::default(),
                before: Share::default(),
                oldest_ns: u64::MAX,
                stacks: Vec::new(),
            },
            stacks: HashMap::new(),
            labels: HashMap::new(),
        })
    }

    fn add(&mut self, key: &Key, named: &Named, now: Amount, before: Share) {
        self.labels
            .entry(named.fingerprint)
            .or_insert_with(|| (named.label.clone(), named.place.clone()));
        let stack = self.stacks.entry(named.fingerprint).or_insert_with(|| StackRow {
            stack: key.stack,
            kinds: BTreeSet::new(),
            now: Share::default(),
            before: Share::default(),
            oldest_ns: u64::MAX,
            newest_ns: 0,
        });
        stack.kinds.insert(key.kind.name());
        stack.now.join(now.share);
        stack.before.join(before);
        stack.oldest_ns = stack.oldest_ns.min(now.oldest_ns);
        stack.newest_ns = stack.newest_ns.max(now.newest_ns);
        self.row.kinds.insert(key.kind.name());
        self.row.now.join(now.share);
        self.row.before.join(before);
        self.row.oldest_ns = self.row.oldest_ns.min(now.oldest_ns);
    }

    fn finish(self) -> Row {
        let Group {
            mut row,
            stacks,
            mut labels,
        } = self;
        let mut ranked: Vec<(Fingerprint, StackRow)> = stacks.into_iter().collect();
        ranked.sort_by_key(|(fingerprint, stack)| {
            let largest_first = std::cmp::Reverse((stack.now.bytes, stack.now.count, stack.before.bytes));
            (largest_first, *fingerprint)
        });
        // The label is that of the largest stack, as in the report.
        if let Some((first, _)) = ranked.first() {
            (row.label, row.place) = labels.remove(first).unwrap_or_default();
        }
        row.stacks = ranked.into_iter().map(|(_, stack)| stack).collect();
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::names;
    use crate::live::tally::stack_keys;
    use crate::text::sample::{Sample, leaky};
    use culeak::report::{Options, Report};
    use culeak::snapshot::Snapshot;

    fn rows(now: &Snapshot, before: Option<&Snapshot>) -> Rows {
        let tally = |snapshot: &Snapshot| Tally::of(snapshot, &stack_keys(snapshot));
        let mut names = names::all(now, &stack_keys(now));
        if let Some(before) = before {
            names.extend(names::all(before, &stack_keys(before)));
        }
        Rows::of(&tally(now), before.map(tally).as_ref(), &names)
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
            let mut ours: Vec<_> = rows
                .rows
                .iter()
                .map(|row| (row.key.0, row.key.1, row.now.bytes, row.now.count, row.stacks.len()))
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
            assert_eq!(rows.sites, report.totals.call_sites);
        }
    }

    #[test]
    fn what_is_gone_since_the_mark_still_has_its_row() {
        let rows = rows(&Sample::new().finish(0, 0), Some(&leaky()));
        assert!(!rows.rows.is_empty());
        assert!(
            rows.rows
                .iter()
                .all(|row| row.change() == Change::Gone && row.bytes_change() <= 0)
        );
        assert_eq!(rows.held, Share::default());
    }

    #[test]
    fn memory_whose_names_are_not_known_yet_is_in_the_sum_and_in_no_row() {
        let snapshot = leaky();
        let tally = Tally::of(&snapshot, &stack_keys(&snapshot));
        let rows = Rows::of(&tally, None, &Names::new());
        assert!(rows.rows.is_empty());
        assert_eq!(rows.unnamed_share.count, snapshot.allocations.len() as u64);
    }
}
