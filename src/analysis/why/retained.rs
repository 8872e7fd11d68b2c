//! What would be freed with each holder, and what caching allocators keep.

use super::*;
use crate::analysis::ledger::What;

/// The retainers around which there is no other, by name.
pub(super) fn whole_retainers(holders: &Holders) -> HashMap<&str, &Retainer> {
    let outermost = holders.retainers.iter().filter(|retainer| retainer.parent.is_none());
    outermost.map(|retainer| (retainer.name.as_str(), retainer)).collect()
}

pub(super) fn retained_by(origin: &Origin, whole: &HashMap<&str, &Retainer>) -> Option<Tally> {
    let typed = format!("{} ({})", origin.origin, origin.origin_type);
    let found = whole.get(origin.origin).or_else(|| whole.get(typed.as_str()))?;
    (found.root == origin.root).then_some(Tally {
        bytes: found.bytes,
        count: found.count,
    })
}

/// The largest retainers as a tree, in the order in which it is printed.
pub(super) fn retained<'a>(holders: &'a Holders, options: &Options) -> Vec<Retained<'a>> {
    let all = &holders.retainers;
    let mut largest: Vec<usize> = (0..all.len())
        .filter(|&nth| all[nth].bytes >= options.min_bytes)
        .collect();
    // A parent is as large as its children, and precedes them.
    largest.sort_by_key(|&nth| (std::cmp::Reverse(all[nth].bytes), nth));
    largest.truncate(options.top.unwrap_or(usize::MAX));
    let chosen: HashSet<usize> = largest.iter().copied().collect();
    let mut children: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
    for nth in largest {
        let parent = all[nth].parent.filter(|parent| chosen.contains(parent));
        children.entry(parent).or_default().push(nth);
    }
    let mut tree: Vec<Retained> = Vec::new();
    let mut open: Vec<(usize, usize, Option<usize>)> = Vec::new();
    let push = |open: &mut Vec<_>, nodes: Option<Vec<usize>>, depth, parent| {
        open.extend(nodes.into_iter().flatten().rev().map(|nth| (nth, depth, parent)));
    };
    push(&mut open, children.remove(&None), 0, None);
    while let Some((nth, depth, parent)) = open.pop() {
        tree.push(Retained {
            name: &all[nth].name,
            root: all[nth].root,
            depth,
            parent,
            tally: Tally {
                bytes: all[nth].bytes,
                count: all[nth].count,
            },
        });
        let at = tree.len() - 1;
        push(&mut open, children.remove(&Some(nth)), depth + 1, Some(at));
    }
    tree
}

/// Adds what caching allocators reserve and no live block uses.
pub(super) fn add_unused<'a>(pools: &mut BTreeMap<&'a str, Pool>, ledger: &Ledger<'a>) {
    let lines = ledger.devices.iter().flat_map(|device| &device.lines);
    for line in lines.filter(|line| line.what == What::Cached && line.bytes > 0) {
        let unused = u64::try_from(line.bytes).unwrap_or(u64::MAX);
        let pool = pools.entry(line.of.unwrap_or(UNNAMED_POOL)).or_default();
        pool.unused_bytes = pool.unused_bytes.saturating_add(unused);
    }
}
