//! Growth over many snapshots: which call sites gain memory, how fast, how surely, and which have stopped.
//!
//! ```text
//! snapshots ─► snapshots ─► lineages ──────────► points and series ─► judged, each process by itself ─► rows, a sentence each
//!              snapshot.rs  lineage.rs           series.rs            judge.rs (statistics.rs)           sentence.rs
//!              what counts one program after    bytes and blocks
//!                          another, in order    of each site
//! ```
//!
//! A *lineage* is one process, or one program that was restarted: its processes stand behind each other in time, and
//! each is judged by itself, since a restart gives everything back. Processes that ran side by side are lineages of their
//! own. The snapshot of a finished process takes no part in its slope, because what a program holds at its end is another
//! matter than what it holds at work; it tells whether that was given back ([`Class::FreedOnlyAtExit`]).
//!
//! Deliberately absent: a verdict. A class is an observation with its evidence beside it.

use serde::Serialize;

use crate::analysis::program::Program;
use crate::analysis::report::By;
use crate::analysis::tally::Tally;
use crate::kind::Kind;

mod judge;
mod lineage;
mod sentence;
mod series;
mod statistics;
mod summary;

pub use judge::{Class, POINTS_NEEDED, Steps};
pub use lineage::{lineages, programs};
pub use summary::{Process, Site, SiteFrame, Summary};

/// The value of [`Trend::format`].
pub const FORMAT: &str = "culeak-trend";
pub const VERSION: u32 = 2;

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// [`By::Site`] or [`By::Stack`].
    pub by: By,
    pub against: Against,
    /// Only these kinds; all when empty.
    pub kinds: Vec<Kind>,
    pub top: Option<usize>,
    /// Rows that never held as much are cut.
    pub min_bytes: u64,
    /// Rows without a single change too.
    pub all: bool,
}

/// What growth is held against.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Against {
    #[default]
    Time,
    /// Moments the program has named.
    Marks,
    /// Runs of the program, each with one snapshot. Never asked for: it follows from the snapshots.
    Runs,
}

impl Against {
    /// What a pace is per.
    pub fn unit(self) -> &'static str {
        match self {
            Against::Time => "hour",
            Against::Marks => "mark",
            Against::Runs => "run",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trend {
    pub format: &'static str,
    pub version: u32,
    pub program: Program,
    pub against: Against,
    /// In the order of time; [`Point::process`] is an index into it.
    pub processes: Vec<ProcessSpan>,
    /// In the order of time. Every row has one value for each.
    pub points: Vec<Point>,
    /// As many points of one process are needed for a judgement.
    pub points_needed: usize,
    /// No process has as many.
    pub too_few: bool,
    /// Growth was to be held against marks, and no process passed one between two of its points: nothing is judged.
    pub no_marks: bool,
    /// Most suspicious first; among equals, by `score`.
    pub rows: Vec<Row>,
    /// Rows that `--top`, `--min-bytes` and the lack of any change cut off.
    pub hidden_rows: usize,
    pub classes: Classes,
    pub devices: Vec<DeviceTrend>,
    pub warnings: Vec<String>,
}

/// A process and which part of it the snapshots show.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessSpan {
    #[serde(flatten)]
    pub process: Process,
    /// The last snapshot shows what it left at its end.
    pub finished: bool,
    pub points: usize,
}

/// One snapshot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    pub source: String,
    pub process: usize,
    pub at_unix_ns: u64,
    /// Since its process began.
    pub at_ns: u64,
    /// What growth is held against: hours since the first point, marks passed, or the number of the run.
    pub x: f64,
    pub marks: u64,
    /// The moment's name, as the program calls it.
    pub mark: Option<String>,
    /// What was left when the process was over; takes no part in slopes.
    pub at_end: bool,
    /// All sites together.
    pub held: Tally,
}

/// How many call sites there are of each class, hidden ones too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Classes {
    pub growing: usize,
    pub freed_only_at_exit: usize,
    pub slowing: usize,
    pub grew_then_bounded: usize,
    pub periodic: usize,
    pub irregular: usize,
    pub shrinking: usize,
    pub steady: usize,
    pub too_few: usize,
}

/// One call site over all points.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub site: Site,
    pub class: Class,
    /// Which of the two series decided the class.
    pub judged_by: Measure,
    /// 0 to 1, of that series.
    pub confidence: f64,
    /// `confidence` × bytes gained: what rows of one class are sorted by.
    pub score: f64,
    /// In how many of the processes with enough points it was of this class, and how many have enough.
    pub agreeing: usize,
    pub judged: usize,
    pub bytes: Evidence,
    pub count: Evidence,
    /// Where most of it is, and after how many units that device is full at this row's pace alone.
    pub device: Option<String>,
    pub full_after: Option<f64>,
    /// The whole of it in words.
    pub sentence: String,
    /// One value per point; 0 where the site was absent.
    pub series: Series,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    Bytes,
    Count,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Series {
    pub bytes: Vec<u64>,
    pub counts: Vec<u64>,
}

/// What speaks for a class; of the process that was judged (the one with most points, of several the last).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    pub class: Class,
    pub confidence: f64,
    /// Per hour, mark or run, by Theil and Sen; between `pace_low` and `pace_high` with 95 % confidence.
    pub pace: f64,
    pub pace_low: f64,
    pub pace_high: f64,
    /// The share of the movement that this pace explains.
    pub r_squared: f64,
    /// How likely a series without trend would rise so consistently.
    pub chance: f64,
    pub steps: Steps,
    pub first: u64,
    pub last: u64,
    pub least: u64,
    pub most: u64,
    /// Growing: the point from which on, if not from the first. Bounded: the point at which it stopped.
    pub since: Option<usize>,
    /// Periodic: in the units of `pace`.
    pub period: Option<f64>,
    /// What was left when the process was over.
    pub at_end: Option<u64>,
}

/// What all growing sites of a device come to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceTrend {
    pub label: String,
    pub name: String,
    pub total_bytes: Option<u64>,
    pub used_bytes: Option<u64>,
    /// Of the growing call sites together, per unit.
    pub pace: f64,
    /// At that pace, in units.
    pub full_after: Option<f64>,
}

impl Trend {
    /// Judges one lineage.
    pub fn of(summaries: &[Summary], options: &Options) -> Trend {
        series::trend(summaries, options)
    }

    pub fn is_growing(&self) -> bool {
        self.classes.growing + self.classes.freed_only_at_exit > 0
    }
}

impl Classes {
    fn add(&mut self, class: Class) {
        *match class {
            Class::Growing => &mut self.growing,
            Class::FreedOnlyAtExit => &mut self.freed_only_at_exit,
            Class::Slowing => &mut self.slowing,
            Class::GrewThenBounded => &mut self.grew_then_bounded,
            Class::Periodic => &mut self.periodic,
            Class::Irregular => &mut self.irregular,
            Class::Shrinking => &mut self.shrinking,
            Class::Steady => &mut self.steady,
            Class::TooFew => &mut self.too_few,
        } += 1;
    }
}

#[cfg(test)]
mod tests;
