//! Blocks that fail because of what holds them.

use foldhash::{HashMap, HashSet};

use super::selection::since;
use super::{Breach, Judged, OfClass, Rules, SiteKey, Unseen};
use crate::analysis::groups::{Group, Groups, Level};
use crate::analysis::site::CallStacks;
use crate::analysis::why::words::whole_path_text;
use crate::analysis::words;
use crate::point::Point;
use crate::snapshot::{Call, Class, HolderPath, ProcessState, Snapshot};
use crate::tally::Tally;

/// One breach for each call site and path, largest first, and the judged memory whose class is not known. Marks the rows of these
/// call sites.
pub(super) fn judge(
    snapshot: &Snapshot,
    groups: &Groups,
    judged: &[Group],
    stacks: &CallStacks,
    rules: &Rules,
    rows: &mut [Judged],
) -> (Vec<Breach>, Unknown) {
    let classes = &rules.limits.classes;
    let Some(holders) = snapshot.holders.as_ref().filter(|_| !classes.is_empty()) else {
        return (Vec::new(), Unknown::default());
    };
    let mut paths: HashMap<(u64, u64), &HolderPath> = HashMap::default();
    for block in &holders.blocks {
        if let Some(path) = holders.paths.get(block.path).filter(|path| !path.changed) {
            let known = paths.entry((block.address, block.time_ns)).or_insert(path);
            // A damaged file may have a block twice.
            if classes.contains(&path.class) {
                *known = path;
            }
        }
    }
    let sort = |call: &Call, stack: Option<usize>, level: Level| (std::ptr::from_ref(call), stack, level);
    let sorts = judged.iter().map(|group| sort(group.call, group.stack, group.level));
    let sorts: HashSet<(*const Call, Option<usize>, Level)> = sorts.collect();
    let mut sums: HashMap<(SiteKey, *const HolderPath), (Tally, &HolderPath)> = HashMap::default();
    let mut unknown = Unknown {
        is_all: true,
        ..Unknown::default()
    };
    let since = since(snapshot, rules);
    for row in snapshot.allocations.iter().filter(|row| row.time_ns >= since) {
        let level = groups.level(&row, stacks);
        if !sorts.contains(&sort(row.call, row.stack, level)) {
            continue;
        }
        let path = paths.get(&(row.address, row.time_ns));
        unknown.is_all &= path.is_none();
        let is_left_out = row.stack.is_some() && snapshot.sampling.is_some_and(|of| of.left_out == row.stack);
        match path {
            // What may hold it was not searched.
            Some(&path) if classes.contains(&path.class) && path.class == Class::Lost && path.possibly => {
                unknown.lost.add(row.bytes);
            }
            Some(&path) if classes.contains(&path.class) && is_left_out => unknown.left_out.add(row.bytes),
            Some(&path) if classes.contains(&path.class) => {
                let site = stacks.get(row.stack).site_fingerprint;
                let site = (site, stacks.is_pool(row.call.kind, row.stack));
                let (sum, _) = sums.entry((site, path)).or_insert((Tally::default(), path));
                sum.add(row.bytes);
            }
            // Cached memory without an answer is free.
            None if level == Level::Held && row.bytes > 0 => unknown.tally.add(row.bytes),
            _ => {}
        }
    }
    let mut found: Vec<_> = sums.into_iter().collect();
    found.sort_by_key(|&((site, _), (sum, path))| {
        let largest = std::cmp::Reverse(sum.bytes);
        (largest, site, path.class, &path.origin, &path.steps)
    });
    let numbers = rows.iter().enumerate();
    let numbers: HashMap<SiteKey, usize> = numbers.map(|(nth, row)| (row.key(), nth)).collect();
    let breach = |((key, _), (sum, path)): ((SiteKey, _), (Tally, &HolderPath))| {
        Breach::Class(OfClass {
            class: path.class,
            site: numbers
                .get(&key)
                .map_or_else(String::new, |&nth| rows[nth].blame_apart()),
            held_by: in_words(path),
            found: sum.bytes,
            count: sum.count,
            key,
        })
    };
    (found.into_iter().map(breach).collect(), unknown)
}

/// Judged memory whose holders are not known.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unknown {
    tally: Tally,
    /// It is all of it.
    is_all: bool,
    /// Blocks that are lost only possibly.
    lost: Tally,
    /// Blocks that fail, unless a suppression matches their stacks, which were left out.
    left_out: Tally,
}

impl Unknown {
    /// A running process frees memory during the search, so a part never has an answer: that is a warning.
    fn is_freed(&self, snapshot: &Snapshot) -> bool {
        let has_ended = (snapshot.holders.as_ref()).is_some_and(|holders| holders.search.stopped.is_none());
        snapshot.process.state == ProcessState::Running && has_ended && !self.is_all
    }
}

/// Whether what holds the memory must be known, and is not.
pub fn lacks_holders(snapshot: &Snapshot, rules: &Rules) -> bool {
    !rules.limits.classes.is_empty() && snapshot.holders.is_none()
}

/// What holds judged memory, if it is not known.
pub(super) fn unseen(snapshot: &Snapshot, unknown: Unknown, rules: &Rules) -> Vec<Unseen> {
    const REASONS: usize = 3;
    let classes: Vec<&str> = rules.limits.classes.iter().map(|class| class.name()).collect();
    let rule = format!("--fail-on {}", classes.join(","));
    if lacks_holders(snapshot, rules) {
        let next = match &snapshot.taken.point {
            Some(Point::Mark(_) | Point::Time(_) | Point::Peak) => {
                "holders are known of the end only, in recordings of culeak run --why: use --at end"
            }
            _ => "record with culeak run --why, or name a running process",
        };
        let what = "what holds its memory at this point is not known";
        return vec![Unseen::all(rule, what, next)];
    }
    let mut unseen = Vec::new();
    if unknown.left_out.count > 0 {
        let what = format!(
            "{} would fail, but sampling left out their stacks, which a suppression may match",
            in_blocks(unknown.left_out)
        );
        let next = "record with a smaller --sample, or without it";
        unseen.push(Unseen::part(rule.clone(), what, next));
    }
    let mut not_known = unknown.lost;
    if !unknown.is_freed(snapshot) {
        not_known.join(unknown.tally);
    }
    if not_known.count == 0 {
        return unseen;
    }
    let limits = snapshot.holders.iter().flat_map(|holders| &holders.search.limits);
    let reasons: String = limits.take(REASONS).map(|reason| format!(" ({reason})")).collect();
    let what = format!("what holds {} is not known{reasons}", in_blocks(not_known));
    unseen.push(Unseen::part(rule, what, "judge other memory with --kind"));
    unseen
}

/// `128 KiB in 1 block`.
fn in_blocks(tally: Tally) -> String {
    let blocks = words::plural(tally.count, "block", "blocks");
    format!("{} in {blocks}", words::bytes(tally.bytes))
}

/// What makes the classes uncertain.
pub(super) fn warnings(snapshot: &Snapshot, unknown: Unknown, rules: &Rules) -> Vec<String> {
    /// More sentences do not help; a file may have a million.
    const SENTENCES: usize = 10;
    let mut warnings = Vec::new();
    let Some(holders) = snapshot.holders.as_ref().filter(|_| !rules.limits.classes.is_empty()) else {
        return warnings;
    };
    if unknown.tally.count > 0 && unknown.is_freed(snapshot) {
        warnings.push(format!(
            "what holds {} is not known, so --fail-on did not judge it",
            in_blocks(unknown.tally)
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
    let possibly = if path.possibly { "possibly " } else { "" };
    format!("{possibly}{}", whole_path_text(path))
}
