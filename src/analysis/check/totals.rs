//! Limits on sums: of all that is judged, of a kind, of a pattern.
//!
//! If stacks were sampled, sums that stacks decide are estimates. What is known of them for certain:
//!
//! ```text
//! all that may be judged, exact   ├── chosen, judged ──┼── without a stack ──┤   chosen, suppressed
//! what is judged                                       ▲ at least            ▲ at most
//! ```
//!
//! In between, the estimate decides within [`CERTAIN`] standard errors and what may be [`NEVER_UNSEEN`]. A limit that it cannot decide
//! has no verdict.
//!
//! If no chosen block is suppressed, the suppressed ones hold no more than would be unseen: the exact sum less that is judged.

use std::collections::BTreeMap;

use super::unseen::{LARGER_DEPTH, NAME_FRAMES};
use super::{Breach, Limits, Rules, Unseen};
use crate::analysis::estimate::{CERTAIN, Errors, Estimate, NEVER_UNSEEN};
use crate::analysis::groups::{Group, Level};
use crate::analysis::site::{CallStacks, Role};
use crate::analysis::tally::Tally;
use crate::analysis::words;
use crate::kind::{Kind, Place};
use crate::snapshot::{Counter, Sampling, Snapshot};

/// The judged records.
pub(super) struct Whole<'w, 'a> {
    /// What the stacks of the judged records stand for; without sampling, the records themselves.
    pub judged: &'w [Group<'a>],
    pub known: Known<'w, 'a>,
    pub sampling: Option<Sampling>,
}

/// What is known for certain of a sum.
pub(super) enum Known<'w, 'a> {
    /// Stacks do not decide it: this is the sum.
    Exactly(&'w [Group<'a>]),
    Within(Bounds<'w, 'a>),
    /// The records are estimates of a peak, without the blocks that were not chosen.
    AtPeak(Peaks<'w>),
}

/// Exact sums at the peaks.
pub(super) struct Peaks<'w> {
    /// Each has the peak of its own sum, so their sum is at least what was held at the same time.
    pub counters: &'w [Counter],
    /// The selected kinds; empty: all that hold memory.
    pub kinds: &'w [Kind],
    pub sampling: Sampling,
}

impl Peaks<'_> {
    /// The most that all selected kinds held, or this one.
    fn most(&self, only: Option<Kind>) -> u64 {
        let is_selected = |kind: Kind| match self.kinds {
            [] => kind.place() != Place::Nowhere,
            kinds => kinds.contains(&kind),
        };
        let wanted = |kind| is_selected(kind) && only.is_none_or(|only| only == kind);
        let counters = self.counters.iter().filter(|counter| wanted(counter.kind));
        counters.fold(0, |sum, counter| sum.saturating_add(counter.peak_bytes))
    }
}

pub(super) struct Bounds<'w, 'a> {
    /// The chosen records that are judged, and all records without a stack.
    pub all: &'w [Group<'a>],
    pub sampling: Sampling,
    /// The stack of a chosen record excludes it.
    pub excludes: bool,
    /// There are suppressions.
    pub suppresses: bool,
}

impl Whole<'_, '_> {
    /// The sum of all groups, or of this kind.
    pub fn sum(&self, only: Option<Kind>) -> Sum {
        let wanted = |group: &Group| only.is_none_or(|kind| group.call.kind == kind);
        let found = || Found::of(self.judged.iter().filter(|group| wanted(group)));
        let bounds = match &self.known {
            Known::Exactly(all) => return Sum::exact(total(all.iter().filter(|group| wanted(group)))),
            Known::AtPeak(peaks) => return found().within(&Range::at_peak(peaks, only, found().tally)),
            Known::Within(bounds) => bounds,
        };
        // Only suppressions exclude what no pool contains (tensors …).
        let may_be_excluded =
            |group: &Group| bounds.suppresses || Level::of(group.call.kind, true, true) != Level::Held;
        let all = bounds.all.iter().filter(|group| wanted(group));
        let range = Range::of(all, bounds.sampling, may_be_excluded);
        let seen_enough = !bounds.excludes && range.at_least.count > 0 && range.at_most.bytes > range.unseen;
        match range.at_least == range.at_most {
            true => Sum::exact(range.at_most),
            false if seen_enough => range.less_unseen(bounds.sampling),
            false => found().within(&range),
        }
    }

