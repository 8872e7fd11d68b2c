//! What holds memory in several processes: answers of `culeak why`, merged by the shape of the path.
//!
//! Paths have `*` in the place of indices and keys, so processes of one program have the same ones. A row is the memory of one call
//! site over one path, in the processes of one program; the rule of a job's report says which processes hold unlike the others that
//! do the same work.
//!
//! Deliberately absent: what would be freed with a holder, which is a question about one process.

use std::collections::BTreeMap;

use serde::Serialize;

use super::member::{Member, hosts};
use super::names::{Names, Values};
use super::outliers::{Chance, Example, Range, value};
use super::parallel::Peers;
use super::{Options, Unreadable};
use crate::analysis::program::Program;
use crate::analysis::report::Cut;
use crate::analysis::why::Why;
use crate::snapshot::Class;
use crate::tally::Tally;

/// The value of [`JobWhy::format`].
pub const FORMAT: &str = "culeak-job-why";
pub const VERSION: u32 = 2;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobWhy {
    pub format: &'static str,
    pub version: u32,
    /// In the order of the inputs.
    pub processes: Vec<ProcessAnswer>,
    pub hosts: usize,
    pub programs: Vec<Program>,
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessAnswer {
    pub source: String,
    #[serde(flatten)]
    pub member: Member,
    #[serde(flatten)]
    pub total: Tally,
}

/// Memory of one call site that is held over paths of one shape.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HolderRow {
    pub program: Program,
    pub class: Class,
    /// `__main__.keep`, `a running function`.
    pub origin: String,
    /// From the origin on; indices and keys are `*`.
    pub path: String,
    pub label: String,
    pub place: Option<String>,
    #[serde(flatten)]
    pub tally: Tally,
    /// Over all processes of the program.
    #[serde(flatten)]
    pub range: Range,
    /// The process that has most.
    pub largest: String,
    /// Who has how much, in words.
    pub sentence: String,
    pub stands_out: bool,
}

type Key = (Program, Class, String, String, String, Option<String>);

/// Answers of processes, added one after the other.
#[derive(Debug, Default)]
pub struct Job {
    /// Without its holders.
    answer: JobWhy,
    holders: BTreeMap<Key, BTreeMap<u32, Tally>>,
}

impl Job {
    /// Adds a process, whose answer must list all of its holders; `None`: it has no memory that was asked for.
    pub fn add(&mut self, source: String, member: Member, why: Option<&Why>) {
        let (number, program) = (self.answer.processes.len() as u32, member.program.clone());
        let total = why.map_or_else(Tally::default, |why| why.total);
        self.answer.total.join(total);
        self.answer.processes.push(ProcessAnswer { source, member, total });
        let Some(why) = why else { return };
        self.answer.changed.join(why.changed);
        self.answer.not_searched.join(why.not_searched);
        for origin in &why.origins {
            let name = origin.key.text_without_type();
            for row in &origin.holders {
                let key = (
                    program.clone(),
                    origin.key.class,
                    name.clone(),
                    row.path.clone(),
                    row.label.clone(),
                    row.place.clone(),
                );
                let values = self.holders.entry(key).or_default();
                values.entry(number).or_default().join(row.tally);
            }
        }
    }

    /// The answer of the job.
    pub fn finish(self, unreadable: Vec<Unreadable>, options: &Options) -> JobWhy {
        let Job { answer, holders } = self;
        let processes = &answer.processes;
        let names = Names::of((processes.iter()).map(|process| Some((&process.member, &*process.source))));
        let peers = names.peers();
        let row = |(key, values)| row(&peers, &names, key, &values);
        let mut rows: Vec<HolderRow> = holders.into_iter().map(row).collect();
        // Those of one key order stay in it.
        rows.sort_by_key(|row| std::cmp::Reverse((row.stands_out, row.tally.bytes)));
        let (_, hidden) = Cut::off(&mut rows, |row| row.tally.bytes >= options.min_bytes, options.top);
        JobWhy {
            format: FORMAT,
            version: VERSION,
            hosts: hosts(processes.iter().map(|process| &process.member.host)),
            programs: peers.into_keys().cloned().collect(),
            holders: rows,
            hidden_holders: hidden.len(),
            hidden: Tally::total(hidden.iter().map(|row| row.tally)),
            unreadable,
            ..answer
        }
    }
}

