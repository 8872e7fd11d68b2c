//! The sentences of a verdict, for all formats: what was found, what is allowed, and each reason of a failure.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use culeak::analysis::check::{
    BeyondBaseline, Breach, FailOn, Measure, OfClass, Outcome, OverLimit, Scope, Tolerance, UnlikeOthers, Verdict,
};
use culeak::analysis::report::{Row, Tally};
use culeak::kind::Kind;
use culeak::snapshot::Class;

use crate::document::estimate;
use crate::escape::Escaped;
use crate::text::why::{holder_text, is_of};
use crate::text::{parts, units};

/// `passed`, `failed` or `no verdict`.
pub fn result(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "passed",
        Outcome::Failed => "failed",
        Outcome::NoVerdict => "no verdict",
    }
}

/// What the process did with the memory.
pub fn verb(verdict: &Verdict) -> &'static str {
    if verdict.finished { "leaked" } else { "held" }
}

/// `1.2 GiB in 132 blocks leaked, allowed none`.
pub fn headline(verdict: &Verdict) -> String {
    let judged = parts::tally_about(verdict.judged, verdict.judged_estimated);
    let (when, limits) = (when(verdict), limits(verdict) + &without_limit([verdict]));
    let objects = verdict.limits.of_objects().next().map(|_| judged_objects(verdict));
    if verdict.judges_only_classes() {
        return by_class(verdict);
    }
    if let Some(boundary) = verdict.boundary.as_ref().filter(|_| verdict.compares_marks()) {
        let mark = format!("the last mark \"{}\"", Escaped(&boundary.mark));
        return match verdict.judged.count {
            0 => format!("{mark} holds no more than the previous one"),
            _ => format!("{mark} holds {judged} that the previous one did not hold, {limits}"),
        };
    }
    let memory = format!("{judged} {}", verb(verdict));
    let found = match objects {
        Some(objects) if verdict.judges_only_objects() => objects,
        Some(objects) => format!("{memory} and {objects}"),
        None => memory,
    };
    format!("{found}{when}, {limits}")
}

/// `; no limit applies to 200 MiB in 100 blocks: device`, or nothing.
pub fn without_limit<'v>(verdicts: impl IntoIterator<Item = &'v Verdict<'v>>) -> String {
    let mut by_kind: BTreeMap<&str, Tally> = BTreeMap::new();
    let mut is_estimate = false;
    for of in verdicts.into_iter().flat_map(|verdict| &verdict.without_limit) {
        by_kind.entry(of.kind.name()).or_default().join(of.tally);
        is_estimate |= of.estimated.is_some();
    }
    if by_kind.is_empty() {
        return String::new();
    }
    let (about, all) = (parts::about(is_estimate), Tally::total(by_kind.values().copied()));
    let kinds = parts::listed(by_kind.into_iter());
    format!("; no limit applies to {about}{}: {kinds}", parts::tally(all))
}

/// ` when the script ended`, or nothing.
fn when(verdict: &Verdict) -> String {
    verdict.when.iter().map(|when| format!(" {when}")).collect()
}

/// `400 MiB of it held by __main__.keep (list of 8): keep[*] → Tensor`: the largest holder of a call site's memory, also of what is not
/// judged. `None` if that is more than the row has, or if no holder is known.
pub fn held_by(row: &Row, verdict: &Verdict) -> Option<String> {
    let print = row.stack().site_fingerprint;
    let site = verdict.held_by.iter().find(|site| site.site_fingerprint == print)?;
    let first = site.holders.first().filter(|_| !row.pool)?;
    let part = match first.tally.bytes.cmp(&row.bytes) {
        Ordering::Greater => return None,
        Ordering::Equal => String::new(),
        Ordering::Less => units::bytes(first.tally.bytes) + " of it ",
    };
    Some(format!("{part}{}", holder_text(first)))
}

/// `21 stream and 20 graph-exec objects left`; `held` instead of `left` while the process runs.
pub fn judged_objects(verdict: &Verdict) -> String {
    let found: Vec<(&str, u64)> = verdict.objects_found().collect();
    let kinds = found
        .iter()
        .map(|(kind, count)| format!("{} {kind}", units::count(*count)));
    let kinds = kinds.collect::<Vec<_>>().join(" and ");
    let noun = if matches!(found[..], [(_, 1)]) {
        "object"
    } else {
        "objects"
    };
    let word = if verdict.finished { "left" } else { "held" };
    format!("{kinds} {noun} {word}")
}

/// `2 MiB in 1 block is lost (of 3 MiB held)`, `nothing is lost or in a cycle (1 MiB held)`, `whether memory is lost is not known (1 MiB
/// held)`.
pub fn by_class(verdict: &Verdict) -> String {
    let judged = estimate(verdict.judged.bytes, verdict.judged_estimated);
    let held = format!("{judged} {}{}", verb(verdict), when(verdict));
    let mut sums: BTreeMap<Class, Tally> = BTreeMap::new();
    for breach in &verdict.breaches {
        if let Breach::Class(of) = breach {
            sums.entry(of.class).or_default().join(Tally::new(of.found, of.count));
        }
    }
    let sums = sums.iter().map(|(class, tally)| {
        let is = if tally.count == 1 { "is" } else { "are" };
        format!("{} {is} {}", parts::tally(*tally), is_of(*class))
    });
    match sums.collect::<Vec<_>>() {
        sums if sums.is_empty() => {
            let classes: Vec<&str> = verdict.limits.classes.iter().map(|class| is_of(*class)).collect();
            let classes = classes.join(" or ");
            match verdict.outcome {
                Outcome::NoVerdict if verdict.unseen.iter().any(|unseen| !unseen.beside) => {
                    format!("whether memory is {classes} is not known ({held})")
                }
                _ => format!("nothing is {classes} ({held})"),
            }
        }
        sums => format!("{} (of {held})", sums.join(", ")),
    }
}