    /// The judged memory whose stacks are not known.
    pub fn hidden(&self, snapshot: &Snapshot) -> Hidden {
        let python = snapshot.process.python.as_ref();
        let has_no_python_frames = python.is_some_and(|python| python.no_frames.is_some());
        let has_lost = snapshot.losses.lost_stacks > 0;
        let lost = total(self.judged.iter().filter(|group| has_lost && group.stack.is_none()));
        let Some(sampling) = self.sampling else {
            return Hidden {
                tally: lost,
                unseen: u64::MAX,
                sampling: None,
                has_no_python_frames,
            };
        };
        let mut tally = match &self.known {
            Known::AtPeak(peaks) => {
                let bytes = peaks.most(None);
                let count = u64::from(bytes > 0);
                Tally { bytes, count }
            }
            Known::Within(Bounds { all, .. }) | Known::Exactly(all) => {
                total(all.iter().filter(|group| group.is_left_out))
            }
        };
        tally.join(lost);
        Hidden {
            tally,
            unseen: match lost.count {
                0 => sampling.most().saturating_mul(NEVER_UNSEEN),
                _ => u64::MAX,
            },
            sampling: Some(sampling),
            has_no_python_frames,
        }
    }

    /// The sum of what has a stack that matches. `matching`: of the judged groups.
    fn of_pattern<'g>(&self, matching: impl Iterator<Item = &'g Group<'g>>, matches: impl Fn(&Group) -> bool) -> Sum {
        let found = Found::of(matching);
        let (all, sampling) = match &self.known {
            Known::AtPeak(peaks) => return found.within(&Range::at_peak(peaks, None, found.tally)),
            Known::Within(bounds) => (bounds.all, bounds.sampling),
            Known::Exactly(all) => match self.sampling {
                Some(sampling) => (*all, sampling),
                None => return Sum::exact(found.tally),
            },
        };
        // Each block without a stack may match.
        let wanted = all.iter().filter(|group| group.is_left_out || matches(group));
        let range = Range::of(wanted, sampling, |_| true);
        match range.at_least == range.at_most {
            true => Sum::exact(range.at_most),
            false => found.within(&range),
        }
    }
}

/// Judged memory whose stacks are not known: any call site may have allocated it.
pub(super) struct Hidden {
    pub tally: Tally,
    /// Of more bytes than this at one call site, at least one block has a stack: almost certainly.
    unseen: u64,
    sampling: Option<Sampling>,
    /// Stacks lack the frames of an interpreter.
    has_no_python_frames: bool,
}

impl Hidden {
    /// The most that a call site has which seems to hold `bytes`, give or take `error`.
    pub fn at_most(&self, bytes: u64, error: u64) -> u64 {
        let more = CERTAIN.saturating_mul(error).saturating_add(self.unseen);
        bytes.saturating_add(more.min(self.tally.bytes))
    }

    pub fn why(&self) -> String {
        let Tally { bytes, count } = self.tally;
        let blocks = words::plural(count, "block", "blocks");
        match self.sampling {
            Some(_) => format!(
                "{} in {blocks} have no stack, because stacks were sampled",
                words::bytes(bytes)
            ),
            None => format!("{} in {blocks} were recorded without their stack", words::bytes(bytes)),
        }
    }

    pub fn next(&self) -> &'static str {
        match self.sampling {
            Some(sampling) => sample_more(sampling),
            None => "free disk space in the folder of the recording",
        }
    }
}

/// How to record more stacks.
fn sample_more(sampling: Sampling) -> &'static str {
    match sampling.most() > sampling.bytes {
        true => "record with --stack-rate 0, with a smaller --sample, or without it",
        false => "record with a smaller --sample, or without it",
    }
}

fn total<'g>(groups: impl Iterator<Item = &'g Group<'g>>) -> Tally {
    Tally::total(groups.map(Group::tally))
}

/// What is known of a sum without an estimate.
struct Range {
    at_least: Tally,
    at_most: Tally,
    /// Of more bytes than this, at least one block was chosen: almost certainly.
    unseen: u64,
    /// Numbers of blocks that were not chosen, and the least bytes of one of them; smallest first.
    left_out: Vec<(u64, u64)>,
}

