//! The data of graphs: stacks, and the memory of each.

use std::io;

use culeak::analysis::diff::{Diff, DiffRow, Options};
use culeak::analysis::lives::Logged;
use culeak::analysis::profile::{self, Profile};
use culeak::analysis::report::{self, By};
use culeak::kind::Kind;
use culeak::snapshot::Snapshot;
use serde::Serialize;

use super::data::Data;
use super::stacks::{Stack, Stacks};
use super::timeline;

/// One process and how to report it.
pub struct Item<'a> {
    pub snapshot: &'a Snapshot,
    /// The events that the snapshot was read with, if they were logged.
    pub timeline: Option<&'a Logged>,
    pub options: report::Options,
    /// Frames inside the CUDA runtime and below main too.
    pub full_stacks: bool,
}

/// The graphs of a page.
pub struct Graphs<'a> {
    pub data: Data<'a>,
    shown: Shown,
}

#[derive(Serialize)]
struct Shown {
    is_diff: bool,
    processes: Vec<Process>,
}

/// The graphs of one process.
#[derive(Default, Serialize)]
struct Process {
    /// The names of the samples' places.
    places: Vec<String>,
    over_time: Option<timeline::Shown>,
}

impl<'a> Graphs<'a> {
    pub fn new(full_stacks: bool, is_diff: bool) -> Graphs<'a> {
        let mut data = Data::new();
        data.full_stacks = full_stacks;
        let processes = Vec::new();
        Graphs {
            data,
            shown: Shown { is_diff, processes },
        }
    }

    /// Everything, compressed.
    pub fn write(self) -> io::Result<Vec<u8>> {
        let mut compressed = Vec::new();
        self.data.write(&self.shown, &mut compressed)?;
        Ok(compressed)
    }

    /// The live memory of a process by stack, and its memory over time.
    pub fn add(&mut self, item: &Item<'a>) {
        let (data, number) = (&mut self.data, self.shown.processes.len());
        let mut stacks = Stacks::default();
        let samples = samples(data, &mut stacks, item);
        let over_time = item
            .timeline
            .map(|events| timeline::Prepared::of(data, &mut stacks, item, events));
        let moved = stacks.write(data, &format!("{number}.stacks"));
        self.shown.processes.push(Process {
            places: samples.write(data, &format!("{number}.samples"), &moved),
            over_time: over_time.map(|prepared| prepared.write(data, &format!("{number}.time"), &moved)),
        });
    }

    /// Every stack of two snapshots, unchanged ones too, because the graph can show either side.
    pub fn add_diff(&mut self, before: &'a Snapshot, after: &'a Snapshot, options: &Options) {
        let everything = Options {
            by: By::Stack,
            sites_across_libraries: false,
            all: true,
            top: None,
            min_bytes: 0,
            ..options.clone()
        };
        let diff = Diff::of(before, after, &everything);
        let (data, mut stacks) = (&mut self.data, Stacks::default());
        let full = data.full_stacks;
        let rows = diff.rows.iter();
        let numbers: Vec<usize> = rows.map(|row| stacks.add_call_stack(data, &row.stack, full)).collect();
        let moved = stacks.write(data, "0.stacks");
        let mut samples: Vec<(u64, &DiffRow)> = numbers.iter().map(|&nth| moved[nth]).zip(&diff.rows).collect();
        samples.sort_by_key(|(stack, _)| *stack);
        let kind = |row: &DiffRow| {
            let kind = row.kinds.first().and_then(|name| Kind::from_name(name));
            kind.map_or(0, number_of)
        };
        let owner = |row: &DiffRow| row.stack.library.or(row.stack.allocator).unwrap_or_default();
        let owners: Vec<u64> = samples.iter().map(|(_, row)| data.text(owner(row))).collect();
        data.columns.add("0.samples.owner", owners);
        let mut add = |name: &str, number: &dyn Fn(&DiffRow) -> u64| {
            let numbers = samples.iter().map(|(_, row)| number(row));
            data.columns.add(format!("0.samples.{name}"), numbers);
        };
        add("kind", &kind);
        add("before", &|row| row.before.bytes);
        add("after", &|row| row.after.bytes);
        add("before_count", &|row| row.before.count);
        add("after_count", &|row| row.after.count);
        let stacks = samples.iter().map(|(stack, _)| *stack);
        data.columns.add("0.samples.stack", stacks);
        self.shown.processes.push(Process::default());
    }
}

/// The graph's data: memory by stack, kind and place.
struct Samples {
    samples: Vec<profile::Sample>,
    /// The number of each sample's stack.
    stacks: Vec<usize>,
    /// The owner of each sample other than the program, as the number of a string.
    owners: Vec<u64>,
    /// The place of each sample, as an index into `places`.
    lies_in: Vec<u64>,
    places: Vec<String>,
}

fn samples<'a>(data: &mut Data<'a>, stacks: &mut Stacks, item: &Item<'a>) -> Samples {
    let options = profile::Options {
        full_stacks: item.full_stacks,
        filter: item.options.filter.clone(),
        suppressions: item.options.suppressions.clone(),
        ..profile::Options::default()
    };
    let profile = Profile::of(item.snapshot, &options);
    let frames: Vec<u32> = profile.frames.iter().map(|frame| data.frame(frame)).collect();
    let paths: Vec<usize> = profile
        .paths
        .iter()
        .map(|path| {
            stacks.add(Stack {
                frames: path.frames.iter().map(|&frame| frames[frame]).collect(),
                truncated: path.truncated,
            })
        })
        .collect();
    let mut places: Vec<String> = profile.samples.iter().map(|sample| profile.place(sample)).collect();
    let each = places.clone();
    places.sort();
    places.dedup();
    let place = |place: String| places.binary_search(&place).unwrap_or(0) as u64;
    let owner = |sample: &profile::Sample| data.text(profile.paths[sample.path].origin.unwrap_or_default());
    Samples {
        owners: profile.samples.iter().map(owner).collect(),
        stacks: profile.samples.iter().map(|sample| paths[sample.path]).collect(),
        lies_in: each.into_iter().map(place).collect(),
        samples: profile.samples,
        places,
    }
}

impl Samples {
    /// Writes the samples in the order of their stacks, and returns the names of places.
    fn write(self, data: &mut Data, prefix: &str, moved: &[u64]) -> Vec<String> {
        let mut order: Vec<usize> = (0..self.samples.len()).collect();
        order.sort_by_key(|&nth| moved[self.stacks[nth]]);
        let mut add = |name: &str, number: &dyn Fn(usize) -> u64| {
            let numbers = order.iter().map(|&nth| number(nth));
            data.columns.add(format!("{prefix}.{name}"), numbers);
        };
        add("stack", &|nth| moved[self.stacks[nth]]);
        add("kind", &|nth| number_of(self.samples[nth].kind));
        add("owner", &|nth| self.owners[nth]);
        add("place", &|nth| self.lies_in[nth]);
        add("bytes", &|nth| self.samples[nth].live.bytes);
        add("count", &|nth| self.samples[nth].live.count);
        self.places
    }
}

/// A kind's index in the page's list of kinds.
pub fn number_of(kind: Kind) -> u64 {
    Kind::ALL.iter().position(|&other| other == kind).unwrap_or(0) as u64
}
