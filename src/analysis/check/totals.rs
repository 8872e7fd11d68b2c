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

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Rules;
use super::figure::Figure;
use super::limits::{Limit, Measure, Scope};
use super::selection::{Sorted, is_pool_by_stack, is_selected, since};
use super::unseen::{LARGER_DEPTH, NAME_FRAMES, ROOM};
use crate::analysis::estimate::{CERTAIN, Errors, Estimate, NEVER_UNSEEN};
use crate::analysis::groups::{Group, Groups, Level};
use crate::analysis::site::{CallStacks, Role};
use crate::analysis::suppressions::Pattern;
use crate::analysis::words;
use crate::kind::{Kind, Place};
use crate::snapshot::{Counter, Sampling, Snapshot};
use crate::tally::Tally;

/// Judged memory of one kind that no limit applies to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WithoutLimit {
    pub kind: Kind,
    #[serde(flatten)]
    pub tally: Tally,
    /// The standard errors, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated: Option<Errors>,
}

/// The judged records.
pub(super) struct Whole<'w, 'a> {
    stacks: &'w CallStacks<'a>,
    /// What the stacks of the judged records stand for; without sampling, the records themselves.
    judged: &'w [Group<'a>],
    /// The chosen records that are judged, and all records without a stack; without sampling, as `judged`.
    all: &'w [Group<'a>],
    sampling: Option<Sampling>,
    /// The records are estimates of a peak, without the blocks that were not chosen.
    peaks: Option<Peaks<'w>>,
    /// Suppressions or an earlier boundary leave out a part by its stack.
    suppresses: bool,
    /// The stack of a chosen record shows that it is a pool. Without its stack, it would seem to be held.
    excludes_pools: bool,
    /// The stack of a chosen record excludes it.
    excludes: bool,
}

/// Exact sums at the peaks.
struct Peaks<'w> {
    /// Each has the peak of its own sum, so their sum is at least what was held at the same time.
    counters: &'w [Counter],
    /// The selected kinds; empty: all that hold memory.
    kinds: &'w [Kind],
}

impl Peaks<'_> {
    /// The most that all selected kinds held, or this one.
    fn most(&self, of: &Scope) -> u64 {
        let is_selected = |kind: Kind| match self.kinds {
            [] => kind.place() != Place::Nowhere,
            kinds => kinds.contains(&kind),
        };
        let wanted = |kind| is_selected(kind) && !matches!(of, Scope::Kind(only) if *only != kind);
        let counters = self.counters.iter().filter(|counter| wanted(counter.kind));
        counters.fold(0, |sum, counter| sum.saturating_add(counter.peak_bytes))
    }
}

