//! What holds memory in several processes: answers of `culeak why`, merged by the shape of the path.
//!
//! Paths have `*` in the place of indices and keys, so processes of one program have the same ones. A row is the memory of one call
//! site over one path; the rule of a job's report says which processes hold unlike the others.
//!
//! Deliberately absent: what would be freed with a holder, which is a question about one process.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Unreadable;
use super::identity::rank_of;
use super::names::{self, Named};
use super::outliers::{Naming, Verdict, judge_each};
use super::spread::Spread;
use crate::analysis::tally::Tally;
use crate::analysis::why::Why;
use crate::analysis::why::words::class_and_origin;
use crate::analysis::words;
use crate::snapshot::{Class, Process};

/// The value of [`JobWhy::format`].
pub const FORMAT: &str = "culeak-job-why";
pub const VERSION: u32 = 1;

/// What to show.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub top: Option<usize>,
    pub min_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobWhy {
    pub format: &'static str,
    pub version: u32,
    /// In the order of the inputs.
    pub processes: Vec<ProcessAnswer>,
    pub hosts: usize,
    /// The selected memory of all processes.
    pub total: Tally,
    /// Those that processes have unlike the others first, then largest first.
    pub holders: Vec<HolderRow>,
    pub hidden_holders: usize,
    pub hidden: Tally,
    /// Memory of all processes whose holders changed during the search, and that was not searched.
    pub changed: Tally,
    pub not_searched: Tally,
    /// Inputs that cannot be read, or whose holders were not searched for.
    pub unreadable: Vec<Unreadable>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessAnswer {
    pub source: String,
    pub rank: Option<u32>,
    pub host: String,
    pub pid: u32,
    #[serde(flatten)]
    pub total: Tally,
}

/// Memory of one call site that is held over paths of one shape.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HolderRow {
    pub class: Class,
    /// `__main__.keep`, `a running function`.
    pub origin: String,
    /// From the origin on; indices and keys are `*`.
    pub path: String,
    pub label: String,
    pub place: Option<String>,
    #[serde(flatten)]
    pub tally: Tally,
    /// Over all processes; one without such memory has 0 bytes.
    pub median_bytes: u64,
    pub min_bytes: u64,
    pub max_bytes: u64,
    pub processes: u64,
    pub of_processes: u64,
    /// The process that has most.
    pub largest: String,
    /// Who has how much, in words.
    pub sentence: String,
    pub stands_out: bool,
}

type Key = (Class, String, String, String, Option<String>);

/// Answers of processes, added one after the other.
#[derive(Debug, Default)]
pub struct Job {
    processes: Vec<ProcessAnswer>,
    holders: BTreeMap<Key, BTreeMap<u32, Tally>>,
    changed: Tally,
    not_searched: Tally,
}

impl Job {
    /// Adds the answer of a process, which must list all of its holders.
    pub fn add(&mut self, source: String, rank: Option<u32>, why: &Why) {
        let number = self.processes.len() as u32;
        self.processes.push(ProcessAnswer {
            source,
            rank,
            host: why.process.host.to_owned(),
            pid: why.process.pid,
            total: why.total,
        });
        self.changed.join(why.changed);
        self.not_searched.join(why.not_searched);
        for origin in &why.origins {
            // Without the type: `list of 60` differs between processes.
            let name = class_and_origin(origin.class, origin.root, origin.origin, "", origin.note);
            for row in &origin.holders {
                let key = (
                    origin.class,
                    name.clone(),
                    row.path.clone(),
                    row.label.clone(),
                    row.place.clone(),
                );
                self.holders
                    .entry(key)
                    .or_default()
                    .entry(number)
                    .or_default()
                    .join(row.tally);
            }
        }
    }

    /// Adds a process without memory that was asked for.
    pub fn add_without(&mut self, source: String, process: &Process) {
        self.processes.push(ProcessAnswer {
            source,
            rank: rank_of(&process.ranks),
            host: process.host.clone(),
            pid: process.pid,
            total: Tally::default(),
        });
    }

    /// The answer of the job.
    pub fn finish(self, unreadable: Vec<Unreadable>, options: &Options) -> JobWhy {
        let Job {
            processes,
            holders,
            changed,
            not_searched,
        } = self;
        let hosts: BTreeSet<&str> = processes.iter().map(|process| process.host.as_str()).collect();
        let words = Words {
            naming: names::naming(processes.iter().map(named)),
            several_hosts: hosts.len() > 1,
            processes: &processes,
        };
        let mut rows: Vec<HolderRow> = holders
            .into_iter()
            .map(|(key, values)| words.row(key, &values))
            .collect();
        // Those of one key order stay in it.
        rows.sort_by_key(|row| std::cmp::Reverse((row.stands_out, row.tally.bytes)));
        let (mut shown, mut hidden): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| row.tally.bytes >= options.min_bytes);
        hidden.extend(shown.split_off(options.top.unwrap_or(shown.len()).min(shown.len())));
        JobWhy {
            format: FORMAT,
            version: VERSION,
            hosts: hosts.len(),
            total: Tally::total(processes.iter().map(|process| process.total)),
            holders: shown,
            hidden_holders: hidden.len(),
            hidden: Tally::total(hidden.iter().map(|row| row.tally)),
            changed,
            not_searched,
            unreadable,
            processes,
        }
    }
}

