//! Which processes differ from the others, and the sentence about it.
//!
//! Only like is judged with like: processes of one group (`parallel.rs`). A value is what a process holds, or how that changed. It
//! stands out if it is far from the median, measured in the usual spread of the values (robust z-score: 0.6745 (x - median) / MAD, at
//! least 8), and if the distance matters: at least 64 KiB and a tenth of the median. The MAD counts as at least 1 % of the median,
//! since equal processes have none. If more than a quarter of the processes, and more than one, would stand out, there is no common
//! value and none is named. Fewer than [`ENOUGH`] processes do not show their usual spread, so there a value must also be twice the
//! median or half of it. Of two processes none is usual, and the one with the larger value, or change, is named.
//!
//! Estimates from sampled stacks differ by chance. So their distance must also exceed [`CERTAIN`] standard errors of the
//! difference, where a process without a chosen block may have had some.
//!
//! ```text
//! judge       values of a hundred thousand processes as a spread, in which rare ones keep their processes
//! judge_each  values of all processes, one by one
//! ```

use super::spread::{EXAMPLES, Spread};
use crate::analysis::estimate::CERTAIN;

/// The least distance from the median that matters.
pub const LEAST: u64 = 64 << 10;
/// The robust z-score from which on a value stands out.
pub const SCORE: f64 = 8.0;
/// With fewer processes, chance often puts one far from the others.
pub const ENOUGH: u64 = 6;

/// A process, by its number in the job, and its value.
pub type Example = (u32, i64);

/// Bytes as a value.
pub fn value(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Processes whose values are far from those of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outliers {
    pub count: u64,
    /// Ascending; all of them, unless `count` is larger.
    pub members: Vec<u32>,
    /// Some of them, with their values, ascending.
    pub examples: Vec<Example>,
    /// The least and the largest of their values.
    pub from: i64,
    pub to: i64,
    /// The usual value: the median, or that of the other one of two processes.
    pub median: i64,
    /// The processes that they are compared with have no value at all.
    pub is_alone: bool,
    /// The sum of the distances from the usual value.
    pub apart: u128,
}

/// The judgement of one quantity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Alike,
    /// The values differ too widely for a common one.
    NoCommonValue,
    StandOut(Outliers),
}

impl Verdict {
    /// The outliers, and whether the values have something in common.
    pub fn parts(self) -> (Option<Outliers>, bool) {
        match self {
            Verdict::StandOut(out) => (Some(out), true),
            Verdict::Alike => (None, true),
            Verdict::NoCommonValue => (None, false),
        }
    }
}

/// How far the estimates of equal processes may be from each other.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Chance {
    /// The largest variance for each byte of a value.
    pub of_byte: f64,
    /// The largest variance of a value, whatever its size.
    pub of_value: f64,
}

/// The usual values of a population, with which each is compared.
struct Norm {
    of: u64,
    value: i64,
    deviation: u64,
    chance: Chance,
}

impl Norm {
    /// `deviation`: the upper median of the distances from `median`. `None`: there are no others to compare with.
    fn of(of: u64, median: i64, deviation: u64, chance: Chance) -> Option<Norm> {
        (of >= 2).then_some(Norm {
            of,
            value: median,
            deviation: deviation.max(median.unsigned_abs() / 100).max(1),
            chance,
        })
    }

    fn is_out(&self, value: i64) -> bool {
        let (size, usual) = (value.unsigned_abs(), self.value.unsigned_abs());
        let distance = value.abs_diff(self.value);
        let is_far = || 0.6745 * distance as f64 / self.deviation as f64 >= SCORE;
        let has_turned = usual != 0 && value.signum() == -self.value.signum();
        let is_twice = || has_turned || size / 2 >= usual || size <= usual / 2;
        let matters = distance >= LEAST.max(usual / 10).max(self.by_chance(size));
        matters && (self.of == 2 || is_far()) && (self.of >= ENOUGH || is_twice())
    }

    /// How far the estimate of an equal process may be from the usual value.
    fn by_chance(&self, size: u64) -> u64 {
        let bytes = size as f64 + self.value.unsigned_abs() as f64;
        let variance = bytes * self.chance.of_byte + 2.0 * self.chance.of_value;
        (CERTAIN as f64 * variance.sqrt()) as u64
    }

    /// Where most are far from the usual value, as if half of the processes have nothing, they do not have it in common; nor where
    /// more than a quarter are out.
    fn verdict(&self, count: u64, outliers: impl FnOnce() -> Outliers) -> Verdict {
        let usual = self.value.unsigned_abs();
        let by_chance = self.by_chance(usual.saturating_add(self.deviation));
        match count {
            0 if self.deviation >= LEAST.max(usual / 4).max(by_chance) => Verdict::NoCommonValue,
            0 => Verdict::Alike,
            count if count > (self.of / 4).max(1) => Verdict::NoCommonValue,
            _ => Verdict::StandOut(outliers()),
        }
    }

