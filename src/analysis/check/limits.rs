//! What a check allows: limits on the total, on kinds, sites and patterns, and the tolerance of a baseline.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::growth::BySite;
use crate::analysis::baseline::Baseline;
use crate::analysis::boundaries::Boundary;
use crate::analysis::suppressions::{Pattern, Suppressions};
use crate::analysis::tally::Tally;
use crate::kind::Kind;
use crate::point::Point;
use crate::snapshot::Class;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Limits {
    pub max_leaked: Option<u64>,
    pub max_count: Option<u64>,
    /// Bytes for each call site.
    pub max_per_site: Option<u64>,
    /// Bytes for each kind of memory.
    pub per_kind: BTreeMap<Kind, u64>,
    /// The number of objects of each kind.
    pub max_objects: BTreeMap<Kind, u64>,
    /// Bytes for all sites together whose stacks match a pattern.
    pub budgets: Vec<Budget>,
    /// How much a site may grow beyond the baseline.
    pub tolerance: Tolerance,
    /// What fails against a baseline.
    pub fail_on: FailOn,
    /// Blocks of these classes fail; their holders must be known.
    pub classes: BTreeSet<Class>,
    /// Processes that hold more than the others fail.
    pub outliers: bool,
    /// Judge only allocations made after the mark of this name; the last one, if several have it.
    pub since: Option<String>,
    /// Judge only these kinds; every kind that holds memory if empty.
    pub kinds: Vec<Kind>,
    /// Judge pools of caching allocators too, if their blocks are not known.
    pub judge_pools: bool,
    /// Judge a recording that lost allocations by the others.
    pub allow_losses: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Budget {
    /// A pattern as in suppressions.
    pub pattern: Pattern,
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Tolerance {
    Bytes(u64),
    /// Of the baseline's bytes for the site.
    Percent(f64),
}

impl Default for Tolerance {
    fn default() -> Tolerance {
        Tolerance::Bytes(0)
    }
}

impl Tolerance {
    pub fn is_none(self) -> bool {
        matches!(self, Tolerance::Bytes(0)) || self == Tolerance::Percent(0.0)
    }

    /// The most bytes allowed for a site with this many bytes in the baseline.
    pub(super) fn allows(self, known: u64) -> u64 {
        match self {
            Tolerance::Bytes(bytes) => known.saturating_add(bytes),
            Tolerance::Percent(percent) => known.saturating_add((known as f64 * percent / 100.0) as u64),
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FailOn {
    /// Sites that the baseline does not contain.
    New,
    /// New sites, and known sites that hold more than the baseline allows.
    #[default]
    Grown,
    /// Every leak, known or not.
    Any,
}

impl Limits {
    /// Whether any leak fails, because no limit is given.
    pub fn allow_nothing(&self, against_baseline: bool) -> bool {
        let given = self.max_leaked.is_some()
            || self.max_count.is_some()
            || self.max_per_site.is_some()
            || !self.per_kind.is_empty()
            || !self.max_objects.is_empty()
            || !self.budgets.is_empty()
            || !self.classes.is_empty()
            || self.outliers;
        !given && (!against_baseline || self.fail_on == FailOn::Any)
    }

    /// Bytes and count allowed in total; `None` is no limit.
    pub fn effective(&self, against_baseline: bool) -> (Option<u64>, Option<u64>) {
        match self.allow_nothing(against_baseline) {
            // Each leak is at least one block, so the count is sufficient as a reason.
            true => (None, Some(0)),
            false => (self.max_leaked, self.max_count),
        }
    }
}

/// The judged memory beside memory in question.
pub(super) struct Besides {
    pub judged: Tally,
    /// The most bytes of one call site.
    pub largest: u64,
}

/// Everything that a snapshot is checked against.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    pub limits: Limits,
    pub suppressions: Suppressions,
    pub baseline: Option<Baseline>,
    /// The point in time to judge, if the user chose one.
    pub at: Option<Point>,
    /// The mark at which the snapshot shows the program, if this is a check of marks.
    pub boundary: Option<Boundary>,
    /// The config file that some of these come from.
    pub config: Option<String>,
    /// What was held at the previous mark, if only what call sites hold above it is judged.
    pub previous: Option<BySite>,
}

impl Rules {
    /// Whether more memory, whose call sites and holders are unknown, could break a limit. `kinds`: which kinds it may be of.
    pub(super) fn could_be_broken_by(&self, more: Tally, besides: &Besides, kinds: impl Fn(Kind) -> bool) -> bool {
        let limits = &self.limits;
        if limits.are_of_objects(self.boundary.is_some(), self.baseline.is_some()) {
            return false;
        }
        let (bytes, count) = limits.effective(self.baseline.is_some());
        let mut all = besides.judged;
        all.join(more);
        let mut of_kinds = limits.per_kind.iter().filter(|(kind, _)| kinds(**kind));
        more.count > 0
            && (self.baseline.is_some()
                || limits.outliers
                || !limits.classes.is_empty()
                || bytes.is_some_and(|limit| all.bytes > limit)
                || count.is_some_and(|limit| all.count > limit)
                || limits
                    .max_per_site
                    .is_some_and(|limit| besides.largest.saturating_add(more.bytes) > limit)
                || limits.budgets.iter().any(|budget| all.bytes > budget.bytes)
                || of_kinds.any(|(_, &limit)| all.bytes > limit))
    }
}

impl From<Limits> for Rules {
    fn from(limits: Limits) -> Rules {
        Rules {
            limits,
            ..Rules::default()
        }
    }
}
