//! The processes of one program: what each holds at each call site, and what stands out among them.
//!
//! A call site that several stacks share, such as a helper that all allocations go through, is judged by stack too.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use serde::Serialize;

use super::member::Member;
use super::names::{Names, Naming, StandsOut, Values};
use super::outliers::{Chance, Example, Outliers, Range, judge, value};
use super::parallel::{Finding, Judged, Peers};
use super::sites::{ProcessSums, Site, Sites};
use crate::analysis::facts::{Instant, Row, SiteId, StackId};
use crate::analysis::filter::Filter;
use crate::analysis::program::Program;
use crate::tally::Tally;

/// The most call sites of a program. Those of later processes are added up without a name.
pub const SITES_MAX: usize = 1 << 18;
/// The most stacks of a call site that are judged each by itself.
const PATHS_MAX: usize = 32;

/// What to show.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The most rows.
    pub top: Option<usize>,
    /// Rows with less are cut off: in all processes together; in trends, in each process at all times.
    pub min_bytes: u64,
    /// The filter that the processes were read with.
    pub filter: Filter,
    /// Keep the values of each process at each call site, for charts.
    pub values: bool,
}

/// A call site in all processes of a program.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SiteRow {
    pub program: Program,
    pub site: Site,
    /// Over all processes of the program.
    #[serde(flatten)]
    pub range: Range,
    pub sum_count: u64,
    /// The number of processes with this call site.
    pub processes: u64,
    /// The values differ too widely for a common one, so no process stands out.
    pub differs: bool,
    pub stands_out: Option<StandsOut>,
    /// What each process holds, by its number, ascending; if [`Options::values`] asks for it.
    #[serde(skip)]
    pub values: Vec<Example>,
}

impl SiteRow {
    pub fn tally(&self) -> Tally {
        Tally::new(self.range.sum_bytes(), self.sum_count)
    }
}

/// A sum over all memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    Held,
    Peak,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessesOut {
    pub what: Quantity,
    #[serde(flatten)]
    pub out: StandsOut,
}

/// One call site in all processes. With thousands of them its values are most of a job's memory, so they are packed.
#[derive(Debug, Default)]
struct Sums {
    /// The end of each run but the last, and how the next one differs: its length, the processes between the two, and the changes of
    /// path and bytes.
    earlier: Vec<u8>,
    last: Run,
    count: u64,
    /// The largest of its estimates in each process that was sampled.
    scatter: HashMap<u32, f64>,
}

/// Processes with consecutive numbers that hold as much each at a call site, through the same stack.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    first: i64,
    count: i64,
    /// The number of the stack and 1; 0: it has none.
    path: i64,
    bytes: u64,
}

impl Run {
    fn end(&self) -> i64 {
        self.first + self.count
    }

    fn parts(self) -> impl Iterator<Item = Part> {
        (self.first..self.end()).map(move |process| Part {
            process: process as u32,
            path: self.path.checked_sub(1).and_then(|path| StackId::try_from(path).ok()),
            bytes: self.bytes,
        })
    }
}

/// Appends a number in LEB128: small ones of either sign take one byte.
fn pack(number: i64, out: &mut Vec<u8>) {
    let mut rest = ((number << 1) ^ (number >> 63)) as u64;
    while rest > 0x7f {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The next number.
fn unpack(packed: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let (mut number, mut shift) = (0, 0);
    loop {
        let byte = packed.next()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some((number >> 1) as i64 ^ -((number & 1) as i64));
        }
        shift += 7;
    }
}

/// What a process holds at a call site through one stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    process: u32,
    path: Option<StackId>,
    bytes: u64,
}

/// A stack of a call site, and what each process holds through it.
type OfPath = (StackId, Vec<Example>);

impl Sums {
    /// Adds what a process holds at this call site, one row for each stack.
    fn add(&mut self, number: u32, rows: &[Row]) {
        for row in rows {
            let (path, bytes) = (row.stack, row.tally.bytes);
            self.count = self.count.saturating_add(row.tally.count);
            if row.scatter > 0.0 {
                let scatter = self.scatter.entry(number).or_default();
                *scatter = scatter.max(row.scatter);
            }
            let path = path.map_or(0, |path| i64::from(path) + 1);
            let (number, last) = (i64::from(number), self.last);
            if (path, bytes, number) != (last.path, last.bytes, last.end()) {
                let more = bytes.wrapping_sub(last.bytes) as i64;
                for number in [last.count, number - last.end(), path - last.path, more] {
                    pack(number, &mut self.earlier);
                }
                self.last = Run {
                    first: number,
                    count: 0,
                    path,
                    bytes,
                };
            }
            self.last.count += 1;
        }
    }

