//! The verdict on a snapshot: does it hold more than allowed, and which sites are to blame.
//!
//! ```text
//! live records ─► of the kinds asked for ─► not suppressed ─► judged ─► limits on the whole, a kind, a site, a pattern
//!                 │ no pools, no claims     │ told by rule            └► against a baseline: new, grown, known
//!                 └ ignored                 └ suppressed
//! ```
//!
//! Without any limit, any leak is one too many; with one limit, the others are off. Against a baseline, only what is new
//! or grown fails, unless limits are given too. Claims (records that hold no memory) count only when their kind is asked
//! for by name, since a reserved address range is no leak of memory. Pools of caching allocators are no leak either:
//! where their blocks are known, those are judged, else nothing is. A recording that lost allocations cannot be called
//! clean, so it fails unless that is allowed explicitly.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analysis::baseline::Baseline;
use crate::analysis::filter::mark_time;
use crate::analysis::function_name::plain;
use crate::analysis::groups::{Group, Groups, Level};
use crate::analysis::program::Program;
use crate::analysis::report::{
    By, ProcessLine, Row, Tally, began_late, ended_early, is_finished, process_line, rows_by,
};
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::{Pattern, Used};
use crate::analysis::words;
use crate::snapshot::{Losses, Snapshot, Taken};

mod limits;

pub use limits::{Budget, FailOn, Limits, Rules, Tolerance};

/// The value of [`Verdict::format`].
pub const FORMAT: &str = "culeak-check";
pub const VERSION: u32 = 2;

/// One reason why the check failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
    LostAllocations {
        count: u64,
    },
}

/// How a call site stands to the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    New,
    Grown,
    Known,
}

/// A call site that was judged.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judged<'a> {
    #[serde(flatten)]
    pub row: Row<'a>,
    /// Without a baseline, nothing is known about it.
    pub standing: Option<Standing>,
    /// What the baseline has.
    pub known: Option<Tally>,
    /// One of the reasons for the failure: over a limit, new or grown, or part of a total that is over.
    pub to_blame: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict<'a> {
    pub format: &'static str,
    pub version: u32,
    pub passed: bool,
    pub breaches: Vec<Breach>,
    pub limits: Limits,
    pub process: ProcessLine<'a>,
    pub finished: bool,
    /// What the limits were held against.
    pub judged: Tally,
    /// What `--kind` and `--since` left out, and pools whose blocks are not known.
    pub ignored: Tally,
    /// The same, by the reason.
    #[serde(skip)]
    pub ignored_as: Ignored,
    pub suppressed: Tally,
    /// Every rule, used or not.
    pub suppressions: Vec<Used>,
    /// Held against a baseline.
    pub baseline: bool,
    /// The judged records by call site: those to blame first, then largest first.
    pub rows: Vec<Judged<'a>>,
    pub taken: &'a Taken,
    pub losses: &'a Losses,
    pub warnings: Vec<String>,
}

/// Memory that is not judged, each record by the first reason that applies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ignored {
    /// Allocated before the mark of `--since`.
    pub before_mark: Tally,
    /// Of a kind that `--kind` does not name.
    pub other_kinds: Tally,
    /// Automatic for reuse by caching allocators.
    pub cached: Tally,
}

/// Judges a snapshot.
pub fn verdict<'a>(snapshot: &'a Snapshot, rules: &Rules) -> Verdict<'a> {
    let limits = &rules.limits;
    let stacks = CallStacks::of(snapshot);
    let groups = groups(snapshot, &stacks, rules);
    let sorted = sort(snapshot, &groups, &stacks, rules);
    let rows = rows_by(snapshot, &stacks, sorted.judged.iter().copied(), By::Site);
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
                row,
            }
        })
        .collect();
    let found = Tally::total(sorted.judged.iter().map(|group| group.tally()));
    let mut breaches = of_the_whole(&sorted.judged, found, rules);
    breaches.extend(of_budgets(&sorted.judged, &stacks, limits));
    for row in &mut judged {
        let of_site = of_site(row, limits);
        row.to_blame = !of_site.is_empty();
        breaches.extend(of_site);
    }
    blame_totals(&mut judged, &breaches);
    judged.sort_by_key(|row| !row.to_blame);
    let lost = snapshot.losses.lost_allocations;
    if lost > 0 && !limits.allow_losses {
        breaches.push(Breach::LostAllocations { count: lost });
    }
    Verdict {
        format: FORMAT,
        version: VERSION,
        passed: breaches.is_empty(),
        breaches,
        limits: limits.clone(),
        process: process_line(snapshot),
        finished: is_finished(snapshot),
        judged: found,
        ignored: Tally::total([
            sorted.ignored.before_mark,
            sorted.ignored.other_kinds,
            sorted.ignored.cached,
        ]),
        ignored_as: sorted.ignored,
        suppressed: Tally::total(sorted.taken.iter().copied()),
        suppressions: rules.suppressions.used(&sorted.taken),
        baseline: rules.baseline.is_some(),
        rows: judged,
        taken: &snapshot.taken,
        losses: &snapshot.losses,
        warnings: warnings(snapshot, &groups, &stacks, rules),
    }
}

