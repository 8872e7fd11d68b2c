//! The selected memory of a snapshot, added up by path and call site.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use super::retained::{retained_by, whole_retainers};
use super::rows::UNNAMED_POOL;
use super::words::{path_text, without_indices};
use super::{Also, HolderRow, Matched, Modules, Options, Origin, OriginKey, Pool, Selector, TensorRow};
use crate::analysis::filter::Filtering;
use crate::analysis::groups::{Groups, Level};
use crate::analysis::site::{CallStacks, Fingerprint};
use crate::snapshot::{Class, HeldBlock, HolderPath, Holders, Retainer, Snapshot};
use crate::tally::Tally;

/// Blocks of one call site and one path.
pub(super) struct Row {
    pub tally: Tally,
    /// The stack of the first.
    pub stack: Option<usize>,
    /// That of the first.
    pub address: u64,
    /// What else holds a part of it, by name.
    pub also: BTreeMap<String, Tally>,
    /// By the number of the tensor.
    pub tensors: BTreeMap<usize, Tally>,
    /// What frees a part of it is not known.
    pub unretained: bool,
}

/// The names of what else holds the blocks of each retainer.
struct Others<'h> {
    retainers: &'h [Retainer],
    known: HashMap<usize, Rc<[String]>>,
}

impl<'h> Others<'h> {
    fn of(&mut self, innermost: usize) -> Rc<[String]> {
        if let Some(known) = self.known.get(&innermost) {
            return Rc::clone(known);
        }
        let mut names: Vec<String> = Vec::new();
        for retainer in around(self.retainers, Some(innermost)) {
            names.extend(retainer.also.iter().map(|name| without_indices(name, true)));
            if retainer.also_unnamed > 0 {
                names.push(MORE_HOLDERS.to_owned());
            }
        }
        names.sort_unstable();
        names.dedup();
        let names: Rc<[String]> = names.into();
        self.known.insert(innermost, Rc::clone(&names));
        names
    }
}

/// A retainer and those around it.
pub(super) fn around(retainers: &[Retainer], innermost: Option<usize>) -> impl Iterator<Item = &Retainer> {
    let mut at = innermost;
    std::iter::from_fn(move || {
        let nth = at?;
        let retainer = retainers.get(nth)?;
        // Parents precede children, so this ends.
        at = retainer.parent.filter(|&parent| parent < nth);
        Some(retainer)
    })
}

/// In place of names that are not known.
const MORE_HOLDERS: &str = "other holders";

/// The selected memory, added up.
#[derive(Default)]
pub(super) struct Gathered<'a> {
    /// The number of blocks that the selector names, of any class.
    pub selected: u64,
    pub total: Tally,
    pub sites: HashSet<Fingerprint>,
    pub roots: HashSet<OriginKey<'a>>,
    pub classes: BTreeMap<Class, Tally>,
    /// The part of held and of lost memory that is so only possibly.
    pub possibly: BTreeMap<Class, Tally>,
    /// By path, `None` without an answer, and call site. In no order.
    pub rows: HashMap<(Option<usize>, Fingerprint), Row>,
    pub not_searched: Tally,
    pub changed: Tally,
    /// Memory of variables of which it is not known what frees it.
    pub unretained: Tally,
    pub pools: BTreeMap<&'a str, Pool>,
    /// By call site and module of PyTorch; empty if there are no modules.
    pub modules: HashMap<Fingerprint, HashMap<Option<usize>, Tally>>,
    /// The allocation that was asked for by its address, and its answer.
    pub block: Option<(usize, Option<&'a HeldBlock>)>,
}

