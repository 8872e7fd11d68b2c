//! Limits on sums: of all that is judged, of a kind, of a pattern.
//!
//! Sums that stacks decide are estimates if stacks were sampled. What is known of them for certain:
//!
//! ```text
//! all that may be judged, exact   ├── chosen, judged ──┼── without a stack ──┤   chosen, suppressed
//! what is judged                                       ▲ at least            ▲ at most
//! ```
//!
//! In between, the estimate decides within [`CERTAIN`] standard errors. A limit on the whole that it cannot decide is returned as
//! undecided, and such a check does not pass; a limit of a pattern leads to a warning.
//!
//! If no chosen block is suppressed, and so much is held that some of the chosen blocks would be, the exact sum is judged.

use std::collections::BTreeMap;

use super::{Breach, Limits, Rules};
use crate::analysis::estimate::{CERTAIN, Errors, Estimate};
use crate::analysis::groups::Group;
use crate::analysis::site::CallStacks;
use crate::analysis::tally::Tally;
use crate::analysis::words;
use crate::snapshot::Sampling;

/// The judged records.
pub(super) struct Whole<'w, 'a> {
    /// What the stacks of the judged records stand for; without sampling, the records themselves.
    pub judged: &'w [Group<'a>],
    pub known: Known<'w, 'a>,
}

/// What is known for certain of a sum.
pub(super) enum Known<'w, 'a> {
    /// Stacks do not decide it: this is the sum.
    Exactly(&'w [Group<'a>]),
    Within(Bounds<'w, 'a>),
    /// The records are estimates themselves.
    Nothing,
}

pub(super) struct Bounds<'w, 'a> {
    /// The chosen records that are judged, and all records without a stack.
    pub all: &'w [Group<'a>],
    pub sampling: Sampling,
    /// The stack of a chosen record excludes it.
    pub excludes: bool,
}

/// If a call site holds this many times the mean distance between stacks, the chance that none of its blocks was chosen is
/// exp(-6): as small as that of an error beyond [`CERTAIN`] standard errors.
const NEVER_UNSEEN: u64 = 6;

impl Whole<'_, '_> {
    /// The sum of the groups that `wanted` accepts.
    pub fn sum(&self, wanted: impl Fn(&Group) -> bool) -> Sum {
        let of = |groups: &[Group], chosen: bool| {
            let groups = groups
                .iter()
                .filter(|group| wanted(group) && (!chosen || !group.is_left_out));
            Tally::total(groups.map(|group| group.tally()))
        };
        let estimate = || Sum::estimated_of(self.judged.iter().filter(|group| wanted(group)));
        let bounds = match &self.known {
            Known::Exactly(all) => return Sum::exact(of(all, false)),
            Known::Nothing => return estimate(),
            Known::Within(bounds) => bounds,
        };
        let (chosen, at_most) = (of(bounds.all, true), of(bounds.all, false));
        let unseen = bounds.sampling.most().saturating_mul(NEVER_UNSEEN);
        let represents_all = !bounds.excludes && chosen.count > 0 && at_most.bytes >= unseen;
        match chosen == at_most || represents_all {
            true => Sum::exact(at_most),
            false => estimate().within(chosen, at_most, unseen),
        }
    }
}

/// A sum, exact or an estimate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sum {
    pub tally: Tally,
    errors: Option<Errors>,
    at_least: Tally,
    at_most: Tally,
    /// More bytes than this do not remain without a chosen block.
    unseen: u64,
    is_estimate: bool,
}

impl Sum {
    fn exact(tally: Tally) -> Sum {
        Sum {
            tally,
            errors: None,
            at_least: tally,
            at_most: tally,
            unseen: 0,
            is_estimate: false,
        }
    }

