//! A profile: the live memory of a snapshot by the stacks that requested it, as plain data.
//!
//! Trees, flame graphs and the profile formats of other tools are made of this value, so they cannot contradict each
//! other or the report: each byte counts once, as in a report's rows (see `groups`), and the same frames are shown.
//!
//! Stacks are paths of frame numbers, outermost first, and each frame is stored once. Two stacks that look equal are
//! one path, even if their addresses differ. With [`Options::addresses`], stacks that differ in an address stay separate, for
//! formats that contain addresses.
//!
//! Deliberately absent: percentages, and any order of siblings; the renderers add them.

use std::collections::{BTreeMap, HashMap};

use crate::analysis::categories::{Categories, Category, Sorter};
use crate::analysis::estimate::{Errors, Estimate};
use crate::analysis::filter::{Filter, Filtered, Filtering};
use crate::analysis::groups::{Group, Groups, Level};
use crate::analysis::report::{Tally, place_name};
use crate::analysis::site::{CallStack, CallStacks, Frame};
use crate::analysis::suppressions::{Sieve, Suppressions, Used};
use crate::kind::{Kind, Place};
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::{Allocation, Language, Snapshot, Total};

pub mod tree;

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Include frames inside the CUDA runtime, the interpreter and frameworks, and those below `main`.
    pub full_stacks: bool,
    /// Do not merge frames that differ only in their address.
    pub addresses: bool,
    /// Include only records that pass.
    pub filter: Filter,
    /// Include everything ever requested, if the snapshot contains it. Some samples then hold nothing any more.
    pub made: bool,
    /// Exclude the stacks that these rules suppress.
    pub suppressions: Suppressions,
    /// The rules for categories.
    pub categories: Categories,
    /// Make paths of all stacks, also of those that hold nothing.
    pub all_stacks: bool,
}

#[derive(Debug, Clone)]
pub struct Profile<'a> {
    pub snapshot: &'a Snapshot,
    /// The distinct frames.
    pub frames: Vec<Frame<'a>>,
    /// The distinct stacks.
    pub paths: Vec<Path>,
    /// The path of each stack of the snapshot that has one; the last element is for memory without a stack.
    pub path_of: Vec<Option<usize>>,
    /// Most bytes first.
    pub samples: Vec<Sample>,
    /// What the samples are estimated to be a part of, if stacks were sampled.
    pub sampled: Option<Sums>,
    /// The filter, if there is one, and the memory that it left out.
    pub filter: Option<Filtered>,
    /// The memory that suppressions removed, in total and by rule; no rules unless requested.
    pub suppressed: Tally,
    pub suppressions: Vec<Used>,
}

/// The sums of a profile of sampled stacks.
#[derive(Debug, Clone, PartialEq)]
pub enum Sums {
    /// No stack decides what is included, so the sums by location are exact; blocks without a stack are in them alone.
    Exact(BTreeMap<String, Tally>),
    /// The sum of all samples is an estimate, with these errors.
    Estimated(Errors),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Path {
    /// Indices into [`Profile::frames`], outermost first. Empty for memory recorded without its stack.
    pub frames: Vec<usize>,
    /// Outer frames are missing before the first.
    pub truncated: bool,
    /// The CUDA library that requested the memory, else the owner of the caching allocator that did.
    pub origin: Option<&'static str>,
}

/// The memory that one path requested, of one kind, on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Index into [`Profile::paths`].
    pub path: usize,
    pub kind: Kind,
    /// Index into the snapshot's devices.
    pub device: Option<usize>,
    /// Never [`Level::Behind`].
    pub level: Level,
    pub live: Tally,
    /// `live` is an estimate from sampled stacks.
    pub is_estimate: bool,
    /// Everything ever requested, including freed memory; `None` if [`Options::made`] is off or the snapshot does not
    /// contain it.
    pub made: Option<Tally>,
}

/// The place of one record in a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Index of the record in the snapshot.
    pub index: usize,
    /// Index into [`Profile::paths`].
    pub path: usize,
    pub level: Level,
    pub category: Category,
}

