//! The selected memory of a snapshot, added up by path and call site.

use super::retained::{retained_by, whole_retainers};
use super::*;
use crate::analysis::why::words::path_text;

/// What paths must have in common to be in one group.
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct OriginKey<'a> {
    class: Class,
    root: RootKind,
    origin: &'a str,
    origin_type: &'a str,
    note: Option<&'a str>,
}

impl<'a> OriginKey<'a> {
    pub(super) fn of(path: &'a HolderPath) -> OriginKey<'a> {
        OriginKey {
            class: path.class,
            root: path.root,
            origin: &path.origin,
            origin_type: &path.origin_type,
            note: path.note.as_deref(),
        }
    }
}

/// Blocks of one call site and one path.
pub(super) struct Row {
    pub tally: Tally,
    /// The stack of the first.
    pub stack: Option<usize>,
    /// That of the first.
    pub address: u64,
}

/// The selected memory, added up.
pub(super) struct Gathered<'a> {
    /// The number of blocks that the selector names, of any class.
    pub selected: u64,
    pub total: Tally,
    pub sites: HashSet<Fingerprint>,
    pub roots: HashSet<OriginKey<'a>>,
    pub classes: BTreeMap<Class, Tally>,
    /// By path, `None` without an answer, and call site. In no order.
    pub rows: HashMap<(Option<usize>, Fingerprint), Row>,
    pub not_searched: Tally,
    pub pools: BTreeMap<&'a str, Pool>,
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
        let mut gathered = Gathered {
            selected: 0,
            total: Tally::default(),
            sites: HashSet::new(),
            roots: HashSet::new(),
            classes: BTreeMap::new(),
            rows: HashMap::new(),
            not_searched: Tally::default(),
            pools: BTreeMap::new(),
            block: None,
        };
        for (index, block) in snapshot.allocations.iter().enumerate() {
            let level = groups.level(&block, stacks);
            if block.bytes == 0 || !matches!(level, Level::Held | Level::Cached) {
                continue;
            }
            let stack = stacks.get(block.stack);
            let selector = options.selector.as_ref();
            let answer = answers.get(&(block.address, block.time_ns)).copied();
            let path = answer.map(|answer| &holders.paths[answer.path]);
            let wanted = selector.is_none_or(|selector| selector.selects(&block, stack, path, matched));
            if !wanted || !filtering.passes(block.call, block.stack, block.time_ns, stacks) {
                continue;
            }
            gathered.selected += 1;
            if let Some(class) = options.class
                && path.map(|path| path.class) != Some(class)
            {
                // It may be of the class.
                if path.is_none() && level == Level::Held {
                    gathered.not_searched.add(block.bytes);
                }
                continue;
            }
            gathered.total.add(block.bytes);
            gathered.sites.insert(stack.site_fingerprint);
            let row = gathered
                .rows
                .entry((answer.map(|answer| answer.path), stack.site_fingerprint));
            let row = row.or_insert(Row {
                tally: Tally::default(),
                stack: block.stack,
                address: block.address,
            });
            row.tally.add(block.bytes);
            match path {
                Some(path) => {
                    gathered.classes.entry(path.class).or_default().add(block.bytes);
                    if path.class == Class::Held {
                        gathered.roots.insert(OriginKey::of(path));
                    }
                }
                None if level == Level::Cached => {
                    let owner = stack.allocator.unwrap_or(UNNAMED_POOL);
                    gathered.pools.entry(owner).or_default().unknown.add(block.bytes);
                }
                None => gathered.not_searched.add(block.bytes),
            }
            if matches!(options.selector, Some(Selector::Address(_))) {
                gathered.block = Some((index, answer));
            }
        }
        gathered
    }

    /// The origins to show, and the tallies of those that are cut off.
    pub(super) fn origins(
        &self,
        holders: &'a Holders,
        stacks: &CallStacks,
        options: &Options,
    ) -> (Vec<Origin<'a>>, Vec<Tally>) {
        let mut origins: HashMap<OriginKey, Origin> = HashMap::new();
        let mut members: HashMap<OriginKey, Vec<(&'a HolderPath, Fingerprint, &Row)>> = HashMap::new();
        for (&(path, fingerprint), row) in &self.rows {
            let Some(path) = path.map(|path| &holders.paths[path]) else {
                continue;
            };
            let origin = origins.entry(OriginKey::of(path)).or_insert_with(|| Origin {
                class: path.class,
                root: path.root,
                origin: &path.origin,
                origin_type: &path.origin_type,
                note: path.note.as_deref(),
                tally: Tally::default(),
                possibly: true,
                retained: None,
                holders: Vec::new(),
                hidden: Tally::default(),
                hidden_rows: 0,
            });
            origin.tally.join(row.tally);
            origin.possibly &= path.possibly;
            members
                .entry(OriginKey::of(path))
                .or_default()
                .push((path, fingerprint, row));
        }
        let mut origins: Vec<(OriginKey, Origin)> = origins.into_iter().collect();
        origins.sort_by(|(a_key, a), (b_key, b)| largest_first(a.tally, b.tally).then_with(|| a_key.cmp(b_key)));
        let shown = origins.partition_point(|(_, origin)| origin.tally.bytes >= options.min_bytes);
        let shown = shown.min(options.top.unwrap_or(usize::MAX));
        let cut = origins
            .split_off(shown)
            .iter()
            .map(|(_, origin)| origin.tally)
            .collect();
        let whole = whole_retainers(holders);
        let origins = origins.into_iter().map(|(key, mut origin)| {
            // Texts of rows that are cut off are never made: a file may have a million of them.
            let mut rows = members.remove(&key).unwrap_or_default();
            rows.sort_by(|(a_path, a_site, a), (b_path, b_site, b)| {
                let steps = |path: &'a HolderPath| &path.steps;
                largest_first(a.tally, b.tally)
                    .then_with(|| a_site.cmp(b_site))
                    .then_with(|| steps(a_path).len().cmp(&steps(b_path).len()))
                    .then_with(|| steps(a_path).cmp(steps(b_path)))
            });
            let beyond = rows.split_off(rows.len().min(options.rows.unwrap_or(usize::MAX)));
            (origin.hidden, origin.hidden_rows) =
                (Tally::total(beyond.iter().map(|(.., row)| row.tally)), beyond.len());
            origin.holders = rows
                .into_iter()
                .map(|(path, fingerprint, row)| {
                    let (label, place) = site_names(stacks.get(row.stack));
                    HolderRow {
                        label,
                        place,
                        site_fingerprint: fingerprint,
                        address: row.address,
                        path: path_text(path),
                        possibly: path.possibly,
                        interior: path.interior,
                        tally: row.tally,
                    }
                })
                .collect();
            origin.retained = retained_by(&origin, &whole);
            origin
        });
        (origins.collect(), cut)
    }
}
