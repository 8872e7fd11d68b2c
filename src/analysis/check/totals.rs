//! Limits on sums: of all that is judged, of a kind, of a pattern.
//!
//! Sums that stacks decide are estimates if stacks were sampled. They break a limit if they exceed it by more than [`CERTAIN`]
//! standard errors; closer to it, a warning says so.

use std::collections::BTreeMap;

use super::{Breach, Limits, Rules};
use crate::analysis::estimate::{CERTAIN, Errors, Estimate};
use crate::analysis::groups::Group;
use crate::analysis::site::CallStacks;
use crate::analysis::tally::Tally;
use crate::analysis::words;

/// The judged records.
pub(super) struct Whole<'w, 'a> {
    /// By their stacks, if suppressions may apply; otherwise all.
    pub judged: &'w [Group<'a>],
    /// All of which these are estimated to be a part; `None`: they are exact.
    pub at_most: Option<&'w [Group<'a>]>,
}

impl Whole<'_, '_> {
    /// The sum of the groups that `wanted` accepts.
    pub fn sum(&self, wanted: impl Fn(&Group) -> bool) -> Sum {
        let of = |groups: &[Group]| {
            let groups = groups.iter().filter(|group| wanted(group));
            Tally::total(groups.map(|group| group.tally()))
        };
        match self.at_most {
            None => Sum::exact(of(self.judged)),
            Some(all) => Sum::estimated_of(self.judged.iter().filter(|group| wanted(group)), Some(of(all))),
        }
    }
}

/// A sum, exact or an estimate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sum {
    pub tally: Tally,
    errors: Option<Errors>,
    /// What it may be at most if no block was chosen.
    unseen: Tally,
    is_estimate: bool,
}

impl Sum {
    fn exact(tally: Tally) -> Sum {
        Sum {
            tally,
            errors: None,
            unseen: tally,
            is_estimate: false,
        }
    }

    /// `all`: the exact sum of which this is a part, if it is known.
    fn estimated_of<'g>(groups: impl Iterator<Item = &'g Group<'g>>, all: Option<Tally>) -> Sum {
        let mut estimate = Estimate::default();
        let mut tally = Tally::default();
        for group in groups {
            tally.join(group.tally());
            if let Some(of_group) = &group.estimate {
                estimate.join(of_group);
            }
        }
        Sum {
            tally,
            errors: estimate.errors(),
            unseen: all.unwrap_or(tally),
            is_estimate: true,
        }
    }

    /// Its standard errors, if it is an estimate; they are 0 if every block was chosen for certain.
    pub fn estimated(&self) -> Option<Errors> {
        self.is_estimate.then(|| self.errors.unwrap_or(Errors::NONE))
    }

    fn bytes(&self) -> Figure {
        let error = self.errors.map_or(0, |errors| errors.bytes_error);
        Figure::of(self.tally.bytes, Some(error), self.unseen.bytes)
    }

    fn count(&self) -> Figure {
        let error = self.errors.map_or(Some(0), |errors| errors.count_error);
        Figure::of(self.tally.count, error, self.unseen.count)
    }
}

/// A figure and the range in which the truth is.
struct Figure {
    found: u64,
    least: u64,
    most: u64,
}

impl Figure {
    fn of(found: u64, error: Option<u64>, unseen: u64) -> Figure {
        let range = CERTAIN.saturating_mul(error.unwrap_or(u64::MAX));
        Figure {
            found,
            // The chosen blocks themselves exist.
            least: found.saturating_sub(range).max(found.min(1)),
            most: match found {
                0 => unseen,
                _ => found.saturating_add(range),
            },
        }
    }

    /// What was found, if that is above the limit for certain. `undecided` is told if it cannot be known.
    fn above(&self, limit: u64, undecided: impl FnOnce()) -> Option<u64> {
        if self.least <= limit && limit < self.most {
            undecided();
        }
        // An estimate may be 0 and the limit too.
        (self.least > limit).then_some(self.found)
    }
}

/// `what`: with its verb.
fn too_close(what: &str, found: &str, limit: &str) -> String {
    format!(
        "{what}: about {found}, too close to the limit of {limit} to be judged from sampled stacks; record with a smaller --sample, \
         or without it"
    )
}

/// Breaches of the limits on the total and on kinds.
pub(super) fn of_the_whole(whole: &Whole, found: Sum, rules: &Rules, undecided: &mut Vec<String>) -> Vec<Breach> {
    let limits = &rules.limits;
    let (bytes, count) = limits.effective(rules.baseline.is_some());
    let in_bytes =
        |what: &str, sum: &Sum, limit: u64| too_close(what, &words::bytes(sum.tally.bytes), &words::bytes(limit));
    let mut breaches = Vec::new();
    if let Some(limit) = bytes {
        let above = found
            .bytes()
            .above(limit, || undecided.push(in_bytes("all call sites", &found, limit)));
        breaches.extend(above.map(|found| Breach::Bytes { limit, found }));
    }
    if let Some(limit) = count {
        let blocks = |count| words::plural(count, "block", "blocks");
        let above = found.count().above(limit, || {
            undecided.push(too_close("all call sites", &blocks(found.tally.count), &blocks(limit)));
        });
        breaches.extend(above.map(|found| Breach::Count { limit, found }));
    }
    for (&kind, &limit) in &limits.per_kind {
        let sum = whole.sum(|group| group.call.kind == kind);
        let above = sum.bytes().above(limit, || {
            undecided.push(in_bytes(&format!("{} memory", kind.name()), &sum, limit));
        });
        breaches.extend(above.map(|found| Breach::Kind {
            kind: kind.name(),
            limit,
            found,
        }));
    }
    breaches
}

/// Breaches of limits on what matches a pattern. `judged`: by stack.
pub(super) fn of_budgets(
    judged: &[Group],
    stacks: &CallStacks,
    limits: &Limits,
    undecided: &mut Vec<String>,
) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for budget in &limits.budgets {
        let mut by_stack: BTreeMap<Option<usize>, bool> = BTreeMap::new();
        let matching = judged.iter().filter(|group| {
            *by_stack
                .entry(group.stack)
                .or_insert_with(|| budget.pattern.matches_stack(stacks.get(group.stack)))
        });
        let sum = Sum::estimated_of(matching, None);
        let above = sum.bytes().above(budget.bytes, || {
            let found = words::bytes(sum.tally.bytes);
            undecided.push(too_close(budget.pattern.text(), &found, &words::bytes(budget.bytes)));
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

    /// What is above the limit, and whether that is undecided.
    fn judge(found: u64, error: Option<u64>, unseen: u64, limit: u64) -> (Option<u64>, bool) {
        let mut is_undecided = false;
        let above = Figure::of(found, error, unseen).above(limit, || is_undecided = true);
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
    }

    #[test]
    fn a_chosen_block_exists_and_others_may() {
        assert_eq!(judge(300, Some(300), 900, 0), (Some(300), false));
        // No block was chosen.
        assert_eq!(judge(0, Some(0), 900, 0), (None, true));
        assert_eq!(judge(0, Some(0), 0, 0), (None, false));
        // The error is not known.
        assert_eq!(judge(300, None, 900, 200), (None, true));
    }
}