fn row(
    peers: &BTreeMap<&Program, Peers>,
    names: &Names,
    (program, class, origin, path, label, place): Key,
    values: &BTreeMap<u32, Tally>,
) -> HolderRow {
    let bytes = values.iter().map(|(&member, tally)| (member, value(tally.bytes)));
    let bytes: Vec<Example> = bytes.collect();
    let judged = peers[&program].judge(&bytes, Chance::default());
    let largest = values.iter().max_by_key(|(_, tally)| tally.bytes);
    let largest = largest.and_then(|(&member, _)| names.process(member));
    HolderRow {
        sentence: names.sentence(Values::Bytes, &judged, &bytes),
        program,
        class,
        origin,
        path,
        label,
        place,
        tally: Tally::total(values.values().copied()),
        range: judged.range,
        largest: largest.map_or_else(String::new, |process| process.source),
        stands_out: !judged.unlike.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::analysis::why;
    use crate::job_variables::Dimension;
    use crate::sample::held;

    fn answer(ranks: u32, change: impl Fn(u32) -> u64) -> JobWhy {
        answer_of(ranks, change, |_| ())
    }

    fn answer_of(ranks: u32, change: impl Fn(u32) -> u64, place: impl Fn(&mut Member)) -> JobWhy {
        let mut job = Job::default();
        for rank in 0..ranks {
            let mut snapshot = held();
            snapshot.process.pid = 100 + rank;
            snapshot.process.ranks.insert("RANK".to_owned(), rank.to_string());
            snapshot
                .allocations
                .change(|_, allocation, _| allocation.bytes *= change(rank));
            let why = Why::of(&snapshot, &why::Options::default()).expect("an answer");
            let mut member = Member::of(&snapshot);
            place(&mut member);
            job.add(format!("{rank}.json"), member, Some(&why));
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

    #[test]
    fn ranks_of_other_stages_and_programs_are_not_compared() {
        let of_stage_1 = |rank: u32| if rank % 4 == 3 { 4 } else { 1 };
        let stages = answer_of(8, of_stage_1, |member| {
            let stage = u32::from(member.rank.is_some_and(|rank| rank % 4 == 3));
            member.identity.groups = [(Dimension::Pipeline, stage)].into();
        });
        assert!(stages.holders.iter().all(|row| !row.stands_out), "{:?}", stages.holders);
        let programs = answer_of(
            8,
            |rank| if rank == 3 { 4 } else { 1 },
            |member| {
                if member.rank == Some(3) {
                    member.program.script = Some("other.py".to_owned());
                }
            },
        );
        assert_eq!(programs.programs.len(), 2);
        assert!(
            programs.holders.iter().all(|row| !row.stands_out),
            "{:?}",
            programs.holders
        );
        let of: BTreeSet<(Option<&str>, u64)> = programs
            .holders
            .iter()
            .map(|row| (row.program.script.as_deref(), row.range.of_processes))
            .collect();
        assert!(
            of.contains(&(Some("other.py"), 1)) && of.iter().any(|(_, of)| *of == 7),
            "{of:?}"
        );
    }

    #[test]
    fn a_rank_that_holds_more_than_its_stage_is_named_with_it() {
        let job = answer_of(
            8,
            |rank| if rank == 5 { 40 } else { u64::from(rank / 4) + 1 },
            |member| {
                let stage = member.rank.map_or(0, |rank| rank / 4);
                member.identity.groups = [(Dimension::Pipeline, stage)].into();
            },
        );
        let first = &job.holders[0];
        assert!(
            first.sentence.starts_with("rank 5: ") && first.sentence.contains("the median of pipeline stage 1 is "),
            "{first:?}"
        );
    }
}
