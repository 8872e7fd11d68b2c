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

use std::collections::{BTreeMap, BTreeSet, HashMap};

use foldhash::HashMap as FastMap;
use serde::Serialize;

use super::change::{self, Apart, Range, Verdict};
use super::names::{self, Named};
use super::outliers::Naming;
use super::sites::{ProcessRow, ProcessSums, Site, SiteId, Sites};
use super::{Options, Unreadable};
use crate::analysis::pairing::{Key, pair};
use crate::analysis::program::Program;
use crate::analysis::site::file_name;
use crate::analysis::tally::Tally;
use crate::analysis::words;

/// The value of [`JobDiff::format`].
pub const FORMAT: &str = "culeak-job-diff";
pub const VERSION: u32 = 1;
/// Processes that a row names in JSON.
const NAMED: usize = 64;

/// One of the two states of a job.
#[derive(Debug, Default)]
pub struct Side {
    /// The latest snapshot of each process.
    pub processes: Vec<ProcessSums>,
    pub earlier_snapshots: usize,
    pub unreadable: Vec<Unreadable>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
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
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SideLine {
    pub processes: usize,
    pub hosts: usize,
    pub earlier_snapshots: usize,
    pub unreadable: Vec<Unreadable>,
}

/// Why two processes are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
pub struct Pair {
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
}

/// A call site over all pairs of a program.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
pub struct ChangesApart {
    pub count: u64,
    /// The sum of the distances from the median change.
    pub apart_bytes: u64,
    /// Some of them, if there are many.
    pub processes: Vec<Changed>,
    pub sentence: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
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
    before: Tally,
    after: Tally,
    /// By pair, ascending; without those that did not change.
    changes: Vec<(u32, i64)>,
}

/// Compares two sides, whose sites have their names in `sites`.
pub fn diff(before: Side, after: Side, sites: &Sites, options: &Options) -> JobDiff {
    let mut warnings = Vec::new();
    let partners = partners(&before.processes, &after.processes, &mut warnings);
    let lines = [side_line(&before), side_line(&after)];
    let same_processes = !partners.is_empty() && partners.iter().all(|partner| partner.2 == By::Process);
    let moved = moved_sites(&before.processes, &after.processes, sites, same_processes);
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
    let mut by_site: FastMap<(usize, SiteId), Sums> = FastMap::default();
    let mut pairs: Vec<Pair> = Vec::with_capacity(matched.len());
    for (number, (old, new, by)) in (0..).zip(matched) {
        let program = programs.binary_search(&new.row.member.program).unwrap_or(0);
        add(&mut by_site, program, number, &moved, &old.by_site(), &new.by_site());
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
    let populations: Vec<Vec<u32>> = programs.iter().map(|program| population(&pairs, program)).collect();
    for members in &populations {
        let change = |member: &u32| (*member, clamped(pairs[*member as usize].change()));
        let changes: Vec<(u32, i64)> = members.iter().map(change).filter(|change| change.1 != 0).collect();
        let (range, verdict) = change::judge(&changes, members);
        if let Verdict::StandOut(apart) = verdict {
            out.extend(apart.members.iter().map(|member| member.0));
            stands_out.push(words.apart(&apart, &range, members.len() as u64));
        }
    }
    let (mut rows, mut unchanged) = (Vec::new(), 0);
    for ((program, id), sums) in by_site {
        if sums.changes.is_empty() && sums.before == sums.after {
            unchanged += 1;
            continue;
        }
        let members = &populations[program];
        let (range, verdict) = change::judge(&sums.changes, members);
        if let Verdict::StandOut(apart) = &verdict {
            out.extend(apart.members.iter().map(|member| member.0));
        }
        rows.push(words.row(
            &programs[program],
            sites.get(id),
            &sums,
            &range,
            &verdict,
            members.len() as u64,
        ));
    }
    for member in out {
        pairs[member as usize].stands_out = true;
    }
    rows.sort_by(compare);
    let all = rows.len();
    rows.retain(|row| weight(row) >= u128::from(options.min_bytes));
    rows.truncate(options.top.unwrap_or(usize::MAX));
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
        pairs,
        only_before,
        only_after,
        stands_out,
        hidden_sites: all - rows.len(),
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

fn population(pairs: &[Pair], program: &Program) -> Vec<u32> {
    let of_program = (0..)
        .zip(pairs)
        .filter(|(_, pair)| pair.after.member.program == *program);
    of_program.map(|(number, _)| number).collect()
}

/// The indices of processes before and after that are compared, and why.
fn partners(before: &[ProcessSums], after: &[ProcessSums], warnings: &mut Vec<String>) -> Vec<(usize, usize, By)> {
    let mut found: Vec<(usize, usize, By)> = Vec::new();
    let mut taken = (vec![false; before.len()], vec![false; after.len()]);
    let mut pass = |by: By, key: &dyn Fn(&ProcessRow) -> Option<String>, unique: bool, warnings: &mut Vec<String>| {
        let mut known: HashMap<String, Vec<usize>> = HashMap::new();
        for (old, sums) in before.iter().enumerate().filter(|(old, _)| !taken.0[*old]) {
            if let Some(key) = key(&sums.row) {
                known.entry(key).or_default().push(old);
            }
        }
        let mut wanted: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (new, sums) in after.iter().enumerate().filter(|(new, _)| !taken.1[*new]) {
            if let Some(key) = key(&sums.row) {
                wanted.entry(key).or_default().push(new);
            }
        }
        let mut twice = 0;
        for (key, news) in wanted {
            let Some(olds) = known.get(&key) else { continue };
            let mut pairs: Vec<(usize, usize)> = Vec::new();
            for &new in &news {
                let member = &after[new].row.member;
                let like = |old: &&usize| {
                    let other = &before[**old].row.member;
                    other.program.is_like(&member.program) && other.rank == member.rank
                };
                let mut likes = olds.iter().filter(like);
                match (likes.next(), likes.next()) {
                    (Some(&old), None) => pairs.push((old, new)),
                    (Some(_), Some(_)) => twice += 1,
                    (None, _) => {}
                }
            }
            // Two later processes may have one earlier partner.
            let mut used: HashMap<usize, usize> = HashMap::new();
            pairs.iter().for_each(|pair| *used.entry(pair.0).or_default() += 1);
            for (old, new) in pairs {
                match used[&old] {
                    1 => {
                        (taken.0[old], taken.1[new]) = (true, true);
                        found.push((old, new, by));
                    }
                    _ => twice += 1,
                }
            }
        }
        if twice > 0 && unique {
            warnings.push(
                "several processes of a side have the same rank; these may be recordings of several jobs, so they are compared by the \
                 names of their files"
                    .to_owned(),
            );
        }
    };
    let same = |row: &ProcessRow| {
        let member = &row.member;
        (member.pid != 0).then(|| format!("{}\0{}\0{}", member.host, member.pid, member.started_unix_ns))
    };
    pass(By::Process, &same, false, warnings);
    pass(By::Rank, &|row| Some(row.member.rank?.to_string()), true, warnings);
    pass(
        By::Name,
        &|row| Some(file_name(&row.source).to_owned()),
        false,
        warnings,
    );
    pass(By::Program, &|_| Some(String::new()), false, warnings);
    found
}

/// Sites before whose line moved, by their site after.
fn moved_sites(before: &[ProcessSums], after: &[ProcessSums], sites: &Sites, same: bool) -> HashMap<SiteId, SiteId> {
    let ids = |side: &[ProcessSums]| -> Vec<SiteId> {
        let all: BTreeSet<SiteId> = side
            .iter()
            .flat_map(|sums| sums.sites.iter().map(|sum| sum.site))
            .collect();
        all.into_iter().collect()
    };
    let (old, new) = (ids(before), ids(after));
    let keys = |ids: &[SiteId]| -> Vec<Key> { ids.iter().map(|&id| sites.key(id)).collect() };
    // Lines of code cannot move within one process.
    let partners = pair(&keys(&old), &keys(&new), !same);
    let moved = new
        .into_iter()
        .zip(partners)
        .filter_map(|(new, partner)| Some((old[partner?], new)));
    moved.filter(|(old, new)| old != new).collect()
}

fn add(
    by_site: &mut FastMap<(usize, SiteId), Sums>,
    program: usize,
    number: u32,
    moved: &HashMap<SiteId, SiteId>,
    old: &[(SiteId, Tally)],
    new: &[(SiteId, Tally)],
) {
    let mut both: FastMap<SiteId, (Tally, Tally)> = FastMap::default();
    both.reserve(new.len());
    for &(id, tally) in old {
        both.entry(moved.get(&id).copied().unwrap_or(id))
            .or_default()
            .0
            .join(tally);
    }
    for &(id, tally) in new {
        both.entry(id).or_default().1.join(tally);
    }
    for (id, (before, after)) in both {
        let sums = by_site.entry((program, id)).or_default();
        sums.before.join(before);
        sums.after.join(after);
        let change = clamped(i128::from(after.bytes) - i128::from(before.bytes));
        if change != 0 {
            sums.changes.push((number, change));
        }
    }
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

/// What sentences need of the pairs.
struct Words<'p> {
    pairs: &'p [Pair],
    naming: Naming,
    several_hosts: bool,
}

impl<'p> Words<'p> {
    fn of(pairs: &'p [Pair]) -> Words<'p> {
        let hosts: BTreeSet<&str> = pairs.iter().map(|pair| pair.after.member.host.as_str()).collect();
        Words {
            naming: names::naming(pairs.iter().map(named)),
            several_hosts: hosts.len() > 1,
            pairs,
        }
    }

    fn names(&self, members: impl Iterator<Item = u32>) -> String {
        let named: Vec<Named> = members.map(|member| named(&self.pairs[member as usize])).collect();
        names::list(&named, self.naming, self.several_hosts)
    }

    fn row(&self, program: &Program, site: Site, sums: &Sums, range: &Range, verdict: &Verdict, of: u64) -> SiteChange {
        let stands_out = match verdict {
            Verdict::StandOut(apart) => Some(self.apart(apart, range, of)),
            Verdict::Alike | Verdict::NoCommonValue => None,
        };
        let sentence = stands_out.as_ref().map(|apart| apart.sentence.clone());
        SiteChange {
            program: program.clone(),
            site,
            before: sums.before,
            after: sums.after,
            bytes_delta: range.sum,
            count_delta: i128::from(sums.after.count) - i128::from(sums.before.count),
            median_delta: range.median,
            min_delta: range.min,
            max_delta: range.max,
            grown: range.grown,
            shrunk: range.shrunk,
            of_processes: of,
            differs: *verdict == Verdict::NoCommonValue,
            stands_out,
            sentence: sentence.unwrap_or_else(|| self.in_common(sums, range, of)),
        }
    }

    /// `only rank 5: +30 MiB, no change in the 7 others`.
    fn apart(&self, apart: &Apart, range: &Range, of: u64) -> ChangesApart {
        let count = apart.members.len() as u64;
        let who = self.names(apart.members.iter().map(|member| member.0));
        let least = apart.members.iter().map(|member| member.1).min().unwrap_or(0);
        let most = apart.members.iter().map(|member| member.1).max().unwrap_or(0);
        let others = of - count;
        let other = match others {
            1 => "other".to_owned(),
            n => format!("{} others", words::count(n)),
        };
        let value = spread(least, most, count);
        let sentence = match apart.is_alone {
            true => format!("only {who}: {value}, no change in the {other}"),
            false if others == 1 => {
                let other = if least == range.min { range.max } else { range.min };
                format!("{who}: {value}; the other {}", signed(other))
            }
            false if range.median == 0 => format!("{who}: {value}; most of the {other} did not change"),
            false => format!("{who}: {value}; the median is {}", signed(range.median)),
        };
        let changed = |&(member, bytes_delta): &(u32, i64)| {
            let pair = &self.pairs[member as usize];
            Changed {
                rank: pair.after.member.rank,
                host: pair.after.member.host.clone(),
                pid: pair.after.member.pid,
                bytes_delta,
                before: pair.before.source.clone(),
                after: pair.after.source.clone(),
            }
        };
        ChangesApart {
            count,
            apart_bytes: u64::try_from(apart.bytes).unwrap_or(u64::MAX),
            processes: apart.members.iter().take(NAMED).map(changed).collect(),
            sentence,
        }
    }

    /// `all 8 ranks: +10 MiB each`, `6 of 8 ranks: +9 MiB to +11 MiB`.
    fn in_common(&self, sums: &Sums, range: &Range, of: u64) -> String {
        let changed = sums.changes.len() as u64;
        let least = sums.changes.iter().map(|change| change.1).min().unwrap_or(0);
        let most = sums.changes.iter().map(|change| change.1).max().unwrap_or(0);
        let noun = names::noun(self.naming, of);
        let who = match (changed, of) {
            (0, _) => return "the same bytes in another number of blocks".to_owned(),
            (_, 1) => return signed(range.median),
            (changed, of) if changed == of => format!("all {} {noun}", words::count(of)),
            (1..=8, _) => self.names(sums.changes.iter().map(|change| change.0)),
            _ => format!("{} of {} {noun}", words::count(changed), words::count(of)),
        };
        format!("{who}: {}", spread(least, most, changed))
    }
}

fn named(pair: &Pair) -> Named<'_> {
    let member = &pair.after.member;
    Named {
        rank: member.rank,
        host: &member.host,
        pid: member.pid,
    }
}

fn signed(bytes: i64) -> String {
    match bytes {
        0 => "no change".to_owned(),
        bytes => words::signed_bytes(bytes.into()),
    }
}

fn spread(least: i64, most: i64, count: u64) -> String {
    match (least == most, count) {
        (true, 1) => signed(most),
        (true, _) if most == 0 => signed(most),
        (true, _) => format!("{} each", signed(most)),
        (false, _) => format!("{} to {}", signed(least), signed(most)),
    }
}

#[cfg(test)]
mod tests;
