//! Blocks that fail because of what holds them.

use foldhash::{HashMap, HashSet};

use super::selection::since;
use super::sites::site_name;
use super::{Breach, Judged, Rules, SiteKey, Unseen, lacks_holders};
use crate::analysis::groups::{Group, Groups, Level};
use crate::analysis::site::CallStacks;
use crate::analysis::tally::Tally;
use crate::analysis::why::words::{class_and_origin, path_text};
use crate::analysis::words;
use crate::snapshot::{Allocation, Call, HeldBlock, HolderPath, ProcessState, Snapshot};

/// What groups have in common that records share.
type Sort = (*const Call, Option<usize>, Level);

/// One breach for each call site and path, largest first. The site's name is added by [`blame`].
pub(super) fn breaches(
    snapshot: &Snapshot,
    groups: &Groups,
    judged: &[Group],
    stacks: &CallStacks,
    rules: &Rules,
) -> Vec<Breach> {
    let classes = &rules.limits.classes;
    let Some(holders) = snapshot.holders.as_ref().filter(|_| !classes.is_empty()) else {
        return Vec::new();
    };
    let failing = holders.blocks.iter().filter_map(|block| {
        let path = holders
            .paths
            .get(block.path)
            .filter(|path| !path.changed && classes.contains(&path.class))?;
        Some(((block.address, block.time_ns), path))
    });
    let failing: HashMap<(u64, u64), &HolderPath> = failing.collect();
    let mut sums: HashMap<(SiteKey, *const HolderPath), (Tally, &HolderPath)> = HashMap::default();
    each_judged(snapshot, groups, judged, stacks, rules, |row, _| {
        if let Some(&path) = failing.get(&(row.address, row.time_ns)) {
            let site = (
                stacks.get(row.stack).site_fingerprint,
                stacks.is_pool(row.call.kind, row.stack),
            );
            let (sum, _) = sums.entry((site, path)).or_insert((Tally::default(), path));
            sum.add(row.bytes);
        }
    });
    let mut found: Vec<_> = sums.into_iter().collect();
    found.sort_by_key(|&((site, _), (sum, path))| {
        (
            std::cmp::Reverse(sum.bytes),
            site,
            path.class,
            &path.origin,
            &path.steps,
        )
    });
    let breach = |((of, _), (sum, path)): ((SiteKey, _), (Tally, &HolderPath))| Breach::Class {
        class: path.class,
        site: String::new(),
        held_by: in_words(path),
        found: sum.bytes,
        count: sum.count,
        of,
    };
    found.into_iter().map(breach).collect()
}

/// Calls this for each record of the judged groups, with its level.
fn each_judged<'a>(
    snapshot: &'a Snapshot,
    groups: &Groups,
    judged: &[Group],
    stacks: &CallStacks,
    rules: &Rules,
    mut visit: impl FnMut(&Allocation<'a>, Level),
) {
    let sorts = judged
        .iter()
        .map(|group| (std::ptr::from_ref(group.call), group.stack, group.level));
    let sorts: HashSet<Sort> = sorts.collect();
    let since = since(snapshot, rules);
    for row in snapshot.allocations.iter().filter(|row| row.time_ns >= since) {
        let level = groups.level(&row, stacks);
        if sorts.contains(&(std::ptr::from_ref(row.call), row.stack, level)) {
            visit(&row, level);
        }
    }
}

/// Judged memory whose class is not known, if classes are judged.
pub(super) fn unknown(
    snapshot: &Snapshot,
    groups: &Groups,
    judged: &[Group],
    stacks: &CallStacks,
    rules: &Rules,
) -> Tally {
    let mut unknown = Tally::default();
    let Some(holders) = snapshot.holders.as_ref().filter(|_| !rules.limits.classes.is_empty()) else {
        return unknown;
    };
    let is_known = |block: &&HeldBlock| holders.paths.get(block.path).is_some_and(|path| !path.changed);
    let known = holders.blocks.iter().filter(is_known);
    let known: HashSet<(u64, u64)> = known.map(|block| (block.address, block.time_ns)).collect();
    each_judged(snapshot, groups, judged, stacks, rules, |row, level| {
        // Cached memory without an answer is free.
        if level == Level::Held && row.bytes > 0 && !known.contains(&(row.address, row.time_ns)) {
            unknown.add(row.bytes);
        }
    });
    unknown
}

