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
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::analysis::filter::{Filter, Filtered, Filtering};
use crate::analysis::groups::{Groups, Level};
use crate::analysis::ledger::{Ledger, What};
use crate::analysis::points::when;
use crate::analysis::report::{ProcessLine, process_line, shell_word};
use crate::analysis::site::{CallStack, CallStacks, Fingerprint, Frame};
use crate::analysis::suppressions::Pattern;
use crate::analysis::tally::Tally;
use crate::snapshot::{
    Allocation, Class, HeldBlock, HolderPath, Holders, Losses, Retainer, RootKind, Search, Snapshot,
};

pub mod words;

use words::{class_and_origin, path_text};

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

/// What a user names on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// The block that contains this address.
    Address(u64),
    /// The call site in this file and line: `train.py:212`.
    Line(String, u32),
    /// Call sites whose function, file or module matches; if there are none, stacks with a frame that matches. As for a line.
    Site(Pattern),
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Selector, String> {
        if let Some(digits) = text.strip_prefix("0x") {
            let address = u64::from_str_radix(digits, 16);
            return address
                .map(Selector::Address)
                .map_err(|error| format!("{text:?} is not an address: {error}"));
        }
        if let Some((file, line)) = text.rsplit_once(':')
            && let Ok(line) = line.parse()
            && !file.is_empty()
        {
            return Ok(Selector::Line(file.to_owned(), line));
        }
        Pattern::parse(text)
            .map(Selector::Site)
            .map_err(|(column, reason)| format!("column {column}: {reason}"))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Address(address) => write!(out, "{address:#x}"),
            Selector::Line(file, line) => write!(out, "{file}:{line}"),
            Selector::Site(pattern) => out.write_str(pattern.text()),
        }
    }
}

impl Selector {
    /// With `callers`, any frame of the stack may match, not only the call site.
    fn selects(&self, block: &Allocation, stack: &CallStack, callers: bool) -> bool {
        let matches = |frame: &Frame| match self {
            Selector::Address(_) => false,
            Selector::Line(file, line) => {
                frame.line == Some(*line) && frame.file.is_some_and(|known| ends_with_path(known, file))
            }
            Selector::Site(pattern) => pattern.matches_frame(frame),
        };
        match self {
            Selector::Address(address) => contains(block, *address),
            _ if callers => stack.frames.iter().any(matches),
            _ => stack.site().is_some_and(matches),
        }
    }
}

fn contains(block: &Allocation, address: u64) -> bool {
    block.address == address || block.address < address && address - block.address < block.bytes
}

/// Whether the path is this one, or ends with it after a slash.
fn ends_with_path(path: &str, end: &str) -> bool {
    path.strip_suffix(end)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('/') || end.starts_with('/'))
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
    pub retainers: Vec<Retained<'a>>,
    /// Memory without an answer: allocated after the search, freed or moved during it, or without an address.
    pub not_searched: Tally,
    /// Memory that caching allocators keep for reuse, by allocator.
    pub pools: BTreeMap<&'a str, Pool>,
    /// The block that was asked for by address.
    pub block: Option<One<'a>>,
    pub filter: Option<Filtered>,
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
pub struct Retained<'a> {
    pub name: &'a str,
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

