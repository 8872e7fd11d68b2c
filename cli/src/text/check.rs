//! A verdict: passed or failed, the reasons, the failing call sites, and the next command.

use std::collections::{BTreeMap, BTreeSet};

use culeak::analysis::boundaries::Boundary;
use culeak::analysis::check::{Breach, Judged, Limit, Measure, Outcome, Scope, Unseen, Verdict};
use culeak::analysis::filter::Filter;
use culeak::analysis::job::identity::rank_of;
use culeak::analysis::job::member::ranges;
use culeak::analysis::report::{Row, Tally, shell_word};
use culeak::analysis::suppressions::BUILT_IN_NAME;
use culeak::point::Point;
use culeak::table;

use super::report::{Ranked, judged, ranked};
use super::{objects, parts, units};
use crate::document::{BAD, Document, GOOD, Site, Text, WARN, counted, dim, styled};
use crate::escape::Escaped;

pub mod sentences;

pub use sentences::result;
use sentences::{headline, reason, without_limit};

/// Call sites listed in a verdict; the report has all.
const SITES_SHOWN: usize = 10;

/// Different warnings of verdicts that are not printed.
const WARNINGS_SHOWN: usize = 10;

/// The most verdicts that are printed one after the other; of more, those of the first that did not pass.
const EACH: usize = 10;

/// Processes that did not pass and whose verdict is printed in full.
const FAILED_SHOWN: usize = 5;

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
    let judged = parts::tally(Tally::total(verdicts.iter().map(|(_, verdict)| verdict.judged)));
    let about = parts::about(verdicts.iter().any(|(_, verdict)| verdict.judged_estimated.is_some()));
    let without_limit = without_limit(verdicts.iter().map(|(_, verdict)| verdict));
    let processes = counted(verdicts.len(), "process");
    let not_passed = [Outcome::Failed, Outcome::NoVerdict].map(|outcome| {
        let with = verdicts.iter().filter(|(_, verdict)| verdict.outcome == outcome);
        (outcome, with.collect::<Vec<_>>())
    });
    let not_passed: Vec<_> = not_passed.into_iter().filter(|(_, of)| !of.is_empty()).collect();
    if not_passed.is_empty() {
        page.heading(outcome(Outcome::Passed) + format!(" all of {processes}, with {about}{judged}{without_limit}"));
    }
    let mut sum = format!(", with {about}{judged} in all{without_limit}");
    for (result, of) in &not_passed {
        let (count, sum) = (units::count(of.len() as u64), std::mem::take(&mut sum));
        page.heading(outcome(*result) + format!(" {count} of {processes}{sum}"));
    }
    let few = verdicts.len() <= EACH;
    if let (false, Some((_, verdict))) = (few, verdicts.first()) {
        config(verdict, &mut page);
        page.warnings(warnings_of_passed(verdicts));
    }
    for (outcome, of) in &not_passed {
        let lacks_itself = |(_, verdict): &&&(&str, Verdict)| {
            verdict.outcome != Outcome::NoVerdict || verdict.unseen.iter().any(|unseen| !unseen.beside)
        };
        let of: Vec<_> = of.iter().filter(lacks_itself).copied().collect();
        if !of.is_empty() {
            page.item(format!("{}: {}", result(*outcome), names(&of, verdicts)));
        }
    }
    let all = verdicts.iter().flat_map(|(_, verdict)| &verdict.unseen);
    all.filter(|unseen| unseen.beside)
        .for_each(|unseen| page.item(unseen.sentence()));
    let (listed, most): (Vec<_>, usize) = match few {
        true => (verdicts.iter().collect(), EACH),
        false => (not_passed.into_iter().flat_map(|(_, of)| of).collect(), FAILED_SHOWN),
    };
    for (source, verdict) in listed.iter().take(most) {
        page.heading(format!("== {source} =="));
        page.append(self::page_without(verdict, source, |unseen| unseen.beside));
    }
    let hidden = listed.len().saturating_sub(most);
    page.more_at(0, hidden, "process", " that did not pass; --json has all");
    page
}

/// The file that limits come from.
fn config(verdict: &Verdict, page: &mut Document) {
    let files = verdict.config.iter();
    files.for_each(|file| page.item(format!("limits from {file}")));
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
    let hidden = different.len().saturating_sub(WARNINGS_SHOWN);
    let shown = different.iter().take(WARNINGS_SHOWN).map(|(warning, count)| {
        let processes = units::plural(*count, "process that passed", "processes that passed");
        format!("{warning} ({processes})")
    });
    let others = counted(hidden, "other warning");
    let others = format!("{others} of processes that passed; --json has all");
    shown.chain((hidden > 0).then_some(others)).collect()
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
        return format!("{noun} {}", ranges(&ranks, RANGES));
    }
    let sources: Vec<&str> = failed.iter().take(RANGES).map(|(source, _)| *source).collect();
    match failed.len() - sources.len() {
        0 => sources.join(", "),
        more => format!("{} and {} more", sources.join(", "), units::count(more as u64)),
    }
}

