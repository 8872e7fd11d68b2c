//! What limits a verdict: another program's baseline, losses, a process that still runs, marks and patterns without effect.

use super::Rules;
use crate::analysis::groups::{Groups, Level};
use crate::analysis::program::Program;
use crate::analysis::report::{began_late, ended_early, is_finished};
use crate::analysis::site::CallStacks;
use crate::analysis::words;
use crate::snapshot::Snapshot;

pub(super) fn of(snapshot: &Snapshot, groups: &Groups, stacks: &CallStacks, rules: &Rules) -> Vec<String> {
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
    for budget in &rules.limits.budgets {
        let of_stack = |stack| budget.pattern.matches_stack(stacks.get(Some(stack)));
        if !(0..snapshot.stacks.len()).any(of_stack) {
            warnings.push(format!(
                "the budget of {} for {} matches no stack of the recording; check the pattern",
                words::bytes(budget.bytes),
                budget.pattern.text()
            ));
        }
    }
    if !losses.unhooked.is_empty() {
        warnings.push(format!(
            "memory of functions that culeak does not hook was not judged: {}",
            losses.unhooked.join(", ")
        ));
    }
    warnings
}
