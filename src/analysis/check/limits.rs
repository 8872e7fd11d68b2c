//! What a check allows: a list of limits, what fails against a baseline, and which records are judged.

use std::collections::BTreeSet;

use serde::Serialize;

use super::growth::BySite;
use crate::analysis::baseline::Baseline;
use crate::analysis::boundaries::Boundary;
use crate::analysis::suppressions::{Pattern, Suppressions};
use crate::analysis::words;
use crate::kind::Kind;
use crate::point::Point;
use crate::snapshot::Class;
use crate::tally::Tally;

/// What a limit applies to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Everything that is judged.
    All,
    /// One kind of memory, or of objects.
    Kind(Kind),
    /// All call sites together whose stacks match a pattern, as in suppressions.
    Pattern(Pattern),
    /// Each call site by itself.
    Site,
}

impl Scope {
    fn kind(&self) -> Option<Kind> {
        match self {
            Scope::Kind(kind) => Some(*kind),
            _ => None,
        }
    }

    /// ` of pinned memory`, ` in cache.py`: which memory, after a verb.
    pub fn words(&self) -> String {
        match self {
            Scope::All | Scope::Site => String::new(),
            Scope::Kind(kind) => format!(" of {} memory", kind.name()),
            Scope::Pattern(pattern) => format!(" in {}", pattern.text()),
        }
    }
}

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    Bytes,
    Blocks,
    /// Objects without an address.
    Objects,
}

impl Measure {
    pub fn of(self, tally: Tally) -> u64 {
        match self {
            Measure::Bytes => tally.bytes,
            Measure::Blocks | Measure::Objects => tally.count,
        }
    }

    /// `1.2 GiB`, `3 blocks`, `3`.
    pub fn words(self, figure: u64) -> String {
        match self {
            Measure::Bytes => words::bytes(figure),
            Measure::Blocks => words::plural(figure, "block", "blocks"),
            Measure::Objects => words::count(figure),
        }
    }
}

/// The most that is allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Limit {
    pub of: Scope,
    pub measure: Measure,
    #[serde(rename = "limit")]
    pub most: u64,
}

/// A way to write a limit in a value of `--allow`.
pub struct Spelling {
    /// With capitals in the place of names and numbers.
    pub form: &'static str,
    /// What it limits, for `--help`.
    pub about: &'static str,
    pub example: &'static str,
    spells: fn(&Scope, Measure) -> bool,
}

macro_rules! spellings {
    ($($form:literal, $about:literal, $example:literal, $spells:expr;)+) => {
        [$(Spelling { form: $form, about: $about, example: $example, spells: $spells }),+]
    };
}

impl Limit {
    /// All ways, in the order in which verdicts name limits.
    pub const SPELLINGS: &[Spelling] = &spellings! {
        "SIZE", "in total", "64MiB", |of, measure| *of == Scope::All && measure == Measure::Bytes;
        "count=N", "blocks in total", "count=100", |of, measure| *of == Scope::All && measure == Measure::Blocks;
        "KIND=SIZE", "of one kind of memory", "pinned=1GiB", |of, measure| matches!(of, Scope::Kind(_)) && measure == Measure::Bytes;
        "OBJECT=N", "so many objects of one kind", "graph-exec=64", |of, measure| matches!(of, Scope::Kind(_)) && measure == Measure::Objects;
        "leak:PATTERN=SIZE", "in total for stacks that match a pattern, as in suppressions (* stands for a comma in it)", "leak:cache.py=2GiB", |of, _| matches!(of, Scope::Pattern(_));
        "site=SIZE", "per call site", "site=16MiB", |of, _| *of == Scope::Site;
    };

    /// The index of its spelling.
    pub fn spelling(&self) -> usize {
        let index = Limit::SPELLINGS
            .iter()
            .position(|spelling| (spelling.spells)(&self.of, self.measure));
        index.unwrap_or(0)
    }

    pub const fn bytes(of: Scope, most: u64) -> Limit {
        let measure = Measure::Bytes;
        Limit { of, measure, most }
    }

    pub const fn blocks(most: u64) -> Limit {
        let (of, measure) = (Scope::All, Measure::Blocks);
        Limit { of, measure, most }
    }

