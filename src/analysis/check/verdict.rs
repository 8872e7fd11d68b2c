//! What a check says, and the outcome that follows: the one place that decides it.
//!
//! ```text
//! a limit is broken ────────────────────► failed
//! none is, but something is unseen ─────► no verdict
//! none is, and everything was seen ─────► passed
//! ```

use std::collections::BTreeSet;

use serde::{Serialize, Serializer};

use super::{Breach, Ignored, Judged, Limits, Measure, Scope, Unseen, WithoutLimit};
use crate::analysis::boundaries::Boundary;
use crate::analysis::estimate::Errors;
use crate::analysis::report::ProcessLine;
use crate::analysis::suppressions::Used;
use crate::analysis::why::SiteHolders;
use crate::snapshot::{Capture, Losses, Sampling};
use crate::tally::Tally;

/// The value of [`Verdict::format`].
pub const FORMAT: &str = "culeak-check";
pub const VERSION: u32 = 5;

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Verdict<'a> {
    pub format: &'static str,
    pub version: u32,
    #[serde(rename = "passed", serialize_with = "is_passed")]
    #[cfg_attr(test, schemars(with = "bool"))]
    pub outcome: Outcome,
    pub breaches: Vec<Breach>,
    /// What the rules speak of and was not seen, unless the user accepts that.
    pub unseen: Vec<Unseen>,
    pub limits: Limits,
    /// The config file that limits come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    pub process: ProcessLine<'a>,
    /// The process ended by itself and its last state was judged, so what is left is leaked.
    pub finished: bool,
    /// The point that was judged, in words; `None`: the last state.
    #[serde(skip)]
    pub when: Option<String>,
    /// Reports show the end of the script by default.
    #[serde(skip)]
    pub reports_show_end: bool,
    /// Memory that the script held at its end and that exit callbacks and the interpreter's shutdown freed, if the last state was
    /// judged: what `--since` and `--kind` select of it.
    pub freed_at_shutdown: Tally,
    /// If the end of the script is judged: memory of the selected kinds that was allocated after it and never freed, without what
    /// rules suppress.
    pub allocated_after_end: Tally,
    /// Objects of the judged kinds that were created after the end and never destroyed.
    pub objects_created_after_end: u64,
    /// The memory that limits apply to.
    pub judged: Tally,
    /// The standard errors of `judged`, if it is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judged_estimated: Option<Errors>,
    /// The part of `judged` that no limit applies to, because all limits are of other kinds, of patterns or of objects.
    pub without_limit: Vec<WithoutLimit>,
    /// How stacks were sampled: what call sites hold and what rules suppress is estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// Memory that `--kind` and `--since` exclude, and pools whose blocks are not known.
    pub ignored: Tally,
    /// `ignored` by reason.
    #[serde(skip)]
    pub ignored_as: Ignored,
    /// What pools keep beside their blocks, which are judged.
    #[serde(skip)]
    pub rest_of_pools: Tally,
    pub suppressed: Tally,
    /// The number of objects of kinds with a limit that rules suppress.
    pub suppressed_objects: u64,
    /// Every rule, used or not.
    pub suppressions: Vec<Used>,
    /// Whether there was a baseline.
    pub baseline: bool,
    /// The mark at which the program was judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boundary: Option<Boundary>,
    /// The judged records by call site: those to blame first, then largest first.
    pub rows: Vec<Judged<'a>>,
    /// The objects of the kinds that have a limit, or of all if a baseline has objects, by kind and call site; those to blame
    /// first.
    pub objects: Vec<Judged<'a>>,
    /// Objects of these kinds that the suppressions and `--since` exclude.
    pub objects_ignored: u64,
    /// The part of them that was created before the mark of `--since`.
    #[serde(skip)]
    pub objects_before_mark: u64,
    pub taken: &'a Capture,
    pub losses: &'a Losses,
    pub warnings: Vec<String>,
    /// Judged memory whose stacks are not known: any call site may have allocated it.
    #[serde(skip)]
    pub hidden: Tally,
    /// What holds the memory of call sites, if one is to blame; empty if it was not searched for.
    #[serde(skip)]
    pub held_by: Vec<SiteHolders>,
}

