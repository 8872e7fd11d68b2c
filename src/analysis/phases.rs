//! Phases: when each began and ended, and what the program held, allocated and left behind in it.
//!
//! A phase covers a range of time, and all memory of the process counts in it: also that of other threads, on which a framework
//! may do the work of the phase. The figures come from a timeline; without one, only times are known.
//!
//! Phases of the same name below the same phases are one *row*, in the order of their first begin. Many names may differ in
//! their numbers alone (`step 1`, `step 2` …): these are one row too, as `step #`.
//!
//! ```text
//! series   the sums over time, and the sites that count in them
//! walk     the figures of all phases in one pass over the events
//! ```

mod series;
mod walk;

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};
use serde::Serialize;

use crate::analysis::filter::Filter;
use crate::analysis::lives;
use crate::analysis::preorder::preorder;
use crate::analysis::report::{ProcessLine, process_line};
use crate::analysis::site::{CallStack, CallStacks, Fingerprint};
use crate::analysis::words;
use crate::snapshot::{Phase, Snapshot};
use crate::tally::Tally;
use crate::timeline::Timeline;
use crate::timeline::lives::Lives;
pub use series::{Layer, Series};
pub use walk::Figures;

use series::SeriesOfSites;
use walk::{CHOSEN_MAX, Walked, end_of, walk};

/// The value of [`Phases::format`].
pub const FORMAT: &str = "culeak-phases";
pub const VERSION: u32 = 1;

/// What to show.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Show each phase of this name, or of this row. `*` stands for any characters.
    pub name: Option<String>,
    /// Figures include only memory that passes.
    pub filter: Filter,
    /// The most call sites for each phase; `None`: all.
    pub sites: Option<usize>,
}

#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Phases<'a> {
    pub format: &'static str,
    pub version: u32,
    pub process: ProcessLine<'a>,
    /// The part of the time for which events are known; `None`: events were not logged, so there are no figures.
    pub log: Option<Log>,
    /// Of which the figures are, in this order. The first is all memory held.
    pub series: Vec<Series>,
    /// Phases by name, in a tree: each row follows its parent.
    pub rows: Vec<Row<'a>>,
    /// Each phase of the name that was asked for, in the order of their begins.
    pub chosen: Vec<Chosen<'a>>,
    /// Phases of the process.
    pub count: usize,
    pub warnings: Vec<String>,
}

/// The part of the time for which events are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Log {
    pub since_ns: u64,
    pub until_ns: u64,
    pub lost: u64,
}

/// All phases of one name below the same phases.
#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Row<'a> {
    pub name: String,
    pub domain: Option<&'a str>,
    /// Index into the rows.
    pub parent: Option<usize>,
    pub depth: usize,
    pub count: u64,
    /// The number of these that had not ended.
    pub open: u64,
    pub first_begin_ns: u64,
    pub duration_ns: Stat,
    /// By series. Empty without figures.
    pub figures: Vec<Stats>,
    /// The number of phases in `figures`: those that began before the log are left out.
    pub with_figures: u64,
}

/// Mean and maximum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Stat {
    pub mean: u64,
    pub max: u64,
    #[serde(skip)]
    sum: u128,
}

impl Stat {
    fn add(&mut self, value: u64) {
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    fn finish(&mut self, count: u64) {
        self.mean = (self.sum / u128::from(count.max(1))) as u64;
    }
}

/// The [`Figures`] of several phases, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Stats {
    pub held_at_begin: Stat,
    pub held_at_end: Stat,
    pub high_water: Stat,
    pub allocated: Stat,
    pub freed: Stat,
    pub freed_within: Stat,
    pub left_behind: Stat,
}

impl Stats {
    fn each(&mut self) -> [&mut Stat; 7] {
        [
            &mut self.held_at_begin,
            &mut self.held_at_end,
            &mut self.high_water,
            &mut self.allocated,
            &mut self.freed,
            &mut self.freed_within,
            &mut self.left_behind,
        ]
    }