    fn estimated_of<'g>(groups: impl Iterator<Item = &'g Group<'g>>) -> Sum {
        let mut estimate = Estimate::default();
        let mut tally = Tally::default();
        for group in groups {
            tally.join(group.tally());
            if let Some(of_group) = &group.estimate {
                estimate.join(of_group);
            }
        }
        let all = Tally {
            bytes: u64::MAX,
            count: u64::MAX,
        };
        // The chosen blocks themselves exist.
        let one = Tally {
            bytes: tally.bytes.min(1),
            count: tally.count.min(1),
        };
        Sum {
            tally,
            errors: estimate.errors(),
            at_least: one,
            at_most: if tally.count == 0 { tally } else { all },
            unseen: 0,
            is_estimate: true,
        }
    }

    fn within(self, at_least: Tally, at_most: Tally, unseen: u64) -> Sum {
        Sum {
            at_least,
            at_most,
            unseen,
            ..self
        }
    }

    /// Its standard errors, if it is an estimate. If every chosen block was chosen for certain, or none was, others may have been
    /// missed: up to the most that is possible.
    pub fn estimated(&self) -> Option<Errors> {
        let beyond = || Errors {
            bytes_error: self.bytes().most.saturating_sub(self.tally.bytes),
            count_error: Some(self.count().most.saturating_sub(self.tally.count)),
        };
        let missed = || match self.unseen {
            0 => Errors::NONE,
            _ => beyond(),
        };
        self.is_estimate.then(|| self.errors.unwrap_or_else(missed))
    }

    fn bytes(&self) -> Figure {
        let error = self.errors.map_or(0, |errors| errors.bytes_error);
        Figure {
            found: self.tally.bytes,
            least: self.at_least.bytes,
            most: self.at_most.bytes,
        }
        .narrowed(Some(error), self.unseen)
    }

    fn count(&self) -> Figure {
        let error = self.errors.map_or(Some(0), |errors| errors.count_error);
        let figure = Figure {
            found: self.tally.count,
            least: self.at_least.count,
            most: self.at_most.count,
        };
        // Any number of blocks may hold the bytes that were not seen.
        match self.tally.count {
            0 => figure,
            _ => figure.narrowed(error, 0),
        }
    }
}

/// A figure and the range in which the truth is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Figure {
    found: u64,
    least: u64,
    most: u64,
}

impl Figure {
    /// The range of an estimate with this error, which may lack `unseen`, within the range that is certain.
    fn narrowed(self, error: Option<u64>, unseen: u64) -> Figure {
        let range = CERTAIN.saturating_mul(error.unwrap_or(u64::MAX));
        Figure {
            least: self.found.saturating_sub(range).clamp(self.least, self.most),
            most: self
                .found
                .saturating_add(range.max(unseen))
                .clamp(self.least, self.most),
            ..self
        }
    }

    /// What was found, if that is above the limit for certain. `undecided` gets the range if it cannot be known.
    fn above(&self, limit: u64, undecided: impl FnOnce(&Figure)) -> Option<u64> {
        if self.least <= limit && limit < self.most {
            undecided(self);
        }
        // An estimate may be lower than what is certain.
        (self.least > limit).then_some(self.found.max(self.least))
    }
}

/// Why a limit on the whole cannot be judged, and what to do.
fn unknown(whole: &Whole, of: &str, range: &Figure, limit: u64, shown: impl Fn(u64) -> String) -> String {
    let range = match (range.least, range.most) {
        (least, u64::MAX) => format!("{} or more", shown(least)),
        (least, most) => format!("{} to {}", shown(least), shown(most)),
    };
    let (why, next) = match whole.known {
        Known::Nothing => (
            "it is an estimate from sampled stacks",
            "record with a smaller --sample, or without it",
        ),
        _ => (
            "the stacks of the others, which suppressions may match, were not sampled",
            "record with a smaller --sample, or judge all memory without suppressions (--no-builtin-suppressions)",
        ),
    };
    format!("{range}{of} with a limit of {}: {why}; {next}", shown(limit))
}

