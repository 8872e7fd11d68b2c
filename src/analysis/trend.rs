//! Trends over many snapshots: which call sites grow, how fast, how certain that is, and which have stopped.
//!
//! ```text
//! snapshots ─► facts ──────► lineages ──────────► points and series ─► classes, per process ────► rows, a sentence each
//!              facts.rs      lineage.rs           series.rs            judge.rs (statistics.rs)   sentence.rs
//!              bytes, blocks processes of one     bytes and blocks
//!              per site      program, in order    of each site
//! ```
//!
//! A *lineage* is one process, or the processes of a program that was restarted, in order of time. Each process is
//! judged by itself, because a restart frees everything. Processes that ran at the same time are separate lineages. The
//! snapshot of a finished process does not count for the slope: what a program holds at its end is not comparable with
//! what it holds while it works. It shows whether the memory was freed at the end ([`Class::FreedOnlyAtExit`]).
//!
//! Deliberately absent: a verdict. A class is an observation with its evidence.

use std::ops::Deref;

use serde::{Serialize, Serializer};

use crate::analysis::filter::Filter;
use crate::analysis::job::member::Member;
use crate::analysis::opaque::OpaquePool;
use crate::analysis::program::Program;
use crate::analysis::report::By;
use crate::snapshot::Snapshot;
use crate::tally::Tally;

mod history;
mod judge;
mod lineage;
mod sentence;
mod series;
mod statistics;
mod unjudged;

/// The facts of a snapshot, or of the snapshots of a lineage.
pub use crate::analysis::facts::Facts as Summary;
pub use crate::analysis::facts::Process;
pub use crate::analysis::site::text::{Site, SiteFrame};
pub use history::History;
pub use judge::{Class, Judgement, POINTS_NEEDED, Steps};
pub use lineage::{lineages, programs};

/// The value of [`Trend::format`].
pub const FORMAT: &str = "culeak-trend";
pub const VERSION: u32 = 2;

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// [`By::Site`], [`By::Stack`] or [`By::Forward`].
    pub by: By,
    pub against: Against,
    /// Other memory is left out.
    pub filter: Filter,
    pub top: Option<usize>,
    /// Rows that never held this much are cut off.
    pub min_bytes: u64,
    /// Include rows that never change.
    pub all: bool,
}

/// What growth is measured against.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Against {
    #[default]
    Time,
    /// The number of marks that the program set.
    Marks,
    /// Runs of the program, each with one snapshot. Not an option: it follows from the snapshots.
    Runs,
}

impl Against {
    /// The unit that a pace is per.
    pub fn unit(self) -> &'static str {
        match self {
            Against::Time => "hour",
            Against::Marks => "mark",
            Against::Runs => "run",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Trend {
    pub format: &'static str,
    pub version: u32,
    pub program: Program,
    pub against: Against,
    /// In order of time; [`Point::process`] is an index into it.
    pub processes: Vec<ProcessSpan>,
    /// In order of time. Each row has one value for each.
    pub points: Vec<Point>,
    /// The number of points of one process that a judgement needs.
    pub points_needed: usize,
    /// No process has enough points.
    pub too_few: bool,
    /// Growth is measured against marks, but no process set one between two of its points, so nothing is judged.
    pub no_marks: bool,
    /// Growth is measured against marks, but no process passed `points_needed` different numbers of marks, so nothing is
    /// judged.
    pub too_few_marks: bool,
    /// The number of processes with too few points, or too few marks if growth is measured against them.
    #[serde(skip)]
    pub short_processes: usize,
    /// What else was not judged, in sentences `what; what to do`.
    #[serde(skip)]
    pub unjudged: Vec<String>,
    /// Most suspicious first; among equals, the program's own sites first, then by `score`.
    pub rows: Vec<Row>,
    /// Rows that `--top` and `--min-bytes` cut off, and rows that never change.
    pub hidden_rows: usize,
    pub classes: Classes,
    /// Number of call sites that grow until the end of the process, those that it frees then included: `--fail-on growing` fails if
    /// there is one.
    pub growing: usize,
    pub devices: Vec<DeviceTrend>,
    /// Pools whose blocks were not recorded, before the process ended: what grows in them is unknown.
    pub opaque_pools: Vec<OpaquePool>,
    pub warnings: Vec<String>,
}

/// A process, and the part of its life that the snapshots show.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessSpan {
    #[serde(flatten)]
    pub process: Process,
    #[serde(skip)]
    pub member: Member,
    /// The last snapshot shows what the process left when it ended.
    pub finished: bool,
    pub points: usize,
}

/// One snapshot.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Point {
    pub source: String,
    pub process: usize,
    pub at_unix_ns: u64,
    /// Time since its process began.
    pub at_ns: u64,
    /// Hours since the first point, marks set so far, or the number of the run, by [`Against`].
    pub x: f64,
    pub marks: u64,
    /// Name of the last mark.
    pub mark: Option<String>,
    /// What was left when the process ended; does not count for slopes.
    pub at_end: bool,
    /// Nothing that a report counts is missing.
    #[serde(skip)]
    pub is_complete: bool,
    /// The sum of all sites.
    pub held: Tally,
}

