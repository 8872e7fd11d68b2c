//! What changed between two states of a job: by process, and by call site over all processes.
//!
//! ```text
//! processes before ─┐  same process, else rank, else file name
//! processes after  ─┴► pairs ─► changes by call site ─► outliers.rs ─► JobDiff
//!                               lines may have moved    who changed
//!                               (pairing.rs)            unlike the others
//! ```
//!
//! Only pairs are compared: processes of one side alone are listed, and their memory is no change of a call site. Unlike a report,
//! a diff needs the sums of each process before by call site, so its memory grows with processes times call sites.
//!
//! Deliberately absent: a verdict on whether a change is bad.

use std::collections::BTreeSet;

use foldhash::HashMap as FastMap;
use serde::Serialize;

use super::member::hosts;
use super::names::{Names, Values};
use super::outliers::{Chance, Example, Range};
use super::parallel::Judged;
use super::sites::{ProcessSums, Site, Sites};
use super::{Options, StandsOut, Unreadable};
use crate::analysis::facts::{Instant, SiteId, by_site, pair, rank, subtract};
use crate::analysis::libraries::LibraryChange;
use crate::analysis::opaque::OpaquePool;
use crate::analysis::program::Program;
use crate::tally::{Change, Tally};

mod partners;

use partners::partners;

/// The value of [`JobDiff::format`].
pub const FORMAT: &str = "culeak-job-diff";
pub const VERSION: u32 = 2;

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
    /// The libraries that both processes of one of the first pairs have, in different versions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub libraries: Vec<LibraryChange>,
    /// The compared kinds of memory; all if empty. Peaks are of all kinds.
    pub kinds: Vec<&'static str>,
    /// Memory in use in the pairs, without pools.
    pub held_before: Tally,
    pub held_after: Tally,
    /// By program, rank, host and pid.
    pub pairs: Vec<Pair>,
    /// Processes of one side alone.
    pub only_before: Vec<Instant>,
    pub only_after: Vec<Instant>,
    /// Pairs whose held memory changed unlike that of the others.
    pub stands_out: Vec<StandsOut>,
    /// The program's own sites first, then by change.
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
    pub before: Instant,
    pub after: Instant,
}

impl Pair {
    pub fn change(&self) -> i128 {
        change(&self.before, &self.after)
    }

    pub fn peak_change(&self) -> i128 {
        i128::from(self.after.peak_bytes) - i128::from(self.before.peak_bytes)
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
    pub count_delta: i128,
    /// The changes of all pairs.
    #[serde(flatten)]
    pub range: Range,
    /// The changes differ too widely for a common one, so no process stands out.
    pub differs: bool,
    pub stands_out: Option<StandsOut>,
    /// Who changed by how much, in words.
    pub sentence: String,
}

/// What is known of a site while processes are compared.
#[derive(Default)]
struct Sums {
    all: Change,
    /// By pair, ascending; without those that did not change.
    changes: Vec<Example>,
    /// The largest variance of a change, if sums are estimates from sampled stacks.
    variance: f64,
}

impl Sums {
    /// Adds the change in a pair.
    fn add(&mut self, number: u32, (change, variance): (Change, f64)) {
        self.all.join(change);
        self.variance = self.variance.max(variance);
        match clamped(change.bytes()) {
            0 => {}
            bytes => self.changes.push((number, bytes)),
        }
    }

    fn has_changed(&self) -> bool {
        !self.changes.is_empty() || self.all.before != self.all.after
    }

