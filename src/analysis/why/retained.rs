//! What would be freed with each holder, and what caching allocators keep.

use std::collections::{BTreeMap, HashMap};

use super::rows::UNNAMED_POOL;
use super::words::{untyped, without_indices};
use super::{Options, Origin, OriginKey, Pool, Retained};
use crate::analysis::ledger::{Ledger, LineKind};
use crate::analysis::words::count;
use crate::snapshot::{Class, HeldBlock, Holders, Retainer, RootKind};
use crate::tally::Tally;

/// What the retainers around which there is no other free, by root and name without the type. Retainers of one name are
/// different objects (the locals of two calls of a function, modules of the same name), so their memory is added up. To drop
/// one of several references frees nothing.
pub(super) fn whole_retainers(holders: &Holders) -> HashMap<(RootKind, &str), Tally> {
    let mut whole: HashMap<(RootKind, &str), Tally> = HashMap::new();
    for retainer in holders.retainers.iter().filter(|retainer| retainer.parent.is_none()) {
        let whole = whole.entry((retainer.root, untyped(&retainer.name))).or_default();
        if !retainer.is_shared() {
            whole.join(Tally::new(retainer.bytes, retainer.count));
        }
    }
    whole
}

/// `is_known`: it is known of all memory of the origin what frees it.
pub(super) fn retained_by(origin: &Origin, whole: &HashMap<(RootKind, &str), Tally>, is_known: bool) -> Option<Tally> {
    let OriginKey { root, origin: name, .. } = origin.key;
    let of_name = |name| whole.get(&(root, name)).copied();
    let known = of_name(name).or_else(|| of_name(untyped(name)));
    // Otherwise others hold all parts of it.
    known.or_else(|| (is_known && origin.key.class == Class::Held).then(Tally::default))
}

/// The retainers as a tree, in the order in which it is printed. Retainers that differ only in an index, and whose
/// parents are alike, are one node; a retainer that frees the same as the one around it is left out.
pub(super) fn retained(holders: &Holders) -> Vec<Retained> {
    let all = &holders.retainers;
    let possibly = possibly(holders);
    let mut children: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
    for (nth, retainer) in all.iter().enumerate() {
        children.entry(retainer.parent).or_default().push(nth);
    }
    let mut tree: Vec<Retained> = Vec::new();
    let mut open: Vec<(Alike, usize, Option<usize>)> = Vec::new();
    let outermost = alike(all, children.remove(&None).unwrap_or_default());
    open.extend(outermost.into_iter().rev().map(|group| (group, 0, None)));
    while let Some((group, depth, parent)) = open.pop() {
        let inner = below(all, &mut children, &group);
        tree.push(Retained {
            name: group.name(all),
            also: group.also(all),
            also_unnamed: group
                .members
                .iter()
                .map(|nth| all[*nth].also_unnamed)
                .max()
                .unwrap_or(0),
            root: all[group.members[0]].root,
            repeated: 0,
            depth,
            parent,
            tally: group.tally,
            possibly_bytes: group
                .members
                .iter()
                .fold(0, |sum, nth| possibly[*nth].saturating_add(sum)),
            host_bytes: group.members.iter().map(|nth| all[*nth].host_bytes).sum(),
        });
        let at = tree.len() - 1;
        open.extend(inner.into_iter().rev().map(|group| (group, depth + 1, Some(at))));
    }
    tree
}

/// The bytes of each retainer to which only pointers lead that may be stale.
fn possibly(holders: &Holders) -> Vec<u64> {
    let mut bytes = vec![0_u64; holders.retainers.len()];
    let is_one = |block: &&HeldBlock| holders.paths.get(block.path).is_some_and(|path| path.possibly);
    for block in holders.blocks.iter().filter(is_one) {
        if let Some(of) = block.retainer.and_then(|nth| bytes.get_mut(nth)) {
            *of = of.saturating_add(block.bytes);
        }
    }
    // Parents precede children.
    for (nth, retainer) in holders.retainers.iter().enumerate().rev() {
        if let Some(parent) = retainer.parent.filter(|&parent| parent < nth) {
            bytes[parent] = bytes[parent].saturating_add(bytes[nth]);
        }
    }
    bytes
}

