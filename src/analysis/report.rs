//! A report: the live records of a snapshot, added up and ranked, as a value.
//!
//! All renderers (text, HTML, `--json`) print this value, so they cannot contradict each other. Rows are the live
//! records grouped [`By`] something, largest first; each row includes its largest stacks. Totals count every live
//! record, even if `--top` or `--min-bytes` cut off its row.
//!
//! Terms: memory of a finished process is *leaked*, and a running process *holds* it. Memory of a caching allocator is
//! *cached* (see `groups`). Records that hold no memory (mappings, pools, address ranges) are *claims*: they are
//! listed, counted separately, and have 0 bytes.
//!
//! Deliberately absent: text that depends on the width of the terminal, and colours.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::analysis::categories::{CategoryTotal, Sorter};
use crate::analysis::error_name::error_name;
use crate::analysis::filter::{Filtered, Filtering};
use crate::analysis::groups::{Groups, Level};
use crate::analysis::handles::Handles;
use crate::analysis::ledger::Ledger;
use crate::analysis::objects::{self, Objects};
use crate::analysis::opaque::OpaquePool;
use crate::analysis::pages::{self, PagesOfPool};
use crate::analysis::points::{Points, when};
use crate::analysis::site::{CallStack, CallStacks, Role};
use crate::analysis::suppressions::{Sieve, Used};
use crate::analysis::why::{self, Modules, SiteHolders, Why, by_site};
pub use crate::analysis::words::shell_word;
use crate::kind::Place;
use crate::snapshot::{Allocator, Capture, Failed, Losses, Mark, Sampling, Snapshot, is_default};
pub use crate::tally::Tally;

mod advice;
mod grouping;
mod host_pools;
mod options;
mod places;
mod process;
mod rows;
mod sizes;
mod totals;

pub use advice::{began_late, ended_early, losses};
pub use grouping::{By, Exact, RowsOfKinds, Sort, rows_by};
pub use options::{Cut, Options};
pub use places::{HOST_MEMORY, NO_DEVICE, NO_STREAM, device_name, place_name, stream_name};
pub use process::{ProcessLine, is_finished, is_leaked, process_line};
pub use rows::{CALLERS_KEPT, KERNELS, OfObjects, Row, RowCaller, RowForward, RowStack, STACKS_KEPT};
pub use totals::{DeviceTotal, Held, Totals};
use totals::{device_totals, totals};

