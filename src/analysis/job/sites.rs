//! The call sites of a job: names of stacks that are looked up once for all processes, and the rows of one process.
//!
//! Processes of a job have the same stacks, so a process costs one look-up for each stack ([`StackKey`]), and only unknown
//! stacks are named. The rows are those of the report by call site ([`crate::analysis::report`]).

use std::collections::hash_map::Entry;

use foldhash::HashMap;

pub use crate::analysis::site::text::{Site, SiteFrame};

use super::shared::{self, SharedPart};
use crate::analysis::facts::{self, Instant, Row, SiteId, StackId, group};
use crate::analysis::filter::mark_time;
use crate::analysis::function_name::plain;
use crate::analysis::groups::{Groups, Level};
use crate::analysis::opaque::OpaquePool;
use crate::analysis::pairing::Key;
use crate::analysis::report::{By, Report};
use crate::analysis::site::{CallStack, CallStacks, Fingerprint, is_pool};
use crate::analysis::stack_key::{StackKey, stack_keys};
use crate::analysis::suppressions::Used;
use crate::kind::{Kind, Place};
use crate::snapshot::Snapshot;
use crate::tally::Tally;

/// The most stacks whose callers are kept.
const PATHS_MAX: usize = 1 << 18;
/// The most callers of a call site that are kept for each stack.
const CALLERS_MAX: usize = 24;

/// A stack of a call site.
#[derive(Debug)]
struct Path {
    fingerprint: Fingerprint,
    /// From the call site outwards, as indices into [`Sites::callers`].
    callers: Vec<u32>,
}

/// Function and place of a caller.
type Caller = (String, Option<String>);

/// What is known of a stack.
#[derive(Debug, Clone, Copy)]
pub struct StackOfSite {
    /// Index of the site's text.
    text: u32,
    allocator: Option<&'static str>,
    pool: bool,
    path: Option<StackId>,
    /// The text is of its forward line, where cached and held memory are one.
    by_forward: bool,
}

impl StackOfSite {
    fn id(&self, pool: bool) -> SiteId {
        self.text * 2 + u32::from(pool && !self.by_forward)
    }
}

/// The named stacks of all processes so far.
#[derive(Debug, Default)]
pub struct Sites {
    /// By forward line, in the place of call sites.
    by_forward: bool,
    stacks: HashMap<u64, StackOfSite>,
    /// As if no caching allocator held the memory. The text is of the stack with the least fingerprint, and of equal ones the least
    /// text.
    texts: facts::Sites,
    /// By number of a text: the fingerprint of its stack.
    of_stacks: Vec<Fingerprint>,
    path_numbers: HashMap<Fingerprint, StackId>,
    paths: Vec<Path>,
    caller_numbers: HashMap<Caller, u32>,
    callers: Vec<Caller>,
}

/// The keys of a snapshot's stacks, and at the end that of memory without a stack. Where libraries are missing, roles of frames
/// depend on whether tensors were recorded, and so do these keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Keys(Vec<u64>);

impl Keys {
    pub fn of(snapshot: &Snapshot) -> Keys {
        Keys::with(stack_keys(snapshot).into_iter().map(|key| key.0).collect(), snapshot)
    }

    /// With the keys of the stacks that [`crate::reader::read_unknown_stacks`] returned.
    pub fn with(stacks: Vec<u64>, snapshot: &Snapshot) -> Keys {
        let apart = apart(snapshot.ever_had(Kind::Tensor));
        let keys = stacks.into_iter().chain([StackKey::NONE.0]);
        Keys(keys.map(|key| key ^ apart).collect())
    }
}

fn apart(tensors: bool) -> u64 {
    if tensors { 0x9e37_79b9_7f4a_7c15 } else { 0 }
}

/// What is known of a snapshot's stacks, and at the end of memory without a stack.
#[derive(Debug, Clone)]
pub struct StacksOfSites(Vec<Option<StackOfSite>>);

impl StacksOfSites {
    pub fn is_complete(&self) -> bool {
        self.0.iter().all(Option::is_some)
    }

    fn get(&self, stack: Option<usize>) -> Option<&StackOfSite> {
        self.0.get(stack.unwrap_or(self.0.len() - 1))?.as_ref()
    }
}

impl Sites {
    /// None yet. `by`: [`By::Site`] or [`By::Forward`].
    pub fn by(by: By) -> Sites {
        Sites {
            by_forward: by == By::Forward,
            ..Sites::default()
        }
    }