/// What the caller wants to visit while the profile is made.
enum Visit<'v> {
    Nothing,
    Records(&'v mut dyn FnMut(&Allocation, Seen)),
    Sizes(&'v mut dyn FnMut(&Group, usize, Category)),
}

impl<'a> Profile<'a> {
    pub fn of(snapshot: &'a Snapshot, options: &Options) -> Profile<'a> {
        Profile::new(snapshot, options, Visit::Nothing)
    }

    /// Makes a profile and visits every record that passes the filter and is not suppressed, including those at
    /// [`Level::Behind`], which no sample counts.
    pub fn visiting(
        snapshot: &'a Snapshot,
        options: &Options,
        mut visit: impl FnMut(&Allocation, Seen),
    ) -> Profile<'a> {
        Profile::new(snapshot, options, Visit::Records(&mut visit))
    }

    /// Makes a profile and visits the groups that its samples are made of, each with its path and category. A group's
    /// records have the same size.
    pub fn visiting_sizes(
        snapshot: &'a Snapshot,
        options: &Options,
        mut visit: impl FnMut(&Group, usize, Category),
    ) -> Profile<'a> {
        Profile::new(snapshot, options, Visit::Sizes(&mut visit))
    }

    fn new(snapshot: &'a Snapshot, options: &Options, mut visit: Visit) -> Profile<'a> {
        let stacks = CallStacks::of(snapshot);
        let mut filtering = Filtering::new(&options.filter, snapshot);
        let groups = match visit {
            Visit::Sizes(_) => Groups::with_sizes_apart(snapshot, &stacks, filtering.since_ns()),
            _ => Groups::split_at(snapshot, &stacks, filtering.since_ns()),
        };
        let by_stacks = options.filter.is_of_stacks() || !options.suppressions.is_empty();
        let is_exact = snapshot.sampling.is_some() && !by_stacks && !snapshot.allocations.is_summed();
        let exact = is_exact.then(|| {
            let mut sums: BTreeMap<String, Tally> = BTreeMap::new();
            let (passing, _) = filtering.split(&groups.all, &stacks);
            for group in passing.into_iter().filter(|group| group.level.is_listed()) {
                let place = location(snapshot, group.call.kind, group.call.device);
                sums.entry(place).or_default().join(group.tally());
            }
            sums
        });
        let groups = groups.by_stack();
        let mut estimate = Estimate::default();
        let mut paths = Paths::new(options, snapshot.stacks.len());
        let mut tallies: HashMap<Key, Tallies> = HashMap::new();
        let mut sieve = Sieve::new(&options.suppressions);
        let sorter = Sorter::new(&options.categories, snapshot);
        if let Visit::Records(visit) = &mut visit {
            let all = &snapshot.allocations;
            let progress = Progress::over("finding stacks", all.len() as u64, Unit::Of("records"));
            for (index, allocation) in all.iter().enumerate() {
                progress.tick(index);
                if filtering.passes(allocation.call, allocation.stack, allocation.time_ns, &stacks)
                    && sieve.rule(allocation.stack, &stacks).is_none()
                {
                    let path = paths.of_stack(allocation.stack, &stacks);
                    let level = groups.level(&allocation, &stacks);
                    let category = sorter.category(allocation.stack, allocation.call, &stacks);
                    visit(
                        &allocation,
                        Seen {
                            index,
                            path,
                            level,
                            category,
                        },
                    );
                }
            }
        }
        let (passing, left_out) = filtering.split(&groups.all, &stacks);
        for group in passing.into_iter().filter(|group| group.level.is_listed()) {
            let call = group.call;
            if !sieve.lets_through(group.stack, group.tally(), &stacks) {
                continue;
            }
            let path = paths.of_stack(group.stack, &stacks);
            if let Visit::Sizes(visit) = &mut visit {
                visit(group, path, sorter.category(group.stack, call, &stacks));
            }
            let key = (path, call.kind, call.device, group.level);
            let tallies = tallies.entry(key).or_default();
            tallies.live.join(group.tally());
            if let Some(of_group) = &group.estimate {
                tallies.is_estimate |= of_group.errors().is_some();
                estimate.join(of_group);
            }
        }
        // Totals are of the whole recording.
        let with_totals = options.made && !snapshot.totals.is_empty() && filtering.since_ns() == 0;
        if with_totals {
            let levels = levels_of_totals(snapshot, &stacks, &groups);
            for (total, level) in snapshot.totals.iter().zip(levels) {
                if level.is_listed()
                    && filtering.passes_at_any_time(total.kind.into(), total.device, total.stack, &stacks)
                    && sieve.rule(total.stack, &stacks).is_none()
                {
                    let key = (paths.of_stack(total.stack, &stacks), total.kind, total.device, level);
                    tallies
                        .entry(key)
                        .or_default()
                        .made
                        .join(Tally::new(total.bytes, total.count));
                }
            }
        }
        if options.all_stacks {
            let all = (0..snapshot.stacks.len()).map(Some).chain([None]);
            all.for_each(|stack| {
                paths.of_stack(stack, &stacks);
            });
        }
        let sample = |((path, kind, device, level), tallies): (Key, Tallies)| Sample {
            path,
            kind,
            device,
            level,
            live: tallies.live,
            is_estimate: tallies.is_estimate,
            // Live memory was requested, even if a damaged file lacks its total.
            made: with_totals.then_some(Tally::new(
                tallies.made.bytes.max(tallies.live.bytes),
                tallies.made.count.max(tallies.live.count),
            )),
        };
        let mut samples: Vec<Sample> = tallies.into_iter().map(sample).collect();
        samples.sort_by_key(|sample| {
            (
                std::cmp::Reverse(sample.live),
                sample.path,
                sample.kind,
                sample.device,
                sample.level,
            )
        });
        Profile {
            snapshot,
            frames: paths.frames,
            paths: paths.paths,
            path_of: paths.known,
            samples,
            sampled: snapshot.sampling.map(|_| match exact {
                Some(sums) => Sums::Exact(sums),
                None => Sums::Estimated(estimate.errors().unwrap_or(Errors::NONE)),
            }),
            filter: filtering.filtered(left_out),
            suppressed: sieve.suppressed(),
            suppressions: sieve.used(),
        }
    }

    /// The sum of all samples, which equals the sum of a report's rows.
    pub fn total(&self) -> Tally {
        Tally::total(self.samples.iter().map(|sample| sample.live))
    }

    /// The frames of a path, outermost first.
    pub fn path(&self, path: usize) -> impl DoubleEndedIterator<Item = &Frame<'a>> + ExactSizeIterator {
        self.paths[path].frames.iter().map(|&frame| &self.frames[frame])
    }

    /// The location of a sample's memory: `GPU 0`, `host memory`, or `no memory` for a claim.
    pub fn place(&self, sample: &Sample) -> String {
        self.place_of(sample.kind, sample.device)
    }

    /// The location of memory of this kind.
    pub fn place_of(&self, kind: Kind, device: Option<usize>) -> String {
        location(self.snapshot, kind, device)
    }
}

