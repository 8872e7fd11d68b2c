//! Which processes differ from the others, and the sentence about it.
//!
//! Only like is judged with like: processes of one group (`population.rs`). A value stands out if it is far from the median, measured in
//! the usual spread of the values (robust z-score: 0.6745 (x - median) / MAD, at least 8), and if the distance matters: at
//! least 64 KiB and a tenth of the median. The MAD counts as at least 1 % of the median, since equal processes have none.
//! If more than a quarter of the processes, and more than one, would stand out, there is no common value and none is named.
//! Fewer than [`ENOUGH`] processes do not show their usual spread, so there a value must also be twice the median or half of
//! it. Of two processes none is usual, and the larger one is named.
//!
//! Estimates from sampled stacks differ by chance. So their distance must also exceed [`CERTAIN`] standard errors of the
//! difference, where a process without a chosen block may have had some.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::member::ranges;
use super::sites::ProcessRow;
use super::spread::{EXAMPLES, Example, Spread};
use crate::analysis::estimate::CERTAIN;
use crate::analysis::words;
use crate::job_variables::Dimension;

/// The least distance from the median that matters.
pub const LEAST: u64 = 64 << 10;
/// The robust z-score from which on a value stands out.
pub const SCORE: f64 = 8.0;
/// With fewer processes, chance often puts one far from the others.
pub const ENOUGH: u64 = 6;
/// Ranges of ranks that a sentence lists.
const RANGES: usize = 8;

/// Processes whose values are far from those of the others.
#[derive(Debug, Clone, PartialEq)]
pub struct Outliers {
    pub count: u64,
    /// Ascending; all of them, unless `count` is larger.
    pub members: Vec<u32>,
    /// Some of them, with their values.
    pub examples: Vec<Example>,
    /// The least and the largest of their values.
    pub from: u64,
    pub to: u64,
    pub median: u64,
    /// The processes that they are compared with have no value at all.
    pub is_alone: bool,
    /// The sum of the distances from the median.
    pub apart: u128,
}

/// What is to be said of a quantity.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Alike,
    /// The values differ too widely for a common one.
    NoCommonValue,
    StandOut(Outliers),
}

/// The usual values of a population, with which each is compared.
struct Usual {
    of: u64,
    median: u64,
    deviation: u64,
    /// The variance of each byte, if the values are estimates.
    scatter: f64,
}

impl Usual {
    /// `None`: there are no others to compare with.
    fn of(spread: &Spread, of: u64) -> Option<Usual> {
        let (median, _) = spread.median(of);
        let deviation = spread.deviation(of, median).max(median / 100).max(1);
        let scatter = spread.scatter;
        (of >= 2).then_some(Usual {
            of,
            median,
            deviation,
            scatter,
        })
    }

    fn is_out(&self, value: u64) -> bool {
        let distance = value.abs_diff(self.median);
        let is_far = || 0.6745 * distance as f64 / self.deviation as f64 >= SCORE;
        let is_twice = || value / 2 >= self.median || value <= self.median / 2;
        let matters = distance >= LEAST.max(self.median / 10).max(self.by_chance(value));
        // The lower median of two is the smaller value, and the larger one is compared with it.
        matters && (self.of == 2 || is_far()) && (self.of >= ENOUGH || is_twice())
    }

    /// How far the estimate of an equal process may be from the median.
    fn by_chance(&self, value: u64) -> u64 {
        let variance = (value as f64 + self.median as f64) * self.scatter;
        (CERTAIN as f64 * variance.sqrt()) as u64
    }

    /// Whether so many outliers leave a common value.
    fn has_common_value(&self, out: u64) -> bool {
        out <= (self.of / 4).max(1)
    }

    /// The verdict if no value is out: where most are far from the median, as if half of the processes have nothing, they do
    /// not have it in common.
    fn without_outliers(&self) -> Verdict {
        let by_chance = self.by_chance(self.median.saturating_add(self.deviation));
        match self.deviation >= LEAST.max(self.median / 4).max(by_chance) {
            true => Verdict::NoCommonValue,
            false => Verdict::Alike,
        }
    }

    fn apart(&self, value: u64, count: u64) -> u128 {
        u128::from(value.abs_diff(self.median)) * u128::from(count)
    }
}

