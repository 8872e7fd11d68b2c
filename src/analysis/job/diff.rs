//! What changed between two states of a job: by process, and by call site over all processes.
//!
//! ```text
//! processes before ─┐  same process, else rank, else file name
//! processes after  ─┴► pairs ─► changes by call site ─► change.rs ─► JobDiff
//!                               lines may have moved    who changed
//!                               (pairing.rs)            unlike the others
//! ```
//!
//! Only pairs are compared: processes of one side alone are listed, and their memory is no change of a call site. Unlike a report,
//! a diff needs the sums of each process before by call site, so its memory grows with processes times call sites.
//!
//! Deliberately absent: a verdict on whether a change is bad.

use std::borrow::Cow;
use std::collections::BTreeSet;

use foldhash::HashMap as FastMap;
use serde::Serialize;

use super::change::{self, Apart, Range, Verdict};
use super::parallel::{Compared, Finding, groups, look_at};
use super::sites::{ProcessRow, ProcessSums, Site, Sites};
use super::{Options, Unreadable};
use crate::analysis::opaque::OpaquePool;
use crate::analysis::program::Program;
use crate::analysis::tally::Tally;
use crate::facts::{Change, SiteId, by_site, pair, rank, subtract};

mod partners;
mod words;

use partners::partners;
use words::Words;

/// The value of [`JobDiff::format`].
pub const FORMAT: &str = "culeak-job-diff";
pub const VERSION: u32 = 1;

/// One of the two states of a job.
#[derive(Debug, Default)]
pub struct Side {
    /// The latest snapshot of each process.
    pub processes: Vec<ProcessSums>,
    pub earlier_snapshots: usize,
    pub unreadable: Vec<Unreadable>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobDiff {
    pub format: &'static str,
    pub version: u32,
    pub before: SideLine,
    pub after: SideLine,
    /// All pairs are one process at two times, so a difference is growth.
    pub same_processes: bool,
    pub programs: Vec<Program>,
    /// Hosts of the later side of the pairs.
    pub hosts: usize,
    /// The compared kinds of memory; all if empty. Peaks are of all kinds.
    pub kinds: Vec<&'static str>,
    /// Memory in use in the pairs, without pools.
    pub held_before: Tally,
    pub held_after: Tally,
    /// By program, rank, host and pid.
    pub pairs: Vec<Pair>,
    /// Processes of one side alone.
    pub only_before: Vec<ProcessRow>,
    pub only_after: Vec<ProcessRow>,
    /// Pairs whose held memory changed unlike that of the others.
    pub stands_out: Vec<ChangesApart>,
    /// Those that changed most first.
    pub sites: Vec<SiteChange>,
    /// Call sites that `--top` or `--min-bytes` cut off.
    pub hidden_sites: usize,
    /// Call sites that did not change in any process.
    pub unchanged_sites: usize,
    /// Pools of the later side whose blocks were not recorded: what changed in them is unknown.
    pub opaque_pools: Vec<OpaquePool>,
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SideLine {
    pub processes: usize,
    pub hosts: usize,
    pub earlier_snapshots: usize,
    pub unreadable: Vec<Unreadable>,
}

/// Why two processes are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// They are one process at two times.
    Process,
    Rank,
    /// Their recordings have the same name.
    Name,
    /// There is no other process of the program on either side.
    Program,
}

/// A process on both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Pair {
    /// Why the two are compared.
    pub by: By,
    pub stands_out: bool,
    pub before: ProcessRow,
    pub after: ProcessRow,
}

impl Pair {
    pub fn change(&self) -> i128 {
        i128::from(self.after.held.bytes) - i128::from(self.before.held.bytes)
    }

    pub fn peak_change(&self) -> i128 {
        i128::from(self.after.peak_bytes) - i128::from(self.before.peak_bytes)
    }

    /// The variance of the change if it is an estimate; 0 if it is exact.
    fn variance(&self) -> f64 {
        let of = |row: &ProcessRow| row.held.bytes as f64 * row.held_scatter();
        of(&self.before) + of(&self.after)
    }
}

/// A call site over all pairs of a program.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SiteChange {
    pub program: Program,
    /// Of the later side, if it is on both.
    pub site: Site,
    pub before: Tally,
    pub after: Tally,
    pub bytes_delta: i128,
    pub count_delta: i128,
    /// Over all pairs; one without this call site changed by 0.
    pub median_delta: i64,
    pub min_delta: i64,
    pub max_delta: i64,
    /// Pairs that hold more than before, and less.
    pub grown: u64,
    pub shrunk: u64,
    pub of_processes: u64,
    /// The changes differ too widely for a common one, so no process stands out.
    pub differs: bool,
    pub stands_out: Option<ChangesApart>,
    /// Who changed by how much, in words.
    pub sentence: String,
}