/// The value of [`Report::format`].
pub const FORMAT: &str = "culeak-report";
pub const VERSION: u32 = 3;

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Report<'a> {
    pub format: &'static str,
    pub version: u32,
    pub process: ProcessLine<'a>,
    /// The process ended by itself and the rows are its last state, so what is left is leaked.
    pub finished: bool,
    /// The point that the rows show, in words; `None`: the last state.
    #[serde(skip)]
    pub when: Option<String>,
    /// What the process held at its end, at exit and at its peaks. The filter does not apply to it.
    pub points: Points,
    /// The failed request that caused the automatic snapshot.
    pub trigger: Option<FailedRow<'a>>,
    pub ledger: Ledger<'a>,
    pub by: By,
    /// By call site or stack: memory that the program itself requested, or of a pool of which a search found a sure holder, comes
    /// before that of CUDA libraries and other pools.
    pub rows: Vec<Row<'a>>,
    /// The number of the former.
    #[serde(skip)]
    pub own_rows: usize,
    /// Memory of caching allocators whose blocks are listed in `rows` instead of it.
    pub pools: Vec<Row<'a>>,
    /// Memory of caching allocators whose blocks were not recorded, largest first. The filter applies to it.
    pub opaque_pools: Vec<OpaquePool>,
    /// Rows that `--top` or `--min-bytes` cut off.
    pub hidden: Tally,
    pub hidden_rows: usize,
    /// `hidden_rows` by option.
    #[serde(skip)]
    pub cut: Cut,
    /// The filter, if there is one. It does not apply to the ledger, peaks, failed requests and the numbers of
    /// allocations and frees.
    pub filter: Option<Filtered>,
    /// The memory that suppressions removed from the rows, in total and by rule; no rules unless requested.
    pub suppressed: Tally,
    /// The part of `suppressed` that is held, outside pools.
    #[serde(skip)]
    pub suppressed_held: Tally,
    /// The number of objects without an address that they removed from the rows of objects.
    pub suppressed_objects: u64,
    pub suppressions: Vec<Used>,
    pub totals: Totals,
    /// The memory of the rows by category, including rows that were cut off; empty unless requested.
    pub categories: Vec<CategoryTotal>,
    pub devices: Vec<DeviceTotal<'a>>,
    pub failed: Vec<FailedRow<'a>>,
    /// Objects without an address, at the point that the rows show.
    pub objects: Objects<'a>,
    /// Handles of physical memory, if there are any and no filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handles: Option<Handles>,
    /// Pools of pages that the program reported by state, if there is no filter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<PagesOfPool<'a>>,
    /// What holds the memory of each call site, largest first; empty if it was not searched for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held_by: Vec<SiteHolders>,
    /// The memory by module of PyTorch, if the rows are by module and holders are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modules: Option<Modules>,
    /// As [`Options::source`].
    #[serde(skip)]
    pub source: String,
    /// File names of modules without debug information, in which call sites of the rows lie.
    pub bare_modules: Vec<&'a str>,
    /// The statistics that frameworks' allocators keep themselves.
    pub allocators: &'a [Allocator],
    /// Stacks were sampled: rows by stack are estimates. Totals are exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// The totals are estimates too: of stacks that the filter selects, or at the peak.
    #[serde(skip_serializing_if = "is_default")]
    pub totals_estimated: bool,
    /// Points in time that the program named.
    pub marks: &'a [Mark],
    pub taken: &'a Capture,
    pub losses: &'a Losses,
    pub warnings: Vec<String>,
    /// The command to run next.
    pub next: String,
    /// The options that select what the report shows: ` --at peak --kind device`, or nothing.
    #[serde(skip)]
    pub selected: String,
}

/// Allocation calls that failed, with equal calls in one row.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FailedRow<'a> {
    pub bytes: u64,
    pub count: u64,
    pub kind: &'static str,
    pub api: &'a str,
    pub device: String,
    pub error: i32,
    pub error_name: Option<&'static str>,
    pub first_age_ns: u64,
    pub last_age_ns: u64,
    pub stack: CallStack<'a>,
}

