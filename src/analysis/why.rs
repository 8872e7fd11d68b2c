//! Why memory is still there: what holds it, grouped by the beginning of the path, and what would be freed with what.
//!
//! ```text
//! allocation ─┬─► call site ────────┐
//!             └─► HeldBlock ─► path ┴─► one row per path and call site ─► grouped by origin (Why)
//!                                                                     └─► grouped by call site (SiteHolders)
//! ```
//!
//! Every listed byte of a report is in exactly one row, or in [`Why::changed`], [`Why::not_searched`] or [`Why::pools`]. So the
//! sums are those of the report, and a block that was allocated after the search is not hidden. A snapshot may come from anyone: a row
//! without a path, or a path of a million steps, costs no more than its size in the file.
//!
//! Deliberately absent: the search, which is `culeak_holders`; text that depends on the width of the terminal.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::analysis::filter::{Filtered, Filtering};
use crate::analysis::groups::Groups;
use crate::analysis::ledger::Ledger;
use crate::analysis::objects;
use crate::analysis::points::when;
use crate::analysis::report::{ProcessLine, Row, process_line, shell_word};
use crate::analysis::site::{CallStacks, Frame};
use crate::snapshot::{Capture, Class, HeldBlock, Holders, Losses, Search, Snapshot};
use crate::tally::Tally;

mod chains;
mod gathered;
pub mod modules;
mod retained;
mod rows;
mod selector;
mod sites;
pub mod words;

pub use modules::{ModuleRow, Modules};
pub use rows::{Also, ClassTotal, HolderRow, One, Origin, Pool, Retained, TensorRow};
pub use selector::{Matched, Options, Selector};
pub use sites::{SiteHolder, SiteHolders, by_site};
pub use words::OriginKey;
pub(crate) use words::untyped;

use gathered::Gathered;
use retained::{add_unused, retained};