impl Range {
    /// `is_open`: whether its stack would decide if a group counts.
    fn of<'g>(
        groups: impl Iterator<Item = &'g Group<'g>>,
        sampling: Sampling,
        is_open: impl Fn(&Group) -> bool,
    ) -> Range {
        let (left_out, chosen): (Vec<&Group>, Vec<&Group>) =
            groups.partition(|group| group.is_left_out && is_open(group));
        let at_least = total(chosen.into_iter());
        let mut at_most = total(left_out.iter().copied());
        at_most.join(at_least);
        let mut left_out: Vec<_> = left_out.iter().map(|group| (group.smallest, group.count)).collect();
        left_out.sort_unstable();
        Range {
            at_least,
            at_most,
            unseen: sampling.most().saturating_mul(NEVER_UNSEEN),
            left_out,
        }
    }

    /// Of sums of a peak: the chosen blocks exist.
    fn at_peak(peaks: &Peaks, only: Option<Kind>, found: Tally) -> Range {
        let bytes = peaks.most(only);
        Range {
            at_least: Tally {
                bytes: found.bytes.min(1).min(bytes),
                count: found.count.min(1),
            },
            at_most: Tally { bytes, count: u64::MAX },
            unseen: peaks.sampling.most().saturating_mul(NEVER_UNSEEN),
            // Of any size.
            left_out: vec![(0, u64::MAX)],
        }
    }

    /// The most blocks without a stack that these bytes may consist of.
    fn blocks_in(&self, mut bytes: u64) -> u64 {
        let mut blocks: u64 = 0;
        for &(smallest, count) in &self.left_out {
            let fit = bytes.checked_div(smallest).map_or(count, |fit| fit.min(count));
            bytes -= fit * smallest;
            blocks = blocks.saturating_add(fit);
        }
        blocks
    }

    /// All, of which as much may be suppressed as is not seen.
    fn less_unseen(&self, sampling: Sampling) -> Sum {
        let all = self.at_most;
        // With each mean distance more, the chance that no block of them is chosen falls by a factor of e.
        let one = sampling.most();
        Sum {
            tally: all,
            estimated: Some(Errors {
                bytes_error: one.min(all.bytes - self.at_least.bytes),
                count_error: Some(self.blocks_in(one)),
            }),
            bytes: Figure {
                found: all.bytes,
                least: self.at_least.bytes.max(all.bytes - self.unseen),
                most: all.bytes,
            },
            count: Figure {
                found: all.count,
                least: self.at_least.count.max(all.count - self.blocks_in(self.unseen)),
                most: all.count,
            },
        }
    }
}

/// What chosen blocks stand for.
struct Found {
    tally: Tally,
    errors: Option<Errors>,
}

impl Found {
    fn of<'g>(groups: impl Iterator<Item = &'g Group<'g>>) -> Found {
        let mut estimate = Estimate::default();
        let mut tally = Tally::default();
        for group in groups {
            tally.join(group.tally());
            if let Some(of_group) = &group.estimate {
                estimate.join(of_group);
            }
        }
        Found {
            tally,
            errors: estimate.errors(),
        }
    }

    fn within(&self, range: &Range) -> Sum {
        let errors = self.errors.unwrap_or(Errors::NONE);
        let bytes = Figure {
            found: self.tally.bytes,
            least: range.at_least.bytes,
            most: range.at_most.bytes,
        }
        .narrowed(Some(errors.bytes_error), range.unseen);
        let count = Figure {
            found: self.tally.count,
            least: range.at_least.count,
            most: range.at_most.count,
        }
        .narrowed(errors.count_error, range.blocks_in(range.unseen));
        // If every chosen block was chosen for certain, or none was, others may have been missed: up to the most that is possible.
        let missed = Errors {
            bytes_error: bytes.most.saturating_sub(bytes.found),
            count_error: (count.most < u64::MAX).then(|| count.most.saturating_sub(count.found)),
        };
        Sum {
            tally: self.tally,
            estimated: Some(self.errors.unwrap_or(missed)),
            bytes,
            count,
        }
    }
}

/// A sum, exact or an estimate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sum {
    pub tally: Tally,
    /// Its standard errors, if it is an estimate.
    pub estimated: Option<Errors>,
    bytes: Figure,
    count: Figure,
}

impl Sum {
    fn exact(tally: Tally) -> Sum {
        let figure = |found| Figure {
            found,
            least: found,
            most: found,
        };
        Sum {
            tally,
            estimated: None,
            bytes: figure(tally.bytes),
            count: figure(tally.count),
        }
    }

