//! A check: whether a snapshot holds more memory than allowed, and which call sites are to blame.
//!
//! ```text
//! live records ─► of the selected kinds ─► not suppressed ─► judged ─► limits on the total, a kind, a site, a pattern
//!                 │ no pools, no claims    │ counted by rule        └► against a baseline: new, grown, known
//!                 └ ignored                └ suppressed
//! ```
//!
//! Objects without an address are counted apart, by kind; they fail only if their kind has a limit, or against a baseline.
//!
//! Processes of a job that hold more than the others fail if that is asked for (outliers.rs), after each was judged.
//!
//! Classes of blocks (`lost`, `cycle` …) fail by what holds them, which was searched for before.
//!
//! Without limits, any leak fails; with at least one limit, only the given limits apply. Against a baseline, only new
//! and grown sites fail, unless limits are given too. Claims (records that hold no memory) are judged only if their
//! kind is selected by name, because a reserved address range is no memory leak. Pools of caching allocators are no
//! leak either: if their blocks are known, those are judged instead.
//!
//! A verdict passes only if everything that its rules speak of was seen: unseen.rs.

use serde::Serialize;

use crate::analysis::baseline::Baseline;
use crate::analysis::boundaries::Boundary;
use crate::analysis::estimate::Errors;
use crate::analysis::groups::Group;
use crate::analysis::points::{shown_points, when};
use crate::analysis::program::Program;
use crate::analysis::report::{By, ProcessLine, Tally, is_finished, process_line, rows_by};
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::Used;
use crate::point::Point;
use crate::snapshot::{Class, Losses, Sampling, Snapshot, Taken};

mod classes;
mod growth;
mod limits;
mod objects;
mod outliers;
mod pools;
mod sampled;
mod selection;
mod sites;
mod totals;
mod unseen;
mod warnings;

pub use growth::BySite;
use limits::Besides;
pub use limits::{Budget, FailOn, Limits, Rules, Tolerance};
pub use objects::JudgedObjects;
pub use outliers::{fail_outliers, once_each};
pub use selection::{Ignored, judged, judged_by_site};
use selection::{freed_at_shutdown, groups, is_pool_by_stack, is_selected, since, sort};
pub use sites::{Judged, SiteKey, Standing};
use sites::{blame_totals, of_site, standing};
use totals::{Bounds, Known, Peaks, Whole, of_budgets, of_the_whole};
pub use unseen::{Outcome, Unseen, missing_ranks, of_running_process, unknown_since};

/// The value of [`Verdict::format`].
pub const FORMAT: &str = "culeak-check";
pub const VERSION: u32 = 3;

/// One reason why the check failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Breach {
    Bytes {
        limit: u64,
        found: u64,
    },
    Count {
        limit: u64,
        found: u64,
    },
    Kind {
        kind: &'static str,
        limit: u64,
        found: u64,
    },
    Budget {
        pattern: String,
        limit: u64,
        found: u64,
    },
    /// Objects without an address, of one kind.
    Objects {
        kind: &'static str,
        limit: u64,
        found: u64,
        /// The call site with most of them, and how many it has.
        site: String,
        of_site: u64,
    },
    /// One call site, over the limit for each.
    Site {
        site: String,
        limit: u64,
        found: u64,
    },
    /// A call site that the baseline does not have.
    New {
        site: String,
        found: u64,
    },
    /// A call site that holds more than the baseline allows.
    Grown {
        site: String,
        known: u64,
        limit: u64,
        found: u64,
    },
    /// Objects without an address, of a call site that the baseline does not have for this kind.
    NewObjects {
        kind: &'static str,
        site: String,
        found: u64,
    },
    /// More objects without an address than the baseline allows for the call site.
    GrownObjects {
        kind: &'static str,
        site: String,
        known: u64,
        limit: u64,
        found: u64,
    },
    /// Memory of a class that must not exist, of one call site and one path.
    Class {
        class: Class,
        site: String,
        /// What holds it, in words.
        held_by: String,
        found: u64,
        count: u64,
        #[serde(skip)]
        of: SiteKey,
    },
    /// More than the other processes of the job hold, at one call site or in all.
    Outlier {
        #[serde(skip_serializing_if = "Option::is_none")]
        site: Option<String>,
        found: u64,
        /// The median over the processes that do the same work, and how many these are.
        usual: u64,
        of: u64,
        /// `pipeline stage 1`, if not all processes of the program are compared with each other.
        #[serde(skip_serializing_if = "String::is_empty")]
        group: String,
        #[serde(skip)]
        key: Option<SiteKey>,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Verdict<'a> {
    pub format: &'static str,
    pub version: u32,
    #[serde(rename = "passed", serialize_with = "unseen::is_passed")]
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
    /// The process has ended and its last state was judged, so what is left is leaked.
    pub finished: bool,
    /// The point that was judged, in words; `None`: the last state.
    #[serde(skip)]
    pub when: Option<String>,
    /// Reports show the end of the script by default.
    #[serde(skip)]
    pub reports_show_end: bool,
    /// Memory that the script held at its end and that the interpreter's shutdown freed, if the last state was judged: what
    /// `--since` and `--kind` select of it.
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
    /// How stacks were sampled: what call sites hold and what rules suppress is estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// Memory that `--kind` and `--since` exclude, and pools whose blocks are not known.
    pub ignored: Tally,
    /// `ignored` by reason.
    #[serde(skip)]
    pub ignored_as: Ignored,
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
    pub objects: Vec<JudgedObjects<'a>>,
    /// Objects of these kinds that the suppressions and `--since` exclude.
    pub objects_ignored: u64,
    /// The part of them that was created before the mark of `--since`.
    #[serde(skip)]
    pub objects_before_mark: u64,
    pub taken: &'a Taken,
    pub losses: &'a Losses,
    pub warnings: Vec<String>,
    /// Judged memory whose stacks are not known: any call site may have allocated it.
    #[serde(skip)]
    pub hidden: Tally,
}

