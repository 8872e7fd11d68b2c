//! Statistics of the events of a timeline, by call site: temporary allocations, lifetimes, churn and reuse.
//!
//! - *Temporary*: the block was freed before the thread that allocated it allocated again.
//! - *Lifetime*: from the allocation of a block to its free; of blocks that were freed.
//! - *Churn*: allocations per second; the highest number is that of one second, counted from the beginning of the window.
//! - *Reuse*: the block has the address and the size of one that was allocated at the same call site and freed last at this
//!   address. A cache at the call site could have kept it.
//!
//! Every event is counted where its memory was allocated, also if another thread frees it. Deliberately absent: memory that
//! is live; see `report`.

use std::collections::BTreeSet;

use foldhash::HashMap;
use serde::Serialize;

use crate::analysis::filter::{Filter, Filtering, mark_time};
use crate::analysis::report::{ProcessLine, place_name, process_line, shell_word};
use crate::analysis::site::{CallStack, CallStacks, Fingerprint, Frame};
use crate::analysis::words;
use crate::kind::Place;
use crate::named;
use crate::point::Point;
use crate::snapshot::Snapshot;
use crate::tally::Tally;
use crate::timeline::{Timeline, Unknown};

mod counting;

use counting::Counting;

/// The value of [`Stats::format`].
pub const FORMAT: &str = "culeak-stats";
pub const VERSION: u32 = 1;

const SECOND: u64 = 1_000_000_000;

named! {
    /// The order of rows.
    #[derive(Default, Serialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub enum Sort {
        /// Most allocations first.
        #[default]
        Count = "count",
        /// Most temporary allocations first.
        Temporary = "temporary",
        /// Shortest median lifetime first.
        Lifetime = "lifetime",
        /// Most bytes allocated first.
        Bytes = "bytes",
    }
}

/// What to count and to list.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub sort: Sort,
    /// One row for each stack instead of each call site.
    pub by_stack: bool,
    /// The most rows to list.
    pub top: Option<usize>,
    /// Events of other memory are left out.
    pub filter: Filter,
    /// Only events after the first time, up to the second one.
    pub between: Option<(u64, u64)>,
    /// The input as named on the command line, for the next command.
    pub source: String,
}

/// Events, added up.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Sums {
    pub allocated: Tally,
    pub freed: Tally,
    pub temporary: Tally,
    /// Allocations whose address and size are those of the block that the same call site freed there last.
    pub reused: u64,
    /// Allocations per second, on average.
    pub per_second: f64,
    /// The most allocations in one second of the window, and when that second began on the recording's clock. `None` if
    /// this is no more than the average, as in a window of less than two seconds.
    pub most_per_second: Option<u64>,
    pub most_at_ns: Option<u64>,
    pub lifetimes: Lifetimes,
}

impl Sums {
    /// The fraction of the allocations that were temporary.
    pub fn temporary_fraction(&self) -> f64 {
        fraction(self.temporary.count, self.allocated.count)
    }

    /// The fraction of the allocations that a cache at the call site could have served.
    pub fn reused_fraction(&self) -> f64 {
        fraction(self.reused, self.allocated.count)
    }
}

fn fraction(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// How long the freed blocks were live.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Lifetimes {
    /// The number of freed blocks.
    pub count: u64,
    /// Estimated from the histogram; 0 if nothing was freed.
    pub median_ns: u64,
    pub longest_ns: u64,
    /// From the shortest lifetime to the longest.
    pub histogram: Vec<Bucket>,
}

/// Freed blocks that were live for at least `from_ns` and less than `to_ns`, twice as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Bucket {
    pub from_ns: u64,
    pub to_ns: u64,
    pub count: u64,
}

/// The events of one call site, of one kind of memory in one place.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Row<'a> {
    /// The function of the call site.
    pub label: String,
    /// Name of the kind.
    pub kind: &'static str,
    /// `GPU 0`, `host memory`.
    pub place: String,
    /// The domain of a block of a named allocator.
    pub domain: Option<&'a str>,
    #[serde(flatten)]
    pub sums: Sums,
    /// The number of different stacks.
    pub stacks_in_all: usize,
    /// The stack with the most allocations.
    pub stack: CallStack<'a>,
}