    /// What each process holds, ascending by process.
    fn parts(&self) -> Vec<Part> {
        let (mut parts, mut run) = (Vec::new(), Run::default());
        let mut packed = self.earlier.iter().copied();
        while let Some(count) = unpack(&mut packed) {
            run.count = count;
            parts.extend(run.parts());
            let mut next = || unpack(&mut packed).unwrap_or_default();
            run = Run {
                first: run.end() + next(),
                count: 0,
                path: run.path + next(),
                bytes: run.bytes.wrapping_add(next() as u64),
            };
        }
        parts.extend(self.last.parts());
        parts.sort_unstable();
        parts
    }
}

/// The sums of processes.
fn values(parts: &[Part]) -> Vec<Example> {
    let each = parts.chunk_by(|a, b| a.process == b.process);
    let sum = |of: &[Part]| of.iter().fold(0, |sum: u64, part| sum.saturating_add(part.bytes));
    each.map(|of| (of[0].process, value(sum(of)))).collect()
}

/// The stacks of these processes, ascending, if there are several and all of them are known.
fn paths(parts: &[Part], members: &[u32]) -> Vec<OfPath> {
    if parts.iter().all(|part| part.path == parts[0].path) {
        return Vec::new();
    }
    let mut found: BTreeMap<StackId, Vec<Example>> = BTreeMap::new();
    for &member in members {
        let first = parts.partition_point(|part| part.process < member);
        for part in parts[first..].iter().take_while(|part| part.process == member) {
            let Some(path) = part.path else { return Vec::new() };
            let values = found.entry(path).or_default();
            match values.last_mut() {
                Some((last, bytes)) if *last == member => *bytes = bytes.saturating_add(value(part.bytes)),
                _ => values.push((member, value(part.bytes))),
            }
            if found.len() > PATHS_MAX {
                return Vec::new();
            }
        }
    }
    if found.len() < 2 {
        return Vec::new();
    }
    found.into_iter().collect()
}

/// What the processes of one program hold.
#[derive(Debug, Default)]
pub struct Population {
    sites: HashMap<SiteId, Sums>,
    /// Memory of call sites beyond [`SITES_MAX`].
    pub beyond: Tally,
}

impl Population {
    /// Adds a process.
    pub fn add(&mut self, number: u32, sums: &ProcessSums) {
        for rows in sums.sites.chunk_by(|a, b| a.site == b.site) {
            let site = rows[0].site;
            if self.sites.len() == SITES_MAX && !self.sites.contains_key(&site) {
                self.beyond.join(Tally::total(rows.iter().map(|row| row.tally)));
                continue;
            }
            self.sites.entry(site).or_default().add(number, rows);
        }
    }
}

/// What the processes of one program are judged with.
pub struct Judging<'a> {
    pub program: &'a Program,
    pub peers: &'a Peers,
    pub names: &'a Names<'a>,
    pub sites: &'a Sites,
    /// The processes of all programs, by number.
    pub rows: &'a [Option<Instant>],
    pub options: &'a Options,
    /// Some process was sampled.
    pub is_sampled: bool,
    /// By number: whether the process stands out.
    pub stands_out: &'a mut [bool],
}