impl<'w, 'a> Whole<'w, 'a> {
    /// `all`: as `judged`, but by record, if stacks were sampled.
    pub fn new(
        snapshot: &'w Snapshot,
        groups: &Groups<'a>,
        stacks: &'w CallStacks<'a>,
        judged: &'w [Group<'a>],
        all: Option<&'w Sorted<'_, 'a>>,
        rules: &'w Rules,
    ) -> Whole<'w, 'a> {
        let (limits, since) = (&rules.limits, since(snapshot, rules));
        let lacks_pools = |group: &Group| {
            let is_of_kind = limits.kinds.is_empty() || limits.kinds.contains(&group.call.kind);
            let is_judged = is_of_kind && group.oldest_ns >= since;
            is_judged && !group.is_left_out && !is_selected(group, limits) && is_pool_by_stack(group, stacks)
        };
        let excludes_pools = snapshot.sampling.is_some() && groups.all.iter().any(lacks_pools);
        let has_previous = rules.previous.is_some();
        let suppressed = all.map_or(0, |all| all.sieve.suppressed().count);
        // Rows of a peak are sums by stack.
        let is_peak = snapshot.sampling.is_some() && groups.is_summed;
        Whole {
            stacks,
            judged,
            all: all.map_or(judged, |all| &all.judged),
            sampling: snapshot.sampling,
            peaks: is_peak.then_some(Peaks {
                counters: &snapshot.counters,
                kinds: &limits.kinds,
            }),
            suppresses: !rules.suppressions.is_empty() || has_previous,
            excludes_pools,
            excludes: suppressed > 0 || excludes_pools || has_previous,
        }
    }

    /// The sum of all judged records, or of a kind.
    pub fn sum(&self, of: &Scope) -> JudgedTotal {
        self.sum_of(of, |group| !matches!(of, Scope::Kind(kind) if group.call.kind != *kind))
    }

    fn sum_of(&self, of: &Scope, is_of: impl Fn(&Group) -> bool) -> JudgedTotal {
        let (found, errors) = chosen(self.judged.iter().filter(|group| is_of(group)));
        let Some(sampling) = self.sampling else {
            return JudgedTotal::exact(found);
        };
        if let Some(peaks) = &self.peaks {
            return Range::at_peak(peaks.most(of), sampling, found).around(found, errors);
        }
        let by_stack = matches!(of, Scope::Pattern(_));
        let may_be_pool = |group: &Group| {
            // Only suppressions exclude what no pool contains (tensors …).
            self.excludes_pools && Level::of(group.call.kind, true, true) != Level::Held
        };
        // Each block without a stack may match a pattern.
        let all = (self.all.iter()).filter(|group| is_of(group) || by_stack && group.is_left_out);
        let range = Range::of(all, sampling, |group| by_stack || self.suppresses || may_be_pool(group));
        let seen_enough = !by_stack && !self.excludes && range.at_least.count > 0;
        match range.at_least == range.at_most {
            true => JudgedTotal::exact(range.at_most),
            false if seen_enough && range.at_most.bytes > range.unseen => range.less_unseen(sampling),
            false => range.around(found, errors),
        }
    }

    /// The judged memory of each kind that no limit applies to.
    pub fn without_limit(&self, rules: &Rules) -> Vec<WithoutLimit> {
        let limits = &rules.limits;
        if limits.apply_to_all(rules.baseline.is_some()) {
            return Vec::new();
        }
        let is_limited = |kind| {
            let mut memory = (limits.given.iter()).filter(|limit| limit.measure != Measure::Objects);
            memory.any(|limit| limit.of == Scope::Kind(kind))
        };
        let stacks: BTreeSet<Option<usize>> = self.judged.iter().map(|group| group.stack).collect();
        let in_patterns = |stack: &Option<usize>| {
            let in_pattern =
                |limit: &Limit| matches!(&limit.of, Scope::Pattern(of) if of.matches_stack(self.stacks.get(*stack)));
            limits.given.iter().any(in_pattern)
        };
        let in_patterns: BTreeSet<Option<usize>> = stacks.into_iter().filter(in_patterns).collect();
        let kinds: BTreeSet<Kind> = self
            .judged
            .iter()
            .chain(self.all)
            .map(|group| group.call.kind)
            .collect();
        let without = kinds.into_iter().filter(|kind| !is_limited(*kind)).map(|kind| {
            let is_of = |group: &Group| group.call.kind == kind && !in_patterns.contains(&group.stack);
            let sum = self.sum_of(&Scope::Kind(kind), is_of);
            WithoutLimit {
                kind,
                tally: sum.tally(),
                estimated: sum.estimated,
            }
        });
        without.filter(|of| of.tally.bytes > 0).collect()
    }

    /// What stacks hold that match a pattern; why it cannot be compared with what is allowed, and what to do.
    pub fn in_pattern(&self, pattern: &Pattern, hidden: &Hidden, allowed: u64) -> (Figure, (String, String)) {
        let matching = self.judged.iter().chain(self.all).map(|group| group.stack);
        let matching: BTreeMap<Option<usize>, bool> =
            (matching.map(|stack| (stack, pattern.matches_stack(self.stacks.get(stack))))).collect();
        let matches = |group: &Group| matching[&group.stack];
        let sum = self.sum_of(&Scope::Pattern(pattern.clone()), matches);
        let mut figure = sum.bytes;
        // A part of a stack that was cut off or has no name may match, and so may a stack that is missing.
        let is_unnamed = |group: &Group| {
            let site = self.stacks.get(group.stack).site();
            site.is_some_and(|site| site.role == Role::User && site.function.is_none())
                || sum.count.found == 0 && hidden.has_no_python_frames
        };
        let others = self.judged.iter().filter(|group| !matches(group));
        let (cut, whole): (Vec<&Group>, Vec<&Group>) = others.partition(|group| self.stacks.get(group.stack).truncated);
        let unnamed = total(whole.into_iter().filter(|group| is_unnamed(group))).bytes;
        let cut = total(cut.into_iter()).bytes.saturating_add(unnamed);
        figure.most = figure.most.saturating_add(cut);
        let doubt = match figure.most - cut > allowed {
            true => (hidden.why(), hidden.next().to_owned()),
            false if unnamed > 0 => (
                format!("{} have stacks without names", words::bytes(unnamed)),
                NAME_FRAMES.to_owned(),
            ),
            false => (
                format!("{} have stacks that were cut off", words::bytes(cut)),
                LARGER_DEPTH.to_owned(),
            ),
        };
        (figure, doubt)
    }

    /// Why a total cannot be compared with what is allowed, and what to do.
    pub fn why_undecided(&self) -> (String, String) {
        let more = self.sampling.map_or("", sample_more);
        let suppressed = "blocks without a stack may match a suppression";
        let (why, next) = match (&self.peaks, self.suppresses) {
            (Some(_), _) => ("it is an estimate from sampled stacks", more.to_owned()),
            (None, false) => (
                "blocks without a stack may belong to a pool of a caching allocator",
                more.to_owned(),
            ),
            (None, true) => (
                suppressed,
                format!("{more}, or judge all memory without suppressions (--no-builtin-suppressions)"),
            ),
        };
        (why.to_owned(), next)
    }

    /// The judged memory whose stacks are not known.
    pub fn hidden(&self, snapshot: &Snapshot) -> Hidden {
        let python = snapshot.process.python.as_ref();
        let has_lost = snapshot.losses.lost_stacks > 0;
        let lost = total(self.judged.iter().filter(|group| has_lost && group.stack.is_none()));
        let mut tally = match &self.peaks {
            Some(peaks) => {
                let bytes = peaks.most(&Scope::All);
                Tally::new(bytes, u64::from(bytes > 0))
            }
            None => total(self.all.iter().filter(|group| group.is_left_out)),
        };
        tally.join(lost);
        Hidden {
            tally,
            unseen: match self.sampling {
                Some(sampling) if lost.count == 0 => sampling.most().saturating_mul(NEVER_UNSEEN),
                _ => u64::MAX,
            },
            sampling: self.sampling,
            has_no_python_frames: python.is_some_and(|python| python.no_frames.is_some()),
        }
    }
}

