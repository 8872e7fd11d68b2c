//! Which processes differ from the others, and the sentence about it.
//!
//! Only like is judged with like: processes of one program. A value stands out if it is far from the median, measured in
//! the usual spread of the values (robust z-score: 0.6745 (x - median) / MAD, at least 8), and if the distance matters: at
//! least 64 KiB and a tenth of the median. The MAD counts as at least 1 % of the median, since equal processes have none.
//! If more than a quarter of the processes would stand out, there is no common value and none is named. Of two processes none
//! is usual, and the larger one is named.

use std::collections::BTreeMap;

use serde::Serialize;

use super::member::ranges;
use super::sites::ProcessRow;
use super::spread::{Example, Spread};
use crate::analysis::words;

/// The least distance from the median that matters.
pub const LEAST: u64 = 64 << 10;
/// The robust z-score from which on a value stands out.
const SCORE: f64 = 8.0;
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

/// Judges the values of a population, whose members are given in ascending order.
pub fn judge(spread: &Spread, population: &[u32]) -> Verdict {
    let of = population.len() as u64;
    if of < 2 {
        return Verdict::Alike;
    }
    let (median, _) = spread.median(of);
    let deviation = spread.deviation(of, median).max(median / 100).max(1);
    let matters = LEAST.max(median / 10);
    // The lower median of two is the smaller value, and the larger one is compared with it.
    let is_out = |value: u64| {
        let distance = value.abs_diff(median);
        let score = if of == 2 {
            SCORE
        } else {
            0.6745 * distance as f64 / deviation as f64
        };
        distance >= matters && score >= SCORE
    };
    let absent = of.saturating_sub(spread.have());
    let absent_are_out = absent > 0 && is_out(0);
    let out = || spread.buckets().filter(|bucket| is_out(bucket.value()));
    let of_buckets: u64 = out().map(|bucket| bucket.count).sum();
    let count = of_buckets + if absent_are_out { absent } else { 0 };
    if count == 0 {
        return Verdict::Alike;
    }
    if count > (of / 4).max(1) {
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
        examples.extend(without.iter().map(|&member| (member, 0)));
        members.extend(without);
    }
    members.sort_unstable();
    examples.sort_unstable();
    let values = || out().map(|bucket| bucket.examples.iter().map(|example| example.1));
    let zero = absent_are_out.then_some(0);
    let apart = |(value, count): (u64, u64)| u128::from(value.abs_diff(median)) * u128::from(count);
    let buckets = out().map(|bucket| (bucket.value(), bucket.count));
    Verdict::StandOut(Outliers {
        count,
        from: values().flatten().chain(zero).min().unwrap_or(0),
        to: values().flatten().chain(zero).max().unwrap_or(0),
        median,
        is_alone: of_buckets == spread.have() && !absent_are_out,
        apart: buckets.chain(zero.map(|zero| (zero, absent))).map(apart).sum(),
        members,
        examples,
    })
}

/// How processes are called: by rank if each has its own, otherwise by pid and host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Naming {
    Rank,
    Pid,
}

/// `only rank 17: 30 MiB, none in the 63 others`.
pub fn sentence(out: &Outliers, population: &[u32], rows: &[Option<ProcessRow>], naming: Naming) -> String {
    let who = who(out, population, rows, naming);
    let others = population.len() as u64 - out.count;
    let value = match (out.from, out.to) {
        (0, 0) => "none".to_owned(),
        (from, to) if from == to && out.count > 1 => format!("{} each", words::bytes(to)),
        (from, to) if from == to => words::bytes(to),
        (from, to) => format!("{} to {}", words::bytes(from), words::bytes(to)),
    };
    let other = if others == 1 {
        "other".to_owned()
    } else {
        format!("{} others", words::count(others))
    };
    if out.is_alone {
        return format!("only {who}: {value}, none in the {other}");
    }
    let usual = match out.median {
        0 => format!("most of the {other} have none"),
        median if others == 1 => format!("the other has {}", words::bytes(median)),
        median => format!("the median is {}", words::bytes(median)),
    };
    let times = out.to as f64 / out.median.max(1) as f64;
    match out.from == out.to && out.median > 0 && (1.05..1000.0).contains(&times) {
        true => format!("{who}: {value}, {times:.1}x as much: {usual}"),
        false => format!("{who}: {value}; {usual}"),
    }
}

fn who(out: &Outliers, population: &[u32], rows: &[Option<ProcessRow>], naming: Naming) -> String {
    let row = |member: &u32| rows.get(*member as usize).and_then(Option::as_ref);
    let members: Vec<&ProcessRow> = out.members.iter().filter_map(row).collect();
    let unnamed = out.count.saturating_sub(members.len() as u64);
    let noun = |one: &'static str, many: &'static str| if out.count == 1 { one } else { many };
    let names = match naming {
        Naming::Rank => {
            let mut ranks: Vec<u32> = members.iter().filter_map(|row| row.member.rank).collect();
            ranks.sort_unstable();
            format!("{} {}", noun("rank", "ranks"), ranges(&ranks, unnamed, RANGES))
        }
        Naming::Pid => {
            let mut pids: Vec<u32> = members.iter().map(|row| row.member.pid).collect();
            pids.sort_unstable();
            format!("{} {}", noun("process", "processes"), ranges(&pids, unnamed, RANGES))
        }
    };
    let mut per_host: BTreeMap<&str, u64> = BTreeMap::new();
    for row in population.iter().filter_map(row) {
        *per_host.entry(&row.member.host).or_default() += 1;
    }
    let host = members.first().map(|row| row.member.host.as_str()).unwrap_or_default();
    let on_one_host = unnamed == 0 && per_host.len() > 1 && members.iter().all(|row| row.member.host == host);
    let place = match on_one_host {
        true if out.count > 1 && per_host.get(host) == Some(&out.count) => format!(" (all on {host})"),
        true => format!(" on {host}"),
        false => String::new(),
    };
    format!("{names}{place}")
}