    /// Whether a stack has been learned, by its key alone.
    pub fn knows(&self, stack: u64, tensors: bool) -> bool {
        self.stacks.contains_key(&(stack ^ apart(tensors)))
    }

    /// Looks up the stacks of a snapshot.
    pub fn named(&self, keys: &Keys) -> StacksOfSites {
        StacksOfSites(keys.0.iter().map(|key| self.stacks.get(key).copied()).collect())
    }

    /// Adds the stacks of a snapshot that are not known yet. Their names were looked up.
    pub fn learn(&mut self, snapshot: &Snapshot, keys: &Keys) {
        let stacks = CallStacks::of(snapshot);
        for (number, key) in (0..snapshot.stacks.len()).map(Some).chain([None]).zip(&keys.0) {
            // A known stack may have been left empty.
            if self.stacks.contains_key(key) {
                continue;
            }
            let stack = stacks.get(number);
            let known = StackOfSite {
                text: self.text(stack),
                allocator: stack.allocator,
                pool: stack.pool,
                path: self.path(stack),
                by_forward: self.by_forward,
            };
            self.stacks.insert(*key, known);
        }
    }

    fn text(&mut self, stack: &CallStack) -> u32 {
        let (key, of): (Key, fn(&CallStack) -> Site) = match self.by_forward {
            true => (Key::of_forward_line(stack), Site::of_forward),
            false => (Key::of_call_site(stack), Site::of),
        };
        let Some(number) = self.texts.find(key) else {
            self.of_stacks.push(stack.fingerprint);
            return self.texts.number(key, of(stack));
        };
        let (print, text) = (&mut self.of_stacks[number as usize], self.texts.text_mut(number));
        if stack.fingerprint <= *print {
            // Stacks that differ in wrappers alone have one fingerprint.
            let other = of(stack);
            if (stack.fingerprint, &other) < (*print, &*text) {
                (*print, *text) = (stack.fingerprint, other);
            }
        }
        number
    }

    /// The number of a stack; `None` if there are too many.
    fn path(&mut self, stack: &CallStack) -> Option<StackId> {
        if let Some(path) = self.path_numbers.get(&stack.fingerprint) {
            return Some(*path);
        }
        if self.paths.len() == PATHS_MAX {
            return None;
        }
        let callers = stack.callers().take(CALLERS_MAX);
        let callers: Vec<Caller> = callers
            .map(|frame| (plain(&frame.name()).into_owned(), frame.short_place()))
            .collect();
        let callers = callers.into_iter().map(|caller| self.caller(caller)).collect();
        let path = self.paths.len() as StackId;
        self.path_numbers.insert(stack.fingerprint, path);
        self.paths.push(Path {
            fingerprint: stack.fingerprint,
            callers,
        });
        Some(path)
    }

    fn caller(&mut self, caller: Caller) -> u32 {
        let next = self.callers.len() as u32;
        match self.caller_numbers.entry(caller) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                self.callers.push(entry.key().clone());
                *entry.insert(next)
            }
        }
    }

    /// The fingerprint of a stack, the same whichever process was read first.
    pub fn fingerprint(&self, path: StackId) -> Fingerprint {
        self.paths[path as usize].fingerprint
    }

    /// `load_batch (data.py:12)`: the innermost caller by which a stack differs from all the others; its outermost one if they
    /// have all of its callers. `None` if it has none.
    pub fn via(&self, path: StackId, others: &[StackId]) -> Option<String> {
        let own = &self.paths[path as usize].callers;
        let is_shared = |length: usize| {
            let of = |other: &StackId| self.paths[*other as usize].callers.get(..length) == Some(&own[..length]);
            others.iter().any(of)
        };
        let length = (1..=own.len()).find(|&length| !is_shared(length)).unwrap_or(own.len());
        let (function, place) = &self.callers[*own.get(length.checked_sub(1)?)? as usize];
        Some(match place {
            Some(place) => format!("{function} ({place})"),
            None => function.clone(),
        })
    }

    /// The text of a site.
    pub fn get(&self, id: SiteId) -> Site {
        let (site, pool) = (self.texts.text(id / 2), id % 2 == 1);
        Site {
            pool,
            allocator: site.allocator.filter(|_| pool),
            ..site.clone()
        }
    }

    /// What a site is matched by in another run of the program, whose lines may have moved.
    pub fn key(&self, id: SiteId) -> Key {
        Key {
            pool: id % 2 == 1,
            ..self.texts.key(id / 2)
        }
    }
}