impl<'a> Report<'a> {
    pub fn of(snapshot: &'a Snapshot, options: &Options) -> Report<'a> {
        let stacks = CallStacks::of(snapshot);
        let mut filtering = Filtering::new(&options.filter, snapshot);
        let since_ns = filtering.since_ns();
        let mut groups = Groups::split_at(snapshot, &stacks, since_ns);
        let ledger = Ledger::of(snapshot, &stacks, &groups);
        let points = options.points.clone();
        let points = points.unwrap_or_else(|| Points::with(snapshot, &stacks, &groups));
        groups.forget_blocks();
        let estimates = snapshot.sampling.map(|_| groups.estimated());
        // What stacks decide is estimated from them; everything else is exact.
        let with = |by_stack: bool| match &estimates {
            Some(estimates) if by_stack => estimates.as_slice(),
            _ => groups.all.as_slice(),
        };
        let is_of_stacks = options.filter.is_of_stacks();
        let (passing, left_out) = filtering.split(with(is_of_stacks), &stacks);
        let is_by_stack = is_of_stacks || options.by.is_of_stacks();
        let in_rows = filtering.split(with(is_by_stack), &stacks).0;
        let mut other_sizes = None;
        let mut apart = None;
        let mut modules = None;
        if let (By::Module, Some(holders)) = (options.by, &snapshot.holders) {
            let of_filter = why::Options {
                filter: options.filter.clone(),
                ..why::Options::default()
            };
            modules = Why::of(snapshot, &of_filter).ok().and_then(|why| why.modules);
            let roots = why::modules::roots(holders);
            apart = Some(Groups::new(snapshot, Some(&stacks), |row| {
                let root = roots.get(&(row.address, row.time_ns)).copied().unwrap_or_default();
                root << 1 | u64::from(row.time_ns < since_ns)
            }));
        }
        if options.by == By::Size {
            let (chosen, others) = sizes::chosen(snapshot, &stacks, &groups, options, &mut filtering);
            let is_apart = |size| chosen.contains(&size);
            apart = Some(Groups::with_these_sizes_apart(snapshot, &stacks, since_ns, is_apart));
            other_sizes = Some((chosen, others));
        }
        let of_objects = match options.by {
            By::ObjectKind => objects::groups(snapshot, |call, stack, time_ns| {
                filtering.passes(call, stack, time_ns, &stacks)
            }),
            _ => Vec::new(),
        };
        let ranked = match &apart {
            Some(groups) => filtering.split(&groups.all, &stacks).0,
            None if options.by == By::ObjectKind => of_objects.iter().collect(),
            None => in_rows.clone(),
        };
        let mut sieve = Sieve::new(&options.suppressions);
        let listed = ranked.into_iter().filter(|group| group.level.is_listed());
        let of_memory = options.by != By::ObjectKind;
        let mut suppressed_held = Tally::default();
        let listed: Vec<_> = listed
            .filter(|group| match of_memory {
                true => {
                    let passes = sieve.lets_through(group.stack, group.tally(), &stacks);
                    if !passes && group.level == Level::Held {
                        suppressed_held.join(group.tally());
                    }
                    passes
                }
                // They are counted with the rows of objects.
                false => sieve.rule(group.stack, &stacks).is_none(),
            })
            .collect();
        let sorter = Sorter::new(&options.categories, snapshot);
        let categories = match options.categorized || options.by == By::Category {
            true => sorter.totals(listed.iter().copied(), &stacks),
            false => Vec::new(),
        };
        let (shown, unranked): (Vec<_>, Vec<_>) = match &other_sizes {
            Some((chosen, _)) => listed.into_iter().partition(|group| chosen.contains(&group.largest)),
            None => (listed, Vec::new()),
        };
        let kept = options.stacks_kept.unwrap_or(STACKS_KEPT);
        let mut rows = grouping::rows(snapshot, &stacks, shown.into_iter(), options.by, &sorter, kept);
        let exact = match is_of_stacks {
            true => Exact::of(snapshot, groups.all.iter()),
            false => Exact::of(snapshot, passing.iter().copied()),
        };
        exact.limit(&mut rows);
        options.sort.apply(&mut rows);
        let held_by = by_site(snapshot, &stacks, &groups, &options.filter);
        let mut minor = Vec::new();
        let is_of_code = matches!(options.by, By::Site | By::Stack);
        let held = host_pools::surely_held(&rows, &held_by);
        let is_own = |row: &Row| row.library.is_none() && (!row.pool || host_pools::is_of(row, &held));
        if is_of_code {
            rows.sort_by_key(|row| !is_own(row));
            if options.without_minor_rows && options.filter.is_empty() {
                minor = host_pools::take_minor(&mut rows, &held_by);
            }
        }
        let (cut, mut hidden) = Cut::off(&mut rows, |row| row.bytes >= options.min_bytes, options.top);
        let mut cut = other_sizes.map_or(cut, |(_, others)| cut.and(others));
        if is_of_code && options.without_minor_rows && options.top.is_some() && rows.iter().any(Row::has_blocks) {
            let shown = rows.len();
            hidden.extend(rows.extract_if(.., |row| !row.has_blocks()));
            cut.beyond_top += shown - rows.len();
        }
        let hidden = hidden.iter().map(Row::tally);
        let hidden = Tally::total(hidden.chain(unranked.iter().map(|group| group.tally())));
        let behind = in_rows.iter().copied().filter(|group| !group.level.is_listed());
        let mut pools = grouping::rows(snapshot, &stacks, behind, options.by, &sorter, STACKS_KEPT);
        exact.limit(&mut pools);
        pools.extend(minor);
        Sort::Bytes.apply(&mut pools);
        let totals = totals(snapshot, &stacks, &passing);
        let top = options.top_objects;
        let objects = Objects::of(snapshot, &stacks, &mut filtering, &mut sieve, top, !of_memory);
        // The kernel driver takes back what a process has at its end.
        let of_segments = options.filter.kinds.iter().any(|kind| kind.place() == Place::Segment);
        let finished = is_leaked(snapshot) && !of_segments;
        let (trigger, failed) = failed(snapshot, &stacks);
        let opaque_pools = OpaquePool::among(passing.iter().copied(), &stacks);
        let next = advice::next(snapshot, &totals, &opaque_pools, &rows, &objects, options);
        let process = process_line(snapshot);
        Report {
            format: FORMAT,
            version: VERSION,
            process: ProcessLine {
                is_of_snapshot: process.is_of_snapshot || options.is_of_snapshot,
                ..process
            },
            selected: advice::at(snapshot) + &options.filter.options(),
            finished,
            when: when(snapshot).or_else(|| (is_finished(snapshot) && of_segments).then(|| "at exit".to_owned())),
            points,
            trigger,
            ledger,
            by: options.by,
            pools,
            opaque_pools,
            categories,
            hidden,
            hidden_rows: cut.rows(),
            cut,
            filter: filtering.filtered(left_out),
            suppressed: sieve.suppressed(),
            suppressed_held,
            suppressed_objects: sieve.suppressed_objects(),
            suppressions: sieve.used(),
            devices: device_totals(snapshot, &passing),
            failed,
            objects,
            handles: Handles::of(snapshot).filter(|_| options.filter.is_empty()),
            pages: match options.filter.is_empty() {
                true => pages::pools(snapshot, options.top),
                false => Vec::new(),
            },
            source: options.source.clone(),
            modules,
            held_by,
            bare_modules: bare_modules(snapshot, &rows),
            allocators: &snapshot.allocators,
            sampling: snapshot.sampling,
            totals_estimated: estimates.is_some() && (is_of_stacks || snapshot.allocations.is_summed()),
            marks: &snapshot.marks,
            taken: &snapshot.taken,
            losses: &snapshot.losses,
            warnings: advice::warnings(snapshot, &totals, &groups),
            next,
            totals,
            own_rows: rows.iter().take_while(|row| is_own(row)).count(),
            rows,
        }
    }

    /// The process never requested memory.
    pub fn is_empty(&self) -> bool {
        self.totals.allocated == 0 && self.rows.is_empty() && self.hidden_rows == 0 && self.failed.is_empty()
    }
}

/// Modules of the program in which call sites have no lines, since there is no debug information.
fn bare_modules<'a>(snapshot: &'a Snapshot, rows: &[Row<'a>]) -> Vec<&'a str> {
    let modules = snapshot.modules.iter().filter(|module| module.bare);
    let bare: BTreeSet<&str> = modules.map(|module| module.path.as_str()).collect();
    let mut found = Vec::new();
    if bare.is_empty() {
        return found;
    }
    let of_program = rows.iter().filter(|row| row.library.is_none() && !row.pool);
    for site in of_program
        .flat_map(|row| &row.stacks)
        .filter_map(|stack| stack.stack.site())
    {
        let name = site.module_name();
        let is_of_user = matches!(site.role, Role::User | Role::Wrapper) && !site.is_python();
        if is_of_user && site.file.is_none() && bare.contains(site.module) && !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

/// The failed request that caused the snapshot, and all failed requests, largest first.
fn failed<'a>(snapshot: &'a Snapshot, stacks: &CallStacks<'a>) -> (Option<FailedRow<'a>>, Vec<FailedRow<'a>>) {
    let row = |failed: &'a Failed| FailedRow {
        bytes: failed.bytes,
        count: failed.count,
        kind: failed.kind.name(),
        api: &failed.api,
        device: place_name(snapshot, failed.kind, failed.device),
        error: failed.error,
        error_name: error_name(failed.error),
        first_age_ns: snapshot.taken.at_ns.saturating_sub(failed.first_ns),
        last_age_ns: snapshot.taken.at_ns.saturating_sub(failed.last_ns),
        stack: stacks.get(failed.stack).clone(),
    };
    let trigger = snapshot.taken.automatic.as_ref().and_then(|automatic| automatic.failed);
    let trigger = trigger.and_then(|index| snapshot.failed.get(index)).map(row);
    let mut rows: Vec<_> = snapshot.failed.iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.bytes, row.count)));
    (trigger, rows)
}

#[cfg(test)]
mod tests;