/// Judges a snapshot.
pub fn verdict<'a>(snapshot: &'a Snapshot, rules: &Rules) -> Verdict<'a> {
    let limits = &rules.limits;
    let stacks = CallStacks::of(snapshot);
    let groups = groups(snapshot, &stacks, rules);
    let by_stack = sampled::groups(snapshot, &stacks, rules);
    let mut sorted = sort(snapshot, by_stack.as_ref().unwrap_or(&groups), &stacks, rules);
    let mut objects = objects::judged(snapshot, &stacks, &mut sorted.sieve, since(snapshot, rules), rules);
    let rows = rows_by(snapshot, &stacks, sorted.judged.iter(), By::Site);
    let known = rules.baseline.as_ref().map(|baseline| baseline.known(&rows));
    let mut judged: Vec<Judged> = rows
        .into_iter()
        .enumerate()
        .map(|(index, row)| {
            let known = known.as_ref().map(|known| known[index]);
            Judged {
                standing: known.map(|known| standing(&row, known, limits)),
                known: known.flatten(),
                to_blame: false,
                only_by_class: false,
                row,
            }
        })
        .collect();
    // Totals are exact, unless suppressions or an earlier boundary leave out a part of them by its stack.
    let all = by_stack.is_some().then(|| sort(snapshot, &groups, &stacks, rules));
    // So does the level of a pool: without its stack, it may seem to be held.
    let since = since(snapshot, rules);
    let lacks_pools = |group: &Group| {
        let is_of_kind = limits.kinds.is_empty() || limits.kinds.contains(&group.call.kind);
        let is_judged = is_of_kind && group.oldest_ns >= since;
        is_judged && !group.is_left_out && !is_selected(group, limits) && is_pool_by_stack(group, &stacks)
    };
    let excludes_pools = snapshot.sampling.is_some() && groups.all.iter().any(lacks_pools);
    let is_whole = rules.suppressions.is_empty() && rules.previous.is_none() && !excludes_pools;
    let known = match (&all, snapshot.sampling) {
        // Rows of a peak are sums by stack.
        (Some(_), Some(sampling)) if groups.is_summed => Known::AtPeak(Peaks {
            counters: &snapshot.counters,
            kinds: &limits.kinds,
            sampling,
        }),
        (Some(all), Some(sampling)) if !is_whole => Known::Within(Bounds {
            all: &all.judged,
            sampling,
            suppresses: !rules.suppressions.is_empty() || rules.previous.is_some(),
            excludes: all.sieve.suppressed().count > 0 || excludes_pools || rules.previous.is_some(),
        }),
        (Some(all), _) => Known::Exactly(&all.judged),
        (None, _) => Known::Exactly(&sorted.judged),
    };
    let whole = Whole {
        judged: &sorted.judged,
        known,
        sampling: snapshot.sampling,
    };
    let found = whole.sum(None);
    let judged_estimated = found.estimated;
    let hidden = whole.hidden(snapshot);
    let mut unseen = unseen::of_recording(snapshot, rules);
    let besides = Besides {
        judged: found.most(),
        largest: judged.iter().map(|row| row.row.bytes).max().unwrap_or(0),
    };
    unseen.extend(pools::unseen(&groups.all, &stacks, rules, &besides));
    unseen.extend(unseen::of_suppressions(
        snapshot,
        &sorted.sieve,
        &stacks,
        rules,
        &besides,
    ));
    let mut breaches = of_the_whole(&whole, found, rules, &mut unseen);
    breaches.extend(of_budgets(&whole, &stacks, &hidden, limits, &mut unseen));
    breaches.append(&mut objects.breaches);
    unseen.extend(objects::unseen(snapshot, rules));
    unseen.extend(sites::unseen(&judged, &hidden, rules));
    for row in &mut judged {
        let of_site = of_site(row, limits);
        row.to_blame = !of_site.is_empty();
        breaches.extend(of_site);
    }
    blame_totals(&mut judged, &breaches);
    let mut of_classes = classes::breaches(snapshot, &groups, &sorted.judged, &stacks, rules);
    classes::blame(&mut judged, &mut of_classes);
    breaches.extend(of_classes);
    let mut warnings = warnings::of(snapshot, &groups, &stacks, &mut sorted.sieve, rules);
    let unknown = classes::unknown(snapshot, &groups, &sorted.judged, &stacks, rules);
    warnings.extend(classes::warnings(snapshot, unknown, rules));
    unseen.extend(classes::unseen(snapshot, unknown, rules));
    judged.sort_by_key(|row| !row.to_blame);
    let (allocated_after_end, objects_created_after_end) =
        selection::after_end(snapshot, &groups, &stacks, &mut sorted.sieve, rules);
    let mut verdict = Verdict {
        format: FORMAT,
        version: VERSION,
        outcome: Outcome::Passed,
        breaches,
        unseen: Vec::new(),
        limits: limits.clone(),
        config: rules.config.clone(),
        process: process_line(snapshot),
        finished: is_finished(snapshot) && rules.boundary.is_none(),
        when: when(snapshot),
        reports_show_end: snapshot.usual_point() == Point::End,
        freed_at_shutdown: freed_at_shutdown(snapshot, &stacks, rules),
        allocated_after_end,
        objects_created_after_end,
        judged: found.tally,
        judged_estimated,
        sampling: snapshot.sampling,
        ignored: Tally::total([
            sorted.ignored.before_mark,
            sorted.ignored.other_kinds,
            sorted.ignored.cached,
        ]),
        ignored_as: sorted.ignored,
        suppressed: sorted.sieve.suppressed(),
        suppressed_objects: sorted.sieve.suppressed_objects(),
        suppressions: sorted.sieve.used(),
        baseline: rules.baseline.is_some(),
        boundary: rules.boundary.clone(),
        rows: judged,
        objects: objects.rows,
        objects_ignored: objects.before_mark.saturating_add(sorted.sieve.suppressed_objects()),
        objects_before_mark: objects.before_mark,
        taken: &snapshot.taken,
        losses: &snapshot.losses,
        warnings,
        hidden: hidden.tally,
    };
    verdict.lacks(unseen);
    verdict
}

