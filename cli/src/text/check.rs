//! A verdict: passed or failed, the reasons, the failing call sites, and the next command.

use std::collections::{BTreeMap, BTreeSet};

use culeak::analysis::boundaries::Boundary;
use culeak::analysis::check::{Breach, FailOn, Ignored, Limits, Outcome, Tolerance, Verdict};
use culeak::analysis::job::identity::rank_of;
use culeak::analysis::job::member::ranges;
use culeak::analysis::report::{Tally, shell_word};
use culeak::point::Point;
use culeak::snapshot::Class;

use super::report::{judged, ranked};
use super::{objects, parts, units};
use crate::document::{BAD, Document, GOOD, Text, WARN, counted, estimate, styled};
use crate::escape::Escaped;

/// Call sites listed in a verdict; the report has all.
const SITES_SHOWN: usize = 10;

/// Different warnings of verdicts that are not printed.
const WARNINGS_SHOWN: usize = 10;

/// The most verdicts that are printed one after the other; of more, those of the first that did not pass.
const EACH: usize = 10;

/// Processes that did not pass and whose verdict is printed in full.
const FAILED_SHOWN: usize = 5;

/// `passed`, `failed` or `no verdict`.
pub fn result(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "passed",
        Outcome::Failed => "failed",
        Outcome::NoVerdict => "no verdict",
    }
}

/// `failed:`, in its style.
fn outcome(outcome: Outcome) -> Text {
    let style = match outcome {
        Outcome::Passed => GOOD,
        Outcome::Failed => BAD,
        Outcome::NoVerdict => WARN,
    };
    styled(style, format!("{}:", result(outcome)))
}

/// The verdict of one process, or of several: how many failed and which, how many have none, then the verdicts; of many, those of
/// the first that did not pass. Each has the input as the user named it.
pub fn page_of(verdicts: &[(&str, Verdict)]) -> Document {
    if let [(source, verdict)] = verdicts {
        return page(verdict, source);
    }
    let mut page = Document::default();
    let with = |outcome: Outcome| verdicts.iter().filter(move |(_, verdict)| verdict.outcome == outcome);
    let judged = parts::tally(Tally::total(verdicts.iter().map(|(_, verdict)| verdict.judged)));
    let about = parts::about(verdicts.iter().any(|(_, verdict)| verdict.judged_estimated.is_some()));
    let processes = counted(verdicts.len(), "process");
    let not_passed = [Outcome::Failed, Outcome::NoVerdict].map(|outcome| (outcome, with(outcome).collect::<Vec<_>>()));
    let not_passed: Vec<_> = not_passed.into_iter().filter(|(_, of)| !of.is_empty()).collect();
    if not_passed.is_empty() {
        page.heading(outcome(Outcome::Passed) + format!(" all of {processes}, with {about}{judged}"));
    }
    for (nth, (result, of)) in not_passed.iter().enumerate() {
        let count = units::count(of.len() as u64);
        let sum = if nth == 0 {
            format!(", with {about}{judged} in all")
        } else {
            String::new()
        };
        page.heading(outcome(*result) + format!(" {count} of {processes}{sum}"));
    }
    let few = verdicts.len() <= EACH;
    if let (false, Some((_, verdict))) = (few, verdicts.first()) {
        config(verdict, &mut page);
        page.warnings(warnings_of_passed(verdicts));
    }
    for (outcome, of) in &not_passed {
        page.item(format!("{}: {}", result(*outcome), names(of, verdicts)));
    }
    let listed: Vec<_> = match few {
        true => verdicts.iter().collect(),
        false => not_passed.iter().flat_map(|(_, of)| of.iter().copied()).collect(),
    };
    let shown = if few {
        listed.len()
    } else {
        listed.len().min(FAILED_SHOWN)
    };
    for (source, verdict) in &listed[..shown] {
        page.heading(format!("== {source} =="));
        page.append(self::page(verdict, source));
    }
    page.more_at(0, listed.len() - shown, "process", " that did not pass; --json has all");
    page
}

/// The file that limits come from.
fn config(verdict: &Verdict, page: &mut Document) {
    verdict
        .config
        .iter()
        .for_each(|file| page.item(format!("limits from {file}")));
}