impl<'a> Gathered<'a> {
    pub(super) fn of(
        snapshot: &'a Snapshot,
        holders: &'a Holders,
        stacks: &CallStacks<'a>,
        groups: &Groups<'a>,
        options: &Options,
        matched: Matched,
    ) -> Gathered<'a> {
        let mut filtering = Filtering::new(&options.filter, snapshot);
        let mut answers: HashMap<(u64, u64), &HeldBlock> = HashMap::with_capacity(holders.blocks.len());
        for block in &holders.blocks {
            answers.entry((block.address, block.time_ns)).or_insert(block);
        }
        let mut others = Others {
            retainers: &holders.retainers,
            known: HashMap::new(),
        };
        let mut gathered = Gathered::default();
        for (index, block) in snapshot.allocations.iter().enumerate() {
            let level = groups.level(&block, stacks);
            if block.bytes == 0 || !level.is_counted() {
                continue;
            }
            let stack = stacks.get(block.stack);
            let selector = options.selector.as_ref();
            let answer = answers.get(&(block.address, block.time_ns)).copied();
            let path = answer.map(|answer| &holders.paths[answer.path]);
            let is_changed = path.is_some_and(|path| path.changed);
            let path = path.filter(|_| !is_changed);
            let without = |gathered: &mut Gathered| match is_changed {
                true => gathered.changed.add(block.bytes),
                false => gathered.not_searched.add(block.bytes),
            };
            let wanted = selector.is_none_or(|selector| selector.selects(&block, stack, path, matched));
            if !wanted || !filtering.passes(block.call, block.stack, block.time_ns, stacks) {
                continue;
            }
            gathered.selected += 1;
            if let Some(class) = options.class
                && path.map(|path| path.class) != Some(class)
            {
                // It may be of the class.
                if path.is_none() && (is_changed || level == Level::Held) {
                    without(&mut gathered);
                }
                continue;
            }
            gathered.total.add(block.bytes);
            gathered.sites.insert(stack.site_fingerprint);
            if !holders.modules.is_empty() {
                let module = answer.and_then(|answer| answer.module);
                let of_site = gathered.modules.entry(stack.site_fingerprint).or_default();
                of_site.entry(module).or_default().add(block.bytes);
            }
            let row = gathered.rows.entry((
                answer.filter(|_| !is_changed).map(|answer| answer.path),
                stack.site_fingerprint,
            ));
            let row = row.or_insert(Row {
                tally: Tally::default(),
                stack: block.stack,
                address: block.address,
                also: BTreeMap::new(),
                tensors: BTreeMap::new(),
                unretained: false,
            });
            row.tally.add(block.bytes);
            if let Some(path) = path {
                if let Some(tensor) = answer.and_then(|answer| answer.tensor) {
                    row.tensors.entry(tensor).or_default().add(block.bytes);
                }
                let retainer = answer.and_then(|answer| answer.retainer);
                row.unretained |= retainer.is_none();
                if retainer.is_none() && path.class == Class::Held {
                    gathered.unretained.add(block.bytes);
                }
                for name in retainer
                    .map(|retainer| others.of(retainer))
                    .iter()
                    .flat_map(|names| names.iter())
                {
                    match row.also.get_mut(name) {
                        Some(tally) => tally.add(block.bytes),
                        None => row.also.entry(name.clone()).or_default().add(block.bytes),
                    }
                }
            }
            match path {
                Some(path) => {
                    gathered.classes.entry(path.class).or_default().add(block.bytes);
                    if path.class == Class::Held {
                        gathered.roots.insert(OriginKey::of(path));
                    }
                    if path.possibly && matches!(path.class, Class::Held | Class::Lost) {
                        gathered.possibly.entry(path.class).or_default().add(block.bytes);
                    }
                }
                None if level == Level::Cached && !is_changed => {
                    let owner = stack.allocator.unwrap_or(UNNAMED_POOL);
                    gathered.pools.entry(owner).or_default().unknown.add(block.bytes);
                }
                None => without(&mut gathered),
            }
            if matches!(options.selector, Some(Selector::Address(_))) {
                gathered.block = Some((index, answer));
            }
        }
        gathered
    }

    /// The memory of a call site, or all, by module.
    pub(super) fn modules(&self, holders: &Holders, site: Option<Fingerprint>) -> Option<Modules> {
        let of_site = site.and_then(|site| self.modules.get(&site));
        let all = self.modules.values().filter(|_| site.is_none());
        let tallies = of_site.into_iter().chain(all).flatten();
        Modules::of(&holders.modules, tallies.map(|(module, tally)| (*module, *tally)))
    }

    /// The origins to show, and the tallies of those that are cut off.
    pub(super) fn origins(
        &self,
        holders: &'a Holders,
        stacks: &CallStacks,
        options: &Options,
    ) -> (Vec<Origin<'a>>, Vec<Tally>) {
        let mut groups = grouped(holders, self.rows.iter().map(|(key, row)| (*key, row)));
        let shown = groups.partition_point(|group| group.tally.bytes >= options.min_bytes);
        let cut = groups.split_off(shown.min(options.top.unwrap_or(usize::MAX)));
        let whole = whole_retainers(holders);
        let origins = groups.into_iter().map(|mut group| {
            // Texts of rows that are cut off are never made: a file may have a million of them.
            let all = group.rows.len();
            let is_known = group.rows.iter().all(|(.., row)| !row.unretained);
            let beyond = group.rows.split_off(all.min(options.rows.unwrap_or(usize::MAX)));
            let row = |(path, site_fingerprint, row): (&'a HolderPath, Fingerprint, &Row)| {
                let (label, place) = stacks.get(row.stack).site_names();
                HolderRow {
                    label,
                    place,
                    site_fingerprint,
                    address: row.address,
                    path: path_text(path),
                    possibly: path.possibly,
                    interior: path.interior,
                    also: also(row),
                    tensors: tensors(row, holders),
                    tally: row.tally,
                }
            };
            let mut origin = Origin {
                key: group.key,
                tally: group.tally,
                possibly: group.possibly,
                retained: None,
                holders: group.rows.into_iter().map(row).collect(),
                hidden: Tally::total(beyond.iter().map(|(.., row)| row.tally)),
                hidden_rows: beyond.len(),
            };
            origin.retained = retained_by(&origin, &whole, is_known);
            origin
        });
        (origins.collect(), cut.iter().map(|group| group.tally).collect())
    }
}

