//! The past of one running process, in little memory: a summary every now and then, for an agent that judges growth while the
//! process runs.
//!
//! A call site's text is kept once, and a point has numbers only. If there are too many points, every second one is dropped and
//! the distance between points doubles, so a history covers the whole life of the process with 60 to 120 points. The judgement is
//! that of [`Trend::of`].

use super::summary::{Process, Site, Summary, SummaryRow};
use super::{Options, Trend};
use crate::analysis::pairing::Key;
use crate::analysis::program::Program;
use crate::analysis::tally::Tally;
use foldhash::HashMap;

/// The most points, an even number.
pub const POINTS_MAX: usize = 120;
/// The most call sites. Later ones are not followed.
const SITES_MAX: usize = 1 << 14;

/// Points of one process, in order of time.
#[derive(Debug, Clone, Default)]
pub struct History {
    process: Option<(Program, Process)>,
    sites: Vec<(Key, Site)>,
    numbers: HashMap<(u64, bool), u32>,
    points: Vec<Point>,
    /// The least time between two points.
    spacing_ns: u64,
    last: Option<Summary>,
}

#[derive(Debug, Clone)]
struct Point {
    at_ns: u64,
    marks: u64,
    objects_known: bool,
    /// By number of the site.
    rows: Vec<(u32, Tally, Option<Box<str>>)>,
}

impl History {
    /// A history whose points are at least this far apart.
    pub fn spaced(spacing_ns: u64) -> History {
        History {
            spacing_ns,
            ..History::default()
        }
    }

    pub fn points(&self) -> usize {
        self.points.len()
    }

    /// Whether the next point may have this time.
    pub fn wants(&self, at_ns: u64) -> bool {
        let last = self.points.last().map(|point| point.at_ns);
        last.is_none_or(|last| at_ns >= last.saturating_add(self.spacing_ns.max(1)))
    }

    /// Adds a point if it is late enough, and keeps what is known of the process. Summaries of another process and of the end
    /// of the process are left out.
    pub fn add(&mut self, mut summary: Summary) {
        let process = (&summary.program, &summary.process);
        let known = self
            .process
            .get_or_insert_with(|| (process.0.clone(), process.1.clone()));
        if summary.at_end || (&known.0, &known.1) != process {
            return;
        }
        if self.wants(summary.at_ns) {
            let rows = std::mem::take(&mut summary.rows);
            let rows = rows.into_iter().filter_map(|row| self.row(row)).collect();
            self.push(Point {
                at_ns: summary.at_ns,
                marks: summary.marks,
                objects_known: summary.objects_known,
                rows,
            });
        }
        summary.rows = Vec::new();
        self.last = Some(summary);
    }

    /// Adds a point at which all call sites hold what they held before.
    pub fn repeat(&mut self, at_ns: u64) {
        if let Some(last) = self.points.last()
            && self.wants(at_ns)
        {
            let point = Point { at_ns, ..last.clone() };
            self.push(point);
        }
    }

    /// Judges the process. `None` before the first point.
    pub fn trend(&self, options: &Options) -> Option<Trend> {
        let last = self.last.as_ref()?;
        let changing = self.changing();
        let summary = |point: &Point| Summary {
            at_ns: point.at_ns,
            marks: point.marks,
            objects_known: point.objects_known,
            exact: None,
            rows: point
                .rows
                .iter()
                .filter(|(number, ..)| changing[*number as usize])
                .map(|(number, tally, device)| {
                    let (key, site) = &self.sites[*number as usize];
                    SummaryRow {
                        key: *key,
                        site: site.clone(),
                        tally: *tally,
                        is_estimate: last.sampling.is_some(),
                        device: device.as_deref().map(str::to_owned),
                    }
                })
                .collect(),
            ..last.clone()
        };
        let summaries: Vec<Summary> = self.points.iter().map(summary).collect();
        (!summaries.is_empty()).then(|| Trend::of(&summaries, options))
    }

    /// By number of the site: whether it differs between two points. The others are steady.
    fn changing(&self) -> Vec<bool> {
        let mut seen: Vec<Option<(Tally, usize)>> = vec![None; self.sites.len()];
        let mut changing = vec![false; self.sites.len()];
        for (number, tally, _) in self.points.iter().flat_map(|point| &point.rows) {
            let number = *number as usize;
            match &mut seen[number] {
                Some((first, count)) => {
                    changing[number] |= first != tally;
                    *count += 1;
                }
                first => *first = Some((*tally, 1)),
            }
        }
        let everywhere = self.points.len();
        for (changes, seen) in changing.iter_mut().zip(seen) {
            *changes |= seen.is_none_or(|(_, count)| count != everywhere);
        }
        changing
    }

