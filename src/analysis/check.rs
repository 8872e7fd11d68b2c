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
//! A verdict passes only if everything that its rules speak of was seen: unseen.rs and verdict.rs.

use crate::analysis::baseline::Baseline;
use crate::analysis::filter::Filter;
use crate::analysis::points::{shown_points, when};
use crate::analysis::program::Program;
use crate::analysis::report::{By, Exact, is_leaked, process_line, rows_by};
use crate::analysis::site::CallStacks;
use crate::analysis::why::by_site;
use crate::point::Point;
use crate::snapshot::Snapshot;

mod breach;
mod classes;
mod compare;
mod figure;
mod growth;
mod limits;
mod objects;
mod outliers;
mod pools;
mod selection;
mod sites;
mod totals;
mod unseen;
mod verdict;
mod warnings;

pub use breach::{BeyondBaseline, Breach, OfClass, OverLimit, UnlikeOthers};
pub use classes::lacks_holders;
use compare::Comparison;
pub use growth::BySite;
use limits::Besides;
pub use limits::{FailOn, Limit, Limits, Measure, Rules, Scope, Spelling, Tolerance};
pub use outliers::{fail_outliers, once_each};
pub use selection::{Ignored, judged, judged_by_site};
use selection::{Sorted, by_stack, freed_at_shutdown, groups, since, sort};
pub use sites::{Judged, SiteKey, Standing};
use totals::Whole;
pub use totals::WithoutLimit;
pub use unseen::{Unseen, missing_ranks, missing_ranks_here, of_running_process, unknown_since};
pub use verdict::{FORMAT, Outcome, VERSION, Verdict};

/// Judges a snapshot.
pub fn verdict<'a>(snapshot: &'a Snapshot, rules: &Rules) -> Verdict<'a> {
    let stacks = CallStacks::of(snapshot);
    let groups = groups(snapshot, &stacks, rules);
    // Totals are exact, unless suppressions or an earlier boundary leave out a part of them by its stack.
    let records = snapshot.sampling.map(|_| sort(snapshot, &groups, &stacks, rules));
    let by_stack = snapshot
        .sampling
        .map(|_| selection::groups(snapshot, &stacks, rules).by_stack());
    let Sorted {
        judged,
        ignored,
        mut sieve,
    } = sort(snapshot, by_stack.as_ref().unwrap_or(&groups), &stacks, rules);
    let whole = Whole::new(snapshot, &groups, &stacks, &judged, records.as_ref(), rules);
    let (found, hidden) = (whole.sum(&Scope::All), whole.hidden(snapshot));
    let mut rows = rows_by(snapshot, &stacks, judged.iter(), By::Site);
    Exact::of(snapshot, groups.all.iter()).limit(&mut rows);
    let (objects, objects_before_mark) = objects::rows(snapshot, &stacks, &mut sieve, since(snapshot, rules), rules);
    let besides = Besides {
        judged: found.most(),
        largest_site: rows.iter().map(|row| row.bytes).max().unwrap_or(0),
    };
    let mut unseen = unseen::of_recording(snapshot, rules);
    unseen.extend(pools::unseen(&groups.all, &stacks, rules, &besides));
    let (rest_of_pools, of_program) = pools::rest(snapshot, &groups, &stacks, rules, since(snapshot, rules));
    unseen.extend(pools::unseen_rest(of_program, rules, &besides));
    unseen.extend(unseen::of_suppressions(snapshot, &sieve, &stacks, rules, &besides));
    unseen.extend(objects::unseen(snapshot, rules));
    let mut comparison = Comparison::new(rules, &hidden);
    comparison.totals(&whole, &objects);
    let baseline = rules.baseline.as_ref();
    let of_objects = baseline.filter(|_| rules.compares_objects() && snapshot.objects_known);
    let of_objects = of_objects.map(|baseline| baseline.paired(&objects));
    let mut objects = comparison.sites(Measure::Objects, objects, of_objects.as_ref());
    let paired = baseline.map(|baseline| baseline.paired(&rows));
    let renamed = paired.as_ref().and_then(|paired| paired.renamed(&rows));
    let mut rows = comparison.sites(Measure::Bytes, rows, paired.as_ref());
    unseen.append(&mut comparison.unseen);
    let mut breaches = comparison.breaches;
    let (of_classes, unclassed) = {
        // Blocks whose stacks were left out are no part of sums by stack.
        let records = records.as_ref().map_or(&judged, |records| &records.judged);
        classes::judge(snapshot, &groups, records, &stacks, rules, &mut rows)
    };
    breaches.extend(of_classes);
    unseen.extend(classes::unseen(snapshot, unclassed, rules));
    let mut warnings = warnings::of(snapshot, &groups, &stacks, &mut sieve, rules);
    warnings.extend(classes::warnings(snapshot, unclassed, rules));
    warnings.extend(renamed);
    rows.sort_by_key(|row| !row.to_blame);
    // Holders are of all memory, so they are known only if all of it is judged.
    let is_all = rules.limits.since.is_none()
        && rules.limits.kinds.is_empty()
        && rules.previous.is_none()
        && sieve.suppressed().count == 0;
    let held_by = match is_all && rows.first().is_some_and(|row| row.to_blame) {
        true => by_site(snapshot, &stacks, &groups, &Filter::default()),
        false => Vec::new(),
    };
    objects.sort_by_key(|row| !row.to_blame);
    let (allocated_after_end, objects_created_after_end) =
        selection::after_end(snapshot, &groups, &stacks, &mut sieve, rules);
    let mut verdict = Verdict {
        format: FORMAT,
        version: VERSION,
        outcome: Outcome::Passed,
        breaches,
        unseen: Vec::new(),
        limits: rules.limits.clone(),
        config: rules.config.clone(),
        process: process_line(snapshot),
        finished: is_leaked(snapshot) && rules.boundary.is_none(),
        when: when(snapshot),
        reports_show_end: snapshot.usual_point() == Point::End,
        freed_at_shutdown: freed_at_shutdown(snapshot, &stacks, rules),
        allocated_after_end,
        objects_created_after_end,
        judged: found.tally(),
        judged_estimated: found.estimated,
        without_limit: whole.without_limit(rules),
        sampling: snapshot.sampling,
        ignored: ignored.all(),
        ignored_as: ignored,
        rest_of_pools,
        suppressed: sieve.suppressed(),
        suppressed_objects: sieve.suppressed_objects(),
        suppressions: sieve.used(),
        baseline: baseline.is_some(),
        boundary: rules.boundary.clone(),
        rows,
        objects,
        objects_ignored: objects_before_mark.saturating_add(sieve.suppressed_objects()),
        objects_before_mark,
        taken: &snapshot.taken,
        losses: &snapshot.losses,
        warnings,
        hidden: hidden.tally,
        held_by,
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
    let groups = by_stack(snapshot, groups(snapshot, &stacks, rules));
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