    fn add(&mut self, figures: &Figures) {
        let values = [
            figures.held_at_begin,
            figures.held_at_end,
            figures.high_water,
            figures.allocated.bytes,
            figures.freed.bytes,
            figures.freed_within.bytes,
            figures.left_behind.bytes,
        ];
        self.each()
            .into_iter()
            .zip(values)
            .for_each(|(stat, value)| stat.add(value));
    }
}

/// One phase.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Chosen<'a> {
    pub name: &'a str,
    pub domain: Option<&'a str>,
    /// The names of the enclosing phases, outermost first.
    pub within: Vec<&'a str>,
    pub thread: u32,
    pub begin_ns: u64,
    pub end_ns: Option<u64>,
    /// By series. Empty without figures.
    pub figures: Vec<Figures>,
    /// What it left behind, by call site, largest first.
    pub left_behind: Vec<SiteLeft<'a>>,
    /// The number of call sites that `left_behind` leaves out.
    pub more_sites: usize,
}

/// What a phase left behind at a call site.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SiteLeft<'a> {
    #[serde(flatten)]
    pub tally: Tally,
    /// The site's function; its stack's innermost frame without one.
    pub label: String,
    pub place: Option<String>,
    /// The largest stack.
    #[serde(flatten)]
    pub stack: CallStack<'a>,
}

/// The most enclosing phases that are listed.
const WITHIN_MAX: usize = 32;
/// With more figures than this, only those of all memory are computed.
const FIGURES_MAX: usize = 1 << 22;
/// From this number of names on, those that differ in their numbers alone are one row.
const ALIKE_MIN: usize = 20;