/// The point that is judged, unless the user chose one: with a limit, a baseline or `--since`, that which reports show (the end
/// of a Python script); otherwise the last state, so that only memory that was never freed fails.
pub fn point_of(snapshot: &Snapshot, rules: &Rules) -> Point {
    if let Some(point) = &rules.at {
        return point.clone();
    }
    let compared = rules.baseline.is_some() || rules.limits.since.is_some();
    match compared || !rules.limits.allow_nothing(false) {
        true => snapshot.usual_point(),
        false => snapshot.taken.point.clone().unwrap_or(Point::Exit),
    }
}

/// Whether what holds the memory must be known, and is not.
pub fn lacks_holders(snapshot: &Snapshot, rules: &Rules) -> bool {
    !rules.limits.classes.is_empty() && snapshot.holders.is_none()
}

/// Why the baseline cannot judge this snapshot: it was taken at another point in time.
pub fn other_point(snapshot: &Snapshot, rules: &Rules) -> Option<String> {
    let baseline = rules.baseline.as_ref()?;
    let judged = shown_points(snapshot);
    let known = baseline.points();
    if judged.iter().any(|point| known.contains(point)) {
        return None;
    }
    let known: Vec<String> = known.iter().map(ToString::to_string).collect();
    Some(format!(
        "the baseline was taken at the point {}, but {} is judged; judge at the baseline's point with --at {}, or write the \
         baseline again with --update-baseline",
        known.join(" or "),
        judged[0],
        known[0]
    ))
}

/// A baseline of all sites that a check without a baseline would judge.
pub fn baseline_of(snapshot: &Snapshot, rules: &Rules) -> Baseline {
    let stacks = CallStacks::of(snapshot);
    let groups = sampled::groups(snapshot, &stacks, rules).unwrap_or_else(|| groups(snapshot, &stacks, rules));
    let mut sorted = sort(snapshot, &groups, &stacks, rules);
    let objects = objects::for_baseline(snapshot, &stacks, &mut sorted.sieve, since(snapshot, rules));
    Baseline::of(
        Program::of(snapshot),
        shown_points(snapshot),
        &rows_by(snapshot, &stacks, sorted.judged.iter(), By::Site),
        objects.as_deref(),
    )
}

#[cfg(test)]
mod tests;
