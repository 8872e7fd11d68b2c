//! How processes are named in sentences about a part of a job: `rank 5`, `ranks 8-15`, `processes node1:4711, node2:80`; and the
//! sentences.

use std::collections::BTreeMap;

use serde::Serialize;

use super::member::{Member, ProcessName, ProcessRef, hosts, ranges};
use super::outliers::{Example, Outliers};
use super::parallel::{self, Finding, Judged, Peers, coordinate};
use crate::analysis::facts::StackId;
use crate::analysis::program::Program;
use crate::analysis::words;
use crate::job_variables::Dimension;

/// Ranges of numbers, or processes, that a sentence lists.
const SHOWN: usize = 8;
/// Processes that a row lists.
pub const LISTED: usize = 64;

/// How processes are called: by rank if each has its own, otherwise by pid and host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Naming {
    Rank,
    Pid,
}

impl Naming {
    /// `ranks`: of all processes.
    pub fn of(ranks: impl Iterator<Item = Option<u32>>) -> Naming {
        let mut ranks: Vec<Option<u32>> = ranks.collect();
        ranks.sort_unstable();
        match ranks.iter().all(Option::is_some) && ranks.windows(2).all(|pair| pair[0] != pair[1]) {
            true => Naming::Rank,
            false => Naming::Pid,
        }
    }

    /// `rank` or `process`, in the number that fits.
    pub fn noun(self, count: u64) -> &'static str {
        match (self, count) {
            (Naming::Rank, 1) => "rank",
            (Naming::Rank, _) => "ranks",
            (Naming::Pid, 1) => "process",
            (Naming::Pid, _) => "processes",
        }
    }

    /// The names of these processes, and of `unnamed` more. `with_hosts`: a pid alone names none.
    pub fn list(self, of: &[ProcessName], with_hosts: bool) -> String {
        let noun = self.noun(of.len() as u64);
        let numbers = |number: &dyn Fn(&ProcessName) -> Option<u32>| {
            let mut numbers: Vec<u32> = of.iter().filter_map(number).collect();
            numbers.sort_unstable();
            ranges(&numbers, SHOWN)
        };
        match self {
            Naming::Rank => format!("{noun} {}", numbers(&|process| process.0)),
            Naming::Pid if with_hosts => {
                let mut pids: Vec<(&str, u32)> = of.iter().map(|&(_, host, pid)| (host, pid)).collect();
                pids.sort_unstable();
                let shown = pids.iter().take(SHOWN).map(|(host, pid)| format!("{host}:{pid}"));
                let shown = shown.collect::<Vec<_>>().join(", ");
                match pids.len().saturating_sub(SHOWN) as u64 {
                    0 => format!("{noun} {shown}"),
                    more => format!("{noun} {shown} and {} more", words::count(more)),
                }
            }
            Naming::Pid => format!("{noun} {}", numbers(&|process| Some(process.2))),
        }
    }
}

/// What values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    Bytes,
    Changes,
}

impl Values {
    fn none(self) -> &'static str {
        match self {
            Values::Bytes => "none",
            Values::Changes => "no change",
        }
    }

    pub fn text(self, value: i64) -> String {
        match self {
            Values::Changes if value == 0 => self.none().to_owned(),
            Values::Changes => words::signed_bytes(value.into()),
            Values::Bytes => words::bytes(value.unsigned_abs()),
        }
    }

    /// `30 MiB each`, `+9 MiB to +11 MiB`, `none`.
    fn range(self, from: i64, to: i64, count: u64) -> String {
        match from == to {
            true if to == 0 => self.none().to_owned(),
            true if count == 1 => self.text(to),
            true => format!("{} each", self.text(to)),
            false => format!("{} to {}", self.text(from), self.text(to)),
        }
    }
}

/// Processes whose values are far from those of the others.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StandsOut {
    pub count: u64,
    /// The sum of the distances from the median.
    pub apart_bytes: u64,
    /// Some of them, if there are many.
    pub processes: Vec<Outlier>,
    /// What is to be said of them.
    pub sentence: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Outlier {
    #[serde(flatten)]
    pub process: ProcessRef,
    /// What it holds, or gained.
    pub bytes: i64,
}