/// The different warnings of verdicts that are not printed because they passed, those of most processes first.
fn warnings_of_passed(verdicts: &[(&str, Verdict)]) -> Vec<String> {
    let passed = verdicts.iter().filter(|(_, verdict)| verdict.passed());
    let mut different: BTreeMap<&str, u64> = BTreeMap::new();
    for warning in passed.flat_map(|(_, verdict)| &verdict.warnings) {
        *different.entry(warning).or_default() += 1;
    }
    let mut different: Vec<(&str, u64)> = different.into_iter().collect();
    different.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let shown = different.iter().take(WARNINGS_SHOWN).map(|(warning, count)| {
        let processes = units::plural(*count, "process that passed", "processes that passed");
        format!("{warning} ({processes})")
    });
    let mut shown: Vec<String> = shown.collect();
    let hidden = different.len().saturating_sub(WARNINGS_SHOWN);
    if hidden > 0 {
        shown.push(format!(
            "{} of processes that passed; --json has all",
            counted(hidden, "other warning")
        ));
    }
    shown
}

/// `ranks 3, 8-15`, or the inputs if not each process that was judged has its own rank.
fn names(failed: &[&(&str, Verdict)], all: &[(&str, Verdict)]) -> String {
    const RANGES: usize = 16;
    let rank = |(_, verdict): &(&str, Verdict)| rank_of(verdict.process.ranks);
    let different: BTreeSet<u32> = all.iter().filter_map(rank).collect();
    if different.len() == all.len() {
        let mut ranks: Vec<u32> = failed.iter().filter_map(|judged| rank(judged)).collect();
        ranks.sort_unstable();
        let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
        return format!("{noun} {}", ranges(&ranks, 0, RANGES));
    }
    let sources: Vec<&str> = failed.iter().take(RANGES).map(|(source, _)| *source).collect();
    match failed.len() - sources.len() {
        0 => sources.join(", "),
        more => format!("{} and {} more", sources.join(", "), units::count(more as u64)),
    }
}

/// The verdict. `source`: the input as the user named it.
pub fn page(verdict: &Verdict, source: &str) -> Document {
    let mut page = Document::default();
    let word = if verdict.finished { "leaked" } else { "held" };
    let judged = parts::tally_about(verdict.judged, verdict.judged_estimated);
    let when = when(verdict);
    let sentence = match &verdict.boundary {
        _ if judges_only_classes(verdict) => by_class(verdict, word),
        Some(boundary) if boundary.previous_ns.is_some() => same_as_last(verdict, &boundary.mark),
        _ if verdict.judges_only_objects() => format!("{}{when}, {}", judged_objects(verdict), limits(verdict)),
        _ if !verdict.limits.max_objects.is_empty() => {
            let objects = judged_objects(verdict);
            format!("{judged} {word} and {objects}{when}, {}", limits(verdict))
        }
        _ => format!("{judged} {word}{when}, {}", limits(verdict)),
    };
    page.heading(outcome(verdict.outcome) + format!(" {sentence}"));
    config(verdict, &mut page);
    verdict.boundary.iter().for_each(|at| boundary(at, &mut page));
    verdict.unseen.iter().for_each(|unseen| page.item(unseen.sentence()));
    if verdict.outcome == Outcome::Failed {
        reasons(verdict, word, &mut page);
    }
    not_judged(verdict, &mut page);
    let (objects, sampled) = (verdict.suppressed_objects, verdict.sampling.is_some());
    parts::suppressions(verdict.suppressed, objects, &verdict.suppressions, sampled, &mut page);
    page.warnings(&verdict.warnings);
    if verdict.outcome == Outcome::Failed {
        let to_blame = verdict.objects.iter().any(|of| of.to_blame);
        let objects = if to_blame { " --objects" } else { "" };
        page.next(format!("culeak report {}{objects}{}", shell_word(source), at(verdict)));
    }
    page
}

/// ` when the script ended`, or nothing.
fn when(verdict: &Verdict) -> String {
    verdict.when.iter().map(|when| format!(" {when}")).collect()
}

/// Why the verdict failed, and the rows.
fn reasons(verdict: &Verdict, word: &str, page: &mut Document) {
    // If nothing is allowed, the first line contains this reason.
    let needs_reason = |breach: &&Breach| !(allows_nothing(verdict) && matches!(breach, Breach::Count { .. }));
    for breach in verdict.breaches.iter().filter(needs_reason).take(SITES_SHOWN) {
        page.item(reason(verdict, breach, word));
        if let Breach::Objects { kind, .. } = breach {
            let rows = verdict.objects.iter().map(|of| &of.row).filter(|row| row.kind == *kind);
            let rows: Vec<_> = rows.collect();
            rows.iter()
                .take(SITES_SHOWN)
                .for_each(|row| page.item(objects::title(row)));
            page.more(rows.len().saturating_sub(SITES_SHOWN), "call site", " of objects");
        }
    }
    // If only objects have limits, no memory is judged.
    let rows = if verdict.judges_only_objects() {
        &[]
    } else {
        verdict.rows.as_slice()
    };
    if !rows.is_empty() {
        let shown = rows.iter().take(SITES_SHOWN).map(|of| (&of.row, judged(of)));
        page.table(ranked(shown.collect()));
    }
    page.more(rows.len().saturating_sub(SITES_SHOWN), "call site", "");
}

