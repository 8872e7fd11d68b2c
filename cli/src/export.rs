//! Snapshots in the formats of other tools: one file each, each a [`Format`]. A new format is a file, and a line of [`FORMATS`].
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
mod protobuf;
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
pub struct Format {
    /// As in `--format`.
    pub name: &'static str,
    /// A line of `--help`.
    pub about: &'static str,
    /// Endings of file names that belong to it.
    pub endings: &'static [&'static str],
    pub can: &'static [Ability],
    /// Writes a file; there is at least one process.
    pub write: fn(&Input, &mut dyn Write) -> io::Result<()>,
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
pub static FORMATS: &[Format] = &[
    pprof::FORMAT,
    speedscope::FORMAT,
    folded::FORMAT,
    perfetto::FORMAT,
    firefox::FORMAT,
    csv::FORMAT,
    parquet::FORMAT,
    memory_viz::FORMAT,
    html::FORMAT,
];

/// In the place of Parquet in a build without it.
#[cfg(not(feature = "parquet"))]
mod parquet {
    pub const FORMAT: super::Format = super::Format {
        name: "parquet",
        about: "One row per live allocation, typed and compressed (not in this build)",
        endings: &[".parquet"],
        can: &[],
        write: |_, _| Err(std::io::ErrorKind::Unsupported.into()),
    };
}

impl Format {
    pub fn has(&self, ability: Ability) -> bool {
        self.can.contains(&ability)
    }
}

impl fmt::Debug for Format {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name)
    }
}

/// The names of some formats: `pprof, folded or html`.
pub fn names(some: impl Fn(&Format) -> bool, before_last: &str) -> String {
    let names = FORMATS.iter().filter(|format| some(format));
    let names: Vec<&str> = names.map(|format| format.name).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} {before_last} {last}", others.join(", ")),
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