/// Retainers that differ only in an index.
struct Alike {
    shape: String,
    /// All keys are left out, not only numbers.
    all_keys: bool,
    members: Vec<usize>,
    tally: Tally,
}

impl Alike {
    fn name(&self, all: &[Retainer]) -> String {
        match self.members.as_slice() {
            [one] => all[*one].name.clone(),
            several => format!("{} × {}", count(several.len() as u64), self.shape),
        }
    }

    fn also(&self, all: &[Retainer]) -> Vec<String> {
        let also = all[self.members[0]].also.iter();
        match self.members.as_slice() {
            [_] => also.cloned().collect(),
            _ => {
                let mut shapes: Vec<String> = also.map(|name| without_indices(name, self.all_keys)).collect();
                shapes.dedup();
                shapes
            }
        }
    }
}

/// More keys of one holder are not listed one by one.
const KEYS: usize = 20;

/// Puts retainers that are alike together, largest first.
fn alike(all: &[Retainer], nodes: Vec<usize>) -> Vec<Alike> {
    let by = |all_keys: bool| {
        let mut groups: HashMap<(String, Vec<String>, bool), Alike> = HashMap::new();
        for &nth in &nodes {
            let shape = without_indices(&all[nth].name, all_keys);
            let mut also: Vec<String> = (all[nth].also.iter())
                .map(|name| without_indices(name, all_keys))
                .collect();
            also.dedup();
            let key = (shape.clone(), also, all[nth].is_shared());
            let group = groups.entry(key).or_insert_with(|| Alike {
                shape,
                all_keys,
                members: Vec::new(),
                tally: Tally::default(),
            });
            group.members.push(nth);
            group.tally.join(Tally::new(all[nth].bytes, all[nth].count));
        }
        groups
    };
    let mut groups = by(false);
    if groups.len() > KEYS {
        groups = by(true);
    }
    let mut groups: Vec<Alike> = groups.into_values().collect();
    groups.sort_by_key(|group| (std::cmp::Reverse(group.tally), group.members[0]));
    groups
}

/// The groups below a group, without those that free the same as what is around them.
fn below(all: &[Retainer], children: &mut HashMap<Option<usize>, Vec<usize>>, group: &Alike) -> Vec<Alike> {
    let mut around = group.members.clone();
    loop {
        let inner = around.iter().filter_map(|&nth| children.remove(&Some(nth)));
        let mut inner = alike(all, inner.flatten().collect());
        let frees_the_same = inner.first().is_some_and(|first| first.tally == group.tally);
        match frees_the_same && inner.len() == 1 {
            true => around = inner.remove(0).members,
            false => return inner,
        }
    }
}

/// The largest nodes of a tree. A node is as large as those below it, so these are a tree too.
pub(super) fn largest(tree: Vec<Retained>, options: &Options) -> Vec<Retained> {
    let mut order: Vec<usize> = (0..tree.len()).collect();
    order.retain(|&nth| options.size(&tree[nth]) >= options.min_bytes);
    order.sort_by_key(|&nth| (std::cmp::Reverse(options.size(&tree[nth])), nth));
    order.truncate(options.top.unwrap_or(usize::MAX));
    order.sort_unstable();
    let mut places = vec![None; tree.len()];
    let mut kept: Vec<Retained> = Vec::new();
    for (nth, node) in tree.into_iter().enumerate() {
        if order.binary_search(&nth).is_err() {
            continue;
        }
        places[nth] = Some(kept.len());
        let parent = node.parent.and_then(|parent| places[parent]);
        // A damaged file may have a parent that is smaller.
        let depth = parent.map_or(0, |parent: usize| kept[parent].depth + 1);
        kept.push(Retained { parent, depth, ..node });
    }
    kept
}

/// Adds what caching allocators reserve and no live block uses.
pub(super) fn add_unused<'a>(pools: &mut BTreeMap<&'a str, Pool>, ledger: &Ledger<'a>) {
    let lines = ledger.devices.iter().flat_map(|device| &device.lines);
    for line in lines.filter(|line| line.what == LineKind::Cached && line.bytes > 0) {
        let unused = u64::try_from(line.bytes).unwrap_or(u64::MAX);
        let pool = pools.entry(line.of.unwrap_or(UNNAMED_POOL)).or_default();
        pool.unused_bytes = pool.unused_bytes.saturating_add(unused);
    }
}