/// Judged memory whose stacks are not known: any call site may have allocated it.
pub struct Hidden {
    pub tally: Tally,
    /// Of more bytes than this at one call site, at least one block has a stack: almost certainly.
    unseen: u64,
    sampling: Option<Sampling>,
    /// Stacks lack the frames of an interpreter.
    has_no_python_frames: bool,
}

impl Hidden {
    /// What a call site has that seems to hold `bytes`, give or take `error`.
    pub fn around(&self, bytes: u64, error: u64) -> Figure {
        let error = CERTAIN.saturating_mul(error);
        Figure {
            found: bytes,
            least: bytes.saturating_sub(error),
            most: bytes.saturating_add(error.saturating_add(self.unseen).min(self.tally.bytes)),
        }
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
            None => ROOM,
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

    /// Of at most these bytes at a peak: the chosen blocks exist.
    fn at_peak(bytes: u64, sampling: Sampling, found: Tally) -> Range {
        Range {
            at_least: Tally::new(found.bytes.min(1).min(bytes), found.count.min(1)),
            at_most: Tally::new(bytes, u64::MAX),
            unseen: sampling.most().saturating_mul(NEVER_UNSEEN),
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
    fn less_unseen(&self, sampling: Sampling) -> JudgedTotal {
        let (all, at_least) = (self.at_most, self.at_least);
        // With each mean distance more, the chance that no block of them is chosen falls by a factor of e.
        let one = sampling.most();
        let less = |all: u64, at_least: u64, unseen: u64| Figure {
            found: all,
            least: at_least.max(all - unseen),
            most: all,
        };
        JudgedTotal {
            estimated: Some(Errors {
                bytes_error: one.min(all.bytes - at_least.bytes),
                count_error: Some(self.blocks_in(one)),
            }),
            bytes: less(all.bytes, at_least.bytes, self.unseen),
            count: less(all.count, at_least.count, self.blocks_in(self.unseen)),
        }
    }

    /// What was found, within this range.
    fn around(&self, found: Tally, errors: Option<Errors>) -> JudgedTotal {
        let (at_least, at_most) = (self.at_least, self.at_most);
        // Few chosen blocks of a large size may stand for more than there can be.
        let found = Tally {
            bytes: found.bytes.clamp(at_least.bytes, at_most.bytes),
            count: found.count.clamp(at_least.count, at_most.count),
        };
        let errors = errors.map(|errors| Errors {
            bytes_error: errors.bytes_error.min(at_most.bytes - at_least.bytes),
            count_error: errors
                .count_error
                .map(|error| error.min(at_most.count - at_least.count)),
        });
        let Errors {
            bytes_error,
            count_error,
        } = errors.unwrap_or(Errors::NONE);
        let figure = |found, least, most| Figure { found, least, most };
        let bytes = figure(found.bytes, at_least.bytes, at_most.bytes).narrowed(Some(bytes_error), self.unseen);
        let count = figure(found.count, at_least.count, at_most.count);
        let count = count.narrowed(count_error, self.blocks_in(self.unseen));
        // If every chosen block was chosen for certain, or none was, others may have been missed: up to the most that is possible.
        let missed = Errors {
            bytes_error: bytes.most.saturating_sub(bytes.found),
            count_error: (count.most < u64::MAX).then(|| count.most.saturating_sub(count.found)),
        };
        JudgedTotal {
            estimated: Some(errors.unwrap_or(missed)),
            bytes,
            count,
        }
    }
}

/// What chosen blocks stand for, and the errors of that.
fn chosen<'g>(groups: impl Iterator<Item = &'g Group<'g>>) -> (Tally, Option<Errors>) {
    let (mut tally, mut estimate) = (Tally::default(), Estimate::default());
    for group in groups {
        tally.join(group.tally());
        group.estimate.iter().for_each(|of_group| estimate.join(of_group));
    }
    (tally, estimate.errors())
}

/// A total, exact or an estimate.
#[derive(Debug, Clone, Copy)]
pub(super) struct JudgedTotal {
    /// Its standard errors, if it is an estimate.
    pub estimated: Option<Errors>,
    bytes: Figure,
    count: Figure,
}

impl JudgedTotal {
    fn exact(tally: Tally) -> JudgedTotal {
        JudgedTotal {
            estimated: None,
            bytes: Figure::exact(tally.bytes),
            count: Figure::exact(tally.count),
        }
    }

    pub fn tally(&self) -> Tally {
        Tally::new(self.bytes.found, self.count.found)
    }

    pub fn most(&self) -> Tally {
        Tally::new(self.bytes.most, self.count.most)
    }

    /// `measure`: of memory.
    pub fn figure(&self, measure: Measure) -> Figure {
        match measure {
            Measure::Blocks => self.count,
            _ => self.bytes,
        }
    }
}
