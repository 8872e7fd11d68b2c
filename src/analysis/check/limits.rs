//! What is allowed: limits on the whole, on kinds, on sites and on patterns, and what a baseline lets pass.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analysis::baseline::Baseline;
use crate::analysis::suppressions::{Pattern, Suppressions};
use crate::kind::Kind;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Limits {
    pub max_leaked: Option<u64>,
    pub max_count: Option<u64>,
    /// For every call site by itself.
    pub max_per_site: Option<u64>,
    /// For kinds of memory.
    pub per_kind: BTreeMap<Kind, u64>,
    /// For all sites together whose stacks match a pattern.
    pub budgets: Vec<Budget>,
    /// How much a site that the baseline has may grow beyond it.
    pub tolerance: Tolerance,
    /// What fails against a baseline.
    pub fail_on: FailOn,
    /// Only what was allocated after the moment of this name; the last one, if several have it.
    pub since: Option<String>,
    /// Only these kinds; every kind that holds memory when empty.
    pub kinds: Vec<Kind>,
    /// Judge what caching allocators hold too, where the blocks they handed out are not known.
    pub judge_pools: bool,
    /// Judge a recording that lost allocations by what it has.
    pub allow_losses: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Budget {
    /// As suppressions have them.
    pub pattern: Pattern,
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tolerance {
    Bytes(u64),
    /// Of what the baseline has for the site.
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

    /// The most that may be there where this much was known.
    pub(super) fn allows(self, known: u64) -> u64 {
        match self {
            Tolerance::Bytes(bytes) => known.saturating_add(bytes),
            Tolerance::Percent(percent) => known.saturating_add((known as f64 * percent / 100.0) as u64),
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FailOn {
    /// Sites that the baseline does not have.
    New,
    /// These, and known ones that hold more than it allows.
    #[default]
    Grown,
    /// Every leak, known or not.
    Any,
}

impl Limits {
    /// Without any limit, any leak is one too many.
    pub fn allow_nothing(&self, against_baseline: bool) -> bool {
        let given = self.max_leaked.is_some()
            || self.max_count.is_some()
            || self.max_per_site.is_some()
            || !self.per_kind.is_empty()
            || !self.budgets.is_empty();
        !given && (!against_baseline || self.fail_on == FailOn::Any)
    }

    /// Bytes and count allowed in all; `None` is no limit.
    pub fn effective(&self, against_baseline: bool) -> (Option<u64>, Option<u64>) {
        match self.allow_nothing(against_baseline) {
            // A leak of any size is a block: one reason is enough.
            true => (None, Some(0)),
            false => (self.max_leaked, self.max_count),
        }
    }
}

/// Everything a snapshot is held against.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    pub limits: Limits,
    pub suppressions: Suppressions,
    pub baseline: Option<Baseline>,
}

impl From<Limits> for Rules {
    fn from(limits: Limits) -> Rules {
        Rules {
            limits,
            ..Rules::default()
        }
    }
}