impl Verdict<'_> {
    pub fn passed(&self) -> bool {
        self.outcome == Outcome::Passed
    }

    /// Adds what was not seen. What the user accepts becomes a warning.
    pub fn lacks(&mut self, unseen: impl IntoIterator<Item = Unseen>) {
        for unseen in unseen {
            match unseen.acceptable && self.limits.allow_losses {
                true => self.warnings.push(format!("{} (--allow-losses)", unseen.what)),
                false => self.unseen.push(unseen),
            }
        }
        self.settle();
    }

    /// Must be called after each change of `breaches`.
    pub(super) fn settle(&mut self) {
        self.outcome = Outcome::of(&self.breaches, &self.unseen);
    }

    /// Whether no limit was given.
    pub fn allows_nothing(&self) -> bool {
        self.limits.allow_nothing(self.baseline)
    }

    /// Whether this is what call sites hold above what they held at the previous mark.
    pub fn compares_marks(&self) -> bool {
        let boundary = self.boundary.as_ref();
        boundary.is_some_and(|boundary| boundary.previous_ns.is_some())
    }

    /// Whether memory fails only by what holds it.
    pub fn judges_only_classes(&self) -> bool {
        let without = Limits {
            classes: BTreeSet::new(),
            ..self.limits.clone()
        };
        let is_by_class = |breach: &Breach| matches!(breach, Breach::Class(_));
        let has_classes = !self.limits.classes.is_empty();
        let is_alone = self.boundary.is_none() && !self.baseline && without.allow_nothing(false);
        has_classes && is_alone && self.breaches.iter().all(is_by_class)
    }

    /// Only objects without an address have limits, so memory is not judged.
    pub fn judges_only_objects(&self) -> bool {
        self.limits.are_of_objects(self.boundary.is_some(), self.baseline)
    }

    /// The judged objects of each kind that has a limit.
    pub fn objects_found(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.limits.of_objects().map(|kind| {
            let rows = self.objects.iter().filter(|of| of.row.kind_of_objects() == Some(kind));
            let found = rows.fold(0, |sum: u64, of| sum.saturating_add(of.row.count));
            (kind.name(), found)
        })
    }

    /// Whether what was found is an estimate from sampled stacks.
    pub fn is_estimate(&self, breach: &Breach) -> bool {
        let of_site = match breach {
            Breach::Class(_) => return false,
            Breach::Total(of) if of.limit.measure == Measure::Objects => return false,
            Breach::Baseline(of) if of.measure == Measure::Objects => return false,
            Breach::Total(of) => match of.limit.of {
                Scope::All | Scope::Kind(_) => false,
                Scope::Pattern(_) | Scope::Site => true,
            },
            Breach::Baseline(_) => true,
            Breach::Outlier(of) => of.site.is_some(),
        };
        match of_site {
            true => self.sampling.is_some(),
            false => self.judged_estimated.is_some(),
        }
    }
}

/// What a check says. Of several inputs, the last one in this order counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Passed,
    /// Nothing that was seen fails, but not everything was seen.
    NoVerdict,
    Failed,
}

impl Outcome {
    fn of(breaches: &[Breach], unseen: &[Unseen]) -> Outcome {
        match (breaches.is_empty(), unseen.is_empty()) {
            (false, _) => Outcome::Failed,
            (true, false) => Outcome::NoVerdict,
            (true, true) => Outcome::Passed,
        }
    }

    /// Of several inputs.
    pub fn of_all(each: impl Iterator<Item = Outcome>) -> Outcome {
        each.max().unwrap_or(Outcome::Passed)
    }
}

/// In JSON, an outcome is the field `passed`; `breaches` and `unseen` tell the others apart.
fn is_passed<S: Serializer>(outcome: &Outcome, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(*outcome == Outcome::Passed)
}