impl Judging<'_> {
    fn row(&self, member: u32) -> Option<&Instant> {
        self.rows.get(member as usize)?.as_ref()
    }

    /// The sums of processes that stand out.
    pub fn sums(&mut self) -> Vec<ProcessesOut> {
        type ValueOf = fn(&Instant) -> (u64, f64);
        let quantities: [(Quantity, ValueOf); 2] = [
            (Quantity::Held, |row| (row.held.bytes, row.held_scatter())),
            (Quantity::Peak, |row| (row.peak_bytes, 0.0)),
        ];
        // Peaks are of all memory, also of what a filter left out.
        let is_wanted = |what: Quantity| what != Quantity::Peak || self.options.filter.is_empty();
        let quantities = quantities.into_iter().filter(|(what, _)| is_wanted(*what));
        let mut found = Vec::new();
        for (what, of) in quantities.collect::<Vec<_>>() {
            let of = |&member: &u32| (member, self.row(member).map_or((0, 0.0), of));
            let values = || self.peers.members.iter().map(of);
            let chance = Chance {
                of_byte: values().map(|(_, (_, scatter))| scatter).fold(0.0, f64::max),
                of_value: 0.0,
            };
            let values: Vec<Example> = values().map(|(member, (bytes, _))| (member, value(bytes))).collect();
            let judged = self.peers.judge(&values, chance);
            found.extend(self.find(&judged, &[]).map(|out| ProcessesOut { what, out }));
        }
        found
    }

    /// All call sites.
    pub fn sites(&mut self, population: &Population) -> Vec<SiteRow> {
        let mut sites: Vec<(&SiteId, &Sums)> = population.sites.iter().collect();
        sites.sort_unstable_by_key(|(site, _)| **site);
        sites.into_iter().map(|(site, sums)| self.site(*site, sums)).collect()
    }

    fn site(&mut self, site: SiteId, sums: &Sums) -> SiteRow {
        let parts = sums.parts();
        let values = values(&parts);
        // A process that was sampled may have had some where no block was chosen.
        let scatter = |member: &u32| match sums.scatter.get(member) {
            Some(scatter) => *scatter,
            None if values.binary_search_by_key(member, |value| value.0).is_ok() => 0.0,
            None => self.row(*member).map_or(0.0, Instant::site_scatter),
        };
        let is_exact = !self.is_sampled && sums.scatter.is_empty();
        let chance = |members: &[u32]| match is_exact {
            true => Chance::default(),
            false => Chance {
                of_byte: members.iter().map(scatter).fold(0.0, f64::max),
                of_value: 0.0,
            },
        };
        let behind = |members: &[u32], range: &Range, is_alike: bool| {
            let chance = chance(members);
            let judged = paths(&parts, members).into_iter().filter_map(|(path, of_path)| {
                let out = judge(&of_path, members, chance).1?;
                is_more(&out, &values, range, is_alike).then_some(Outliers {
                    path: Some(path),
                    ..out
                })
            });
            judged.max_by_key(|out| {
                let fingerprint = out.path.map(|path| self.sites.fingerprint(path));
                (out.apart, std::cmp::Reverse(fingerprint))
            })
        };
        let judged = self.peers.judge_closer(&values, chance, behind);
        let stands_out = self.find(&judged, &parts);
        SiteRow {
            program: self.program.clone(),
            site: self.sites.get(site),
            range: judged.range,
            sum_count: sums.count,
            processes: values.len() as u64,
            differs: judged.differs && stands_out.is_none(),
            stands_out,
            values: if self.options.values { values } else { Vec::new() },
        }
    }

    /// The findings of all groups in one sentence. `parts`: what each process holds through each stack of the call site.
    fn find(&mut self, judged: &Judged, parts: &[Part]) -> Option<StandsOut> {
        judged
            .members()
            .for_each(|member| self.stands_out[member as usize] = true);
        // The caller that tells a stack from the others of its site.
        let via = |path: StackId| {
            let is_of_path = |finding: &&Finding| finding.outcome.path == Some(path);
            let finding = judged.unlike.iter().find(is_of_path)?;
            let others = paths(parts, finding.group).into_iter().map(|(other, _)| other);
            let others: Vec<StackId> = others.filter(|other| *other != path).collect();
            self.sites.via(path, &others)
        };
        self.names.stands_out(Values::Bytes, judged, via)
    }
}

/// Whether processes have unusually much through one of the site's stacks. If the sums of the site are alike, a process counts
/// only if its sum shows at least half of the difference: otherwise another stack has less, so the memory went another way.
fn is_more(out: &Outliers, sums: &[Example], range: &Range, is_alike: bool) -> bool {
    let shows = |&(member, bytes): &Example| {
        let at = sums.binary_search_by_key(&member, |sum| sum.0);
        at.is_ok_and(|at| (sums[at].1 - range.median).max(0) >= (bytes - out.median) / 2)
    };
    out.range().0 > out.median && (!is_alike || out.values.iter().all(shows))
}

/// Ranks name processes if each process has its own.
pub fn naming(program: &Program, members: &[u32], rows: &[Option<Instant>], warnings: &mut Vec<String>) -> Naming {
    let rows = || members.iter().filter_map(|member| rows.get(*member as usize)?.as_ref());
    let mut ranks: Vec<u32> = rows().filter_map(|row| row.member.rank).collect();
    ranks.sort_unstable();
    let twice = ranks.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    if let Some(rank) = twice {
        let different = |of: &dyn Fn(&Member) -> Option<String>| {
            let all: BTreeSet<String> = rows().filter_map(|row| of(&row.member)).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_that_were_added_and_take_few_bytes() {
        let value = |process: u32, path, bytes| (process, path, bytes);
        let odd = [
            value(7, Some(StackId::MAX), u64::MAX),
            value(5, None, 0),
            value(u32::MAX, Some(0), 1),
            value(0, None, 0),
            value(1, None, 0),
        ];
        let many =
            (8..10_000).map(|process| value(process ^ 1, Some(9), (32 << 20) + u64::from(process * 7919 % 4096)));
        let mut expected: Vec<_> = odd.into_iter().chain(many).collect();
        let mut sums = Sums::default();
        for &(process, path, bytes) in &expected {
            sums.add(process, &[Row::at(0, path, Tally::new(bytes, 1), 0.0)]);
        }
        expected.sort_unstable();
        let parts = sums.parts();
        let parts: Vec<_> = parts.iter().map(|part| (part.process, part.path, part.bytes)).collect();
        assert_eq!(parts, expected);
        assert!(sums.earlier.len() < 6 * 10_000, "{}", sums.earlier.len());
    }
}