/// The memory of one process, by call site.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessSums {
    pub row: Instant,
    /// By site; each site and stack once.
    pub sites: Vec<Row>,
    /// What each suppression rule removed, in the order of the rules; no rules unless requested.
    pub suppressions: Vec<Used>,
    /// Memory that it shares with other processes.
    pub shared: Vec<SharedPart>,
}

impl ProcessSums {
    /// Stacks that have no name are left out.
    pub fn of(snapshot: &Snapshot, named: &StacksOfSites, source: String) -> ProcessSums {
        let groups = Groups::without_stacks(snapshot);
        let mut row = Instant::in_job(snapshot, source);
        let mut rows = Vec::new();
        let mut opaque_pools = Vec::new();
        for of_stack in &groups.all {
            let known = named.get(of_stack.stack);
            if known.is_none() && !of_stack.is_left_out {
                continue;
            }
            let allocator = known.and_then(|known| known.allocator);
            let kind = of_stack.call.kind;
            let watches = |allocator| groups.watched.contains(allocator);
            let blocks_are_known = of_stack.owner.is_some() || allocator.is_some_and(watches);
            let level = Level::of(kind, allocator.is_some(), blocks_are_known);
            match kind.place() {
                Place::Nowhere | Place::Segment | Place::Object => {}
                _ if level == Level::Held => row.held.join(of_stack.tally()),
                _ => row.pools.join(of_stack.tally()),
            }
            if let Some(owner) = allocator.filter(|_| level == Level::Cached) {
                opaque_pools.push(OpaquePool::new(owner, kind.place() == Place::Host, of_stack.tally()));
            }
            if let Some(known) = known
                && level.is_listed()
                && !of_stack.is_left_out
            {
                let site = known.id(is_pool(kind, known.pool));
                let scatter = of_stack.estimate.map_or(0.0, |estimate| estimate.scatter());
                rows.push(Row::at(site, known.path, of_stack.at_stack(), scatter));
            }
        }
        row.opaque_pools = OpaquePool::merged(opaque_pools);
        ProcessSums {
            row,
            sites: group(rows),
            suppressions: Vec::new(),
            shared: shared::parts(snapshot, |stack| {
                let known = named.get(stack).filter(|known| !known.by_forward)?;
                Some(known.id(false))
            }),
        }
    }