/// Number of call sites of each class, including hidden ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Classes([usize; Class::ALL.len()]);

impl Classes {
    pub fn add(&mut self, class: Class) {
        self.0[class as usize] += 1;
    }

    /// Most suspicious first.
    pub fn each(&self) -> impl Iterator<Item = (Class, usize)> {
        Class::ALL.iter().copied().zip(self.0)
    }

    pub fn of(&self, class: Class) -> usize {
        self.0[class as usize]
    }

    /// Those that grow until the end of the process.
    pub fn growing(&self) -> usize {
        self.of(Class::Growing) + self.of(Class::FreedOnlyAtExit)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Classes {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Classes".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        std::collections::BTreeMap::<String, usize>::json_schema(generator)
    }
}

impl Serialize for Classes {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_map(self.each())
    }
}

/// One call site over all points.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Row {
    pub site: Site,
    pub class: Class,
    /// The series that decided the class.
    pub judged_by: Measure,
    /// 0 to 1, of that series.
    pub confidence: f64,
    /// `confidence` × bytes gained, by which rows of one class are sorted.
    pub score: f64,
    /// Number of judged processes with this class.
    pub agreeing: usize,
    /// Number of processes with enough points.
    pub judged: usize,
    pub bytes: Evidence,
    pub count: Evidence,
    /// The device that holds most of it.
    pub device: Option<String>,
    /// Units until that device is full, if only this row grows.
    pub full_after: Option<f64>,
    /// Some of its values are estimates from sampled stacks.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_estimate: bool,
    /// In a process with enough points it may still grow, but too few points show it: it appeared, began or stopped growing late, or
    /// slowed without stopping.
    #[serde(skip)]
    pub rises_late: bool,
    /// The row as a sentence.
    pub sentence: String,
    /// One value per point; 0 if the site was absent.
    pub series: Series,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    Bytes,
    Count,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Series {
    pub bytes: Vec<u64>,
    pub counts: Vec<u64>,
}

/// The evidence for a class, from a process in which the site grows, else from any; of those, from the one with most points, and among
/// several the last. Points are those of all processes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Evidence {
    #[serde(flatten)]
    pub judgement: Judgement,
    pub first: u64,
    pub last: u64,
    pub least: u64,
    pub most: u64,
    /// What was left when the process ended.
    pub at_end: Option<u64>,
}

impl Deref for Evidence {
    type Target = Judgement;

    fn deref(&self) -> &Judgement {
        &self.judgement
    }
}

/// The growth of a device.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceTrend {
    pub label: String,
    pub name: String,
    pub total_bytes: Option<u64>,
    pub used_bytes: Option<u64>,
    /// Of all growing call sites together, per unit.
    pub pace: f64,
    /// Of those together that grew and were freed only at exit, per unit.
    pub pace_until_exit: f64,
    /// Units until the device is full at both paces.
    pub full_after: Option<f64>,
}

impl Summary {
    /// The facts of a snapshot that a trend needs.
    pub fn of(snapshot: &Snapshot, source: String, options: &Options) -> Summary {
        Summary::by(snapshot, source, options.by, &options.filter)
    }
}

impl Trend {
    pub fn is_growing(&self) -> bool {
        self.growing > 0
    }

    /// The last point, and what was left at exit if that is a point after it. Rows end at the former.
    pub fn end(&self) -> Option<(&Point, Option<&Point>)> {
        let (last, before) = self.points.split_last()?;
        match before.last() {
            Some(running) if last.at_end && running.process == last.process => Some((running, Some(last))),
            _ => Some((last, None)),
        }
    }
}

#[cfg(test)]
mod tests;