/// Processes that changed unlike the others.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ChangesApart {
    pub count: u64,
    /// The sum of the distances from the median change.
    pub apart_bytes: u64,
    /// Some of them, if there are many.
    pub processes: Vec<Changed>,
    pub sentence: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Changed {
    pub rank: Option<u32>,
    pub host: String,
    pub pid: u32,
    pub bytes_delta: i64,
    pub before: String,
    pub after: String,
}

/// What is known of a site while processes are compared.
#[derive(Default)]
struct Sums {
    all: Change,
    /// By pair, ascending; without those that did not change.
    changes: Vec<(u32, i64)>,
    /// The largest variance of a change, if sums are estimates from sampled stacks.
    variance: f64,
}

impl Sums {
    /// Adds the change in a pair.
    fn add(&mut self, number: u32, change: &Change) {
        self.all.join(change);
        self.variance = self.variance.max(change.variance);
        match clamped(change.bytes()) {
            0 => {}
            bytes => self.changes.push((number, bytes)),
        }
    }
}

impl Side {
    /// All call sites, ascending.
    fn sites(&self) -> Vec<SiteId> {
        let rows = self.processes.iter().flat_map(|sums| &sums.sites);
        let sites: BTreeSet<SiteId> = rows.map(|row| row.site).collect();
        sites.into_iter().collect()
    }
}

/// Compares two sides, whose sites have their names in `sites`.
pub fn diff(before: Side, after: Side, sites: &Sites, options: &Options) -> JobDiff {
    let mut warnings = Vec::new();
    let partners = partners(&before.processes, &after.processes, &mut warnings);
    let lines = [side_line(&before), side_line(&after)];
    let same_processes = !partners.is_empty() && partners.iter().all(|partner| partner.2 == By::Process);
    // Lines of code cannot move within one process.
    let moved = pair(&before.sites(), &after.sites(), !same_processes, |site| sites.key(site));
    let mut olds: Vec<Option<ProcessSums>> = before.processes.into_iter().map(Some).collect();
    let mut news: Vec<Option<ProcessSums>> = after.processes.into_iter().map(Some).collect();
    let mut matched: Vec<(ProcessSums, ProcessSums, By)> = partners
        .into_iter()
        .filter_map(|(old, new, by)| Some((olds[old].take()?, news[new].take()?, by)))
        .collect();
    matched.sort_by_cached_key(|(_, new, _)| order(&new.row));
    let mut only_before: Vec<ProcessRow> = olds.into_iter().flatten().map(|sums| sums.row).collect();
    let mut only_after: Vec<ProcessRow> = news.into_iter().flatten().map(|sums| sums.row).collect();
    only_before.sort_by_cached_key(order);
    only_after.sort_by_cached_key(order);
    let programs: BTreeSet<Program> = matched
        .iter()
        .map(|(_, new, _)| new.row.member.program.clone())
        .collect();
    let programs: Vec<Program> = programs.into_iter().collect();
    let mut of_sites: FastMap<(usize, SiteId), Sums> = FastMap::default();
    let mut pairs: Vec<Pair> = Vec::with_capacity(matched.len());
    for (number, (old, new, by)) in (0..).zip(matched) {
        let program = programs.binary_search(&new.row.member.program).unwrap_or(0);
        for (site, change) in subtract(by_site(&old.sites), by_site(&new.sites), &moved) {
            of_sites.entry((program, site)).or_default().add(number, &change);
        }
        pairs.push(Pair {
            by,
            stands_out: false,
            before: old.row,
            after: new.row,
        });
    }
    let hosts: BTreeSet<&str> = pairs.iter().map(|pair| pair.after.member.host.as_str()).collect();
    let hosts = hosts.len();
    let words = Words::of(&pairs);
    let mut stands_out = Vec::new();
    let mut out: Vec<u32> = Vec::new();
    let populations: Vec<Population> = programs.iter().map(|program| Population::of(&pairs, program)).collect();
    for population in &populations {
        let change = |member: &u32| (*member, clamped(pairs[*member as usize].change()));
        let changes = population.members.iter().map(change);
        let changes: Vec<(u32, i64)> = changes.filter(|change| change.1 != 0).collect();
        let variances = population
            .members
            .iter()
            .map(|member| pairs[*member as usize].variance());
        let judged = population.judge(&changes, variances.fold(0.0, f64::max));
        out.extend(judged.members());
        stands_out.extend(words.stands_out(&judged));
    }
    let (mut rows, mut unchanged) = (Vec::new(), 0);
    for ((program, id), sums) in of_sites {
        if sums.changes.is_empty() && sums.all.before == sums.all.after {
            unchanged += 1;
            continue;
        }
        let population = &populations[program];
        let judged = population.judge(&sums.changes, sums.variance);
        out.extend(judged.members());
        let of = population.members.len() as u64;
        rows.push(words.row(&programs[program], sites.get(id), &sums, &judged, of));
    }
    for member in out {
        pairs[member as usize].stands_out = true;
    }
    let enough = |row: &SiteChange| weight(row) >= u128::from(options.min_bytes);
    let hidden_sites = rank(&mut rows, compare, enough, options.top);
    let [before, after] = lines;
    JobDiff {
        format: FORMAT,
        version: VERSION,
        before,
        after,
        same_processes,
        programs,
        hosts,
        kinds: Vec::new(),
        held_before: Tally::total(pairs.iter().map(|pair| pair.before.held)),
        held_after: Tally::total(pairs.iter().map(|pair| pair.after.held)),
        opaque_pools: {
            let of_pairs = pairs.iter().flat_map(|pair| &pair.after.opaque_pools);
            OpaquePool::merged(of_pairs.cloned())
        },
        pairs,
        only_before,
        only_after,
        stands_out,
        hidden_sites,
        sites: rows,
        unchanged_sites: unchanged,
        warnings,
    }
}