/// The sites that a check without baseline would judge, as a baseline for the next one.
pub fn baseline_of(snapshot: &Snapshot, rules: &Rules) -> Baseline {
    let stacks = CallStacks::of(snapshot);
    let groups = groups(snapshot, &stacks, rules);
    let sorted = sort(snapshot, &groups, &stacks, rules);
    Baseline::of(
        Program::of(snapshot),
        &rows_by(snapshot, &stacks, sorted.judged.into_iter(), By::Site),
    )
}

/// The records of a snapshot, by what becomes of them.
struct Sorted<'c, 'a> {
    judged: Vec<&'c Group<'a>>,
    ignored: Ignored,
    /// By suppression rule.
    taken: Vec<Tally>,
}

fn sort<'c, 'a>(snapshot: &Snapshot, groups: &'c Groups<'a>, stacks: &CallStacks, rules: &Rules) -> Sorted<'c, 'a> {
    let limits = &rules.limits;
    let since = since(snapshot, limits);
    let mut sorted = Sorted {
        judged: Vec::new(),
        ignored: Ignored::default(),
        taken: vec![Tally::default(); rules.suppressions.len()],
    };
    // Several groups share a stack, and hundreds of rules may be tried on it.
    let mut by_stack: BTreeMap<Option<usize>, Option<usize>> = BTreeMap::new();
    for group in &groups.all {
        let named = limits.kinds.contains(&group.call.kind);
        let wanted = match group.level {
            // The groups keeps what was made before apart.
            _ if group.oldest_ns < since => false,
            Level::Held => limits.kinds.is_empty() || named,
            Level::Cached => limits.judge_pools && (limits.kinds.is_empty() || named),
            Level::Behind => false,
            Level::Claim => named,
        };
        if !wanted {
            if matches!(group.level, Level::Held | Level::Cached) {
                let reason = if group.oldest_ns < since {
                    &mut sorted.ignored.before_mark
                } else if !limits.kinds.is_empty() && !named {
                    &mut sorted.ignored.other_kinds
                } else {
                    &mut sorted.ignored.cached
                };
                reason.join(group.tally());
            }
            continue;
        }
        let rule = *by_stack
            .entry(group.stack)
            .or_insert_with(|| rules.suppressions.matching(stacks.get(group.stack)));
        match rule {
            Some(rule) => sorted.taken[rule].join(group.tally()),
            None => sorted.judged.push(group),
        }
    }
    sorted
}

/// Everything alive, with what was made before the moment that judging begins at apart from the rest.
fn groups<'a>(snapshot: &'a Snapshot, stacks: &CallStacks, rules: &Rules) -> Groups<'a> {
    Groups::parted(snapshot, stacks, since(snapshot, &rules.limits))
}

fn since(snapshot: &Snapshot, limits: &Limits) -> u64 {
    let name = limits.since.as_deref();
    name.and_then(|name| mark_time(snapshot, name)).unwrap_or(0)
}

fn standing(row: &Row, known: Option<Tally>, limits: &Limits) -> Standing {
    match known {
        None => Standing::New,
        Some(known) if row.bytes > limits.tolerance.allows(known.bytes) => Standing::Grown,
        Some(_) => Standing::Known,
    }
}

/// Breaches of limits on everything, on kinds and of budgets.
fn of_the_whole(judged: &[&Group], found: Tally, rules: &Rules) -> Vec<Breach> {
    let limits = &rules.limits;
    let (bytes, count) = limits.effective(rules.baseline.is_some());
    let mut breaches = Vec::new();
    if let Some(limit) = bytes.filter(|&limit| found.bytes > limit) {
        breaches.push(Breach::Bytes {
            limit,
            found: found.bytes,
        });
    }
    if let Some(limit) = count.filter(|&limit| found.count > limit) {
        breaches.push(Breach::Count {
            limit,
            found: found.count,
        });
    }
    for (&kind, &limit) in &limits.per_kind {
        let of_kind = judged.iter().filter(|group| group.call.kind == kind);
        let found = Tally::total(of_kind.map(|group| group.tally())).bytes;
        if found > limit {
            breaches.push(Breach::Kind {
                kind: kind.name(),
                limit,
                found,
            });
        }
    }
    breaches
}

