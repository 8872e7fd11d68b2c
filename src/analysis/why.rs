//! Why memory is still there: what holds it, grouped by the beginning of the path, and what would be freed with what.
//!
//! ```text
//! allocation ─┬─► call site ────────┐
//!             └─► HeldBlock ─► path ┴─► one row per path and call site ─► grouped by origin (Why)
//!                                                                     └─► grouped by call site (SiteHolders)
//! ```
//!
//! Every listed byte of a report is in exactly one row, or in [`Why::not_searched`], or in [`Why::pools`]. So the sums are those
//! of the report, and a block that was allocated after the search is not hidden. A snapshot may come from anyone: a row
//! without a path, or a path of a million steps, costs no more than its size in the file.
//!
//! Deliberately absent: the search, which is `culeak_holders`; text that depends on the width of the terminal.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::analysis::filter::{Filter, Filtered, Filtering};
use crate::analysis::groups::{Groups, Level};
use crate::analysis::ledger::Ledger;
use crate::analysis::points::when;
use crate::analysis::report::{ProcessLine, process_line, shell_word};
use crate::analysis::site::{CallStack, CallStacks, Fingerprint, Frame};
use crate::analysis::tally::Tally;
use crate::snapshot::{Class, HeldBlock, HolderPath, Holders, Losses, Retainer, RootKind, Search, Snapshot, Taken};

mod gathered;
mod retained;
mod selector;
mod sites;
pub mod words;

pub use selector::Selector;
pub use sites::{SiteHolder, SiteHolders, by_site};

use gathered::Gathered;
use retained::{add_unused, retained};
use words::class_and_origin;

/// The value of [`Why::format`].
pub const FORMAT: &str = "culeak-why";
pub const VERSION: u32 = 1;

/// Which memory, and how much to show.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The input as named on the command line, for the next command.
    pub source: String,
    pub selector: Option<Selector>,
    pub class: Option<Class>,
    pub filter: Filter,
    /// The most origins, and the most retainers.
    pub top: Option<usize>,
    /// The most rows of one origin.
    pub rows: Option<usize>,
    /// Origins and retainers with fewer bytes are cut off.
    pub min_bytes: u64,
}

impl Options {
    fn selects_all(&self) -> bool {
        self.selector.is_none() && self.class.is_none() && self.filter.is_empty()
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unanswered {
    /// The holders were not searched for.
    NotSearched,
    /// The snapshot shows a peak, which has no addresses.
    IsPeak,
    /// No memory is selected; some call sites that there are.
    NothingSelected(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Why<'a> {
    pub format: &'static str,
    pub version: u32,
    pub process: ProcessLine<'a>,
    /// The point that the snapshot shows, in words; `None`: the last state.
    #[serde(skip)]
    pub when: Option<String>,
    pub search: &'a Search,
    /// The selected memory, pools included: what a report lists.
    pub total: Tally,
    /// Number of call sites of the selected memory.
    pub call_sites: usize,
    /// The number of roots, and the memory held by them.
    pub roots: Tally,
    /// By class, in the order of [`Class::ALL`]; without those that have no memory.
    pub classes: Vec<ClassTotal>,
    /// Largest first.
    pub origins: Vec<Origin<'a>>,
    /// Origins that `--top` or `--min-bytes` cut off.
    pub hidden: Tally,
    pub hidden_origins: usize,
    /// What would be freed with each holder: a tree in the order in which it is printed. Empty if only a part of the memory
    /// is selected.
    pub retainers: Vec<Retained>,
    /// Memory without an answer: allocated after the search, freed or moved during it, or without an address.
    pub not_searched: Tally,
    /// Memory that caching allocators keep for reuse, by allocator.
    pub pools: BTreeMap<&'a str, Pool>,
    /// The block that was asked for by address.
    pub block: Option<One<'a>>,
    pub filter: Option<Filtered>,
    pub taken: &'a Taken,
    pub losses: &'a Losses,
    /// The command to run next.
    pub next: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ClassTotal {
    pub class: Class,
    #[serde(flatten)]
    pub tally: Tally,
}

/// Memory that a caching allocator keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// Reserved and not in use by a live block. Not part of the total.
    pub unused_bytes: u64,
    /// Memory whose use is unknown, because the allocator's blocks were not recorded. Part of the total.
    #[serde(flatten)]
    pub unknown: Tally,
}

/// Blocks whose paths have the same beginning.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Origin<'a> {
    pub class: Class,
    pub root: RootKind,
    /// As [`HolderPath::origin`].
    pub origin: &'a str,
    pub origin_type: &'a str,
    pub note: Option<&'a str>,
    #[serde(flatten)]
    pub tally: Tally,
    /// What would be freed with the origin, if that is known.
    pub retained: Option<Tally>,
    /// Largest first.
    pub holders: Vec<HolderRow<'a>>,
    /// Rows that are not listed.
    pub hidden: Tally,
    pub hidden_rows: usize,
}

impl Origin<'_> {
    /// The class and the origin in words: `__main__.keep (list of 60)`.
    pub fn text(&self) -> String {
        class_and_origin(self.class, self.root, self.origin, self.origin_type, self.note)
    }
}

/// Blocks of one call site that are held over one path.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HolderRow<'a> {
    /// The function of the call site.
    pub label: String,
    /// `train.py:212`.
    pub place: Option<String>,
    pub site_fingerprint: Fingerprint,
    /// From the origin on; indices and keys are `*`.
    pub path: String,
    #[serde(skip_serializing_if = "is_false")]
    pub possibly: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub interior: bool,
    #[serde(flatten)]
    pub tally: Tally,
    /// The path in the snapshot.
    #[serde(skip)]
    pub shape: &'a HolderPath,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// A holder in the tree of retained memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Retained {
    /// Retainers that differ only in an index are one: `20 × __main__.keep[*] (Block)`.
    pub name: String,
    pub root: RootKind,
    pub depth: usize,
    /// Index of the holder around it in this list.
    pub parent: Option<usize>,
    #[serde(flatten)]
    pub tally: Tally,
}