    pub fn most(&self) -> Tally {
        Tally {
            bytes: self.bytes.most,
            count: self.count.most,
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
    /// The range of an estimate with this error, which may lack `unseen`, within the range that is certain. Estimates that are too
    /// low have errors that are too low: `unseen` makes up for them.
    fn narrowed(self, error: Option<u64>, unseen: u64) -> Figure {
        let range = CERTAIN.saturating_mul(error.unwrap_or(u64::MAX));
        Figure {
            least: self.found.saturating_sub(range).clamp(self.least, self.most),
            most: self
                .found
                .saturating_add(range)
                .saturating_add(unseen)
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

/// Why a limit on the whole cannot be judged, and what to do. `of`: of which memory.
fn undecided(whole: &Whole, rule: &str, of: &str, range: &Figure, limit: u64, shown: impl Fn(u64) -> String) -> Unseen {
    let range = match (range.least, range.most) {
        (least, u64::MAX) => format!("{} or more", shown(least)),
        (least, most) => format!("{} to {}", shown(least), shown(most)),
    };
    let more = whole.sampling.map_or("", sample_more);
    let (why, next) = match whole.known {
        Known::AtPeak(_) => ("it is an estimate from sampled stacks", more.to_owned()),
        Known::Within(Bounds { suppresses: false, .. }) => (
            "blocks without a stack may belong to a pool of a caching allocator",
            more.to_owned(),
        ),
        _ => (
            "blocks without a stack may match a suppression",
            format!("{more}, or judge all memory without suppressions (--no-builtin-suppressions)"),
        ),
    };
    Unseen::part(
        rule,
        format!("{range}{of} held with {} allowed: {why}", shown(limit)),
        next,
    )
}

/// Breaches of the limits on the total and on kinds.
pub(super) fn of_the_whole(whole: &Whole, found: Sum, rules: &Rules, unseen: &mut Vec<Unseen>) -> Vec<Breach> {
    let limits = &rules.limits;
    let (bytes, count) = limits.effective(rules.baseline.is_some());
    let mut breaches = Vec::new();
    if let Some(limit) = bytes {
        let rule = match rules
            .boundary
            .as_ref()
            .is_some_and(|boundary| boundary.previous_ns.is_none())
        {
            true => "--not-above",
            false => "--allow SIZE",
        };
        let above = found.bytes.above(limit, |range| {
            unseen.push(undecided(whole, rule, "", range, limit, words::bytes));
        });
        breaches.extend(above.map(|found| Breach::Bytes { limit, found }));
    }
    if let Some(limit) = count {
        let rule = limits.max_count.map_or("", |_| "--allow count=N");
        let blocks = |count| words::plural(count, "block", "blocks");
        let above = found.count.above(limit, |range| {
            unseen.push(undecided(whole, rule, "", range, limit, blocks));
        });
        breaches.extend(above.map(|found| Breach::Count { limit, found }));
    }
    for (&kind, &limit) in &limits.per_kind {
        let above = whole.sum(Some(kind)).bytes.above(limit, |range| {
            let of = format!(" of {} memory", kind.name());
            unseen.push(undecided(whole, "--allow KIND=SIZE", &of, range, limit, words::bytes));
        });
        breaches.extend(above.map(|found| Breach::Kind {
            kind: kind.name(),
            limit,
            found,
        }));
    }
    breaches
}

/// Breaches of limits on what matches a pattern.
pub(super) fn of_budgets(
    whole: &Whole,
    stacks: &CallStacks,
    hidden: &Hidden,
    limits: &Limits,
    unseen: &mut Vec<Unseen>,
) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for budget in &limits.budgets {
        let mut by_stack: BTreeMap<Option<usize>, bool> = BTreeMap::new();
        let mut matches = |group: &Group| {
            *by_stack
                .entry(group.stack)
                .or_insert_with(|| budget.pattern.matches_stack(stacks.get(group.stack)))
        };
        let (matching, others): (Vec<&Group>, Vec<&Group>) = whole.judged.iter().partition(|group| matches(group));
        let mut sum = whole.of_pattern(matching.into_iter(), |group| {
            budget.pattern.matches_stack(stacks.get(group.stack))
        });
        // A part of a stack that was cut off or has no name may match, and so may a stack that is missing.
        let is_unnamed = |group: &Group| {
            let site = stacks.get(group.stack).site();
            site.is_some_and(|site| site.role == Role::User && site.function.is_none())
                || sum.tally.count == 0 && hidden.has_no_python_frames
        };
        let (cut, unnamed): (Vec<&Group>, Vec<&Group>) =
            (others.into_iter()).partition(|group| stacks.get(group.stack).truncated);
        let unnamed = total(unnamed.into_iter().filter(|group| is_unnamed(group))).bytes;
        let cut = total(cut.into_iter()).bytes.saturating_add(unnamed);
        sum.bytes.most = sum.bytes.most.saturating_add(cut);
        let above = sum.bytes.above(budget.bytes, |range| {
            let (why, next) = match range.most - cut > budget.bytes {
                true => (hidden.why(), hidden.next()),
                false if unnamed > 0 => (
                    format!("{} have stacks without names", words::bytes(unnamed)),
                    NAME_FRAMES,
                ),
                false => (
                    format!("{} have stacks that were cut off", words::bytes(cut)),
                    LARGER_DEPTH,
                ),
            };
            let what = format!(
                "{} to {} held in {} with {} allowed: {why}",
                words::bytes(range.least),
                words::bytes(range.most),
                budget.pattern.text(),
                words::bytes(budget.bytes)
            );
            unseen.push(Unseen::part("--allow leak:PATTERN=SIZE", what, next));
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
