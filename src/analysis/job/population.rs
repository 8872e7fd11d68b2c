//! The processes of one program, in groups that do the same work (`parallel.rs`), and what stands out in each.
//!
//! Sums are kept for exact groups and joined for the others. A program with more than [`parallel::GROUPS_MAX`] exact groups has
//! stages only, since sums are kept per group.
//!
//! A call site that several stacks share, such as a helper that all allocations go through, is judged by stack too.

use std::borrow::Cow;
use std::collections::BTreeMap;

use foldhash::HashSet;

use super::member::Member;
use super::names::{Names, Naming, ProcessName, Values};
use super::outliers::{Chance, Example, Outliers, Verdict, judge, judge_each, value};
use super::parallel::{self, Compared, Coordinates, Grain, coordinates, look_at};
use super::sites::{ProcessSums, Sites};
use super::spread::Spread;
use super::{Outlier, ProcessesOut, Quantity, SiteRow, StandsOut};
use crate::analysis::program::Program;
use crate::analysis::tally::Tally;
use crate::facts::{Instant, Row, SiteId, StackId};

/// The most call sites of a program. Those of later processes are added up without a name.
pub const SITES_MAX: usize = 1 << 18;
/// The most stacks of a call site that are judged each by itself.
const PATHS_MAX: usize = 32;

/// One call site in all processes of a group.
#[derive(Debug, Clone, Default)]
struct Sums {
    bytes: Spread,
    count: u64,
    paths: Paths,
}

/// The stacks of a call site.
#[derive(Debug, Clone, Default)]
enum Paths {
    #[default]
    None,
    /// Its values are those of the site.
    One(StackId),
    Several(Vec<(StackId, Spread)>),
    /// More than [`PATHS_MAX`], or some that are not known.
    Many,
}

impl Paths {
    /// All stacks with their values, of which `bytes` is the sum.
    fn several(self, bytes: &Spread) -> Option<Vec<(StackId, Spread)>> {
        match self {
            Paths::None => Some(Vec::new()),
            Paths::One(path) => Some(vec![(path, bytes.clone())]),
            Paths::Several(all) => Some(all),
            Paths::Many => None,
        }
    }
}

impl Sums {
    /// Adds what a process holds at this call site, one row for each stack.
    fn add(&mut self, number: u32, rows: &[Row]) {
        let total = Tally::total(rows.iter().map(|row| row.tally));
        let paths = std::mem::take(&mut self.paths);
        self.paths = match (paths, rows) {
            (Paths::None, [Row { stack: Some(path), .. }]) => Paths::One(*path),
            (Paths::One(one), [Row { stack: Some(path), .. }]) if one == *path => Paths::One(one),
            (Paths::Many, _) => Paths::Many,
            (paths, rows) => self.with_paths(paths, number, rows),
        };
        self.bytes.add(number, total.bytes);
        rows.iter().for_each(|row| self.bytes.scatters(row.scatter));
        self.count = self.count.saturating_add(total.count);
    }

    #[cold]
    fn with_paths(&self, paths: Paths, number: u32, rows: &[Row]) -> Paths {
        let Some(mut all) = paths.several(&self.bytes) else {
            return Paths::Many;
        };
        for row in rows {
            let Some(path) = row.stack else {
                return Paths::Many;
            };
            let spread = at_path(&mut all, path);
            spread.add(number, row.tally.bytes);
            spread.scatters(row.scatter);
        }
        limited(all)
    }

    fn join(&mut self, other: &Sums) {
        let (mine, theirs) = (std::mem::take(&mut self.paths), other.paths.clone());
        self.paths = match (mine, theirs) {
            (Paths::None, paths) | (paths, Paths::None) => paths,
            (Paths::One(one), Paths::One(other)) if one == other => Paths::One(one),
            (mine, theirs) => match (mine.several(&self.bytes), theirs.several(&other.bytes)) {
                (Some(mut all), Some(others)) => {
                    others
                        .iter()
                        .for_each(|(path, spread)| at_path(&mut all, *path).join(spread));
                    limited(all)
                }
                _ => Paths::Many,
            },
        };
        self.bytes.join(&other.bytes);
        self.count = self.count.saturating_add(other.count);
    }
}