fn side_line(side: &Side) -> SideLine {
    let hosts: BTreeSet<&str> = side
        .processes
        .iter()
        .map(|sums| sums.row.member.host.as_str())
        .collect();
    SideLine {
        processes: side.processes.len(),
        hosts: hosts.len(),
        earlier_snapshots: side.earlier_snapshots,
        unreadable: side.unreadable.clone(),
    }
}

fn order(row: &ProcessRow) -> (Program, u32, String, u32, String) {
    let member = &row.member;
    let rank = member.rank.unwrap_or(u32::MAX);
    (
        member.program.clone(),
        rank,
        member.host.clone(),
        member.pid,
        row.source.clone(),
    )
}

/// The pairs of a program.
struct Population {
    /// Ascending.
    members: Vec<u32>,
    groups: Vec<Compared<Vec<u32>>>,
}

/// Pairs of a group that changed unlike the others, and how the group changed.
type Unlike<'g> = Finding<'g, Vec<u32>, (Apart, Range)>;

/// How a quantity changed in a population.
struct Judged<'g> {
    /// Over all pairs.
    range: Range,
    unlike: Vec<Unlike<'g>>,
    /// The changes of a group differ too widely for a common one.
    differs: bool,
}

impl Judged<'_> {
    fn members(&self) -> impl Iterator<Item = u32> {
        let apart = self.unlike.iter().map(|finding| &finding.found.0);
        apart.flat_map(|apart| apart.members.iter().map(|member| member.0))
    }
}

impl Population {
    fn of(pairs: &[Pair], program: &Program) -> Population {
        let of_program = (0..).zip(pairs);
        let of_program = of_program.filter(|(_, pair)| pair.after.member.program == *program);
        let all: Vec<(u32, &Pair)> = of_program.collect();
        Population {
            members: all.iter().map(|(number, _)| *number).collect(),
            groups: groups(all.iter().map(|(number, pair)| (*number, &pair.after.member.identity))),
        }
    }

    /// `changes`: of the pairs that changed, ascending. `variance`: the largest of one.
    fn judge(&self, changes: &[(u32, i64)], variance: f64) -> Judged<'_> {
        let mut of_all = None;
        let (unlike, differs) = look_at(&self.groups, |members| {
            let is_all = members.len() == self.members.len();
            let own = match is_all {
                true => Cow::Borrowed(changes),
                false => Cow::Owned(within(changes, members)),
            };
            let (range, verdict) = change::judge(&own, members, variance);
            if is_all {
                of_all = Some(range);
            }
            match verdict {
                Verdict::StandOut(apart) => (Some((apart, range)), true),
                verdict => (None, verdict == Verdict::Alike),
            }
        });
        Judged {
            range: of_all.unwrap_or_else(|| change::judge(changes, &self.members, variance).0),
            unlike,
            differs,
        }
    }
}

/// The changes of these members.
fn within(changes: &[(u32, i64)], members: &[u32]) -> Vec<(u32, i64)> {
    let change = |member: &u32| changes.binary_search_by_key(member, |change| change.0).ok();
    members.iter().filter_map(change).map(|at| changes[at]).collect()
}

fn clamped(change: i128) -> i64 {
    i64::try_from(change).unwrap_or(if change < 0 { i64::MIN + 1 } else { i64::MAX })
}

/// By what a row is sorted: its change, or that of the processes that changed unlike the others.
fn weight(row: &SiteChange) -> u128 {
    let apart = row.stands_out.as_ref().map_or(0, |apart| apart.apart_bytes);
    row.bytes_delta.unsigned_abs().max(apart.into())
}

fn compare(a: &SiteChange, b: &SiteChange) -> std::cmp::Ordering {
    let text = |row: &SiteChange| {
        (
            row.site.label.clone(),
            row.site.place.clone(),
            row.site.fingerprint,
            row.site.pool,
        )
    };
    (weight(b).cmp(&weight(a)))
        .then_with(|| b.bytes_delta.cmp(&a.bytes_delta))
        .then_with(|| b.count_delta.cmp(&a.count_delta))
        .then_with(|| text(a).cmp(&text(b)))
        .then_with(|| a.program.cmp(&b.program))
}

#[cfg(test)]
mod tests;