/// The verdict. `source`: the input as the user named it.
pub fn page(verdict: &Verdict, source: &str) -> Document {
    page_without(verdict, source, |_| false)
}

/// The verdict, without what was said of all.
fn page_without(verdict: &Verdict, source: &str, is_said: fn(&Unseen) -> bool) -> Document {
    let mut page = Document::default();
    let failed = verdict.outcome == Outcome::Failed;
    page.heading(outcome(verdict.outcome) + format!(" {}", headline(verdict)));
    config(verdict, &mut page);
    let boundary = verdict.boundary.iter().flat_map(at_boundary);
    let unseen = verdict.unseen.iter().filter(|unseen| !is_said(unseen));
    let unseen = unseen.map(Unseen::sentence);
    boundary.chain(unseen).for_each(|note| page.item(note));
    if failed {
        reasons(verdict, &mut page);
    }
    not_judged(verdict).into_iter().for_each(|note| page.line(note));
    let (objects, sampled) = (verdict.suppressed_objects, verdict.sampling.is_some());
    parts::suppressions(verdict.suppressed, objects, &verdict.suppressions, sampled, &mut page);
    page.warnings(&verdict.warnings);
    if failed {
        let is_of_memory = verdict.rows.iter().any(|of| of.to_blame);
        let to_blame = !is_of_memory && verdict.objects.iter().any(|of| of.to_blame);
        let objects = if to_blame { " --view objects" } else { "" };
        let filter = Filter {
            kinds: if to_blame {
                Vec::new()
            } else {
                verdict.limits.kinds.clone()
            },
            since: verdict.limits.since.clone(),
            ..Filter::default()
        };
        let files: BTreeSet<&str> = verdict.suppressions.iter().map(|rule| rule.source.as_str()).collect();
        let files = files.into_iter().filter(|source| *source != BUILT_IN_NAME);
        let files: String = files
            .map(|file| format!(" --suppressions {}", shell_word(file)))
            .collect();
        let (source, at, filter) = (shell_word(source), at(verdict), filter.options());
        page.next(format!("culeak report {source}{objects}{at}{filter}{files}"));
    }
    page
}

/// Why the verdict failed, and the rows.
fn reasons(verdict: &Verdict, page: &mut Document) {
    // If nothing is allowed, the first line contains the reason.
    let is_nothing = |limit: &Limit| limit.most == 0 && limit.of == Scope::All && limit.measure != Measure::Objects;
    let is_said = |breach: &&Breach| match breach {
        Breach::Total(of) => verdict.allows_nothing() || is_nothing(&of.limit),
        // The row is marked as new or grown.
        Breach::Baseline(of) => {
            let mut shown = verdict.rows.iter().take(SITES_SHOWN);
            of.kind.is_none() && of.limit <= of.known.unwrap_or(0) && shown.any(|row| row.row.name() == of.site)
        }
        _ => false,
    };
    let is_of_class = |row: &Judged| {
        let of_row = |breach: &Breach| matches!(breach, Breach::Class(_)) && breach.key_apart() == Some(row.key());
        verdict.breaches.iter().take(SITES_SHOWN).any(of_row)
    };
    for breach in verdict
        .breaches
        .iter()
        .filter(|breach| !is_said(breach))
        .take(SITES_SHOWN)
    {
        page.item(reason(verdict, breach));
        let Breach::Total(total) = breach else { continue };
        let is_of_total = |row: &&Row| total.limit.measure == Measure::Objects && row.is_in(&total.limit.of);
        let rows: Vec<&Row> = verdict.objects.iter().map(|of| &of.row).filter(is_of_total).collect();
        let titles = rows.iter().take(SITES_SHOWN).map(|row| objects::title(row));
        titles.for_each(|title| page.item(title));
        page.more(rows.len().saturating_sub(SITES_SHOWN), "call site", " of objects");
    }
    // If only objects have limits, no memory is judged.
    if !verdict.rows.is_empty() && !verdict.judges_only_objects() {
        let shown = &verdict.rows[..verdict.rows.len().min(SITES_SHOWN)];
        let mut sites: Vec<Site> = shown.iter().map(judged).collect();
        parts::tell_apart(&mut sites, shown.iter().map(|of| of.row.label.as_str()));
        // What holds it is in the reason.
        let of_class: Vec<&Row> = shown.iter().filter(|of| is_of_class(of)).map(|of| &of.row).collect();
        let is_of_class = |row: &Row| of_class.iter().any(|of| std::ptr::eq(*of, row));
        let rows = ranked(shown.iter().map(|of| (&of.row, of.row.bytes)).zip(sites));
        page.table(rows.below(|&Ranked { row, .. }, page| {
            let through = parts::through_of(row);
            through.into_iter().for_each(|through| page.indented(6, dim(through)));
            let held_by = sentences::held_by(row, verdict)
                .filter(|_| !is_of_class(row))
                .into_iter();
            held_by.for_each(|held_by| page.indented(6, held_by));
        }));
        page.more(verdict.rows.len().saturating_sub(SITES_SHOWN), "call site", "");
    }
}