impl<'a> Row<'a> {
    pub fn site(&self) -> Option<&Frame<'a>> {
        self.stack.site()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Stats<'a> {
    pub format: &'static str,
    pub version: u32,
    pub process: ProcessLine<'a>,
    /// The log has all events after this time; 0: since the recording began.
    pub since_ns: u64,
    /// The events after `from_ns`, up to `to_ns`, are counted.
    pub from_ns: u64,
    pub to_ns: u64,
    /// The end of the program's own work, if it lies within the window: the shutdown follows.
    pub end_ns: Option<u64>,
    /// Events that could not be logged.
    pub lost_events: u64,
    pub sort: Sort,
    /// The filter, if there is one.
    pub filter: Option<Filter>,
    /// Memory that the driver allocates and frees.
    pub driver: Sums,
    /// Blocks that frameworks allocate within such memory: tensors, buffers.
    pub blocks: Sums,
    pub rows: Vec<Row<'a>>,
    /// Rows that `--top` cut off, and their allocations.
    pub hidden_rows: usize,
    pub hidden: Tally,
    pub warnings: Vec<String>,
    /// The command to run next.
    pub next: Option<String>,
}

impl<'a> Stats<'a> {
    /// # Errors
    /// The log does not cover the window.
    pub fn of(snapshot: &'a Snapshot, timeline: &'a Timeline, options: &Options) -> Result<Stats<'a>, Unknown> {
        let (from_ns, to_ns) = range(snapshot, timeline, options)?;
        let stacks = CallStacks::of(snapshot);
        let rows = Rows::of(snapshot, timeline, &stacks, options);
        let mut counting = Counting::new(rows.all.len(), from_ns);
        for event in timeline.memory.between(from_ns, to_ns) {
            counting.count(&event, &rows);
        }
        let lasted_ns = (to_ns - from_ns).max(1);
        let by_site = counting.by_site;
        let [driver, blocks] = counting.totals.map(|counts| counts.finish(from_ns, lasted_ns));
        let listed = rows
            .all
            .into_iter()
            .zip(counting.rows)
            .filter(|(_, counts)| counts.has_events());
        let mut listed: Vec<Row> = listed
            .map(|(row, counts)| {
                let site = &timeline.memory.sites[row.largest(&by_site)];
                let stack = stacks.get(site.stack).clone();
                Row {
                    label: stack.site_names().0,
                    kind: site.kind.name(),
                    place: place_name(snapshot, site.kind, site.device),
                    domain: site.domain.as_deref(),
                    sums: counts.finish(from_ns, lasted_ns),
                    stacks_in_all: row.stacks.len(),
                    stack,
                }
            })
            .collect();
        sort(&mut listed, options.sort);
        let hidden = listed.split_off(options.top.unwrap_or(usize::MAX).min(listed.len()));
        Ok(Stats {
            format: FORMAT,
            version: VERSION,
            process: process_line(snapshot),
            since_ns: timeline.since_ns,
            from_ns,
            to_ns,
            end_ns: snapshot
                .end
                .map(|end| end.time_ns)
                .filter(|end| (from_ns..to_ns).contains(end)),
            lost_events: timeline.lost,
            sort: options.sort,
            filter: (!options.filter.is_empty()).then(|| options.filter.clone()),
            driver,
            blocks,
            hidden_rows: hidden.len(),
            hidden: Tally::total(hidden.iter().map(|row| row.sums.allocated)),
            warnings: warnings(snapshot, timeline, options, from_ns),
            next: next(&listed, options),
            rows: listed,
        })
    }

    /// No event passed.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn lasted_ns(&self) -> u64 {
        self.to_ns - self.from_ns
    }
}

fn range(snapshot: &Snapshot, timeline: &Timeline, options: &Options) -> Result<(u64, u64), Unknown> {
    let (from_ns, to_ns) = options.between.unwrap_or((timeline.since_ns, timeline.until_ns));
    let mark = options
        .filter
        .since
        .as_deref()
        .and_then(|name| mark_time(snapshot, name));
    let from_ns = from_ns.max(mark.unwrap_or(0));
    if from_ns > to_ns {
        return Err(Unknown::Reversed { from_ns, to_ns });
    }
    timeline.known(from_ns)?;
    timeline.known(to_ns)?;
    Ok((from_ns, to_ns.min(timeline.until_ns).max(from_ns)))
}