/// One block with its whole path.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct One<'a> {
    pub address: u64,
    pub bytes: u64,
    pub kind: &'static str,
    pub age_ns: u64,
    pub stack: CallStack<'a>,
    /// `None`: its holder was not searched for.
    pub held: Option<&'a HolderPath>,
}

impl<'a> Why<'a> {
    /// # Errors
    /// The snapshot has no holders, or nothing is selected.
    pub fn of(snapshot: &'a Snapshot, options: &Options) -> Result<Why<'a>, Unanswered> {
        let holders = snapshot.holders.as_ref().ok_or(Unanswered::NotSearched)?;
        if snapshot.allocations.is_summed() {
            return Err(Unanswered::IsPeak);
        }
        let stacks = CallStacks::of(snapshot);
        let groups = Groups::of(snapshot, &stacks);
        let gather = |callers| Gathered::of(snapshot, holders, &stacks, &groups, options, callers);
        let mut gathered = gather(false);
        if options.selector.is_some() && gathered.total.count == 0 {
            gathered = gather(true);
        }
        let is_part = options.selector.is_some() || options.class.is_some();
        if is_part && gathered.total.count == 0 {
            return Err(Unanswered::NothingSelected(largest_sites(&groups, &stacks)));
        }
        let mut retainers = match options.selects_all() {
            true => retained(holders, options),
            false => Vec::new(),
        };
        retainers.retain(|retainer| retainer.tally.count > 0);
        let (origins, cut) = gathered.origins(holders, &stacks, options);
        let mut pools = gathered.pools;
        if options.selects_all() {
            add_unused(&mut pools, &Ledger::of(snapshot, &stacks, &groups));
        }
        let held = gathered.classes.get(&Class::Held).copied().unwrap_or_default();
        let of_roots = gathered.roots.len() as u64;
        let block = gathered.block.map(|block| one(snapshot, holders, &stacks, block));
        let next = next(&origins, block.as_ref(), snapshot, holders, options);
        Ok(Why {
            format: FORMAT,
            version: VERSION,
            process: process_line(snapshot),
            when: when(snapshot),
            search: &holders.search,
            total: gathered.total,
            call_sites: gathered.sites.len(),
            roots: Tally {
                bytes: held.bytes,
                count: of_roots,
            },
            classes: gathered
                .classes
                .iter()
                .map(|(&class, &tally)| ClassTotal { class, tally })
                .collect(),
            hidden: Tally::total(cut.iter().copied()),
            hidden_origins: cut.len(),
            origins,
            retainers,
            not_searched: gathered.not_searched,
            pools,
            block,
            filter: filtered(snapshot, &groups, &stacks, options),
            taken: &snapshot.taken,
            losses: &snapshot.losses,
            next,
        })
    }
}

fn filtered(snapshot: &Snapshot, groups: &Groups, stacks: &CallStacks, options: &Options) -> Option<Filtered> {
    let mut filtering = Filtering::new(&options.filter, snapshot);
    let (_, left_out) = filtering.split(groups, stacks);
    filtering.filtered(left_out)
}

fn largest_first(a: Tally, b: Tally) -> std::cmp::Ordering {
    (b.bytes, b.count).cmp(&(a.bytes, a.count))
}

/// The function and the place of a call site.
fn site_names(stack: &CallStack) -> (String, Option<String>) {
    match stack.site() {
        Some(site) => (site.name(), site.short_place()),
        None => ("(no stack)".to_owned(), None),
    }
}

/// The owner of a pool whose allocator is unknown.
const UNNAMED_POOL: &str = "a caching allocator";

fn one<'a>(
    snapshot: &'a Snapshot,
    holders: &'a Holders,
    stacks: &CallStacks<'a>,
    (index, answer): (usize, Option<&HeldBlock>),
) -> One<'a> {
    let block = snapshot.allocations.at(index);
    One {
        address: block.address,
        bytes: block.bytes,
        kind: block.kind.name(),
        age_ns: snapshot.taken.at_ns.saturating_sub(block.time_ns),
        stack: stacks.get(block.stack).clone(),
        held: answer.map(|answer| &holders.paths[answer.path]),
    }
}