/// Judges the values of a population, whose members are given in ascending order.
pub fn judge(spread: &Spread, population: &[u32]) -> Verdict {
    let Some(usual) = Usual::of(spread, population.len() as u64) else {
        return Verdict::Alike;
    };
    let absent = usual.of.saturating_sub(spread.have());
    let absent_are_out = absent > 0 && usual.is_out(0);
    let out = || spread.buckets().filter(|bucket| usual.is_out(bucket.value()));
    let of_buckets: u64 = out().map(|bucket| bucket.count).sum();
    let count = of_buckets + if absent_are_out { absent } else { 0 };
    if count == 0 {
        return usual.without_outliers();
    }
    if !usual.has_common_value(count) {
        return Verdict::NoCommonValue;
    }
    let mut examples: Vec<Example> = out().flat_map(|bucket| bucket.examples.iter().copied()).collect();
    let mut members: Vec<u32> = match of_buckets == spread.have() {
        true => spread.members.ascending(),
        false => examples.iter().map(|example| example.0).collect(),
    };
    if absent_are_out {
        let without = population.iter().filter(|member| !spread.members.contains(**member));
        let without: Vec<u32> = without.copied().collect();
        examples.extend(without.iter().take(EXAMPLES).map(|&member| (member, 0)));
        members.extend(without);
    }
    members.sort_unstable();
    examples.sort_unstable();
    let values = || out().map(|bucket| bucket.examples.iter().map(|example| example.1));
    let zero = absent_are_out.then_some(0);
    let buckets = out().map(|bucket| (bucket.value(), bucket.count));
    let all = buckets.chain(zero.map(|zero| (zero, absent)));
    Verdict::StandOut(Outliers {
        count,
        from: values().flatten().chain(zero).min().unwrap_or(0),
        to: values().flatten().chain(zero).max().unwrap_or(0),
        median: usual.median,
        is_alone: of_buckets == spread.have() && !absent_are_out,
        apart: all.map(|(value, count)| usual.apart(value, count)).sum(),
        members,
        examples,
    })
}

/// As [`judge`], where the value of every process is known, so that all outliers are.
pub fn judge_each(spread: &Spread, values: &[Example]) -> Verdict {
    let Some(usual) = Usual::of(spread, values.len() as u64) else {
        return Verdict::Alike;
    };
    let is_out = |example: &Example| usual.is_out(example.1);
    let out: Vec<Example> = values.iter().copied().filter(is_out).collect();
    let Some(from) = out.iter().map(|example| example.1).min() else {
        return usual.without_outliers();
    };
    if !usual.has_common_value(out.len() as u64) {
        return Verdict::NoCommonValue;
    }
    Verdict::StandOut(Outliers {
        count: out.len() as u64,
        from,
        to: out.iter().map(|example| example.1).max().unwrap_or(from),
        median: usual.median,
        is_alone: from > 0 && values.iter().all(|example| example.1 == 0 || is_out(example)),
        apart: out.iter().map(|&(_, value)| usual.apart(value, 1)).sum(),
        members: out.iter().map(|example| example.0).collect(),
        examples: out.into_iter().take(EXAMPLES).collect(),
    })
}

/// How processes are called: by rank if each has its own, otherwise by pid and host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Naming {
    Rank,
    Pid,
}

/// Where a group of processes is in the job: coordinates in dimensions of parallelism. Empty: it is the whole job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope(pub Vec<(Dimension, u32)>);

impl Scope {
    /// `pipeline stage 1, tensor rank 0`; empty if it is the whole job.
    pub fn names(&self) -> String {
        let names = self.0.iter().map(|(dimension, at)| coordinate(*dimension, *at));
        names.collect::<Vec<String>>().join(", ")
    }
}

/// With ` of ` before it, for the end of a sentence.
impl fmt::Display for Scope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_empty() {
            true => Ok(()),
            false => write!(out, " of {}", self.names()),
        }
    }
}

fn coordinate(dimension: Dimension, at: u32) -> String {
    let name = match dimension {
        Dimension::Pipeline => "pipeline stage",
        Dimension::Tensor => "tensor rank",
        Dimension::Expert => "expert rank",
        Dimension::Context => "context rank",
        Dimension::Data => "data rank",
    };
    format!("{name} {at}")
}

/// Processes that were compared with each other.
pub struct Group<'a> {
    /// Ascending.
    pub members: &'a [u32],
    /// Those of the job, by number.
    pub rows: &'a [Option<ProcessRow>],
    pub naming: Naming,
    pub scope: &'a Scope,
    /// The caller, if only memory that was requested through it was compared.
    pub via: Option<String>,
}