fn sort(rows: &mut [Row], by: Sort) {
    let key = |row: &Row| match by {
        Sort::Temporary => row.sums.temporary.count,
        Sort::Count => row.sums.allocated.count,
        // Rows without frees come last.
        Sort::Lifetime if row.sums.lifetimes.count == 0 => 0,
        Sort::Lifetime => u64::MAX - row.sums.lifetimes.median_ns,
        Sort::Bytes => row.sums.allocated.bytes,
    };
    let ties = |row: &Row| (row.sums.allocated.count, row.sums.allocated.bytes, row.sums.freed.count);
    rows.sort_by(|a, b| {
        let largest = (key(b), ties(b)).cmp(&(key(a), ties(a)));
        largest.then_with(|| (&a.label, a.kind, &a.place).cmp(&(&b.label, b.kind, &b.place)))
    });
}

fn warnings(snapshot: &Snapshot, timeline: &Timeline, options: &Options, from_ns: u64) -> Vec<String> {
    let mut warnings = Vec::new();
    if timeline.since_ns > 0 && options.between.is_none() {
        warnings.push(format!(
            "the event log is complete only from {} on; record with a larger one to see all events (culeak run \
             --timeline=SIZE)",
            words::duration(timeline.since_ns)
        ));
    }
    if timeline.lost > 0 {
        warnings.push(format!(
            "{} could not be logged, so numbers are too low; free disk space and record again",
            words::plural(timeline.lost, "event", "events")
        ));
    }
    if let Some(name) = &options.filter.since
        && mark_time(snapshot, name).is_none()
    {
        warnings.push(format!(
            "the program set no mark {name:?}, so events from {} on are counted",
            words::duration(from_ns)
        ));
    }
    warnings
}

/// The stacks of the call sites.
fn next(rows: &[Row], options: &Options) -> Option<String> {
    if options.by_stack || rows.is_empty() {
        return None;
    }
    let mut command = format!("culeak report {} --view churn", shell_word(&options.source));
    if let Some((from_ns, to_ns)) = options.between {
        command.push_str(&format!(" --between {} {}", Point::Time(from_ns), Point::Time(to_ns)));
    }
    command.push_str(&options.filter.options());
    if options.sort != Sort::default() {
        command.push_str(&format!(" --sort {}", options.sort.name()));
    }
    command.push_str(" --by stack");
    Some(command)
}

/// The rows, and what events of each site count for.
struct Rows {
    of_site: Vec<OfSite>,
    all: Vec<RowSites>,
}

/// What events of a site count for.
#[derive(Clone, Copy)]
struct OfSite {
    /// `None`: the filter leaves it out.
    row: Option<u32>,
    /// Numbers kind and allocator: no two live blocks of one class have the same address.
    class: u32,
    /// Whether the memory lies within other memory.
    within: bool,
}

/// The sites of a row.
#[derive(Default)]
struct RowSites {
    sites: Vec<u32>,
    stacks: BTreeSet<Fingerprint>,
}

impl RowSites {
    /// The site that represents the row: the one with the most allocations.
    fn largest(&self, allocations: &HashMap<u32, u64>) -> usize {
        let count = |site: &&u32| (allocations.get(*site).copied().unwrap_or(0), std::cmp::Reverse(**site));
        self.sites.iter().max_by_key(count).map_or(0, |site| *site as usize)
    }
}

impl Rows {
    fn of(snapshot: &Snapshot, timeline: &Timeline, stacks: &CallStacks, options: &Options) -> Rows {
        let mut filtering = Filtering::new(&options.filter, snapshot);
        let (mut numbers, mut classes) = (HashMap::default(), HashMap::default());
        let mut rows = Rows {
            of_site: Vec::with_capacity(timeline.memory.sites.len()),
            all: Vec::new(),
        };
        for (number, site) in (0..).zip(&timeline.memory.sites) {
            let next = classes.len() as u32;
            let class = *classes.entry((site.kind, site.domain.as_deref())).or_insert(next);
            let stack = stacks.get(site.stack);
            // A call site may be that of several threads.
            let row = filtering.passes_site(site, None, stacks).then(|| {
                let device = site.kind.place().counts_against(site.device);
                let code = match options.by_stack {
                    true => stack.fingerprint,
                    false => stack.site_fingerprint,
                };
                let key = (code, site.kind, device, site.domain.as_deref());
                let row = *numbers.entry(key).or_insert(rows.all.len() as u32);
                if row as usize == rows.all.len() {
                    rows.all.push(RowSites::default());
                }
                let of_row = &mut rows.all[row as usize];
                of_row.sites.push(number);
                of_row.stacks.insert(stack.fingerprint);
                row
            });
            rows.of_site.push(OfSite {
                row,
                class,
                within: site.kind.place() == Place::Within,
            });
        }
        rows
    }
}

#[cfg(test)]
mod tests;