fn at_path(all: &mut Vec<(StackId, Spread)>, path: StackId) -> &mut Spread {
    let at = all.iter().position(|(of, _)| *of == path).unwrap_or_else(|| {
        all.push((path, Spread::default()));
        all.len() - 1
    });
    &mut all[at].1
}

fn limited(all: Vec<(StackId, Spread)>) -> Paths {
    if all.len() > PATHS_MAX {
        Paths::Many
    } else {
        Paths::Several(all)
    }
}

/// Processes that do the same work.
#[derive(Debug, Clone, Default)]
struct Cell {
    members: Vec<u32>,
    /// By [`SiteId`].
    sites: Vec<Option<Box<Sums>>>,
}

impl Cell {
    fn site(&mut self, site: SiteId) -> &mut Sums {
        let at = site as usize;
        if self.sites.len() <= at {
            self.sites.resize_with(at + 1, || None);
        }
        self.sites[at].get_or_insert_default()
    }

    fn join(&mut self, other: &Cell) {
        self.members.extend(&other.members);
        self.members.sort_unstable();
        for (site, sums) in (0..).zip(&other.sites) {
            if let Some(sums) = sums {
                self.site(site).join(sums);
            }
        }
    }

    fn sums(&self, site: SiteId) -> Option<&Sums> {
        self.sites.get(site as usize)?.as_deref()
    }
}

/// Cells joined by coarser coordinates; those that need no joining are borrowed.
fn joined(cells: &BTreeMap<Coordinates, Cell>, grain: Grain) -> BTreeMap<Coordinates, Cow<'_, Cell>> {
    let mut all: BTreeMap<Coordinates, Cow<Cell>> = BTreeMap::new();
    for (at, cell) in cells {
        match all.entry(grain.of(at)) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(Cow::Borrowed(cell));
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => entry.get_mut().to_mut().join(cell),
        }
    }
    all
}

/// Processes of one program.
#[derive(Debug, Default)]
pub struct Population {
    pub program: Program,
    grain: Grain,
    cells: BTreeMap<Coordinates, Cell>,
    known: HashSet<SiteId>,
    /// Memory of call sites beyond [`SITES_MAX`].
    pub beyond: Tally,
}

/// What stands out in a population.
#[derive(Debug, Default)]
pub struct Judgement {
    pub sites: Vec<(SiteRow, Vec<u32>)>,
    pub processes: Vec<(ProcessesOut, Vec<u32>)>,
    pub warnings: Vec<String>,
}

impl Population {
    pub fn of(program: &Program) -> Population {
        Population {
            program: program.clone(),
            ..Population::default()
        }
    }

    /// Adds a process.
    pub fn add(&mut self, number: u32, sums: &ProcessSums) {
        let at = coordinates(&sums.row.member);
        let cell = self.cells.entry(self.grain.of(&at)).or_default();
        cell.members.push(number);
        for rows in sums.sites.chunk_by(|a, b| a.site == b.site) {
            let site = rows[0].site;
            if !self.known.contains(&site) {
                if self.known.len() == SITES_MAX {
                    self.beyond.join(Tally::total(rows.iter().map(|row| row.tally)));
                    continue;
                }
                self.known.insert(site);
            }
            cell.site(site).add(number, rows);
        }
        while let Some(coarser) = self.grain.too_many(self.cells.len()) {
            self.coarsen(coarser);
        }
    }

    fn coarsen(&mut self, grain: Grain) {
        let cells = joined(&self.cells, grain);
        let cells = cells.into_iter().map(|(at, cell)| (at, cell.into_owned())).collect();
        (self.grain, self.cells) = (grain, cells);
    }