fn not_judged(verdict: &Verdict, page: &mut Document) {
    if verdict.ignored.count > 0 {
        let (tally, reasons) = (parts::tally(verdict.ignored), ignored(verdict));
        let about = parts::about(verdict.sampling.is_some());
        page.line(format!("not judged: {about}{tally} ({reasons})"));
    }
    if verdict.objects_before_mark > 0 {
        let objects = counted(verdict.objects_before_mark, "object");
        let mark: String = verdict.limits.since.iter().map(|mark| format!(" {mark}")).collect();
        page.line(format!("not judged: {objects} (created before the mark{mark})"));
    }
    let objects = counted(verdict.objects_created_after_end, "object");
    let later = [
        (
            verdict.allocated_after_end.count,
            parts::tally(verdict.allocated_after_end),
            "allocated",
        ),
        (verdict.objects_created_after_end, objects, "created"),
    ];
    for (_, what, verb) in later.iter().filter(|(count, ..)| *count > 0) {
        let end = verdict
            .when
            .as_deref()
            .unwrap_or("when the process ended")
            .replacen("when", "after", 1);
        page.line(format!("not judged: {what} {verb} {end}; --at exit judges it"));
    }
    if verdict.freed_at_shutdown.count > 0 {
        let freed = parts::tally(verdict.freed_at_shutdown);
        let text = "held when the script ended, which the interpreter's shutdown freed; --at end includes it";
        page.line(format!("not judged: {freed} {text}"));
    }
}

/// The option with which a report shows the point that was judged. A report of a script shows its end by default.
fn at(verdict: &Verdict) -> String {
    match &verdict.taken.point {
        Some(Point::End) => String::new(),
        // The name stands for the last mark, which need not be this one; an automatic snapshot shows its own mark.
        Some(Point::Mark(_)) if verdict.taken.automatic.is_none() && shows_highest(verdict) => {
            format!(" --at {}", Point::Time(verdict.taken.at_ns))
        }
        Some(point) => format!(" --at {}", shell_word(&point.to_string())),
        None if verdict.finished && verdict.reports_show_end => " --at exit".to_owned(),
        None => String::new(),
    }
}

/// `21 stream and 20 graph-exec objects left`; `held` instead of `left` while the process runs.
pub fn judged_objects(verdict: &Verdict) -> String {
    let found: Vec<(&str, u64)> = verdict.objects_found().collect();
    let kinds = found
        .iter()
        .map(|(kind, count)| format!("{} {kind}", units::count(*count)));
    let noun = match found[..] {
        [(_, 1)] => "object",
        _ => "objects",
    };
    let word = if verdict.finished { "left" } else { "held" };
    format!("{} {noun} {word}", kinds.collect::<Vec<_>>().join(" and "))
}

/// Whether memory fails only by what holds it.
pub fn judges_only_classes(verdict: &Verdict) -> bool {
    let limits = &verdict.limits;
    let without = Limits {
        classes: Default::default(),
        ..limits.clone()
    };
    let by_class = |breach: &Breach| matches!(breach, Breach::Class { .. });
    !limits.classes.is_empty()
        && verdict.boundary.is_none()
        && !verdict.baseline
        && without.allow_nothing(false)
        && verdict.breaches.iter().all(by_class)
}

/// `2 MiB in 1 block is lost (of 3 MiB held)`, `nothing is lost or in a cycle (1 MiB held)`.
pub fn by_class(verdict: &Verdict, word: &str) -> String {
    let judged = estimate(verdict.judged.bytes, verdict.judged_estimated);
    let held = format!("{judged} {word}{}", when(verdict));
    let mut sums: BTreeMap<Class, Tally> = BTreeMap::new();
    for breach in &verdict.breaches {
        if let Breach::Class {
            class, found, count, ..
        } = breach
        {
            sums.entry(*class).or_default().join(Tally {
                bytes: *found,
                count: *count,
            });
        }
    }
    if sums.is_empty() {
        let classes = verdict.limits.classes.iter().map(|class| is_of(*class));
        return format!("nothing is {} ({held})", classes.collect::<Vec<_>>().join(" or "));
    }
    let sums = sums.iter().map(|(class, tally)| {
        let is = if tally.count == 1 { "is" } else { "are" };
        format!("{} {is} {}", parts::tally(*tally), is_of(*class))
    });
    format!("{} (of {held})", sums.collect::<Vec<_>>().join(", "))
}