fn of_budgets(judged: &[&Group], stacks: &CallStacks, limits: &Limits) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for budget in &limits.budgets {
        let mut by_stack: BTreeMap<Option<usize>, bool> = BTreeMap::new();
        let matching = judged.iter().filter(|group| {
            *by_stack
                .entry(group.stack)
                .or_insert_with(|| budget.pattern.matches_stack(stacks.get(group.stack)))
        });
        let found = Tally::total(matching.map(|group| group.tally())).bytes;
        if found > budget.bytes {
            breaches.push(Breach::Budget {
                pattern: budget.pattern.text().to_owned(),
                limit: budget.bytes,
                found,
            });
        }
    }
    breaches
}

fn of_site(judged: &Judged, limits: &Limits) -> Vec<Breach> {
    let row = &judged.row;
    let site = || match row.site().and_then(|site| site.short_place()) {
        Some(place) => format!("{} {place}", plain(&row.label)),
        None => plain(&row.label).into_owned(),
    };
    let mut breaches = Vec::new();
    if let Some(limit) = limits.max_per_site.filter(|&limit| row.bytes > limit) {
        breaches.push(Breach::Site {
            site: site(),
            limit,
            found: row.bytes,
        });
    }
    match (judged.standing, limits.fail_on) {
        // The tolerance is for growth; a site that the baseline does not have is over whatever it holds.
        (Some(Standing::New), FailOn::New | FailOn::Grown) => {
            breaches.push(Breach::New {
                site: site(),
                found: row.bytes,
            });
        }
        (Some(Standing::Grown), FailOn::Grown) => {
            let known = judged.known.unwrap_or_default().bytes;
            breaches.push(Breach::Grown {
                site: site(),
                known,
                limit: limits.tolerance.allows(known),
                found: row.bytes,
            });
        }
        _ => {}
    }
    breaches
}

/// A total over its limit is the doing of everybody who is part of it.
fn blame_totals(judged: &mut [Judged], breaches: &[Breach]) {
    for row in judged {
        row.to_blame |= breaches.iter().any(|breach| match breach {
            Breach::Bytes { .. } | Breach::Count { .. } => true,
            Breach::Kind { kind, .. } => row.row.kinds.contains_key(kind),
            Breach::Budget { pattern, .. } => Pattern::parse(pattern)
                .is_ok_and(|pattern| row.row.stacks.iter().any(|stack| pattern.matches_stack(&stack.stack))),
            _ => false,
        });
    }
}

fn warnings(snapshot: &Snapshot, groups: &Groups, stacks: &CallStacks, rules: &Rules) -> Vec<String> {
    let mut warnings = Vec::new();
    let losses = &snapshot.losses;
    let program = Program::of(snapshot);
    if let Some(baseline) = rules.baseline.as_ref().filter(|baseline| !baseline.is_of(&program)) {
        let known: Vec<String> = baseline.programs.iter().map(ToString::to_string).collect();
        warnings.push(format!(
            "the baseline was made from {}, but this is {program}",
            known.join(", ")
        ));
    }
    if losses.lost_allocations > 0 && rules.limits.allow_losses {
        warnings.push(format!(
            "{} could not be recorded, so this verdict is without them (--allow-losses)",
            words::plural(losses.lost_allocations, "allocation", "allocations")
        ));
    }
    warnings.extend(began_late(losses));
    if groups.all.iter().any(|group| group.level == Level::Held) {
        warnings.extend(ended_early(snapshot));
    }
    if !is_finished(snapshot) {
        warnings.push("the process was not finished, so this is what it held, not what it leaked".to_owned());
    }
    if let Some(name) = rules
        .limits
        .since
        .as_deref()
        .filter(|name| mark_time(snapshot, name).is_none())
    {
        warnings.push(format!(
            "the program set no mark {name:?}, so everything was judged; culeak report --json lists its marks"
        ));
    }
    for budget in &rules.limits.budgets {
        let of_stack = |stack| budget.pattern.matches_stack(stacks.get(Some(stack)));
        if !(0..snapshot.stacks.len()).any(of_stack) {
            warnings.push(format!(
                "never matched: the budget of {} for {}; no stack of the recording has it",
                words::bytes(budget.bytes),
                budget.pattern.text()
            ));
        }
    }
    if !losses.unhooked.is_empty() {
        warnings.push(format!("not watched, so not judged: {}", losses.unhooked.join(", ")));
    }
    warnings
}

#[cfg(test)]
mod tests;
