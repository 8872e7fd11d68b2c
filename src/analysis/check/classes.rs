//! Blocks that fail because of what holds them.

use foldhash::{HashMap, HashSet};

use super::{Breach, Judged, Rules, SiteKey, since, site_name};
use crate::analysis::groups::{Group, Groups, Level};
use crate::analysis::site::CallStacks;
use crate::analysis::tally::Tally;
use crate::analysis::why::words::{class_and_origin, path_text};
use crate::snapshot::{Call, HolderPath, Snapshot};

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
            .filter(|path| classes.contains(&path.class))?;
        Some(((block.address, block.time_ns), path))
    });
    let failing: HashMap<(u64, u64), &HolderPath> = failing.collect();
    let sorts = judged
        .iter()
        .map(|group| (std::ptr::from_ref(group.call), group.stack, group.level));
    let sorts: HashSet<Sort> = sorts.collect();
    let since = since(snapshot, rules);
    let mut sums: HashMap<(SiteKey, *const HolderPath), (Tally, &HolderPath)> = HashMap::default();
    for row in snapshot.allocations.iter().filter(|row| row.time_ns >= since) {
        let Some(&path) = failing.get(&(row.address, row.time_ns)) else {
            continue;
        };
        let sort = (std::ptr::from_ref(row.call), row.stack, groups.level(&row, stacks));
        if sorts.contains(&sort) {
            let site = (
                stacks.get(row.stack).site_fingerprint,
                stacks.is_pool(row.call.kind, row.stack),
            );
            let (sum, _) = sums.entry((site, path)).or_insert((Tally::default(), path));
            sum.add(row.bytes);
        }
    }
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
