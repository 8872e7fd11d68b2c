//! Snapshots in the formats of other tools: one file each. A new format is a file, and a row of [`FORMATS`].
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
mod input;
pub mod memory_viz;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod perfetto;
pub mod pprof;
pub mod protobuf;
pub mod records;
pub mod speedscope;
pub mod window;

use std::io::{self, Write};

pub use input::{Input, called};

/// A format of another tool.
#[derive(Debug)]
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
}

macro_rules! formats {
    ($($name:literal, $about:expr, $endings:expr, [$($can:ident),+], $write:path;)+) => {
        /// All formats.
        pub static FORMATS: &[Format] = &[$(Format {
            name: $name, about: $about, endings: &$endings, can: &[$(Ability::$can),+], write: $write
        }),+];
    };
}

formats! {
    "pprof", "Gzipped protobuf for pprof", [".pb.gz", ".pprof"],
        [Stacks, Objects, Segments, Processes, Suppressions], pprof::export;
    "speedscope", "JSON for speedscope", [".speedscope.json"],
        [Stacks, Segments, Processes, Suppressions], speedscope::export;
    "folded", "One line per stack, for flamegraph.pl, inferno and speedscope", [".folded"],
        [Stacks, Objects, Segments, Processes, Suppressions], folded::export;
    "perfetto", "Trace with counters over time, for ui.perfetto.dev", [".pftrace"],
        [Times, Processes, Snapshots], perfetto::export;
    "firefox", "Processed profile, for profiler.firefox.com", [],
        [Processes, Suppressions], firefox::export;
    "csv", "One row per live allocation", [".csv"],
        [Objects, Segments, Processes, Suppressions], csv::export;
    "parquet", parquet::ABOUT, [".parquet"],
        [Objects, Segments, Processes, Suppressions], parquet::export;
    "memory_viz", "PyTorch memory snapshot, for pytorch.org/memory_viz", [".pickle", ".pkl"],
        [Times, Suppressions], memory_viz::export;
}

/// In the place of Parquet in a build without it, which `culeak export` refuses.
#[cfg(not(feature = "parquet"))]
mod parquet {
    pub const ABOUT: &str = "One row per live allocation, typed and compressed (not in this build)";

    pub fn export(_: &crate::export::Input, _: &mut dyn std::io::Write) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

impl Format {
    pub fn has(&self, ability: Ability) -> bool {
        self.can.contains(&ability)
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

#[cfg(test)]
mod tests;
