//! The modules of PyTorch that own memory, with sums up the tree.
//!
//! ```text
//! __main__.model (TransformerEncoder)             a module that is in no other has the name of its variable
//!   layers.* (6 × TransformerEncoderLayer)        modules that are alike and hold as much are one line
//!     layers.*.linear1 (6 × Linear)
//! ```

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::words::without_indices;
use crate::analysis::preorder::preorder;
use crate::snapshot::{HeldBlock, Holders, OwnerModule, Snapshot, is_default};
use crate::tally::Tally;

/// Modules deeper than this are a part of the one around them.
const DEEPEST: usize = 64;
/// Fewer modules that are alike are listed one by one.
const ALIKE: usize = 3;

/// In place of a module.
pub const NO_MODULE: &str = "(no module)";

/// The memory of each module.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Modules {
    /// A tree in the order in which it is printed: siblings by size.
    pub tree: Vec<ModuleRow>,
    /// Memory that no module owns.
    pub without: Tally,
}

/// A module, and those in it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ModuleRow {
    /// `layers.3.linear1`, as `named_modules()` spells it; the variable of a module that is in no other: `__main__.model`.
    pub path: String,
    pub class: String,
    /// Index of the module around it in this list.
    pub parent: Option<usize>,
    pub depth: usize,
    /// How many modules of this class are added up in the row.
    pub modules: u64,
    /// The number of other modules that have it too, or a tensor of it.
    #[serde(skip_serializing_if = "is_default")]
    pub also: u64,
    #[serde(flatten)]
    pub tally: Tally,
}

impl Modules {
    /// From the memory of each module of the holders alone.
    pub(super) fn of(all: &[OwnerModule], own: impl Iterator<Item = (Option<usize>, Tally)>) -> Option<Modules> {
        let own: Vec<(Option<usize>, Tally)> = own.collect();
        if own.iter().all(|(module, _)| module.is_none()) {
            return None;
        }
        let mut modules = Modules::default();
        let mut sums = vec![Tally::default(); all.len()];
        for (module, tally) in own {
            match module.and_then(|module| sums.get_mut(module)) {
                Some(sum) => sum.join(tally),
                None => modules.without.join(tally),
            }
        }
        // Parents precede children.
        for nth in (0..all.len()).rev() {
            if let Some(parent) = all[nth].parent {
                let sum = sums[nth];
                sums[parent].join(sum);
            }
        }
        let holding = (0..all.len()).filter(|&nth| sums[nth].count > 0);
        let holding = holding.map(|nth| (nth, all[nth].parent));
        let by_size = |a: usize, b: usize| sums[b].cmp(&sums[a]).then(a.cmp(&b));
        for row in preorder(holding, DEEPEST, by_size) {
            let module = &all[row.number];
            let around = row.parent.map(|parent| &modules.tree[parent]);
            let path = match around.filter(|around| around.depth > 0) {
                Some(around) => format!("{}.{}", around.path, module.name),
                None => module.name.clone(),
            };
            modules.tree.push(ModuleRow {
                path,
                class: module.class.clone(),
                parent: row.parent,
                depth: row.depth,
                modules: 1,
                also: module.also,
                tally: sums[row.number],
            });
        }
        Some(modules)
    }

    /// The rows of one module that is in no other, which is the first.
    pub fn of_root(&self, root: &str) -> &[ModuleRow] {
        let mut roots = self.tree.chunk_by(|_, next| next.depth > 0);
        roots.find(|rows| rows[0].text() == root).unwrap_or_default()
    }
}

impl ModuleRow {
    /// `layers.* (6 × Linear)`.
    pub fn text(&self) -> String {
        match self.modules {
            0 => self.path.clone(),
            1 => text(&self.path, &self.class),
            many => format!("{} ({many} × {})", self.path, self.class),
        }
    }
}

/// The largest lines of rows with one line for modules that are alike, and none for a module that holds nothing but the one in it;
/// and how many lines are left out.
pub fn folded(tree: &[ModuleRow], most: usize) -> (Vec<ModuleRow>, usize) {
    let mut below: Vec<Vec<usize>> = vec![Vec::new(); tree.len()];
    let mut outermost = Vec::new();
    let mut around: Vec<usize> = Vec::new();
    for (nth, row) in tree.iter().enumerate() {
        around.truncate(row.depth);
        match around.last() {
            Some(&parent) => below[parent].push(nth),
            None => outermost.push(nth),
        }
        around.push(nth);
    }
    let mut lines: Vec<ModuleRow> = Vec::new();
    let mut open: Vec<(ModuleRow, Vec<usize>)> = alike(tree, "", &outermost);
    while let Some((line, members)) = open.pop() {
        let inner: Vec<usize> = members.iter().flat_map(|&nth| below[nth].iter().copied()).collect();
        let mut inner = alike(tree, if line.depth == 0 { "" } else { &line.path }, &inner);
        let is_whole = line.depth > 0 && matches!(&*inner, [(only, _)] if only.tally == line.tally);
        let depth = line.depth + usize::from(!is_whole);
        inner.iter_mut().for_each(|(inner, _)| inner.depth = depth);
        if !is_whole {
            lines.push(line);
        }
        open.extend(inner);
    }
    let mut order: Vec<usize> = (0..lines.len()).collect();
    // A line is as large as those below it, and precedes them.
    order.sort_by_key(|&nth| (std::cmp::Reverse(lines[nth].tally.bytes), nth));
    let hidden = order.split_off(order.len().min(most)).len();
    order.sort_unstable();
    (order.into_iter().map(|nth| lines[nth].clone()).collect(), hidden)
}

