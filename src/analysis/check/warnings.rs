//! What limits a verdict: another program's baseline, losses, a process that still runs, marks and patterns without effect.

use super::{Rules, Scope};
use crate::analysis::groups::{Groups, Level};
use crate::analysis::program::Program;
use crate::analysis::report::{began_late, ended_early, is_finished};
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::Sieve;
use crate::analysis::words;
use crate::snapshot::Snapshot;

pub(super) fn of(
    snapshot: &Snapshot,
    groups: &Groups,
    stacks: &CallStacks,
    sieve: &mut Sieve,
    rules: &Rules,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let losses = &snapshot.losses;
    let program = Program::of(snapshot);
    if let Some(baseline) = rules.baseline.as_ref().filter(|baseline| !baseline.is_of(&program)) {
        let known: Vec<String> = baseline.programs.iter().map(ToString::to_string).collect();
        warnings.push(format!(
            "the baseline was made from {}, but this process runs {program}",
            known.join(", ")
        ));
    }
    warnings.extend(began_late(losses));
    if groups.all.iter().any(|group| group.level == Level::Held) {
        warnings.extend(ended_early(snapshot));
    }
    let is_point = snapshot.taken.point.is_some();
    if !is_finished(snapshot) && !is_point && rules.boundary.is_none() {
        warnings.push("the process had not ended, so this is what it held, not what it leaked".to_owned());
    }
    let marks = snapshot.marks.iter().map(|mark| &mark.name);
    let equal = marks.filter(|name| Some(*name) == rules.limits.since.as_ref()).count();
    if equal > 1 {
        warnings.push(format!(
            "the program set the mark of --since {equal} times; the last one counts"
        ));
    }
    for limit in &rules.limits.given {
        let Scope::Pattern(pattern) = &limit.of else { continue };
        let numbers = 0..snapshot.stacks.len();
        let matching = numbers.filter(|&stack| pattern.matches_stack(stacks.get(Some(stack))));
        let matching: Vec<usize> = matching.collect();
        let mut all_suppressed = || matching.iter().all(|&stack| sieve.rule(Some(stack), stacks).is_some());
        let why = match matching.is_empty() {
            true => "matches no stack of the recording; check the pattern",
            false if all_suppressed() => "matches only stacks that suppressions exclude, so it limits nothing",
            false => continue,
        };
        let (bytes, pattern) = (words::bytes(limit.most), pattern.text());
        warnings.push(format!("the budget of {bytes} for {pattern} {why}"));
    }
    if let Some((rule, sites)) = sieve.too_broad(stacks) {
        let sites = words::plural(sites as u64, "call site", "call sites");
        warnings.push(format!(
            "{} ({}:{}) matches every stack of the program, so it hides all leaks, of {sites} so far; name the function or \
             file of a leak that is accepted: --gen-suppressions prints a rule for each",
            rule.text, rule.source, rule.line
        ));
    }
    if !losses.unhooked.is_empty() {
        warnings.push(format!(
            "memory of functions that culeak does not hook was not judged: {}",
            losses.unhooked.join(", ")
        ));
    }
    warnings
}