/// The processes of a job, by number.
#[derive(Debug)]
pub struct Names<'a> {
    processes: Vec<Option<(&'a Member, &'a str)>>,
    pub naming: Naming,
    with_hosts: bool,
}

impl<'a> Names<'a> {
    /// Each with its source; `None`: no process has this number.
    pub fn of(processes: impl Iterator<Item = Option<(&'a Member, &'a str)>>) -> Names<'a> {
        let processes: Vec<Option<(&Member, &str)>> = processes.collect();
        let known = || processes.iter().flatten();
        Names {
            with_hosts: hosts(known().map(|(member, _)| &member.host)) > 1,
            naming: Naming::of(known().map(|(member, _)| member.rank)),
            processes,
        }
    }

    /// Those that are compared with each other, by program.
    pub fn peers(&self) -> BTreeMap<&'a Program, Peers> {
        let members = (0..).zip(&self.processes);
        Peers::by_program(members.filter_map(|(number, process)| Some((number, process.as_ref()?.0))))
    }

    fn get(&self, member: u32) -> Option<(&'a Member, &'a str)> {
        *self.processes.get(member as usize)?
    }

    pub fn process(&self, member: u32) -> Option<ProcessRef> {
        self.get(member).map(|(member, source)| ProcessRef::new(member, source))
    }

    fn members(&self, members: impl Iterator<Item = u32>) -> Vec<&'a Member> {
        members.filter_map(|member| Some(self.get(member)?.0)).collect()
    }

    fn named(&self, members: &[&Member], with_hosts: bool) -> String {
        let names: Vec<ProcessName> = members.iter().map(|member| member.name()).collect();
        self.naming.list(&names, with_hosts)
    }

    pub fn list(&self, members: impl Iterator<Item = u32>) -> String {
        self.named(&self.members(members), self.with_hosts)
    }

    /// The outliers of several groups as one; `None` without any. `via`: the caller of a stack.
    pub fn stands_out(
        &self,
        what: Values,
        judged: &Judged,
        via: impl Fn(StackId) -> Option<String>,
    ) -> Option<StandsOut> {
        let all = || judged.unlike.iter().map(|finding| &finding.outcome);
        all().next()?;
        let apart = all().fold(0, |sum: u128, out| sum.saturating_add(out.apart));
        let mut values: Vec<Example> = all().flat_map(|out| &out.values).copied().collect();
        values.sort_unstable();
        let outlier = |(number, bytes)| {
            Some(Outlier {
                process: self.process(number)?,
                bytes,
            })
        };
        Some(StandsOut {
            count: values.len() as u64,
            apart_bytes: u64::try_from(apart).unwrap_or(u64::MAX),
            processes: values.into_iter().take(LISTED).filter_map(outlier).collect(),
            sentence: self.unlike(what, &judged.unlike, via),
        })
    }

    /// Names the processes that differ from the others. If none does, the range of the values.
    pub fn sentence(&self, what: Values, judged: &Judged, values: &[Example]) -> String {
        match judged.unlike.is_empty() {
            true => self.in_common(what, values, judged.range.of_processes),
            false => self.unlike(what, &judged.unlike, |_| None),
        }
    }

    /// `all 8 ranks: +10 MiB each`, `ranks 0-5: +9 MiB to +11 MiB`. `values`: of those that have one; `of`: the number of all.
    fn in_common(&self, what: Values, values: &[Example], of: u64) -> String {
        let (count, all) = (values.len() as u64, || values.iter().map(|value| value.1));
        let range = what.range(all().min().unwrap_or(0), all().max().unwrap_or(0), count);
        match count == of {
            true if self.processes.len() == 1 => range,
            true if of > 1 => format!("all {} {}: {range}", words::count(of), self.naming.noun(of)),
            _ => format!("{}: {range}", self.list(values.iter().map(|value| value.0))),
        }
    }

    /// The sentences about the outliers of several groups as one, those that are farthest apart first.
    fn unlike(&self, what: Values, all: &[Finding], via: impl Fn(StackId) -> Option<String>) -> String {
        let mut order: Vec<&Finding> = all.iter().collect();
        order.sort_by_key(|finding| std::cmp::Reverse(finding.outcome.apart));
        let sentence = |of: &&Finding| self.about(what, of, of.outcome.path.and_then(&via));
        parallel::sentence(order.iter().map(sentence))
    }

    /// `only rank 17: 30 MiB, none in the 63 others of pipeline stage 1`. `via`: the caller, if only memory that was requested through
    /// it was compared.
    fn about(&self, what: Values, of: &Finding, via: Option<String>) -> String {
        let (out, group, scope) = (&of.outcome, of.group, of.scope);
        let via = via.map_or_else(String::new, |via| format!(" through {via}"));
        let who = format!("{}{via}", self.who(out, group));
        let others = group.len() as u64 - out.count();
        let (from, to) = out.range();
        let value = what.range(from, to, out.count());
        let other = match others {
            1 => format!("other{scope}"),
            others => format!("{} others{scope}", words::count(others)),
        };
        if out.is_alone {
            return format!("only {who}: {value}, {} in the {other}", what.none());
        }
        let usual = match (what, out.median) {
            (Values::Bytes, 0) if others == 1 => format!("the {other} has none"),
            (Values::Bytes, 0) => format!("most of the {other} have none"),
            (Values::Bytes, median) if others == 1 => format!("the {other} has {}", what.text(median)),
            (Values::Changes, 0) if others > 1 => format!("most of the {other} did not change"),
            (Values::Changes, median) if others == 1 => format!("the {other} {}", what.text(median)),
            (_, median) => format!("the median{scope} is {}", what.text(median)),
        };
        let times = to as f64 / out.median.max(1) as f64;
        let is_multiple = what == Values::Bytes && from == to && out.median > 0;
        match is_multiple && (1.05..1000.0).contains(&times) {
            true => format!("{who}: {value}, {times:.1}x as much: {usual}"),
            false => format!("{who}: {value}; {usual}"),
        }
    }

    fn who(&self, out: &Outliers, group: &[u32]) -> String {
        let (members, all) = (self.members(out.members()), self.members(group.iter().copied()));
        let mut per_host: BTreeMap<&str, u64> = BTreeMap::new();
        for process in &all {
            *per_host.entry(&process.host).or_default() += 1;
        }
        let host = members.first().map_or("", |process| &process.host);
        let is_on_host = per_host.len() > 1 && members.iter().all(|process| process.host == host);
        let names = self.named(&members, per_host.len() > 1 && !is_on_host);
        match is_on_host {
            true if out.count() > 1 && per_host.get(host) == Some(&out.count()) => format!("{names} (all on {host})"),
            true => format!("{names} on {host}"),
            false => match shared_coordinate(&members, &all) {
                Some(coordinate) => format!("{names} (all of {coordinate})"),
                None => names,
            },
        }
    }
}