    fn apart(&self, value: i64, count: u64) -> u128 {
        u128::from(value.abs_diff(self.value)) * u128::from(count)
    }
}

/// Judges the values of a population, whose members are given in ascending order.
pub fn judge(spread: &Spread, population: &[u32]) -> Verdict {
    let of = population.len() as u64;
    let (median, _) = spread.median(of);
    let chance = Chance {
        of_byte: spread.scatter,
        of_value: 0.0,
    };
    let Some(usual) = Norm::of(of, value(median), spread.deviation(of, median), chance) else {
        return Verdict::Alike;
    };
    let absent = usual.of.saturating_sub(spread.have());
    let absent_are_out = absent > 0 && usual.is_out(0);
    let out = || spread.buckets().filter(|bucket| usual.is_out(value(bucket.value())));
    let of_buckets: u64 = out().map(|bucket| bucket.count).sum();
    let count = of_buckets + if absent_are_out { absent } else { 0 };
    usual.verdict(count, || {
        let examples = out().flat_map(|bucket| &bucket.examples);
        let mut examples: Vec<Example> = examples.map(|&(member, bytes)| (member, value(bytes))).collect();
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
        let buckets = out().map(|bucket| (value(bucket.value()), bucket.count));
        let all = buckets.chain(absent_are_out.then_some((0, absent)));
        Outliers {
            count,
            from: examples.iter().map(|example| example.1).min().unwrap_or(0),
            to: examples.iter().map(|example| example.1).max().unwrap_or(0),
            median: usual.value,
            is_alone: of_buckets == spread.have() && !absent_are_out,
            apart: all.map(|(value, count)| usual.apart(value, count)).sum(),
            members,
            examples,
        }
    })
}

/// The values of a population.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Range {
    pub sum: i128,
    /// The lower median.
    pub median: i64,
    pub min: i64,
    pub max: i64,
    /// Processes with a value above 0, and below.
    pub above: u64,
    pub below: u64,
}

/// Values in ascending order: those below 0, zeros that are only counted, and those above.
struct Sorted {
    values: Vec<i64>,
    below: u64,
    zeros: u64,
    of: u64,
}

impl Sorted {
    fn of(values: &[Example], of: u64) -> Sorted {
        let mut values: Vec<i64> = values.iter().map(|value| value.1).filter(|&value| value != 0).collect();
        values.sort_unstable();
        Sorted {
            below: values.partition_point(|&value| value < 0) as u64,
            zeros: of.saturating_sub(values.len() as u64),
            of,
            values,
        }
    }

    fn at(&self, place: u64) -> i64 {
        let value = |place: u64| self.values.get(place as usize).copied().unwrap_or(0);
        match place {
            place if place < self.below => value(place),
            place if place < self.below + self.zeros => 0,
            place => value(place - self.zeros),
        }
    }

    fn range(&self) -> Range {
        let last = self.of.saturating_sub(1);
        Range {
            sum: self.values.iter().map(|&value| i128::from(value)).sum(),
            median: self.at(last / 2),
            min: self.at(0),
            max: self.at(last),
            above: self.values.len() as u64 - self.below,
            below: self.below,
        }
    }

    /// The upper median of the distances from a value.
    fn deviation(&self, from: i64) -> u64 {
        let mut distances: Vec<u64> = self.values.iter().map(|value| value.abs_diff(from)).collect();
        let at = self.of / 2;
        // Zeros are at one distance, so they are one block in the sorted distances.
        let of_zeros = from.unsigned_abs();
        distances.sort_unstable();
        let nearer = distances.partition_point(|&distance| distance < of_zeros) as u64;
        match at {
            at if at < nearer => distances[at as usize],
            at if at < nearer + self.zeros => of_zeros,
            at => distances.get((at - self.zeros) as usize).copied().unwrap_or(0),
        }
    }
}

