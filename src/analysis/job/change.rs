//! How one quantity changed in each process, and which processes changed unlike the others.
//!
//! The rule is that of [`super::outliers`], for values of either sign: a change stands out if it is far from the median change,
//! measured in the usual spread of the changes, and if the distance matters. A process that did not change has no value.

use super::outliers::{ENOUGH, LEAST, SCORE};
use crate::analysis::estimate::CERTAIN;

/// The changes of a quantity over all processes of a program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Range {
    pub sum: i128,
    /// The lower median.
    pub median: i64,
    pub min: i64,
    pub max: i64,
    /// Processes with more than before, and with less.
    pub grown: u64,
    pub shrunk: u64,
}

/// Processes whose changes are far from those of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Apart {
    /// With their changes, in the order of the population.
    pub members: Vec<(u32, i64)>,
    /// The sum of the distances from the median.
    pub bytes: u128,
    /// No other process changed at all.
    pub is_alone: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Alike,
    /// The changes differ too widely for a common one.
    NoCommonValue,
    StandOut(Apart),
}

/// The changes in ascending order: those below 0, zeros that are only counted, and those above.
struct Sorted {
    values: Vec<i64>,
    below: u64,
    zeros: u64,
    of: u64,
}

impl Sorted {
    fn of(values: &[(u32, i64)], of: u64) -> Sorted {
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

/// Judges the changes of a population. `values`: of the processes that changed, each once, ascending. `variance`: the largest
/// of a change, if changes are estimates; 0: they are exact.
pub fn judge(values: &[(u32, i64)], population: &[u32], variance: f64) -> (Range, Verdict) {
    let of = population.len() as u64;
    let sorted = Sorted::of(values, of);
    let median = sorted.at(of.saturating_sub(1) / 2);
    let range = Range {
        sum: values.iter().map(|value| i128::from(value.1)).sum(),
        median,
        min: sorted.at(0),
        max: sorted.at(of.saturating_sub(1)),
        grown: sorted.values.len() as u64 - sorted.below,
        shrunk: sorted.below,
    };
    if of < 2 {
        return (range, Verdict::Alike);
    }
    let size = median.unsigned_abs();
    let deviation = sorted.deviation(median).max(size / 100).max(1);
    // How far the estimates of equal changes may be from each other.
    let by_chance = (CERTAIN as f64 * (2.0 * variance).sqrt()) as u64;
    // Of two processes the one that changed less is the usual one.
    let usual = match of {
        2 if range.max.unsigned_abs() < range.min.unsigned_abs() => range.max,
        2 => range.min,
        _ => median,
    };
    let is_out = |value: i64| {
        let distance = value.abs_diff(usual);
        let is_far = 0.6745 * distance as f64 / deviation as f64 >= SCORE;
        let (value_size, usual_size) = (value.unsigned_abs(), usual.unsigned_abs());
        let turned = usual != 0 && value.signum() == -usual.signum();
        let is_twice = turned || value_size / 2 >= usual_size || value_size <= usual_size / 2;
        distance >= LEAST.max(usual_size / 10).max(by_chance) && (of == 2 || is_far) && (of >= ENOUGH || is_twice)
    };
    let zeros_are_out = sorted.zeros > 0 && is_out(0);
    let mut out: Vec<(u32, i64)> = values
        .iter()
        .copied()
        .filter(|value| value.1 != 0 && is_out(value.1))
        .collect();
    let is_alone = !zeros_are_out && !out.is_empty() && out.len() == sorted.values.len();
    if zeros_are_out {
        let changed: std::collections::HashSet<u32> = values.iter().filter(|v| v.1 != 0).map(|value| value.0).collect();
        let same = population.iter().filter(|member| !changed.contains(member));
        out.extend(same.map(|&member| (member, 0)));
        out.sort_unstable();
    }
    let count = out.len() as u64;
    let verdict = match count {
        0 if deviation >= LEAST.max(size / 4).max(by_chance) => Verdict::NoCommonValue,
        0 => Verdict::Alike,
        _ if count > (of / 4).max(1) => Verdict::NoCommonValue,
        _ => Verdict::StandOut(Apart {
            bytes: out.iter().map(|value| u128::from(value.1.abs_diff(usual))).sum(),
            members: out,
            is_alone,
        }),
    };
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
        judge(&values, &population, 0.0)
    }

    fn out(changes: &[i64]) -> Vec<u32> {
        match judged(changes).1 {
            Verdict::StandOut(apart) => apart.members.iter().map(|member| member.0).collect(),
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
            Verdict::StandOut(Apart { is_alone: true, .. })
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
        assert_eq!(
            (range.sum, range.median, range.min, range.grown, range.shrunk),
            expected
        );
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
        let of = |change: i64, error: i64| judge(&[(17, change)], &population, (error as f64).powi(2)).1;
        assert!(matches!(of(30 * MIB, 7 * MIB), Verdict::StandOut(_)));
        assert_eq!(of(30 * MIB, 8 * MIB), Verdict::Alike);
        let of_two = |error: i64| judge(&[(1, 30 * MIB)], &[0, 1], (error as f64).powi(2)).1;
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