/// The largest call sites, as a user names them.
fn largest_sites(groups: &Groups, stacks: &CallStacks) -> Vec<String> {
    const NAMED: usize = 5;
    let mut sites: HashMap<String, Tally> = HashMap::new();
    for group in groups.listed() {
        if let Some(site) = stacks.get(group.stack).site() {
            sites.entry(site_name(site)).or_default().join(group.tally());
        }
    }
    let mut sites: Vec<_> = sites.into_iter().filter(|(_, tally)| tally.bytes > 0).collect();
    sites.sort_by(|(a_name, a), (b_name, b)| largest_first(*a, *b).then_with(|| a_name.cmp(b_name)));
    sites.into_iter().take(NAMED).map(|(name, _)| name).collect()
}

fn site_name(site: &Frame) -> String {
    site.short_place().unwrap_or_else(|| site.name())
}

/// Blocks are named one by one after the call sites.
fn next(origins: &[Origin], block: Option<&One>, snapshot: &Snapshot, holders: &Holders, options: &Options) -> String {
    let source = shell_word(&options.source);
    if let Some(block) = block {
        let site = block.stack.site().map(|site| shell_word(&site_name(site)));
        return format!("culeak why {source} {}", site.unwrap_or_default());
    }
    let rows = || origins.iter().flat_map(|origin| &origin.holders);
    let named = |row: &&HolderRow| row.place.is_some();
    match (&options.selector, rows().find(named)) {
        (None, Some(row)) => {
            let place = row.place.clone().unwrap_or_default();
            format!("culeak why {source} {}", shell_word(&place))
        }
        // Indices and keys are those of one block.
        (Some(_), Some(row)) => {
            let shape = std::ptr::from_ref(row.shape);
            let of_shape = |block: &&HeldBlock| std::ptr::eq(&holders.paths[block.path], shape);
            match holders.blocks.iter().find(of_shape) {
                Some(block) => format!("culeak why {source} {:#x}", block.address),
                None => format!("culeak report {source}"),
            }
        }
        (_, None) => match snapshot.process.recording.is_empty() {
            true => format!("culeak report {source}"),
            false => format!("culeak report {source} --by stack"),
        },
    }
}

#[cfg(test)]
mod tests;