    /// Judges the processes. `with_peaks`: peaks are of the memory that is shown, and not of memory that a filter left out.
    pub fn judge(&mut self, sites: &Sites, rows: &[Option<Instant>], with_peaks: bool) -> Judgement {
        self.cells.values_mut().for_each(|cell| cell.members.sort_unstable());
        let mut judgement = Judgement::default();
        let mut whole = joined(&self.cells, Grain::Whole);
        let Some((_, whole)) = whole.pop_first() else {
            return judgement;
        };
        let naming = naming(&self.program, &whole.members, rows, &mut judgement.warnings);
        let sizes = self.cells.iter().map(|(at, cell)| (*at, cell.members.len())).collect();
        let (grain, planned) = parallel::plan(&sizes);
        let stages = match grain {
            Grain::Stage => joined(&self.cells, grain),
            Grain::Whole | Grain::Exact => BTreeMap::new(),
        };
        let all = |at: Coordinates| stages.get(&at).map_or(whole.as_ref(), Cow::as_ref);
        let exact = |at: Coordinates| &self.cells[&at];
        let groups = planned.into_iter().map(|group| group.map(all, exact));
        let mut names = Names::of(rows.iter().map(|row| Some(ProcessName::of(&row.as_ref()?.member))));
        names.naming = naming;
        let context = Judging {
            sites,
            rows,
            names,
            groups: groups.collect(),
        };
        let mut known: Vec<SiteId> = self.known.iter().copied().collect();
        known.sort_unstable();
        for site in known {
            if let Some(sums) = whole.sums(site) {
                let row = context.site(&self.program, site, sums, whole.members.len() as u64);
                judgement.sites.push(row);
            }
        }
        type ValueOf = fn(&Instant) -> (u64, f64);
        let quantities: [(Quantity, ValueOf); 2] = [
            (Quantity::Held, |row| (row.held.bytes, row.held_scatter())),
            (Quantity::Peak, |row| (row.peak_bytes, 0.0)),
        ];
        let quantities = quantities.into_iter();
        for (what, of) in quantities.filter(|(what, _)| with_peaks || *what != Quantity::Peak) {
            let (out, _) = look_at(&context.groups, |cell| {
                let mut chance = Chance::default();
                let mut values: Vec<Example> = Vec::with_capacity(cell.members.len());
                for &member in &cell.members {
                    let (bytes, scatter) = context.row(member).map_or((0, 0.0), of);
                    chance.of_byte = chance.of_byte.max(scatter);
                    values.push((member, value(bytes)));
                }
                let (out, has_common_value) = judge_each(&values, &cell.members, chance).1.parts();
                (out.map(|out| (out, None)), has_common_value)
            });
            if let Some((out, members)) = context.combined(&out, None) {
                judgement.processes.push((ProcessesOut { what, out }, members));
            }
        }
        judgement
    }
}

/// An outlier in a group, with the stack if only that stands out.
type Finding<'g, 'a> = parallel::Finding<'g, &'a Cell, (Outliers, Option<StackId>)>;

struct Judging<'a> {
    sites: &'a Sites,
    rows: &'a [Option<Instant>],
    names: Names<'a>,
    groups: Vec<Compared<&'a Cell>>,
}