/// What memory of a class is.
fn is_of(class: Class) -> &'static str {
    match class {
        Class::Held => "held by a variable",
        Class::Cycle => "in a cycle",
        Class::NativeHolder => "held by native code",
        Class::OverCounted => "over-counted",
        Class::Lost => "lost",
    }
}

/// Whether the verdict is about the mark at which most was held.
fn shows_highest(verdict: &Verdict) -> bool {
    let boundary = verdict.boundary.as_ref();
    boundary.is_some_and(|boundary| boundary.previous_ns.is_none())
}

/// How the last mark compares with the previous one.
fn same_as_last(verdict: &Verdict, mark: &str) -> String {
    let mark = format!("the last mark \"{}\"", Escaped(mark));
    if verdict.judged.count == 0 {
        return format!("{mark} holds no more than the previous one");
    }
    let judged = parts::tally_about(verdict.judged, verdict.judged_estimated);
    format!(
        "{mark} holds {judged} that the previous one did not hold, {}",
        limits(verdict)
    )
}

/// At which mark the program was judged, and what it held at the others.
fn boundary(boundary: &Boundary, page: &mut Document) {
    const SHOWN: usize = 6;
    page.item(format!("at {}", boundary.title()));
    if boundary.held.len() > 1 {
        let hidden = boundary.held.len().saturating_sub(SHOWN);
        let bytes = boundary.held.iter().skip(hidden);
        let bytes: Vec<String> = bytes.map(|held| units::bytes(held.tally.bytes)).collect();
        let earlier = if hidden > 0 { "…, " } else { "" };
        page.item(format!("held at these marks: {earlier}{}", bytes.join(", ")));
    }
}

/// Why memory was not judged; with sizes if there are several reasons.
fn ignored(verdict: &Verdict) -> String {
    let Ignored {
        before_mark,
        other_kinds,
        cached,
    } = verdict.ignored_as;
    let before = match &verdict.boundary {
        Some(Boundary {
            previous_ns: Some(_), ..
        }) => "no more than at the previous mark".to_owned(),
        _ => {
            let mark = verdict.limits.since.as_deref().unwrap_or_default();
            format!("allocated before the mark {}", Escaped(mark))
        }
    };
    let reasons = [
        (before_mark, before),
        (other_kinds, "of other kinds".to_owned()),
        (
            cached,
            "in pools of caching allocators; --judge-pools includes it".to_owned(),
        ),
    ];
    let reasons: Vec<_> = reasons.into_iter().filter(|(tally, _)| tally.count > 0).collect();
    let sentences = reasons.iter().map(|(tally, reason)| match reasons.len() {
        1 => reason.clone(),
        _ => format!("{} {reason}", units::bytes(tally.bytes)),
    });
    sentences.collect::<Vec<_>>().join(", ")
}

/// Whether no limit was given.
pub fn allows_nothing(verdict: &Verdict) -> bool {
    verdict.limits.allow_nothing(verdict.baseline)
}

fn limits(verdict: &Verdict) -> String {
    if allows_nothing(verdict) {
        return "allowed none".to_owned();
    }
    let (bytes, count) = verdict.limits.effective(verdict.baseline);
    let mut parts = Vec::new();
    parts.extend(bytes.map(units::bytes));
    parts.extend(count.map(|count| counted(count, "block")));
    parts.extend(
        verdict
            .limits
            .max_per_site
            .map(|size| format!("{} per call site", units::bytes(size))),
    );
    for (kind, size) in &verdict.limits.per_kind {
        parts.push(format!("{} {}", units::bytes(*size), kind.name()));
    }
    for (kind, limit) in &verdict.limits.max_objects {
        parts.push(format!("{} {}", units::count(*limit), kind.name()));
    }
    for budget in &verdict.limits.budgets {
        parts.push(format!(
            "{} in {}",
            units::bytes(budget.bytes),
            Escaped(budget.pattern.text())
        ));
    }
    if verdict.baseline && verdict.limits.fail_on != FailOn::Any {
        let tolerance = match verdict.limits.tolerance {
            // Only new call sites fail.
            _ if verdict.limits.fail_on == FailOn::New => String::new(),
            tolerance if tolerance.is_none() => String::new(),
            Tolerance::Bytes(bytes) => format!(" with growth up to {} per call site", units::bytes(bytes)),
            Tolerance::Percent(percent) => format!(" with growth up to {percent} % per call site"),
        };
        parts.push(format!("what the baseline has{tolerance}"));
    }
    if verdict.limits.outliers {
        parts.push("no more than other processes".to_owned());
    }
    if !verdict.limits.classes.is_empty() {
        let classes: Vec<&str> = verdict.limits.classes.iter().map(|class| class.name()).collect();
        parts.push(format!("nothing that is {}", classes.join(" or ")));
    }
    format!("allowed {}", parts.join(" and "))
}