impl<'a> Phases<'a> {
    pub fn of(snapshot: &'a Snapshot, timeline: Option<&Timeline>, options: &Options) -> Phases<'a> {
        let stacks = CallStacks::of(snapshot);
        let all = &snapshot.phases;
        let pattern = options.name.as_deref().map(str::as_bytes);
        let names = pattern.map(|_| row_names(all)).unwrap_or_default();
        let is_chosen = |(phase, name_of_row): (&Phase, &String)| {
            let names = [&*phase.name, own_name(&phase.name), name_of_row];
            pattern.is_some_and(|pattern| {
                names
                    .iter()
                    .any(|name| crate::wildcard::matches(pattern, name.as_bytes()))
            })
        };
        let chosen: Vec<usize> = (all.iter().zip(&names).enumerate())
            .filter(|(_, phase)| is_chosen(*phase))
            .map(|(number, _)| number)
            .collect();
        let walked = timeline.filter(|_| !all.is_empty()).map(|timeline| {
            let memory = lives::of(snapshot, &snapshot.allocations, timeline, &stacks);
            let segments = Lives::of(&timeline.segments, timeline.since_ns, &snapshot.segments);
            let mut series = SeriesOfSites::of(snapshot, &memory, &segments, &stacks, &options.filter);
            if all.len() * series.all.len() > FIGURES_MAX {
                series.keep_first();
            }
            let walked = walk(snapshot, timeline, [&memory, &segments], &series, &chosen);
            (series.all, walked, timeline)
        });
        let (series, walked) = match walked {
            Some((series, walked, timeline)) => (series, Some((walked, timeline))),
            None => (Vec::new(), None),
        };
        let rows = rows(
            snapshot,
            walked.as_ref().map(|(walked, _)| walked),
            series.len(),
            timeline,
        );
        let chosen = chosen
            .into_iter()
            .map(|number| one(snapshot, number, walked.as_ref(), &stacks, options))
            .collect();
        Phases {
            format: FORMAT,
            version: VERSION,
            process: process_line(snapshot),
            log: timeline.map(|timeline| Log {
                since_ns: timeline.since_ns,
                until_ns: timeline.until_ns,
                lost: timeline.lost,
            }),
            series,
            rows,
            chosen,
            count: all.len(),
            warnings: warnings(snapshot, timeline),
        }
    }

    /// The index of the series of the whole process, if it used one device.
    pub fn process_series(&self) -> Option<usize> {
        let mut of_process = (0..self.series.len()).filter(|&at| self.series[at].layer == Layer::Process);
        let first = of_process.next()?;
        of_process.next().is_none().then_some(first)
    }

    /// Why the chosen phases lack call sites, if some do.
    pub fn sites_are_cut(&self) -> Option<String> {
        let cut = self.chosen.len().checked_sub(CHOSEN_MAX).filter(|&cut| cut > 0)?;
        Some(format!(
            "call sites are known for the last {} of them only; {cut} earlier ones lack them",
            words::count(CHOSEN_MAX as u64)
        ))
    }
}

fn warnings(snapshot: &Snapshot, timeline: Option<&Timeline>) -> Vec<String> {
    let mut warnings = Vec::new();
    let lost = snapshot.losses.lost_phases;
    if lost > 0 {
        warnings.push(format!(
            "{} not recorded: there were too many, too deeply nested ones, or no space",
            words::plural(lost, "phase was", "phases were")
        ));
    }
    let Some(timeline) = timeline else { return warnings };
    if timeline.lost > 0 {
        warnings.push(format!(
            "{} could not be logged, so the figures of phases are too low or too high",
            words::plural(timeline.lost, "event", "events")
        ));
    }
    let before = snapshot
        .phases
        .partition_point(|phase| phase.begin_ns < timeline.since_ns) as u64;
    if before > 0 {
        warnings.push(format!(
            "{} before the log of events does, which was full, and so without figures; record with a larger --timeline=SIZE",
            words::plural(before, "phase begins", "phases begin")
        ));
    }
    warnings
}

/// The name without the numbers that PyTorch adds to it (`emit_nvtx`): `aten::add, seq = 4, op_id = 12`.
pub fn own_name(name: &str) -> &str {
    let added = [", seq = ", ", op_id = ", ", sizes = "];
    let end = added.iter().filter_map(|added| {
        let at = name.find(added)?;
        let is_number = name[at + added.len()..].starts_with(|c: char| c.is_ascii_digit() || c == '[');
        is_number.then_some(at)
    });
    // Programs write `seq = 4` too, so the operator's namespace is required.
    let is_operator = name.contains("::") || name.contains(", op_id = ");
    &name[..end.min().filter(|_| is_operator).unwrap_or(name.len())]
}

/// The name with each number as `#`.
fn without_numbers(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for c in name.chars() {
        match c.is_ascii_digit() {
            true if text.ends_with('#') => {}
            true => text.push('#'),
            false => text.push(c),
        }
    }
    text
}

/// The name of the row of each phase.
fn row_names(phases: &[Phase]) -> Vec<String> {
    let mut alike: HashMap<String, HashSet<&str>> = HashMap::default();
    for phase in phases {
        let name = own_name(&phase.name);
        if name.contains(|c: char| c.is_ascii_digit()) {
            let names = alike.entry(without_numbers(name)).or_default();
            if names.len() < ALIKE_MIN {
                names.insert(name);
            }
        }
    }
    let row_name = |phase: &Phase| {
        let name = own_name(&phase.name);
        let pattern = without_numbers(name);
        match alike.get(&pattern).is_some_and(|names| names.len() >= ALIKE_MIN) {
            true => pattern,
            false => name.to_owned(),
        }
    };
    phases.iter().map(row_name).collect()
}

fn rows<'a>(
    snapshot: &'a Snapshot,
    walked: Option<&Walked>,
    series: usize,
    timeline: Option<&Timeline>,
) -> Vec<Row<'a>> {
    let phases = &snapshot.phases;
    let names = row_names(phases);
    let mut known: HashMap<(Option<usize>, &str, Option<&str>), usize> = HashMap::default();
    let mut found: Vec<Row> = Vec::new();
    let mut row_of: Vec<usize> = Vec::with_capacity(phases.len());
    for (number, phase) in phases.iter().enumerate() {
        // A parent precedes its children, so its row is known.
        let parent = phase.parent.map(|parent| row_of[parent]);
        let domain = phase.domain.as_deref();
        let place = *known.entry((parent, &names[number], domain)).or_insert_with(|| {
            found.push(Row {
                name: names[number].clone(),
                domain,
                parent,
                depth: parent.map_or(0, |parent| found[parent].depth + 1),
                first_begin_ns: phase.begin_ns,
                ..Row::default()
            });
            found.len() - 1
        });
        row_of.push(place);
        let row = &mut found[place];
        row.count += 1;
        row.open += u64::from(phase.end_ns.is_none());
        row.duration_ns.add(end_of(phase, snapshot, timeline) - phase.begin_ns);
        if let Some(figures) = walked.and_then(|walked| walked.of(number)) {
            row.figures.resize(series, Stats::default());
            row.with_figures += 1;
            row.figures
                .iter_mut()
                .zip(figures)
                .for_each(|(stats, of)| stats.add(&of));
        }
    }
    for row in &mut found {
        row.duration_ns.finish(row.count);
        for stat in row.figures.iter_mut().flat_map(Stats::each) {
            stat.finish(row.with_figures);
        }
    }
    let order = preorder(found.iter().map(|row| row.parent).enumerate(), usize::MAX, |a, b| {
        a.cmp(&b)
    });
    let in_place = order.into_iter().map(|row| Row {
        parent: row.parent,
        ..std::mem::take(&mut found[row.number])
    });
    in_place.collect()
}