/// `allowed 1 GiB and 100 blocks`.
fn limits(verdict: &Verdict) -> String {
    if verdict.allows_nothing() {
        return "allowed none".to_owned();
    }
    let limits = &verdict.limits;
    let mut parts: Vec<String> = (limits.given.iter())
        .map(|limit| {
            let most = limit.measure.words(limit.most);
            match &limit.of {
                Scope::All => most,
                Scope::Kind(kind) => format!("{most} {}", kind.name()),
                Scope::Pattern(pattern) => format!("{most} in {}", Escaped(pattern.text())),
                Scope::Site => format!("{most} per call site"),
            }
        })
        .collect();
    if verdict.baseline && limits.fail_on != FailOn::Any {
        let tolerance = match limits.tolerance {
            // Only new call sites fail.
            _ if limits.fail_on == FailOn::New => String::new(),
            tolerance if tolerance.is_none() => String::new(),
            Tolerance::Bytes(bytes) => format!(" with growth up to {} per call site", units::bytes(bytes)),
            Tolerance::Percent(percent) => format!(" with growth up to {percent} % per call site"),
        };
        parts.push(format!("what the baseline has{tolerance}"));
    }
    if limits.outliers {
        parts.push("no more than other processes".to_owned());
    }
    if !limits.classes.is_empty() {
        let classes: Vec<&str> = limits.classes.iter().map(|class| class.name()).collect();
        parts.push(format!("nothing that is {}", classes.join(" or ")));
    }
    format!("allowed {}", parts.join(" and "))
}

/// `1 stream object`, `40 graph-exec objects`.
fn of_kind(count: u64, kind: Kind) -> String {
    let noun = if count == 1 { "object" } else { "objects" };
    format!("{} {} {noun}", units::count(count), kind.name())
}

fn over_limit(OverLimit { limit, found, site, .. }: &OverLimit, verb: &str) -> String {
    let number = match limit.measure {
        Measure::Bytes => units::bytes,
        Measure::Blocks | Measure::Objects => units::count,
    };
    let by: String = site.iter().map(|site| format!(" by {site}")).collect();
    let subject = match (&limit.of, limit.measure) {
        (Scope::Kind(kind), Measure::Objects) if *found == 1 => format!("{} is", of_kind(*found, *kind)),
        (Scope::Kind(kind), Measure::Objects) => format!("{} are", of_kind(*found, *kind)),
        (of, measure) => format!("{} {verb}{}{by} is", measure.words(*found), of.words()),
    };
    let (over, most) = (number(found - limit.most), number(limit.most));
    format!("{subject} {over} over the limit of {most}")
}

fn beyond_baseline(of: &BeyondBaseline, verb: &str) -> String {
    let what = match of.kind {
        Some(kind) => of_kind(of.found, kind),
        None => format!("{} {verb}", units::bytes(of.found)),
    };
    let site = &of.site;
    let Some(known) = of.known else {
        return format!("new: {what} by {site}");
    };
    let allowed = match of.limit > known {
        true => format!(", allowed {}", of.measure.words(of.limit)),
        false => String::new(),
    };
    format!(
        "grown: {what} by {site}, {} in the baseline{allowed}",
        of.measure.words(known)
    )
}

fn of_class(of: &OfClass) -> String {
    let (class, tally) = (of.class.name(), parts::tally(Tally::new(of.found, of.count)));
    // `lost: no pointer to it is left` begins with the class, too.
    let held_by = of.held_by.strip_prefix(class).and_then(|rest| rest.strip_prefix(": "));
    format!("{class}: {tally} of {}, {}", of.site, held_by.unwrap_or(&of.held_by))
}

fn unlike_others(of: &UnlikeOthers, verb: &str) -> String {
    let by: String = of.site.iter().map(|site| format!(" by {site}")).collect();
    let others = match of.of - 1 {
        1 => "process".to_owned(),
        others => format!("{} processes", units::count(others)),
    };
    let group = match of.group.as_str() {
        "" => String::new(),
        group => format!(" of {group}"),
    };
    let usual = match of.usual {
        0 if of.others_with_any == 0 && of.of == 2 => "it has none".to_owned(),
        0 if of.others_with_any == 0 => "they have none".to_owned(),
        0 => "most have none".to_owned(),
        usual => format!("the median is {}", units::bytes(usual)),
    };
    let found = units::bytes(of.found);
    format!("{found} {verb}{by}, more than in the other {others}{group}: {usual}")
}

/// One reason of a failure. Not escaped.
pub fn reason(verdict: &Verdict, breach: &Breach) -> String {
    let verb = verb(verdict);
    let sentence = match breach {
        Breach::Total(of) => over_limit(of, verb),
        Breach::Baseline(of) => beyond_baseline(of, verb),
        Breach::Class(of) => of_class(of),
        Breach::Outlier(of) => unlike_others(of, verb),
    };
    match verdict.is_estimate(breach) {
        true => sentence + " (an estimate from sampled stacks)",
        false => sentence,
    }
}