/// `only rank 17: 30 MiB, none in the 63 others of pipeline stage 1`.
pub fn sentence(out: &Outliers, group: &Group) -> String {
    let via = group
        .via
        .as_ref()
        .map_or_else(String::new, |via| format!(" through {via}"));
    let (who, scope) = (format!("{}{via}", who(out, group)), group.scope);
    let others = group.members.len() as u64 - out.count;
    let value = match (out.from, out.to) {
        (0, 0) => "none".to_owned(),
        (from, to) if from == to && out.count > 1 => format!("{} each", words::bytes(to)),
        (from, to) if from == to => words::bytes(to),
        (from, to) => format!("{} to {}", words::bytes(from), words::bytes(to)),
    };
    let other = if others == 1 {
        format!("other{scope}")
    } else {
        format!("{} others{scope}", words::count(others))
    };
    if out.is_alone {
        return format!("only {who}: {value}, none in the {other}");
    }
    let usual = match out.median {
        0 if others == 1 => format!("the {other} has none"),
        0 => format!("most of the {other} have none"),
        median if others == 1 => format!("the {other} has {}", words::bytes(median)),
        median => format!("the median{scope} is {}", words::bytes(median)),
    };
    let times = out.to as f64 / out.median.max(1) as f64;
    match out.from == out.to && out.median > 0 && (1.05..1000.0).contains(&times) {
        true => format!("{who}: {value}, {times:.1}x as much: {usual}"),
        false => format!("{who}: {value}; {usual}"),
    }
}

fn who(out: &Outliers, group: &Group) -> String {
    let row = |member: &u32| group.rows.get(*member as usize).and_then(Option::as_ref);
    let members: Vec<&ProcessRow> = out.members.iter().filter_map(row).collect();
    let unnamed = out.count.saturating_sub(members.len() as u64);
    let noun = |one: &'static str, many: &'static str| if out.count == 1 { one } else { many };
    let mut per_host: BTreeMap<&str, u64> = BTreeMap::new();
    for row in group.members.iter().filter_map(row) {
        *per_host.entry(&row.member.host).or_default() += 1;
    }
    let host = members.first().map(|row| row.member.host.as_str()).unwrap_or_default();
    let is_on_host = members.iter().all(|row| row.member.host == host);
    let on_one_host = unnamed == 0 && per_host.len() > 1 && is_on_host;
    let names = match group.naming {
        Naming::Rank => {
            let mut ranks: Vec<u32> = members.iter().filter_map(|row| row.member.rank).collect();
            ranks.sort_unstable();
            format!("{} {}", noun("rank", "ranks"), ranges(&ranks, unnamed, RANGES))
        }
        // A pid names a process of one host.
        Naming::Pid if per_host.len() > 1 && !on_one_host => {
            let pids = members.iter().map(|row| (row.member.host.as_str(), row.member.pid));
            let mut pids: Vec<(&str, u32)> = pids.collect();
            pids.sort_unstable();
            let shown = pids.iter().take(RANGES).map(|(host, pid)| format!("{host}:{pid}"));
            let shown = shown.collect::<Vec<_>>().join(", ");
            let more = match out.count.saturating_sub(RANGES.min(pids.len()) as u64) {
                0 => String::new(),
                more => format!(" and {} more", words::count(more)),
            };
            format!("{} {shown}{more}", noun("process", "processes"))
        }
        Naming::Pid => {
            let mut pids: Vec<u32> = members.iter().map(|row| row.member.pid).collect();
            pids.sort_unstable();
            format!("{} {}", noun("process", "processes"), ranges(&pids, unnamed, RANGES))
        }
    };
    let place = match on_one_host {
        true if out.count > 1 && per_host.get(host) == Some(&out.count) => format!(" (all on {host})"),
        true => format!(" on {host}"),
        false => shared_coordinate(out, &members, group).map_or_else(String::new, |name| format!(" (all of {name})")),
    };
    format!("{names}{place}")
}

/// `tensor rank 0`, if these are all processes of the group that have this coordinate, and others have another.
fn shared_coordinate(out: &Outliers, members: &[&ProcessRow], group: &Group) -> Option<String> {
    if out.count < 2 || out.count != members.len() as u64 || members.len() == group.members.len() {
        return None;
    }
    let rows = || {
        group
            .members
            .iter()
            .filter_map(|member| group.rows.get(*member as usize)?.as_ref())
    };
    Dimension::ALL.into_iter().find_map(|dimension| {
        let of = |row: &ProcessRow| row.member.groups.get(&dimension).copied();
        let at = of(members[0])?;
        let is_shared = members.iter().all(|row| of(row) == Some(at));
        let is_all = rows().filter(|row| of(row) == Some(at)).count() == members.len();
        (is_shared && is_all).then(|| coordinate(dimension, at))
    })
}