/// What holds judged memory, if it is not known. A running process frees memory during the search, so a part never has an answer:
/// that is a warning.
pub(super) fn unseen(snapshot: &Snapshot, unknown: Tally, rules: &Rules) -> Option<Unseen> {
    const REASONS: usize = 3;
    let classes: Vec<&str> = rules.limits.classes.iter().map(|class| class.name()).collect();
    let rule = format!("--fail-on {}", classes.join(","));
    if lacks_holders(snapshot, rules) {
        return Some(Unseen::all(
            rule,
            "what holds its memory at this point is not known",
            "record with culeak run --why, or name a running process",
        ));
    }
    if unknown.count == 0 || snapshot.process.state == ProcessState::Running {
        return None;
    }
    let limits = snapshot.holders.iter().flat_map(|holders| &holders.search.limits);
    let reasons: String = limits.take(REASONS).map(|reason| format!(" ({reason})")).collect();
    let what = format!("what holds {} is not known{reasons}", in_blocks(unknown));
    Some(Unseen::part(rule, what, "judge other memory with --kind"))
}

/// `128 KiB in 1 block`.
fn in_blocks(tally: Tally) -> String {
    let blocks = words::plural(tally.count, "block", "blocks");
    format!("{} in {blocks}", words::bytes(tally.bytes))
}

/// What makes the classes uncertain.
pub(super) fn warnings(snapshot: &Snapshot, unknown: Tally, rules: &Rules) -> Vec<String> {
    /// More sentences do not help; a file may have a million.
    const SENTENCES: usize = 10;
    let mut warnings = Vec::new();
    let Some(holders) = snapshot.holders.as_ref().filter(|_| !rules.limits.classes.is_empty()) else {
        return warnings;
    };
    if unknown.count > 0 && snapshot.process.state == ProcessState::Running {
        warnings.push(format!(
            "what holds {} is not known, so --fail-on did not judge it",
            in_blocks(unknown)
        ));
    }
    let search = &holders.search;
    if search.changed > 0 {
        warnings.push(format!(
            "{} changed holder or were freed during the search",
            words::plural(search.changed, "block", "blocks")
        ));
    }
    let limits = search.limits.iter().take(SENTENCES);
    warnings.extend(limits.map(|limit| format!("the search for holders is incomplete: {limit}")));
    warnings
}

/// `uncollected cycle Node.o → Node.o: .store → Tensor → storage`.
fn in_words(path: &HolderPath) -> String {
    let origin = class_and_origin(
        path.class,
        path.root,
        &path.origin,
        &path.origin_type,
        path.note.as_deref(),
    );
    let possibly = if path.possibly { "possibly " } else { "" };
    match path_text(path) {
        steps if steps.is_empty() => format!("{possibly}{origin}"),
        steps => format!("{possibly}{origin}: {steps}"),
    }
}

/// Marks the call sites of these breaches, and names them in the breaches.
pub(super) fn blame(judged: &mut [Judged], breaches: &mut [Breach]) {
    let mut sites: HashMap<SiteKey, &mut Judged> = HashMap::default();
    for row in judged {
        if let Some(key) = row.key() {
            sites.insert(key, row);
        }
    }
    for breach in breaches {
        if let Breach::Class { site, of, .. } = breach
            && let Some(row) = sites.get_mut(of)
        {
            *site = site_name(&row.row);
            row.only_by_class |= !row.to_blame;
            row.to_blame = true;
        }
    }
}