/// What was not judged, and why.
fn not_judged(verdict: &Verdict) -> Vec<String> {
    let about = parts::about(verdict.sampling.is_some());
    let mark: String = verdict.limits.since.iter().map(|mark| format!(" {mark}")).collect();
    let end = verdict.when.as_deref().unwrap_or("when the process ended");
    let after = end.replacen("when", "after", 1);
    let (later, freed) = (verdict.allocated_after_end, verdict.freed_at_shutdown);
    let unchanged = verdict.ignored_as.before_mark;
    let unchanged = Some(unchanged).filter(|tally| verdict.compares_marks() && tally.count > 0);
    let ignored = match unchanged {
        Some(_) => Tally::total([verdict.ignored_as.other_kinds, verdict.ignored_as.cached]),
        None => verdict.ignored,
    };
    let [ignored_size, later_size, freed_size] = [ignored, later, freed].map(parts::tally);
    let (old, new) = (verdict.objects_before_mark, verdict.objects_created_after_end);
    let [old_objects, new_objects] = [old, new].map(|count| counted(count, "object"));
    let rest = units::bytes(verdict.rest_of_pools.bytes);
    let in_shutdown =
        "held when the script ended, which exit callbacks and the interpreter's shutdown freed; --at end includes it";
    let notes = table! {
        ignored.count, format!("{about}{ignored_size} ({})", why_ignored(verdict));
        verdict.rest_of_pools.bytes, format!("{rest} that pools keep beside their blocks; --judge-pools includes it");
        old, format!("{old_objects} (created before the mark{mark})");
        later.count, format!("{later_size} allocated {after}; --at exit judges it");
        new, format!("{new_objects} created {after}; --at exit judges it");
        freed.count, format!("{freed_size} {in_shutdown}");
    };
    let notes = notes.into_iter().filter(|(count, _)| *count > 0);
    let unchanged = unchanged.map(|tally| format!("no more than at the previous mark: {about}{}", parts::tally(tally)));
    let not_judged = notes.map(|(_, note)| format!("not judged: {note}"));
    unchanged.into_iter().chain(not_judged).collect()
}

/// Why memory was not judged; with sizes if there are several reasons.
fn why_ignored(verdict: &Verdict) -> String {
    let ignored = verdict.ignored_as;
    let mark = Escaped(verdict.limits.since.as_deref().unwrap_or_default());
    let before = format!("allocated before the mark {mark}");
    let in_pools = "in pools of caching allocators; --judge-pools includes it";
    let reasons = [
        (ignored.before_mark, before.as_str()),
        (ignored.other_kinds, "of other kinds"),
        (ignored.cached, in_pools),
    ];
    // What two marks hold alike is said elsewhere.
    let reasons = reasons.iter().skip(usize::from(verdict.compares_marks()));
    let reasons: Vec<_> = reasons.filter(|(tally, _)| tally.count > 0).collect();
    let sentences = reasons.iter().map(|(tally, reason)| match reasons.len() {
        1 => (*reason).to_owned(),
        _ => format!("{} {reason}", units::bytes(tally.bytes)),
    });
    sentences.collect::<Vec<_>>().join(", ")
}

/// The option with which a report shows the point that was judged. A report of a script shows its end by default.
fn at(verdict: &Verdict) -> String {
    let is_highest = verdict.boundary.is_some() && !verdict.compares_marks();
    let is_moment = verdict.taken.automatic.is_none() && is_highest;
    let point = match verdict.taken.point.clone() {
        Some(Point::End) => None,
        // The name stands for the last mark, which need not be this one; an automatic snapshot shows its own mark.
        Some(Point::Mark(_)) if is_moment => Some(Point::Time(verdict.taken.at_ns)),
        None if verdict.process.state.has_ended() && verdict.reports_show_end => Some(Point::Exit),
        other => other,
    };
    let words = point.map(|point| shell_word(&point.to_string()));
    words.iter().map(|point| format!(" --at {point}")).collect()
}

/// At which mark the program was judged, and what it held at the others.
fn at_boundary(boundary: &Boundary) -> Vec<String> {
    const SHOWN: usize = 6;
    let mut notes = vec![format!("at {}", boundary.title())];
    if boundary.held.len() > 1 {
        let hidden = boundary.held.len().saturating_sub(SHOWN);
        let bytes = boundary.held.iter().skip(hidden);
        let bytes: Vec<String> = bytes.map(|held| units::bytes(held.tally.bytes)).collect();
        let earlier = if hidden > 0 { "…, " } else { "" };
        notes.push(format!("held at these marks: {earlier}{}", bytes.join(", ")));
    }
    notes
}