impl Judging<'_> {
    fn row(&self, member: u32) -> Option<&Instant> {
        self.rows.get(member as usize)?.as_ref()
    }

    fn site(&self, program: &Program, site: SiteId, sums: &Sums, of: u64) -> (SiteRow, Vec<u32>) {
        let none = Sums::default();
        let (out, differs) = look_at(&self.groups, |cell| {
            let sums = cell.sums(site).unwrap_or(&none);
            match judge(&sums.bytes, &cell.members) {
                Verdict::StandOut(out) => (Some((out, None)), true),
                Verdict::Alike => (self.behind(sums, &cell.members, true), true),
                Verdict::NoCommonValue => (self.behind(sums, &cell.members, false), false),
            }
        });
        let (stands_out, members) = self.combined(&out, Some(sums)).unzip();
        let (median_bytes, median_is_exact) = sums.bytes.median(of);
        let row = SiteRow {
            program: program.clone(),
            site: self.sites.get(site),
            sum_bytes: u64::try_from(sums.bytes.sum).unwrap_or(u64::MAX),
            sum_count: sums.count,
            median_bytes,
            median_is_exact,
            min_bytes: sums.bytes.min(of),
            max_bytes: sums.bytes.max,
            processes: sums.bytes.have(),
            of_processes: of,
            differs: differs && stands_out.is_none(),
            stands_out,
        };
        (row, members.unwrap_or_default())
    }

    /// Processes that have unusually much through one of the site's stacks. If the sums of the site are alike, a process counts
    /// only if its sum shows at least half of the difference: otherwise another stack has less, so the memory went another way.
    fn behind(&self, sums: &Sums, members: &[u32], is_alike: bool) -> Option<(Outliers, Option<StackId>)> {
        let Paths::Several(paths) = &sums.paths else {
            return None;
        };
        let (median, _) = sums.bytes.median(members.len() as u64);
        let is_more = |out: &Outliers| {
            let shows = |&(member, bytes): &Example| {
                let total = sums.bytes.example(member);
                total.is_some_and(|total| value(total.saturating_sub(median)) >= (bytes - out.median) / 2)
            };
            let all_known = out.examples.len() as u64 == out.count;
            out.from > out.median && (!is_alike || all_known && out.examples.iter().all(shows))
        };
        let judged = paths.iter().filter_map(|(path, spread)| match judge(spread, members) {
            Verdict::StandOut(out) if is_more(&out) => Some((out, *path)),
            _ => None,
        });
        let most = judged.max_by_key(|(out, path)| (out.apart, std::cmp::Reverse(self.sites.fingerprint(*path))));
        most.map(|(out, path)| (out, Some(path)))
    }

    /// The findings of all groups as one, and the processes.
    fn combined(&self, all: &[Finding], sums: Option<&Sums>) -> Option<(StandsOut<Outlier>, Vec<u32>)> {
        let mut order: Vec<&Finding> = all.iter().collect();
        order.sort_by_key(|finding| std::cmp::Reverse(finding.outcome.0.apart));
        let sentences = order.iter().map(|finding| {
            let (out, path) = &finding.outcome;
            let via = path.and_then(|path| self.via(path, sums?));
            let members = &finding.group.members;
            self.names.sentence(Values::Bytes, out, members, finding.scope, via)
        });
        let sentence = parallel::sentence(sentences);
        let outs = || all.iter().map(|finding| &finding.outcome.0);
        let mut members: Vec<u32> = outs().flat_map(|out| &out.members).copied().collect();
        members.sort_unstable();
        let process = |(member, bytes): Example| {
            let row = self.row(member)?;
            Some(Outlier {
                rank: row.member.rank,
                host: row.member.host.clone(),
                pid: row.member.pid,
                bytes: bytes.unsigned_abs(),
                source: row.source.clone(),
            })
        };
        Some((StandsOut::of(outs(), sentence, process)?, members))
    }

    /// The caller that tells a stack from the others of its site.
    fn via(&self, path: StackId, sums: &Sums) -> Option<String> {
        let Paths::Several(all) = &sums.paths else {
            return None;
        };
        let others: Vec<StackId> = all
            .iter()
            .map(|(other, _)| *other)
            .filter(|other| *other != path)
            .collect();
        self.sites.via(path, &others)
    }
}

/// Ranks name processes if each process has its own.
fn naming(program: &Program, members: &[u32], rows: &[Option<Instant>], warnings: &mut Vec<String>) -> Naming {
    let rows = || members.iter().filter_map(|member| rows.get(*member as usize)?.as_ref());
    let mut ranks: Vec<u32> = rows().filter_map(|row| row.member.rank).collect();
    ranks.sort_unstable();
    let twice = ranks.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    if let Some(rank) = twice {
        let different = |of: &dyn Fn(&Member) -> Option<String>| {
            let all: std::collections::BTreeSet<String> = rows().filter_map(|row| of(&row.member)).collect();
            all.len()
        };
        let jobs = different(&|member| member.job.clone());
        let restarts = different(&|member| member.restart.map(|number| number.to_string()));
        let why = match (jobs, restarts) {
            (2.., _) => format!("these are recordings of {jobs} jobs"),
            (_, 2..) => "the launcher restarted the job, and these are recordings of several runs".to_owned(),
            _ => "these may be recordings of several jobs".to_owned(),
        };
        warnings.push(format!(
            "several processes of {program} have rank {rank}; {why}, so processes are named by pid"
        ));
    }
    match twice.is_none() && ranks.len() == members.len() {
        true => Naming::Rank,
        false => Naming::Pid,
    }
}