    fn row(&self, program: &Program, site: Site, judged: &Judged, names: &Names) -> SiteChange {
        let stands_out = names.stands_out(Values::Changes, judged, |_| None);
        SiteChange {
            program: program.clone(),
            site,
            before: self.all.before,
            after: self.all.after,
            count_delta: self.all.count(),
            range: judged.range,
            differs: judged.differs && stands_out.is_none(),
            stands_out,
            sentence: match self.changes.is_empty() {
                true => "the same bytes in another number of blocks".to_owned(),
                false => names.sentence(Values::Changes, judged, &self.changes),
            },
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
    let lines = [side_line(&before), side_line(&after)];
    let [old_sites, new_sites] = [&before, &after].map(Side::sites);
    let (pairs, alone) = partners([before.processes, after.processes], &mut warnings);
    let [only_before, only_after] = alone.map(|left| {
        let mut rows: Vec<Instant> = left.map(|sums| sums.row).collect();
        rows.sort_by_cached_key(Instant::order);
        rows
    });
    let same_processes = !pairs.is_empty() && pairs.iter().all(|(.., by)| *by == By::Process);
    // Lines of code cannot move within one process.
    let moved = pair(&old_sites, &new_sites, !same_processes, |site| sites.key(site));
    let names = Names::of((pairs.iter()).map(|(_, new, _)| Some((&new.row.member, &*new.row.source))));
    let peers = names.peers();
    let mut out = vec![false; pairs.len()];
    let mut mark = |judged: &Judged| judged.members().for_each(|member| out[member as usize] = true);
    let (mut stands_out, mut rows, mut unchanged_sites) = (Vec::new(), Vec::new(), 0);
    for (program, peers) in &peers {
        let members = || peers.members.iter().map(|&member| (member, &pairs[member as usize]));
        let changes = members().map(|(member, (old, new, _))| (member, clamped(change(&old.row, &new.row))));
        let estimates = members().flat_map(|(_, (old, new, _))| [[&old.row, &new.row]]);
        // The variance of a change; 0 if it is exact.
        let variance = estimates.map(|of| of.map(|row| row.held.bytes as f64 * row.held_scatter()).iter().sum());
        let judged = peers.judge(&changes.collect::<Vec<Example>>(), chance(variance.fold(0.0, f64::max)));
        mark(&judged);
        stands_out.extend(names.stands_out(Values::Changes, &judged, |_| None));
        let mut of_sites: FastMap<SiteId, Sums> = FastMap::default();
        for (number, (old, new, _)) in members() {
            for (site, change) in subtract(by_site(&old.sites), by_site(&new.sites), &moved) {
                of_sites.entry(site).or_default().add(number, change);
            }
        }
        let of_sites = of_sites.into_iter();
        let (changed, unchanged): (Vec<_>, Vec<_>) = of_sites.partition(|(_, sums)| sums.has_changed());
        unchanged_sites += unchanged.len();
        rows.extend(changed.into_iter().map(|(site, sums)| {
            let judged = peers.judge(&sums.changes, chance(sums.variance));
            mark(&judged);
            sums.row(program, sites.get(site), &judged, &names)
        }));
    }
    let programs = peers.into_keys().cloned().collect();
    drop(names);
    let pairs = pairs.into_iter().zip(out).map(|((old, new, by), stands_out)| Pair {
        by,
        stands_out,
        before: old.row,
        after: new.row,
    });
    let pairs: Vec<Pair> = pairs.collect();
    let enough = |row: &SiteChange| weight(row) >= u128::from(options.min_bytes);
    let [before, after] = lines;
    JobDiff {
        format: FORMAT,
        version: VERSION,
        before,
        after,
        same_processes,
        programs,
        hosts: hosts(pairs.iter().map(|pair| &pair.after.member.host)),
        libraries: Vec::new(),
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
        hidden_sites: rank(&mut rows, compare, enough, options.top),
        sites: rows,
        unchanged_sites,
        warnings,
    }
}

fn change(before: &Instant, after: &Instant) -> i128 {
    i128::from(after.held.bytes) - i128::from(before.held.bytes)
}

fn side_line(side: &Side) -> SideLine {
    SideLine {
        processes: side.processes.len(),
        hosts: hosts(side.processes.iter().map(|sums| &sums.row.member.host)),
        earlier_snapshots: side.earlier_snapshots,
        unreadable: side.unreadable.clone(),
    }
}

/// If changes are estimates, with this variance at most.
fn chance(of_value: f64) -> Chance {
    Chance { of_byte: 0.0, of_value }
}

fn clamped(change: i128) -> i64 {
    i64::try_from(change).unwrap_or(if change < 0 { i64::MIN + 1 } else { i64::MAX })
}

/// By what a row is sorted: its change, or that of the processes that changed unlike the others.
fn weight(row: &SiteChange) -> u128 {
    let apart = row.stands_out.as_ref().map_or(0, |apart| apart.apart_bytes);
    row.range.sum.unsigned_abs().max(apart.into())
}

fn compare(a: &SiteChange, b: &SiteChange) -> std::cmp::Ordering {
    (a.site.is_of_library().cmp(&b.site.is_of_library()))
        .then_with(|| weight(b).cmp(&weight(a)))
        .then_with(|| b.range.sum.cmp(&a.range.sum))
        .then_with(|| b.count_delta.cmp(&a.count_delta))
        .then_with(|| a.site.order().cmp(&b.site.order()))
        .then_with(|| a.program.cmp(&b.program))
}

#[cfg(test)]
mod tests;