fn location(snapshot: &Snapshot, kind: Kind, device: Option<usize>) -> String {
    match kind.place() {
        Place::Nowhere => "no memory".to_owned(),
        _ => place_name(snapshot, kind, device),
    }
}

/// Path, kind, device and level of a sample.
type Key = (usize, Kind, Option<usize>, Level);

#[derive(Default)]
struct Tallies {
    live: Tally,
    is_estimate: bool,
    made: Tally,
}

/// The level of each row of the snapshot's totals: that of the live memory of its stack, kind and device, if there is
/// any. Otherwise the stack decides, because it is not recorded whether a framework's blocks lay in freed memory.
fn levels_of_totals(snapshot: &Snapshot, stacks: &CallStacks, groups: &Groups) -> Vec<Level> {
    let mut live: HashMap<(Option<usize>, Kind, Option<usize>), Level> = HashMap::new();
    for group in &groups.all {
        let level = live
            .entry((group.stack, group.call.kind, group.call.device))
            .or_insert(group.level);
        if group.level.is_listed() {
            *level = group.level;
        }
    }
    let level = |total: &Total| {
        let by_stack = || {
            let allocator = stacks.get(total.stack).allocator;
            let known = allocator.is_some_and(|allocator| groups.watched.contains(allocator));
            Level::of(total.kind, allocator.is_some(), known)
        };
        let live = live.get(&(total.stack, total.kind, total.device)).copied();
        live.unwrap_or_else(by_stack)
    };
    snapshot.totals.iter().map(level).collect()
}

/// A frame by what a reader sees of it, and optionally by its address.
type FrameKey<'a> = (
    Option<&'a str>,
    Option<&'a str>,
    Option<u32>,
    bool,
    Language,
    &'a str,
    Option<u64>,
);

fn frame_key<'a>(frame: &Frame<'a>, addresses: bool) -> FrameKey<'a> {
    // The address of a frame without a name is visible.
    let address = (addresses || frame.function.is_none()).then_some(frame.address);
    let (function, file, line) = (frame.function, frame.file, frame.line);
    (
        function,
        file,
        line,
        frame.inlined,
        frame.language,
        frame.module,
        address,
    )
}

/// Numbers distinct frames and paths in the order of their appearance.
struct Paths<'o, 'a> {
    options: &'o Options,
    frame_numbers: HashMap<FrameKey<'a>, usize>,
    frames: Vec<Frame<'a>>,
    path_numbers: HashMap<Path, usize>,
    paths: Vec<Path>,
    /// The path of each stack of the snapshot, if known; the last element is for records without a stack.
    known: Vec<Option<usize>>,
}

impl<'o, 'a> Paths<'o, 'a> {
    fn new(options: &'o Options, stacks: usize) -> Paths<'o, 'a> {
        Paths {
            options,
            frame_numbers: HashMap::new(),
            frames: Vec::new(),
            path_numbers: HashMap::new(),
            paths: Vec::new(),
            known: vec![None; stacks + 1],
        }
    }

    fn of_stack(&mut self, stack: Option<usize>, stacks: &CallStacks<'a>) -> usize {
        let place = stack.unwrap_or(self.known.len() - 1);
        if let Some(path) = self.known[place] {
            return path;
        }
        let path = self.path(stacks.get(stack));
        self.known[place] = Some(path);
        path
    }

    fn path(&mut self, stack: &CallStack<'a>) -> usize {
        let mut number = |frame: &Frame<'a>| {
            let key = frame_key(frame, self.options.addresses);
            *self.frame_numbers.entry(key).or_insert_with(|| {
                self.frames.push(*frame);
                self.frames.len() - 1
            })
        };
        let mut frames: Vec<usize> = if self.options.full_stacks {
            stack.frames.iter().map(&mut number).collect()
        } else {
            stack.shown().map(&mut number).collect()
        };
        frames.reverse();
        // A missing stack is not a truncated one.
        let truncated = stack.truncated && !frames.is_empty();
        let path = Path {
            frames,
            truncated,
            origin: stack.library.or(stack.allocator),
        };
        *self.path_numbers.entry(path).or_insert_with_key(|path| {
            self.paths.push(path.clone());
            self.paths.len() - 1
        })
    }
}

#[cfg(test)]
mod tests;