/// The lines of these modules, the smallest first: one for those of one name, and one for those of one class whose names differ in a
/// number only, if they hold about as much.
fn alike(tree: &[ModuleRow], around: &str, these: &[usize]) -> Vec<(ModuleRow, Vec<usize>)> {
    let mut of_names: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for &nth in these {
        let row = &tree[nth];
        of_names
            .entry((name_in(row, around), &row.class))
            .or_default()
            .push(nth);
    }
    let line = |name: &str, members: Vec<usize>| {
        let joint = if around.is_empty() { "" } else { "." };
        let row = ModuleRow {
            path: format!("{around}{joint}{name}"),
            modules: members.len() as u64,
            also: members.iter().map(|&nth| tree[nth].also).max().unwrap_or(0),
            tally: Tally::total(members.iter().map(|&nth| tree[nth].tally)),
            ..tree[members[0]].clone()
        };
        (row, members)
    };
    let mut sorted: Vec<(String, &str, Tally, &str, Vec<usize>)> = (of_names.into_iter())
        .map(|((name, class), members)| {
            let tally = Tally::total(members.iter().map(|&nth| tree[nth].tally));
            (without_numbers(name), class, tally, name, members)
        })
        .collect();
    sorted.sort_by(|a, b| (&a.0, a.1, a.2.count, a.2.bytes).cmp(&(&b.0, b.1, b.2.count, b.2.bytes)));
    // A block of a caching allocator may be a little larger than its tensor.
    let is_alike = |a: Tally, b: Tally| a.count == b.count && b.bytes - a.bytes <= a.bytes / 8;
    let mut lines = Vec::new();
    for group in sorted.chunk_by_mut(|a, b| (&a.0, a.1) == (&b.0, b.1) && is_alike(a.2, b.2)) {
        match group.len() < ALIKE {
            true => lines.extend(group.iter_mut().map(|one| line(one.3, std::mem::take(&mut one.4)))),
            false => {
                let members = group.iter().flat_map(|one| one.4.iter().copied()).collect();
                lines.push(line(&group[0].0, members));
            }
        }
    }
    lines.sort_by(|(a, _), (b, _)| a.tally.cmp(&b.tally).then_with(|| b.path.cmp(&a.path)));
    lines
}

/// The name of a module in that around it.
fn name_in<'r>(row: &'r ModuleRow, around: &str) -> &'r str {
    match around.is_empty() || row.depth == 0 {
        true => &row.path,
        false => row.path.rsplit_once('.').map_or(&row.path, |(_, name)| name),
    }
}

/// `*` for `3`, and `__main__.models[*]` for `__main__.models[3]`.
fn without_numbers(name: &str) -> String {
    match !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
        true => "*".to_owned(),
        false => without_indices(name, false),
    }
}

/// The outermost module around that of each block, counted from 1, by its address and the time of its allocation.
pub(crate) fn roots(holders: &Holders) -> HashMap<(u64, u64), u64> {
    let mut outermost: Vec<u64> = Vec::with_capacity(holders.modules.len());
    for module in &holders.modules {
        outermost.push(
            module
                .parent
                .map_or(outermost.len() as u64 + 1, |parent| outermost[parent]),
        );
    }
    let of_block = |block: &HeldBlock| Some(((block.address, block.time_ns), outermost[block.module?]));
    holders.blocks.iter().filter_map(of_block).collect()
}

/// The name of the row of a report with the memory of one of these.
pub(crate) fn label(snapshot: &Snapshot, root: u64) -> String {
    let modules = snapshot.holders.as_ref().map_or(&[][..], |holders| &holders.modules);
    let module = (root as usize).checked_sub(1).and_then(|root| modules.get(root));
    module.map_or_else(|| NO_MODULE.to_owned(), |module| text(&module.name, &module.class))
}

fn text(path: &str, class: &str) -> String {
    format!("{path} ({class})")
}
