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

use serde::Serialize;

use crate::analysis::estimate::CERTAIN;
use crate::analysis::facts::StackId;

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
    /// Ascending by process.
    pub values: Vec<Example>,
    /// The usual value: the median, or that of the other one of two processes.
    pub median: i64,
    /// The processes that they are compared with have no value at all.
    pub is_alone: bool,
    /// The sum of the distances from the usual value.
    pub apart: u128,
    /// The stack through which they have these values, if their sums do not stand out.
    pub path: Option<StackId>,
}

impl Outliers {
    pub fn count(&self) -> u64 {
        self.values.len() as u64
    }

    pub fn members(&self) -> impl Iterator<Item = u32> {
        self.values.iter().map(|value| value.0)
    }

    /// The least and the largest of their values.
    pub fn range(&self) -> (i64, i64) {
        let values = || self.values.iter().map(|value| value.1);
        (values().min().unwrap_or(0), values().max().unwrap_or(0))
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

    /// Whether values have one in common, if `count` of them are out: not if most are far from the usual one, as where half of the
    /// processes have nothing; nor if more than a quarter are out.
    fn is_common(&self, count: usize) -> bool {
        let usual = self.value.unsigned_abs();
        let by_chance = self.by_chance(usual.saturating_add(self.deviation));
        match count {
            0 => self.deviation < LEAST.max(usual / 4).max(by_chance),
            count => count as u64 <= (self.of / 4).max(1),
        }
    }
}

/// The values of a population, in bytes: what each process holds, or gained. One without a value has 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Range {
    /// Of all processes, in bytes.
    pub sum: i128,
    /// The lower median, in bytes.
    pub median: i64,
    /// The smallest value, in bytes.
    pub min: i64,
    /// The largest value, in bytes.
    pub max: i64,
    /// Processes with a value above 0, and below.
    pub above: u64,
    pub below: u64,
    /// The number of all processes.
    pub of_processes: u64,
}

impl Range {
    /// The sum of what processes hold.
    pub fn sum_bytes(&self) -> u64 {
        u64::try_from(self.sum).unwrap_or(u64::MAX)
    }
}

/// Judges a population: its range, who stands out, and whether its values have something in common. Members and values are ascending;
/// one without a value has 0.
pub fn judge(values: &[Example], population: &[u32], chance: Chance) -> (Range, Option<Outliers>, bool) {
    let mut known = values.iter().copied().peekable();
    let with_value = |&member: &u32| {
        while known.next_if(|value| value.0 < member).is_some() {}
        known.next_if(|value| value.0 == member).unwrap_or((member, 0))
    };
    let all: Vec<Example> = population.iter().map(with_value).collect();
    let mut sorted: Vec<i64> = all.iter().map(|value| value.1).collect();
    sorted.sort_unstable();
    let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
        return (Range::default(), None, true);
    };
    let median = sorted[(sorted.len() - 1) / 2];
    let range = Range {
        sum: sorted.iter().map(|&value| i128::from(value)).sum(),
        median,
        min,
        max,
        above: sorted.iter().filter(|&&value| value > 0).count() as u64,
        below: sorted.iter().filter(|&&value| value < 0).count() as u64,
        of_processes: sorted.len() as u64,
    };
    let mut distances: Vec<u64> = sorted.iter().map(|value| value.abs_diff(median)).collect();
    let (_, &mut deviation, _) = distances.select_nth_unstable(sorted.len() / 2);
    let Some(mut usual) = Norm::of(sorted.len() as u64, median, deviation, chance) else {
        return (range, None, true);
    };
    if usual.of == 2 && max.unsigned_abs() < min.unsigned_abs() {
        usual.value = max;
    }
    let (out, others): (Vec<Example>, Vec<Example>) = all.into_iter().partition(|value| usual.is_out(value.1));
    let is_alike = usual.is_common(out.len());
    let outliers = (is_alike && !out.is_empty()).then(|| Outliers {
        median: usual.value,
        is_alone: others.iter().all(|value| value.1 == 0) && out.iter().all(|value| value.1 != 0),
        apart: out.iter().map(|value| u128::from(value.1.abs_diff(usual.value))).sum(),
        values: out,
        path: None,
    });
    (range, outliers, is_alike)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;

    fn judged(changes: &[i64]) -> (Range, Option<Outliers>, bool) {
        let values: Vec<(u32, i64)> = (0..)
            .zip(changes.iter().copied())
            .filter(|value| value.1 != 0)
            .collect();
        let population: Vec<u32> = (0..changes.len() as u32).collect();
        judge(&values, &population, Chance::default())
    }

    fn out(changes: &[i64]) -> Vec<u32> {
        judged(changes).1.map_or(Vec::new(), |out| out.members().collect())
    }

    #[test]
    fn a_process_that_grew_shrank_or_stayed_unlike_the_others_stands_out() {
        let mut changes = vec![0; 64];
        changes[17] = 30 * MIB;
        assert_eq!(out(&changes), [17]);
        assert!(judged(&changes).1.is_some_and(|out| out.is_alone));
        changes[17] = -30 * MIB;
        assert_eq!(out(&changes), [17]);
        let mut changes = vec![10 * MIB; 64];
        changes[3] = 0;
        assert_eq!(out(&changes), [3]);
        changes[3] = -10 * MIB;
        assert_eq!(out(&changes), [3]);
        let range = judged(&changes).0;
        let expected = (i128::from(62 * 10 * MIB), 10 * MIB, -10 * MIB, 63, 1);
        assert_eq!((range.sum, range.median, range.min, range.above, range.below), expected);
    }

    #[test]
    fn equal_or_noisy_changes_name_none_and_neither_do_two_halves() {
        let verdict = |changes: &[i64]| (out(changes).len(), judged(changes).2);
        assert_eq!(verdict(&[5 * MIB; 64]), (0, true));
        assert_eq!(verdict(&[0; 64]), (0, true));
        let noisy: Vec<i64> = (0..64).map(|n| 100 * MIB + (n * 37 % 11) * MIB / 4).collect();
        assert_eq!(verdict(&noisy), (0, true));
        let halves: Vec<i64> = (0..64).map(|n| if n % 2 == 0 { 0 } else { 50 * MIB }).collect();
        assert_eq!(verdict(&halves), (0, false));
        assert_eq!(verdict(&[7 * MIB]), (0, true));
        assert_eq!(verdict(&[0, 1000, 0, 0, 0, 0, 0]), (0, true), "less than matters");
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
        let stands_out = |change: i64, error: i64| judge(&[(17, change)], &population, chance(error)).1.is_some();
        assert!(stands_out(30 * MIB, 7 * MIB));
        assert!(!stands_out(30 * MIB, 8 * MIB));
        let of_two = |error: i64| judge(&[(1, 30 * MIB)], &[0, 1], chance(error)).1.is_some();
        assert!(of_two(7 * MIB));
        assert!(!of_two(8 * MIB));
    }
}