/// `tensor rank 0`, if these are all processes of the group that have this coordinate, and others have another.
fn shared_coordinate(members: &[&Member], all: &[&Member]) -> Option<String> {
    if members.len() < 2 || members.len() == all.len() {
        return None;
    }
    Dimension::ALL.iter().find_map(|&dimension| {
        let of = |process: &&Member| process.groups.get(&dimension).copied();
        let at = of(&members[0])?;
        let is_shared = members.iter().all(|process| of(process) == Some(at));
        let is_all = all.iter().filter(|process| of(process) == Some(at)).count() == members.len();
        (is_shared && is_all).then(|| coordinate(dimension, at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_named_by_rank_if_each_has_its_own() {
        let ranks = [(Some(9), "a", 1), (Some(8), "a", 2), (Some(3), "a", 3)];
        let naming = |ranks: &[Option<u32>]| Naming::of(ranks.iter().copied());
        assert_eq!(naming(&[Some(9), Some(8), Some(3)]), Naming::Rank);
        assert_eq!(Naming::Rank.list(&ranks, true), "ranks 3, 8-9");
        assert_eq!(Naming::Rank.list(&ranks[..1], true), "rank 9");
        assert_eq!(naming(&[Some(1), Some(1)]), Naming::Pid);
        assert_eq!(naming(&[Some(1), None]), Naming::Pid);
        assert_eq!(Naming::Pid.list(&ranks, false), "processes 1-3");
        assert_eq!(Naming::Pid.list(&ranks[2..], true), "process a:3");
    }
}