fn one<'a>(
    snapshot: &'a Snapshot,
    number: usize,
    walked: Option<&(Walked, &Timeline)>,
    stacks: &CallStacks<'a>,
    options: &Options,
) -> Chosen<'a> {
    let phase = &snapshot.phases[number];
    let parents = std::iter::successors(phase.parent, |&parent| snapshot.phases[parent].parent);
    let mut within: Vec<&str> = parents
        .take(WITHIN_MAX)
        .map(|parent| own_name(&snapshot.phases[parent].name))
        .collect();
    within.reverse();
    let figures = walked.and_then(|(walked, _)| walked.of(number));
    let figures: Vec<Figures> = figures.into_iter().flatten().collect();
    let left = walked.and_then(|(walked, timeline)| Some((walked.left.get(&number)?, *timeline)));
    let mut left = left
        .filter(|_| !figures.is_empty())
        .map_or(Vec::new(), |(left, timeline)| by_call_site(left, timeline, stacks));
    let shown = options.sites.unwrap_or(usize::MAX);
    let more_sites = left.len().saturating_sub(shown);
    left.truncate(shown);
    Chosen {
        name: &phase.name,
        domain: phase.domain.as_deref(),
        within,
        thread: snapshot.threads.get(phase.thread).map_or(0, |thread| thread.tid),
        begin_ns: phase.begin_ns,
        end_ns: phase.end_ns,
        figures,
        left_behind: left,
        more_sites,
    }
}

fn by_call_site<'a>(left: &[(u32, Tally)], timeline: &Timeline, stacks: &CallStacks<'a>) -> Vec<SiteLeft<'a>> {
    // The tally, and the largest stack.
    let mut sites: BTreeMap<Fingerprint, (Tally, Tally, Option<usize>)> = BTreeMap::new();
    for &(site, tally) in left {
        let stack = timeline.memory.sites[site as usize].stack;
        let (sum, largest, of) = sites.entry(stacks.get(stack).site_fingerprint).or_default();
        sum.join(tally);
        if tally.bytes >= largest.bytes {
            (*largest, *of) = (tally, stack);
        }
    }
    let mut sites: Vec<SiteLeft> = sites
        .into_values()
        .map(|(tally, _, stack)| {
            let stack = stacks.get(stack).clone();
            let (label, place) = stack.site_names();
            SiteLeft {
                tally,
                label,
                place,
                stack,
            }
        })
        .collect();
    sites.sort_by(|a, b| (b.tally, &a.label).cmp(&(a.tally, &b.label)));
    sites
}

#[cfg(test)]
mod tests;