fn named(process: &ProcessAnswer) -> Named<'_> {
    Named {
        rank: process.rank,
        host: &process.host,
        pid: process.pid,
    }
}

/// What sentences need of the processes.
struct Words<'p> {
    processes: &'p [ProcessAnswer],
    naming: Naming,
    several_hosts: bool,
}

impl Words<'_> {
    fn row(&self, (class, origin, path, label, place): Key, values: &BTreeMap<u32, Tally>) -> HolderRow {
        let of = self.processes.len() as u64;
        let mut spread = Spread::default();
        values
            .iter()
            .for_each(|(&member, tally)| spread.add(member, tally.bytes));
        let bytes = |member: u32| values.get(&member).map_or(0, |tally| tally.bytes);
        let all: Vec<(u32, u64)> = (0..self.processes.len() as u32)
            .map(|member| (member, bytes(member)))
            .collect();
        let largest = values.iter().max_by_key(|(_, tally)| tally.bytes);
        let largest = largest.map(|(&member, _)| self.processes[member as usize].source.clone());
        let out = match judge_each(&spread, &all) {
            Verdict::StandOut(out) => Some(out.members),
            Verdict::Alike | Verdict::NoCommonValue => None,
        };
        let members: Vec<u32> = match &out {
            Some(members) => members.clone(),
            None => values.keys().copied().collect(),
        };
        HolderRow {
            sentence: self.sentence(&members, &bytes, out.is_some(), values.len() as u64),
            class,
            origin,
            path,
            label,
            place,
            tally: Tally::total(values.values().copied()),
            median_bytes: spread.median(of).0,
            min_bytes: spread.min(of),
            max_bytes: spread.max,
            processes: spread.have(),
            of_processes: of,
            largest: largest.unwrap_or_default(),
            stands_out: out.is_some(),
        }
    }

    /// `all 64 ranks: 30 MiB each`, `only rank 5: 30 MiB, none in the 7 others`.
    fn sentence(&self, members: &[u32], bytes: &dyn Fn(u32) -> u64, out: bool, have: u64) -> String {
        let of = self.processes.len() as u64;
        let count = members.len() as u64;
        let all = members.iter().map(|&member| bytes(member));
        let (least, most) = (all.clone().min().unwrap_or(0), all.max().unwrap_or(0));
        let value = match (least == most, count) {
            (true, _) if most == 0 => "none".to_owned(),
            (true, 1) => words::bytes(most),
            (true, _) => format!("{} each", words::bytes(most)),
            (false, _) => format!("{} to {}", words::bytes(least), words::bytes(most)),
        };
        let named: Vec<Named> = members
            .iter()
            .map(|&member| named(&self.processes[member as usize]))
            .collect();
        let names = names::list(&named, self.naming, self.several_hosts);
        match (count == of, out, count == have) {
            (true, ..) if of == 1 => value,
            (true, ..) => format!("all {} {}: {value}", words::count(of), names::noun(self.naming, of)),
            (false, true, true) if most > 0 => {
                let other = if of - count == 1 {
                    "other".to_owned()
                } else {
                    format!("{} others", words::count(of - count))
                };
                format!("only {names}: {value}, none in the {other}")
            }
            (false, true, _) => format!("{names}: {value}, unlike the others"),
            (false, false, _) => format!("{names}: {value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::why;
    use crate::sample::held;

    fn answer(ranks: u32, change: impl Fn(u32) -> u64) -> JobWhy {
        let mut job = Job::default();
        for rank in 0..ranks {
            let mut snapshot = held();
            snapshot.process.pid = 100 + rank;
            snapshot
                .allocations
                .change(|_, allocation, _| allocation.bytes *= change(rank));
            let why = Why::of(&snapshot, &why::Options::default()).expect("an answer");
            job.add(format!("{rank}.json"), Some(rank), &why);
        }
        job.finish(Vec::new(), &Options::default())
    }

    #[test]
    fn paths_of_equal_shape_are_one_row() {
        let mut one = answer(1, |_| 1);
        let eight = answer(8, |_| 1);
        assert_eq!(eight.holders.len(), one.holders.len());
        assert_eq!(eight.total.bytes, 8 * one.total.bytes);
        assert!(
            eight
                .holders
                .iter()
                .all(|row| row.sentence.starts_with("all 8 ranks: ")),
            "{:?}",
            eight.holders[0]
        );
        let sum = Tally::total(eight.holders.iter().map(|row| row.tally));
        one.holders.iter_mut().for_each(|row| row.tally.bytes *= 8);
        assert_eq!(sum.bytes, Tally::total(one.holders.iter().map(|row| row.tally)).bytes);
    }

    #[test]
    fn a_rank_that_holds_more_is_named_first() {
        let job = answer(8, |rank| if rank == 5 { 4 } else { 1 });
        let first = &job.holders[0];
        assert!(first.stands_out && first.sentence.starts_with("rank 5: "), "{first:?}");
        assert_eq!(first.largest, "5.json");
    }
}