/// What the baseline allows, if that is more than what it holds.
fn allowed(known: u64, limit: u64, shown: fn(u64) -> String) -> String {
    match limit > known {
        true => format!(", allowed {}", shown(limit)),
        false => String::new(),
    }
}

/// `1 stream object`, `40 graph-exec objects`.
fn of_kind(count: u64, kind: &str) -> String {
    let noun = if count == 1 { "object" } else { "objects" };
    format!("{} {kind} {noun}", units::count(count))
}

/// One reason of a failure, as a sentence.
pub fn reason(verdict: &Verdict, breach: &Breach, word: &str) -> String {
    let sentence = sentence(breach, word);
    match verdict.is_estimate(breach) {
        true => sentence + " (an estimate from sampled stacks)",
        false => sentence,
    }
}

fn sentence(breach: &Breach, word: &str) -> String {
    let over = |what: &str, limit: u64, found: u64| {
        format!(
            "{} {word}{what} is {} over the limit of {}",
            units::bytes(found),
            units::bytes(found - limit),
            units::bytes(limit)
        )
    };
    match breach {
        Breach::Bytes { limit, found } => over("", *limit, *found),
        Breach::Count { limit, found } => {
            format!(
                "{} {word} is {} over the limit of {}",
                counted(*found, "block"),
                units::count(found - limit),
                units::count(*limit)
            )
        }
        Breach::Kind { kind, limit, found } => over(&format!(" of {kind} memory"), *limit, *found),
        Breach::Budget { pattern, limit, found } => over(&format!(" in {pattern}"), *limit, *found),
        Breach::Objects { kind, limit, found, .. } => {
            format!(
                "{} {kind} {} {} over the limit of {}",
                units::count(*found),
                if *found == 1 { "object is" } else { "objects are" },
                units::count(found - limit),
                units::count(*limit)
            )
        }
        Breach::Site { site, limit, found } => over(&format!(" by {site}"), *limit, *found),
        Breach::New { site, found } => format!("new: {} {word} by {site}", units::bytes(*found)),
        Breach::Grown {
            site,
            known,
            limit,
            found,
        } => {
            let allowed = allowed(*known, *limit, units::bytes);
            format!(
                "grown: {} {word} by {site}, {} in the baseline{allowed}",
                units::bytes(*found),
                units::bytes(*known)
            )
        }
        Breach::NewObjects { kind, site, found } => {
            format!("new: {} by {site}", of_kind(*found, kind))
        }
        Breach::GrownObjects {
            kind,
            site,
            known,
            limit,
            found,
        } => {
            let allowed = allowed(*known, *limit, units::count);
            format!(
                "grown: {} by {site}, {} in the baseline{allowed}",
                of_kind(*found, kind),
                units::count(*known)
            )
        }
        Breach::Class {
            class,
            site,
            held_by,
            found,
            count,
            ..
        } => format!(
            "{}: {} in {} of {site}, {held_by}",
            class.name(),
            units::bytes(*found),
            counted(*count, "block")
        ),
        Breach::Outlier {
            site,
            found,
            usual,
            of,
            group,
            ..
        } => {
            let group = match group.is_empty() {
                true => String::new(),
                false => format!(" of {group}"),
            };
            let by = site.iter().map(|site| format!(" by {site}")).collect::<String>();
            let usual = match usual {
                0 => "most have none".to_owned(),
                usual => format!("the median is {}", units::bytes(*usual)),
            };
            format!(
                "{} {word}{by}, more than in the other {}{group}: {usual}",
                units::bytes(*found),
                match of - 1 {
                    1 => "process".to_owned(),
                    others => format!("{} processes", units::count(others)),
                }
            )
        }
    }
}