/// Breaches of the limits on the total and on kinds. `undecided`: limits that the recording cannot show to be kept or broken.
pub(super) fn of_the_whole(whole: &Whole, found: Sum, rules: &Rules, undecided: &mut Vec<String>) -> Vec<Breach> {
    let limits = &rules.limits;
    let (bytes, count) = limits.effective(rules.baseline.is_some());
    let mut breaches = Vec::new();
    if let Some(limit) = bytes {
        let above = found.bytes().above(limit, |range| {
            undecided.push(unknown(whole, "", range, limit, words::bytes));
        });
        breaches.extend(above.map(|found| Breach::Bytes { limit, found }));
    }
    if let Some(limit) = count {
        let blocks = |count| words::plural(count, "block", "blocks");
        let above = found.count().above(limit, |range| {
            undecided.push(unknown(whole, "", range, limit, blocks));
        });
        breaches.extend(above.map(|found| Breach::Count { limit, found }));
    }
    for (&kind, &limit) in &limits.per_kind {
        let above = whole
            .sum(|group| group.call.kind == kind)
            .bytes()
            .above(limit, |range| {
                let of = format!(" of {} memory", kind.name());
                undecided.push(unknown(whole, &of, range, limit, words::bytes));
            });
        breaches.extend(above.map(|found| Breach::Kind {
            kind: kind.name(),
            limit,
            found,
        }));
    }
    breaches
}

/// A warning that a limit on a pattern cannot be judged.
fn too_close(what: &str, found: &str, limit: &str) -> String {
    format!(
        "{what}: about {found}, too close to the limit of {limit} to be judged from sampled stacks; record with a smaller --sample, \
         or without it"
    )
}

/// Breaches of limits on what matches a pattern. `judged`: by stack.
pub(super) fn of_budgets(
    judged: &[Group],
    stacks: &CallStacks,
    limits: &Limits,
    warnings: &mut Vec<String>,
) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for budget in &limits.budgets {
        let mut by_stack: BTreeMap<Option<usize>, bool> = BTreeMap::new();
        let matching = judged.iter().filter(|group| {
            *by_stack
                .entry(group.stack)
                .or_insert_with(|| budget.pattern.matches_stack(stacks.get(group.stack)))
        });
        let sum = Sum::estimated_of(matching);
        let above = sum.bytes().above(budget.bytes, |_| {
            let found = words::bytes(sum.tally.bytes);
            warnings.push(too_close(budget.pattern.text(), &found, &words::bytes(budget.bytes)));
        });
        breaches.extend(above.map(|found| Breach::Budget {
            pattern: budget.pattern.text().to_owned(),
            limit: budget.bytes,
            found,
        }));
    }
    breaches
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is above the limit, and whether that is undecided. The truth is below `most` for certain.
    fn judge(found: u64, error: Option<u64>, most: u64, limit: u64) -> (Option<u64>, bool) {
        let figure = Figure {
            found,
            least: found.min(1),
            most,
        };
        let mut is_undecided = false;
        let above = figure.narrowed(error, 0).above(limit, |_| is_undecided = true);
        (above, is_undecided)
    }

    #[test]
    fn exact_figures_are_always_decided() {
        assert_eq!(judge(0, Some(0), 0, 0), (None, false));
        assert_eq!(judge(100, Some(0), 100, 100), (None, false));
        assert_eq!(judge(101, Some(0), 101, 100), (Some(101), false));
    }

    #[test]
    fn estimates_break_a_limit_beyond_three_errors() {
        assert_eq!(judge(1000, Some(100), 5000, 699), (Some(1000), false));
        assert_eq!(judge(1000, Some(100), 5000, 700), (None, true));
        assert_eq!(judge(1000, Some(100), 5000, 1299), (None, true));
        assert_eq!(judge(1000, Some(100), 5000, 1300), (None, false));
        // All that there is keeps the limit.
        assert_eq!(judge(1000, Some(100), 1200, 1200), (None, false));
    }

    #[test]
    fn a_chosen_block_exists_and_others_may() {
        assert_eq!(judge(300, Some(300), 900, 0), (Some(300), false));
        // The error is not known.
        assert_eq!(judge(300, None, 900, 200), (None, true));
        let none = Figure {
            found: 0,
            least: 0,
            most: 900,
        };
        let unseen = |unseen| none.narrowed(Some(0), unseen).most;
        assert_eq!([unseen(500), unseen(5000)], [500, 900]);
    }
}