/// As [`judge`], where the value of every process is known, so that all outliers are. `values`: ascending by process; one without a
/// value has 0.
pub fn judge_each(values: &[Example], population: &[u32], chance: Chance) -> (Range, Verdict) {
    let of = population.len() as u64;
    let sorted = Sorted::of(values, of);
    let range = sorted.range();
    let Some(mut usual) = Norm::of(of, range.median, sorted.deviation(range.median), chance) else {
        return (range, Verdict::Alike);
    };
    if of == 2 && range.max.unsigned_abs() < range.min.unsigned_abs() {
        usual.value = range.max;
    }
    let zeros_are_out = sorted.zeros > 0 && usual.is_out(0);
    let out = values.iter().copied();
    let mut out: Vec<Example> = out.filter(|value| value.1 != 0 && usual.is_out(value.1)).collect();
    let is_alone = !zeros_are_out && out.len() == sorted.values.len();
    if zeros_are_out {
        let has_value = |member: &u32| {
            let at = values.binary_search_by_key(member, |value| value.0);
            at.is_ok_and(|at| values[at].1 != 0)
        };
        let without = population.iter().filter(|member| !has_value(member));
        out.extend(without.map(|&member| (member, 0)));
        out.sort_unstable();
    }
    let verdict = usual.verdict(out.len() as u64, || Outliers {
        count: out.len() as u64,
        members: out.iter().map(|example| example.0).collect(),
        from: out.iter().map(|example| example.1).min().unwrap_or(0),
        to: out.iter().map(|example| example.1).max().unwrap_or(0),
        median: usual.value,
        is_alone,
        apart: out.iter().map(|&(_, value)| usual.apart(value, 1)).sum(),
        examples: out,
    });
    (range, verdict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: i64 = 1 << 20;

    fn judged(changes: &[i64]) -> (Range, Verdict) {
        let values: Vec<(u32, i64)> = (0..)
            .zip(changes.iter().copied())
            .filter(|value| value.1 != 0)
            .collect();
        let population: Vec<u32> = (0..changes.len() as u32).collect();
        judge_each(&values, &population, Chance::default())
    }

    fn out(changes: &[i64]) -> Vec<u32> {
        match judged(changes).1 {
            Verdict::StandOut(out) => out.members,
            Verdict::Alike | Verdict::NoCommonValue => Vec::new(),
        }
    }

    #[test]
    fn a_process_that_grew_shrank_or_stayed_unlike_the_others_stands_out() {
        let mut changes = vec![0; 64];
        changes[17] = 30 * MIB;
        assert_eq!(out(&changes), [17]);
        assert!(matches!(
            judged(&changes).1,
            Verdict::StandOut(Outliers { is_alone: true, .. })
        ));
        changes[17] = -30 * MIB;
        assert_eq!(out(&changes), [17]);
        let mut changes = vec![10 * MIB; 64];
        changes[3] = 0;
        assert_eq!(out(&changes), [3]);
        changes[3] = -10 * MIB;
        assert_eq!(out(&changes), [3]);
        let (range, _) = judged(&changes);
        let expected = (i128::from(62 * 10 * MIB), 10 * MIB, -10 * MIB, 63, 1);
        assert_eq!((range.sum, range.median, range.min, range.above, range.below), expected);
    }

    #[test]
    fn equal_or_noisy_changes_name_none_and_neither_do_two_halves() {
        assert_eq!(judged(&[5 * MIB; 64]).1, Verdict::Alike);
        assert_eq!(judged(&[0; 64]).1, Verdict::Alike);
        let noisy: Vec<i64> = (0..64).map(|n| 100 * MIB + (n * 37 % 11) * MIB / 4).collect();
        assert_eq!(judged(&noisy).1, Verdict::Alike);
        let halves: Vec<i64> = (0..64).map(|n| if n % 2 == 0 { 0 } else { 50 * MIB }).collect();
        assert_eq!(judged(&halves).1, Verdict::NoCommonValue);
        assert_eq!(judged(&[7 * MIB]).1, Verdict::Alike);
        assert_eq!(judged(&[0, 1000, 0, 0, 0, 0, 0]).1, Verdict::Alike, "less than matters");
    }

    #[test]
    fn of_two_processes_the_one_that_changed_more_is_named() {
        assert_eq!(out(&[0, 30 * MIB]), [1]);
        assert_eq!(out(&[-30 * MIB, 0]), [0]);
        assert_eq!(out(&[9 * MIB, 10 * MIB]), [0_u32; 0]);
        assert_eq!(out(&[9 * MIB, 20 * MIB]), [1]);
    }

    #[test]
    fn estimates_stand_out_only_beyond_three_errors() {
        let population: Vec<u32> = (0..64).collect();
        let chance = |error: i64| Chance {
            of_byte: 0.0,
            of_value: (error as f64).powi(2),
        };
        let of = |change: i64, error: i64| judge_each(&[(17, change)], &population, chance(error)).1;
        assert!(matches!(of(30 * MIB, 7 * MIB), Verdict::StandOut(_)));
        assert_eq!(of(30 * MIB, 8 * MIB), Verdict::Alike);
        let of_two = |error: i64| judge_each(&[(1, 30 * MIB)], &[0, 1], chance(error)).1;
        assert!(matches!(of_two(7 * MIB), Verdict::StandOut(_)));
        assert_eq!(of_two(8 * MIB), Verdict::Alike);
    }

    proptest! {
        #[test]
        fn medians_agree_with_sorting(changes in proptest::collection::vec(-20_i64..20, 1..80), from in -20_i64..20) {
            let values: Vec<(u32, i64)> = (0..).zip(changes.iter().copied()).collect();
            let sorted = Sorted::of(&values, changes.len() as u64);
            let mut expected = changes.clone();
            expected.sort_unstable();
            for (place, value) in expected.iter().enumerate() {
                prop_assert_eq!(sorted.at(place as u64), *value);
            }
            let mut distances: Vec<u64> = changes.iter().map(|value| value.abs_diff(from)).collect();
            distances.sort_unstable();
            prop_assert_eq!(sorted.deviation(from), distances[changes.len() / 2]);
        }
    }
}
