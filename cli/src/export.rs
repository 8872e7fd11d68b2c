//! Snapshots in the formats of other tools: one file each, behind [`Format`]. A new format is a file, and a line of [`FORMATS`].
//!
//! Formats of stacks (folded stacks, flame graphs, pprof, speedscope, Firefox) are made from
//! [`culeak::analysis::profile::Profile`], so that they add up to what the report lists. Formats of records (tables,
//! PyTorch's viewer, traces over time) iterate over the live allocations. Each module documents what its format can and
//! cannot hold. Deliberately absent: values that a recording does not contain; their fields stay empty.

pub mod csv;
pub mod curve;
pub mod firefox;
pub mod flamegraph;
pub mod folded;
mod html;
pub mod memory_viz;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod perfetto;
pub mod pprof;
pub mod records;
pub mod speedscope;
pub mod window;

use std::fmt;
use std::io::{self, Write};

use culeak::analysis::job::member::Member;
use culeak::analysis::profile::{Options, Profile};
use culeak::snapshot::Snapshot;

use crate::load::Loaded;
use crate::text::names::Detail;
use folded::Cost;
use records::Rows;

/// A format of another tool.
pub trait Format: Sync {
    /// As in `--format`.
    fn name(&self) -> &'static str;

    /// A line of `--help`.
    fn about(&self) -> &'static str;

    /// Endings of file names that belong to it.
    fn endings(&self) -> &'static [&'static str];

    fn can(&self) -> &'static [Ability];

    /// Writes a file; there is at least one process.
    fn write(&self, input: &Input, out: &mut dyn Write) -> io::Result<()>;
}

/// What a format can hold, and another one cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// Stacks without single blocks: all that is known of a peak.
    Stacks,
    /// Objects, which have no bytes.
    Objects,
    /// Memory from the kernel driver.
    Segments,
    /// The events of a recording.
    Times,
    Processes,
    /// Several snapshots of one process.
    Snapshots,
    /// Suppressions leave stacks out.
    Suppressions,
    /// It says what suppressions left out.
    Suppressed,
}

/// All formats.
pub const FORMATS: &[&dyn Format] = &[
    &pprof::Pprof,
    &speedscope::Speedscope,
    &folded::Folded,
    &perfetto::Perfetto,
    &firefox::Firefox,
    &csv::Csv,
    #[cfg(feature = "parquet")]
    &parquet::Parquet,
    #[cfg(not(feature = "parquet"))]
    &NoParquet,
    &memory_viz::MemoryViz,
    &html::Html,
];

/// In the place of Parquet in a build without it.
#[cfg(not(feature = "parquet"))]
struct NoParquet;

#[cfg(not(feature = "parquet"))]
impl Format for NoParquet {
    fn name(&self) -> &'static str {
        "parquet"
    }

    fn about(&self) -> &'static str {
        "One row per live allocation, typed and compressed (not in this build)"
    }

    fn endings(&self) -> &'static [&'static str] {
        &[".parquet"]
    }

    fn can(&self) -> &'static [Ability] {
        &[]
    }

    fn write(&self, _: &Input, _: &mut dyn Write) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl dyn Format + '_ {
    pub fn has(&self, ability: Ability) -> bool {
        self.can().contains(&ability)
    }
}

impl fmt::Debug for dyn Format + '_ {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// The names of the formats with an ability: `pprof, folded or html`.
pub fn names_with(ability: Ability) -> String {
    let names = FORMATS.iter().filter(|format| format.has(ability));
    let names: Vec<&str> = names.map(|format| format.name()).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// What is written, and how.
pub struct Input<'a> {
    pub items: &'a [Loaded],
    pub options: Options,
    /// Objects are in the place of memory.
    pub objects: bool,
    pub cost: Cost,
    /// Graphs have one frame for each line, not for each function.
    pub lines: bool,
}

impl<'a> Input<'a> {
    /// How frames are named in tables.
    pub fn detail(&self) -> Detail {
        Detail {
            signatures: self.options.full_stacks,
            lines: true,
        }
    }

    /// How frames are named in graphs.
    pub fn detail_of_graph(&self) -> Detail {
        Detail {
            lines: self.lines,
            ..self.detail()
        }
    }

    /// The snapshots; each has a name if there are several.
    pub fn snapshots(&self) -> impl Iterator<Item = (Option<String>, &'a Snapshot)> {
        let is_one = self.items.len() == 1;
        let snapshots = self.items.iter().map(|item| &item.snapshot);
        snapshots.map(move |snapshot| ((!is_one).then(|| called(snapshot)), snapshot))
    }

    /// The stacks of each snapshot, with all that they ever allocated.
    pub fn profiles(&self) -> impl Iterator<Item = (Option<String>, Profile<'a>)> {
        let options = Options {
            made: true,
            ..self.options.clone()
        };
        self.snapshots()
            .map(move |(name, snapshot)| (name, Profile::of(snapshot, &options)))
    }

    /// The records of each snapshot.
    pub fn tables(&self) -> impl Iterator<Item = Rows<'a>> {
        self.snapshots()
            .map(|(_, snapshot)| Rows::of(snapshot, &self.options, self.detail()))
    }
}

/// The name of a process among several: `rank 5`, or `node1:4711`.
pub fn called(snapshot: &Snapshot) -> String {
    let member = Member::of(snapshot);
    match member.rank {
        Some(rank) => format!("rank {rank}"),
        None => format!("{}:{}", member.host, member.pid),
    }
}

#[cfg(test)]
mod tests;