    pub const fn objects(kind: Kind, most: u64) -> Limit {
        let (of, measure) = (Scope::Kind(kind), Measure::Objects);
        Limit { of, measure, most }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Limits {
    /// On all, on kinds, on patterns and on each call site, in this order.
    pub given: Vec<Limit>,
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

impl<const N: usize> From<[Limit; N]> for Limits {
    fn from(given: [Limit; N]) -> Limits {
        Limits {
            given: given.into(),
            ..Limits::default()
        }
    }
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

    /// The most that is allowed for a site of which the baseline has this much. Bytes apply to memory only.
    pub(super) fn allows(self, known: u64, measure: Measure) -> u64 {
        match self {
            Tolerance::Bytes(_) if measure == Measure::Objects => known,
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
    /// Adds a limit in front, in place of another one on the same scope and measure.
    pub fn set(&mut self, limit: Limit) {
        self.given
            .retain(|other| (&other.of, other.measure) != (&limit.of, limit.measure));
        self.given.insert(0, limit);
    }

    /// Whether any leak fails, because no limit is given.
    pub fn allow_nothing(&self, against_baseline: bool) -> bool {
        let given = !self.given.is_empty() || !self.classes.is_empty() || self.outliers;
        !given && (!against_baseline || self.fail_on == FailOn::Any)
    }

    /// Whether all memory that is judged can break a rule: none is only of some kinds, patterns or objects.
    pub(super) fn apply_to_all(&self, against_baseline: bool) -> bool {
        let is_of_all = |limit: &Limit| matches!(limit.of, Scope::All | Scope::Site);
        let by_any = against_baseline || self.outliers || !self.classes.is_empty();
        by_any || self.given.is_empty() || self.given.iter().any(is_of_all)
    }

    /// The given limits; with `--fail-on any` or without a limit also that nothing is allowed: each leak is at least one block, so
    /// their number is sufficient as a reason.
    pub fn effective(&self, against_baseline: bool) -> Vec<Limit> {
        let all_fails = against_baseline && self.fail_on == FailOn::Any || self.allow_nothing(against_baseline);
        let nothing = all_fails.then(|| Limit::blocks(0));
        nothing.into_iter().chain(self.given.iter().cloned()).collect()
    }

    /// The kinds of objects without an address that have a limit.
    pub fn of_objects(&self) -> impl Iterator<Item = Kind> {
        let limits = self.given.iter().filter(|limit| limit.measure == Measure::Objects);
        limits.filter_map(|limit| limit.of.kind())
    }

    /// Only objects without an address have limits, so memory is not judged.
    pub(super) fn are_of_objects(&self, at_boundary: bool, against_baseline: bool) -> bool {
        let mut without = self.clone();
        without.given.retain(|limit| limit.measure != Measure::Objects);
        without.given.len() < self.given.len() && !at_boundary && without.allow_nothing(against_baseline)
    }
}

/// The judged memory beside memory in question.
pub(super) struct Besides {
    pub judged: Tally,
    /// The most bytes of one call site.
    pub largest_site: u64,
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
    pub(super) fn effective(&self) -> Vec<Limit> {
        self.limits.effective(self.baseline.is_some())
    }

    /// Whether objects are compared with a baseline. A check of marks compares memory only.
    pub(super) fn compares_objects(&self) -> bool {
        let known = self.baseline.as_ref().and_then(|baseline| baseline.objects.as_ref());
        known.is_some() && self.boundary.is_none()
    }

    /// The option that gives this limit; empty: none does.
    pub(super) fn option(&self, limit: &Limit) -> String {
        let at_highest_mark = (self.boundary.as_ref()).is_some_and(|boundary| boundary.previous_ns.is_none());
        match (&limit.of, limit.measure) {
            (Scope::All, Measure::Blocks) if !self.limits.given.contains(limit) => String::new(),
            (Scope::All, Measure::Bytes) if at_highest_mark => "--not-above".to_owned(),
            _ => format!("--allow {}", Limit::SPELLINGS[limit.spelling()].form),
        }
    }

    /// Whether more memory, whose call sites and holders are unknown, could break a limit. `kinds`: which kinds it may be of.
    pub(super) fn could_be_broken_by(&self, more: Tally, besides: &Besides, kinds: impl Fn(Kind) -> bool) -> bool {
        let limits = &self.limits;
        if limits.are_of_objects(self.boundary.is_some(), self.baseline.is_some()) {
            return false;
        }
        let mut all = besides.judged;
        all.join(more);
        let could_break = |limit: &Limit| match (&limit.of, limit.measure) {
            (_, Measure::Objects) => false,
            (_, Measure::Blocks) => all.count > limit.most,
            (Scope::Site, _) => besides.largest_site.saturating_add(more.bytes) > limit.most,
            (Scope::Kind(kind), _) => kinds(*kind) && all.bytes > limit.most,
            (Scope::All | Scope::Pattern(_), _) => all.bytes > limit.most,
        };
        let by_any = self.baseline.is_some() || limits.outliers || !limits.classes.is_empty();
        more.count > 0 && (by_any || self.effective().iter().any(could_break))
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