/// The value of [`Why::format`].
pub const FORMAT: &str = "culeak-why";
pub const VERSION: u32 = 2;

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
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Why<'a> {
    pub format: &'static str,
    pub version: u32,
    pub process: ProcessLine<'a>,
    /// The point that the snapshot shows, in words; `None`: the last state.
    #[serde(skip)]
    pub when: Option<String>,
    /// The core file that was searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core: Option<String>,
    /// What was asked for, if not all memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// What the selector names; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched: Option<Matched>,
    /// The class that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    pub search: &'a Search,
    /// The selected memory, pools included: what a report lists.
    pub total: Tally,
    /// Number of call sites of the selected memory.
    pub call_sites: usize,
    /// The number of roots, and the memory held by them.
    pub roots: Tally,
    /// The part of the memory held by roots whose pointers may all be stale, so that it may be lost.
    pub possibly: Tally,
    /// By class, in the order of [`Class::ALL`]; without those that have no memory.
    pub classes: Vec<ClassTotal>,
    /// Largest first.
    pub origins: Vec<Origin<'a>>,
    /// Origins that `--top` or `--min-bytes` cut off.
    pub hidden: Tally,
    pub hidden_origins: usize,
    /// The memory by module of PyTorch; absent: none owns any of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modules: Option<Modules>,
    /// What would be freed with each holder: a tree in the order in which it is printed. Empty if only a part of the memory
    /// is selected.
    pub retainers: Vec<Retained>,
    /// Holders that are left out of the tree.
    pub hidden_retainers: usize,
    /// Memory of variables that is not in the tree: what would free it is not known.
    pub unretained: Tally,
    /// Objects without an address whose holders are known, most first. Empty if only a part of the memory is selected.
    pub objects: Vec<Row<'a>>,
    /// Memory that was freed, or whose holders changed, during the search. Not part of the total if a class was asked for.
    pub changed: Tally,
    /// Memory without an answer: allocated after the search, or without an address. Not part of the total if a class was asked
    /// for.
    pub not_searched: Tally,
    /// Memory that caching allocators keep for reuse, by allocator.
    pub pools: BTreeMap<&'a str, Pool>,
    /// The block that was asked for by address.
    pub block: Option<One<'a>>,
    /// The filters of the command line; null: none was given.
    pub filter: Option<Filtered>,
    pub taken: &'a Capture,
    pub losses: &'a Losses,
    /// The command to run next.
    pub next: String,
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
        let gather = |matched| Gathered::of(snapshot, holders, &stacks, &groups, options, matched);
        let mut matched = options.selector.as_ref().map(|_| Matched::Site);
        let mut gathered = gather(Matched::Site);
        if options.selector.is_some() && gathered.selected == 0 {
            for other in [Matched::Holder, Matched::Caller] {
                gathered = gather(other);
                matched = Some(other);
                if gathered.selected > 0 {
                    break;
                }
            }
            if gathered.selected == 0 {
                return Err(Unanswered::NothingSelected(largest_sites(&groups, &stacks)));
            }
        }
        let (mut retainers, mut hidden_retainers, mut objects) = (Vec::new(), 0, Vec::new());
        let mut pools = std::mem::take(&mut gathered.pools);
        if options.selects_all() {
            (retainers, hidden_retainers) = chains::shown(retained(holders), options);
            objects = objects::held(snapshot, &stacks);
            add_unused(&mut pools, &Ledger::of(snapshot, &stacks, &groups));
        }
        let (origins, cut) = gathered.origins(holders, &stacks, options);
        let held = gathered.classes.get(&Class::Held).copied().unwrap_or_default();
        let block = gathered.block.take();
        let block = block.map(|block| one(snapshot, holders, &stacks, block));
        let next = next(&gathered, &origins, block.as_ref(), snapshot, options);
        let classes = gathered.classes.iter();
        let possibly = |class: &Class| gathered.possibly.get(class).copied().unwrap_or_default();
        let classes = classes.map(|(class, &tally)| ClassTotal {
            class: *class,
            tally,
            possibly_bytes: possibly(class).bytes,
        });
        Ok(Why {
            format: FORMAT,
            version: VERSION,
            process: process_line(snapshot),
            when: when(snapshot),
            core: options.core.clone(),
            selector: options.selector.as_ref().map(ToString::to_string),
            matched,
            class: options.class,
            search: &holders.search,
            total: gathered.total,
            call_sites: gathered.sites.len(),
            roots: Tally::new(held.bytes, gathered.roots.len() as u64),
            possibly: possibly(&Class::Held),
            classes: classes.collect(),
            hidden: Tally::total(cut.iter().copied()),
            hidden_origins: cut.len(),
            origins,
            modules: gathered.modules(holders, None),
            retainers,
            hidden_retainers,
            unretained: gathered.unretained,
            objects,
            changed: gathered.changed,
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
    let (_, left_out) = filtering.split(&groups.all, stacks);
    filtering.filtered(left_out)
}

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
        tensor: answer.and_then(|answer| holders.tensors.get(answer.tensor?)),
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
    sites.sort_by(|(a_name, a), (b_name, b)| b.cmp(a).then_with(|| a_name.cmp(b_name)));
    sites.into_iter().take(NAMED).map(|(name, _)| name).collect()
}

fn site_name(site: &Frame) -> String {
    site.short_place().unwrap_or_else(|| site.name())
}

/// A call site is named if there are several, otherwise one block.
fn next(
    gathered: &Gathered,
    origins: &[Origin],
    block: Option<&One>,
    snapshot: &Snapshot,
    options: &Options,
) -> String {
    let source = shell_word(&options.source);
    let core = options.core.iter().map(|core| format!("--core {} ", shell_word(core)));
    let why = format!("culeak why {}{source}", core.collect::<String>());
    if let Some(block) = block {
        return match block.stack.site() {
            Some(site) => format!("{why} {}", shell_word(&site_name(site))),
            None => why,
        };
    }
    let mut rows = origins.iter().flat_map(|origin| &origin.holders);
    let Some(first) = rows.clone().next() else {
        return match snapshot.process.recording.is_empty() {
            _ if options.host => format!("{why} --host --by type"),
            true => format!("culeak report {source}"),
            false => format!("culeak report {source} --by stack"),
        };
    };
    let filter = options.filter.options();
    let by_site = options.selector.is_none() && gathered.sites.len() > 1;
    match rows.find_map(|row| row.place.as_deref()).filter(|_| by_site) {
        Some(place) => {
            let class = options.class.iter().map(|class| format!(" --class {}", class.name()));
            format!("{why} {}{}{filter}", shell_word(place), class.collect::<String>())
        }
        // Indices and keys are those of one block.
        None => format!("{why} {:#x}", first.address),
    }
}

#[cfg(test)]
mod tests;