/// The holders of one call site's memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SiteHolders {
    pub label: String,
    pub place: Option<String>,
    pub site_fingerprint: Fingerprint,
    #[serde(flatten)]
    pub tally: Tally,
    /// Largest first.
    pub holders: Vec<SiteHolder>,
    /// Memory of the call site without an answer.
    pub not_searched: Tally,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SiteHolder {
    pub class: Class,
    /// The class and the origin in words.
    pub origin: String,
    pub path: String,
    #[serde(skip_serializing_if = "is_false")]
    pub possibly: bool,
    #[serde(flatten)]
    pub tally: Tally,
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

/// The holders of each call site's memory that passes the filter, largest call site first; empty if they were not searched
/// for.
pub fn by_site(snapshot: &Snapshot, stacks: &CallStacks, groups: &Groups, filter: &Filter) -> Vec<SiteHolders> {
    let Some(holders) = &snapshot.holders else {
        return Vec::new();
    };
    if snapshot.allocations.is_summed() {
        return Vec::new();
    }
    let options = Options {
        filter: filter.clone(),
        ..Options::default()
    };
    let gathered = Gathered::of(snapshot, holders, stacks, groups, &options, false);
    let mut sites: HashMap<Fingerprint, SiteHolders> = HashMap::new();
    for (&(path, fingerprint), row) in &gathered.rows {
        let (label, place) = site_names(stacks.get(row.stack));
        let site = sites.entry(fingerprint).or_insert_with(|| SiteHolders {
            label,
            place,
            site_fingerprint: fingerprint,
            tally: Tally::default(),
            holders: Vec::new(),
            not_searched: Tally::default(),
        });
        site.tally.join(row.tally);
        match path {
            None => site.not_searched.join(row.tally),
            Some(path) => {
                let path = &holders.paths[path];
                site.holders.push(SiteHolder {
                    class: path.class,
                    origin: class_and_origin(
                        path.class,
                        path.root,
                        &path.origin,
                        &path.origin_type,
                        path.note.as_deref(),
                    ),
                    path: path_text(path),
                    possibly: path.possibly,
                    tally: row.tally,
                });
            }
        }
    }
    let mut sites: Vec<SiteHolders> = sites.into_values().collect();
    for site in &mut sites {
        site.holders.sort_by(|a, b| {
            largest_first(a.tally, b.tally)
                .then_with(|| a.origin.cmp(&b.origin))
                .then_with(|| a.path.cmp(&b.path))
        });
    }
    sites.sort_by(|a, b| {
        largest_first(a.tally, b.tally)
            .then_with(|| a.label.cmp(&b.label))
            .then_with(|| a.site_fingerprint.cmp(&b.site_fingerprint))
    });
    sites
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

/// What paths must have in common to be in one group.
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
struct OriginKey<'a> {
    class: Class,
    root: RootKind,
    origin: &'a str,
    origin_type: &'a str,
    note: Option<&'a str>,
}

impl<'a> OriginKey<'a> {
    fn of(path: &'a HolderPath) -> OriginKey<'a> {
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
struct Row {
    tally: Tally,
    /// The stack of the first.
    stack: Option<usize>,
}

/// The selected memory, added up.
struct Gathered<'a> {
    total: Tally,
    sites: HashSet<Fingerprint>,
    roots: HashSet<OriginKey<'a>>,
    classes: BTreeMap<Class, Tally>,
    /// By path, `None` without an answer, and call site. In no order.
    rows: HashMap<(Option<usize>, Fingerprint), Row>,
    not_searched: Tally,
    pools: BTreeMap<&'a str, Pool>,
    /// The allocation that was asked for by its address, and its answer.
    block: Option<(usize, Option<&'a HeldBlock>)>,
}

impl<'a> Gathered<'a> {
    fn of(
        snapshot: &'a Snapshot,
        holders: &'a Holders,
        stacks: &CallStacks<'a>,
        groups: &Groups<'a>,
        options: &Options,
        callers: bool,
    ) -> Gathered<'a> {
        let mut filtering = Filtering::new(&options.filter, snapshot);
        let mut answers: HashMap<(u64, u64), &HeldBlock> = HashMap::with_capacity(holders.blocks.len());
        for block in &holders.blocks {
            answers.entry((block.address, block.time_ns)).or_insert(block);
        }
        let mut gathered = Gathered {
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
            let wanted = selector.is_none_or(|selector| selector.selects(&block, stack, callers));
            if !wanted || !filtering.passes(block.call, block.stack, block.time_ns, stacks) {
                continue;
            }
            let answer = answers.get(&(block.address, block.time_ns)).copied();
            let path = answer.map(|answer| &holders.paths[answer.path]);
            if options
                .class
                .is_some_and(|class| path.map(|path| path.class) != Some(class))
            {
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
    fn origins(&self, holders: &'a Holders, stacks: &CallStacks, options: &Options) -> (Vec<Origin<'a>>, Vec<Tally>) {
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
                retained: None,
                holders: Vec::new(),
                hidden: Tally::default(),
                hidden_rows: 0,
            });
            origin.tally.join(row.tally);
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
                        path: path_text(path),
                        possibly: path.possibly,
                        interior: path.interior,
                        tally: row.tally,
                        shape: path,
                    }
                })
                .collect();
            origin.retained = retained_by(&origin, &whole);
            origin
        });
        (origins.collect(), cut)
    }
}

/// The owner of a pool whose allocator is unknown.
const UNNAMED_POOL: &str = "a caching allocator";

/// The retainers around which there is no other, by name.
fn whole_retainers(holders: &Holders) -> HashMap<&str, &Retainer> {
    let outermost = holders.retainers.iter().filter(|retainer| retainer.parent.is_none());
    outermost.map(|retainer| (retainer.name.as_str(), retainer)).collect()
}

fn retained_by(origin: &Origin, whole: &HashMap<&str, &Retainer>) -> Option<Tally> {
    let typed = format!("{} ({})", origin.origin, origin.origin_type);
    let found = whole.get(origin.origin).or_else(|| whole.get(typed.as_str()))?;
    (found.root == origin.root).then_some(Tally {
        bytes: found.bytes,
        count: found.count,
    })
}

/// The largest retainers as a tree, in the order in which it is printed.
fn retained<'a>(holders: &'a Holders, options: &Options) -> Vec<Retained<'a>> {
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
fn add_unused<'a>(pools: &mut BTreeMap<&'a str, Pool>, ledger: &Ledger<'a>) {
    let lines = ledger.devices.iter().flat_map(|device| &device.lines);
    for line in lines.filter(|line| line.what == What::Cached && line.bytes > 0) {
        let unused = u64::try_from(line.bytes).unwrap_or(u64::MAX);
        let pool = pools.entry(line.of.unwrap_or(UNNAMED_POOL)).or_default();
        pool.unused_bytes = pool.unused_bytes.saturating_add(unused);
    }
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