    /// The rows of a report that lists all of them, by what `sites` are by, of a snapshot with names. It may be filtered.
    pub fn of_report(snapshot: &Snapshot, report: &Report, sites: &mut Sites) -> ProcessSums {
        let mut row = Instant::in_job(snapshot, report.source.clone());
        (row.held, row.pools) = (report.totals.held.total(), report.totals.pool);
        row.opaque_pools.clone_from(&report.opaque_pools);
        row.held_is_estimated = report.totals_estimated;
        let unexplained: Option<Vec<i128>> = report.ledger.devices.iter().map(|device| device.unexplained).collect();
        row.unexplained_bytes = unexplained.filter(|all| !all.is_empty()).map(|all| all.iter().sum());
        row.suppressed = report.suppressed;
        if let Some(filtered) = &report.filter {
            let since = filtered.filter.since.as_deref();
            row.left_out = filtered.left_out;
            row.lacks_mark = since.is_some_and(|name| mark_time(snapshot, name).is_none());
        }
        let mut rows = Vec::new();
        for row in &report.rows {
            let Some(first) = row.stacks.first() else { continue };
            let site = sites.text(&first.stack) * 2 + u32::from(row.pool && !sites.by_forward);
            let scatter = row.estimated.map_or(0.0, |errors| errors.scatter(row.bytes));
            let listed = Tally::total(row.stacks.iter().map(|stack| stack.tally));
            for stack in &row.stacks {
                let path = sites.path(&stack.stack);
                rows.push(Row::at(site, path, stack.tally, scatter));
            }
            let rest = row.tally().less(listed);
            if rest != Tally::default() {
                rows.push(Row::at(site, None, rest, scatter));
            }
        }
        ProcessSums {
            row,
            sites: group(rows),
            suppressions: report.suppressions.clone(),
            shared: {
                let stacks = CallStacks::of(snapshot);
                shared::parts(snapshot, |stack| {
                    (!sites.by_forward).then(|| sites.text(stacks.get(stack)) * 2)
                })
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::report::Options;
    use crate::point::Point;
    use crate::sample::{MIB, gradients, leaky, training};
    use crate::snapshot::ProcessState;

    /// Rows by text, so that both ways compare.
    fn named(sums: &ProcessSums, sites: &Sites) -> Vec<(String, Option<String>, bool, Tally)> {
        let rows = sums.sites.iter().map(|sum| {
            let site = sites.get(sum.site);
            (site.label, site.place, site.pool, sum.tally)
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by_key(|row| (row.0.clone(), row.1.clone(), row.2, row.3.bytes));
        rows
    }

    #[test]
    fn memory_is_leaked_at_exit_and_only_held_before_or_if_the_process_was_killed() {
        let mut snapshot = leaky();
        let mut of = |state: ProcessState, point: Option<Point>| {
            (snapshot.process.state, snapshot.taken.point) = (state, point);
            let row = Instant::of(&snapshot, String::new());
            (row.finished, row.leaked())
        };
        let exited = ProcessState::Exited;
        assert_eq!(of(exited, None), (true, true));
        assert_eq!(of(exited, Some(Point::Exit)), (true, true));
        assert_eq!(of(exited, Some(Point::End)), (true, false));
        assert_eq!(of(ProcessState::Ended, None), (true, false));
        assert_eq!(of(exited, Some(Point::Peak)), (false, false));
        assert_eq!(of(exited, Some(Point::Mark("warm".to_owned()))), (false, false));
    }

    /// Two builds may give one function two files.
    #[test]
    fn the_text_of_a_site_does_not_depend_on_which_process_is_first() {
        let first = leaky();
        let mut second = leaky();
        for location in &mut second.locations {
            location
                .symbols
                .iter_mut()
                .for_each(|symbol| symbol.line = symbol.line.map(|line| line + 1));
        }
        let learned = |snapshots: [&Snapshot; 2]| {
            let mut sites = Sites::default();
            for snapshot in snapshots {
                let report = Report::of(snapshot, &Options::default());
                ProcessSums::of_report(snapshot, &report, &mut sites);
            }
            let numbers = 0..sites.texts.len() as SiteId;
            let mut texts: Vec<Site> = numbers.map(|number| sites.texts.text(number).clone()).collect();
            texts.sort_by_key(|site| (site.fingerprint, site.line));
            texts
        };
        assert_eq!(learned([&first, &second]), learned([&second, &first]));
    }

    #[test]
    fn rows_are_those_of_the_report() {
        for (snapshot, by) in [
            (leaky(), By::Site),
            (training().finish(0, 0), By::Site),
            (leaky(), By::Forward),
            (gradients(0), By::Forward),
        ] {
            let (mut sites, mut of_report) = (Sites::by(by), Sites::by(by));
            let keys = Keys::of(&snapshot);
            assert!(!sites.named(&keys).is_complete());
            sites.learn(&snapshot, &keys);
            assert!(sites.named(&keys).is_complete());
            let sums = ProcessSums::of(&snapshot, &sites.named(&keys), String::new());
            let options = Options {
                by,
                ..Options::default()
            };
            let report = Report::of(&snapshot, &options);
            let expected = ProcessSums::of_report(&snapshot, &report, &mut of_report);
            assert_eq!(named(&sums, &sites), named(&expected, &of_report));
            assert!(sums.row.held.bytes > 0);
            assert_eq!(sums.row, expected.row);
        }
    }

    #[test]
    fn a_forward_line_is_one_site_of_a_job_whichever_line_ran_backward() {
        let snapshot = gradients(0);
        let mut sites = Sites::by(By::Forward);
        let keys = Keys::of(&snapshot);
        sites.learn(&snapshot, &keys);
        let sums = ProcessSums::of(&snapshot, &sites.named(&keys), String::new());
        let rows =
            crate::analysis::facts::by_site(&sums.sites).map(|row| (sites.get(row.site).label, row.tally.bytes / MIB));
        let mut rows: Vec<_> = rows.collect();
        rows.sort();
        let expected = [
            ("(no forward line)", 1),
            ("Net.forward model.py:31", 7),
            ("Net.forward model.py:32", 2),
        ];
        assert_eq!(rows, expected.map(|(label, mib)| (label.to_owned(), mib)));
        // In a trend, too.
        let facts = crate::analysis::facts::Facts::by(&snapshot, String::new(), By::Forward, &Default::default());
        let mut labels: Vec<_> = facts.rows.iter().map(|row| &facts.sites.text(row.site).label).collect();
        labels.sort();
        assert_eq!(labels, expected.map(|(label, _)| label));
    }
}