    fn row(&mut self, row: SummaryRow) -> Option<(u32, Tally, Option<Box<str>>)> {
        let print = (row.key.exact.0, row.key.pool);
        let number = match self.numbers.get(&print) {
            Some(&number) => number,
            None if self.sites.len() == SITES_MAX => return None,
            None => {
                let number = self.sites.len() as u32;
                let site = Site {
                    stack: Vec::new(),
                    ..row.site
                };
                self.sites.push((row.key, site));
                self.numbers.insert(print, number);
                number
            }
        };
        Some((number, row.tally, row.device.map(String::into_boxed_str)))
    }

    fn push(&mut self, point: Point) {
        self.points.push(point);
        if self.points.len() < POINTS_MAX {
            return;
        }
        let span = |points: &[Point]| points.last().map_or(0, |last| last.at_ns) - points[0].at_ns;
        let mut nth = 0;
        // The last point stays.
        self.points.retain(|_| {
            nth += 1;
            nth % 2 == 0
        });
        self.spacing_ns = self.spacing_ns.max(span(&self.points) / self.points.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::trend::Class;
    use crate::sample::leaky;
    use crate::snapshot::{ProcessState, Snapshot};

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64, bytes: u64) -> Snapshot {
        let mut snapshot = leaky();
        snapshot.process.state = ProcessState::Running;
        snapshot.taken.at_ns = seconds * SECOND;
        snapshot.allocations.rows[0].bytes += bytes;
        snapshot
    }

    fn summary(seconds: u64, bytes: u64) -> Summary {
        Summary::of(&at(seconds, bytes), "a.culeak".to_owned(), &Options::default())
    }

    fn history(points: u64, bytes: impl Fn(u64) -> u64) -> History {
        let mut history = History::spaced(SECOND);
        for second in 1..=points {
            history.add(summary(second, bytes(second)));
        }
        history
    }

    #[test]
    fn the_judgement_is_that_of_a_trend_of_all_snapshots() {
        let bytes = |second| second << 20;
        let summaries: Vec<Summary> = (1..=20).map(|second| summary(second, bytes(second))).collect();
        let expected = Trend::of(&summaries, &Options::default());
        let trend = history(20, bytes).trend(&Options::default()).expect("points");
        assert_eq!(trend.classes.growing, 1);
        let of = |trend: &Trend| {
            (
                trend.rows[0].site.label.clone(),
                trend.rows[0].class,
                trend.rows[0].bytes.clone(),
            )
        };
        assert_eq!(of(&trend), of(&expected));
        assert_eq!(trend.devices, expected.devices);
    }

    #[test]
    fn a_long_history_covers_the_whole_life_with_few_points() {
        let history = history(700, |second| second << 12);
        assert!(
            (POINTS_MAX / 2 - 1..POINTS_MAX).contains(&history.points()),
            "{}",
            history.points()
        );
        let trend = history.trend(&Options::default()).expect("points");
        assert_eq!(trend.rows[0].class, Class::Growing);
        let first = trend.points[0].at_ns / SECOND;
        assert!(first < 100, "{first}");
        let pace = trend.rows[0].bytes.pace / 3600.0;
        assert!((pace - 4096.0).abs() < 1.0, "{pace}");
    }

    #[test]
    fn a_process_without_events_is_steady() {
        let mut history = history(1, |_| 0);
        for second in 2..=20 {
            history.repeat(second * SECOND);
        }
        assert_eq!(history.points(), 20);
        let trend = history.trend(&Options::default()).expect("points");
        assert!(!trend.is_growing() && !trend.too_few && trend.rows.is_empty());
    }

    #[test]
    fn points_that_are_too_close_and_other_processes_are_left_out() {
        let mut history = history(3, |_| 0);
        history.repeat(3 * SECOND + 1);
        let mut other = at(9, 0);
        other.process.pid += 1;
        history.add(Summary::of(&other, String::new(), &Options::default()));
        let mut ended = at(9, 0);
        ended.process.state = ProcessState::Exited;
        history.add(Summary::of(&ended, String::new(), &Options::default()));
        assert_eq!(history.points(), 3);
    }
}