/// The rows of one origin.
pub(super) struct Group<'a, 'r> {
    key: OriginKey<'a>,
    tally: Tally,
    /// All of its paths may be stale.
    possibly: bool,
    /// Largest first.
    pub rows: Vec<(&'a HolderPath, Fingerprint, &'r Row)>,
}

/// Puts rows that have a path into groups of one origin. Every surface has these groups, in this order: largest first.
pub(super) fn grouped<'a, 'r>(
    holders: &'a Holders,
    rows: impl Iterator<Item = ((Option<usize>, Fingerprint), &'r Row)>,
) -> Vec<Group<'a, 'r>> {
    let mut groups: HashMap<OriginKey, Group> = HashMap::new();
    for ((path, fingerprint), row) in rows {
        let Some(path) = path.map(|path| &holders.paths[path]) else {
            continue;
        };
        let group = groups.entry(OriginKey::of(path)).or_insert_with(|| Group {
            key: OriginKey::of(path),
            tally: Tally::default(),
            possibly: true,
            rows: Vec::new(),
        });
        group.tally.join(row.tally);
        group.possibly &= path.possibly;
        group.rows.push((path, fingerprint, row));
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by(|a, b| b.tally.cmp(&a.tally).then_with(|| a.key.cmp(&b.key)));
    for group in &mut groups {
        group.rows.sort_by(|(a_path, a_site, a), (b_path, b_site, b)| {
            let steps = |path: &'a HolderPath| &path.steps;
            b.tally
                .cmp(&a.tally)
                .then_with(|| a_site.cmp(b_site))
                .then_with(|| steps(a_path).len().cmp(&steps(b_path).len()))
                .then_with(|| steps(a_path).cmp(steps(b_path)))
        });
    }
    groups
}

/// What the tensors of a row are, largest first.
fn tensors(row: &Row, holders: &Holders) -> Vec<TensorRow> {
    let tensor = |(number, tally): (&usize, &Tally)| TensorRow {
        tensor: holders.tensors[*number].clone(),
        tally: *tally,
    };
    let mut tensors: Vec<TensorRow> = row.tensors.iter().map(tensor).collect();
    tensors.sort_by(|a, b| b.tally.cmp(&a.tally).then_with(|| a.tensor.cmp(&b.tensor)));
    tensors
}

/// What else holds a row's memory, largest first.
pub(super) fn also(row: &Row) -> Vec<Also> {
    let mut also: Vec<Also> = (row.also.iter())
        .map(|(name, tally)| Also {
            name: name.clone(),
            tally: *tally,
        })
        .collect();
    also.sort_by(|a, b| {
        let is_unnamed = |also: &Also| also.name == MORE_HOLDERS;
        is_unnamed(a).cmp(&is_unnamed(b)).then_with(|| b.tally.cmp(&a.tally))
    });
    also
}
