//! The past of one running process, in little memory: its facts every now and then, for an agent that judges growth while the
//! process runs.
//!
//! A call site's text is kept once, and a point has numbers only. If there are too many points, every second one is dropped and
//! the distance between points doubles, so a history covers the whole life of the process with 60 to 120 points. The judgement is
//! that of [`Trend::of`].

use super::{Options, Trend};
use crate::analysis::facts::{Facts, Instant, Row};
use crate::tally::Tally;

/// The most points, an even number.
pub const POINTS_MAX: usize = 120;
/// The most call sites. Later ones are not followed.
const SITES_MAX: usize = 1 << 14;

/// Points of one process, in order of time.
#[derive(Debug, Clone, Default)]
pub struct History {
    facts: Facts,
    /// The least time between two points.
    spacing_ns: u64,
    /// The latest, which need not be a point.
    last: Option<Instant>,
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
        self.facts.instants.len()
    }

    /// Whether the next point may have this time.
    pub fn wants(&self, at_ns: u64) -> bool {
        let last = self.facts.instants.last().map(|instant| instant.at_ns);
        last.is_none_or(|last| at_ns >= last.saturating_add(self.spacing_ns.max(1)))
    }

    /// Adds the facts of a snapshot as a point if they are late enough, and keeps what is known of the process. Those of another
    /// process and of the end of the process are left out.
    pub fn add(&mut self, facts: Facts) {
        let instant = facts.instants[0].clone();
        let of = |instant: &Instant| (instant.member.program.clone(), instant.process.clone());
        if instant.at_end || self.last.as_ref().is_some_and(|last| of(last) != of(&instant)) {
            return;
        }
        if self.wants(instant.at_ns) {
            self.facts.fold_at_most(facts.without_stacks(), SITES_MAX);
            self.limit();
        }
        self.last = Some(instant);
    }

    /// Adds a point at which all call sites hold what they held before.
    pub fn repeat(&mut self, at_ns: u64) {
        if let Some(last) = self.facts.instants.last()
            && self.wants(at_ns)
        {
            self.facts.repeat_last(Instant { at_ns, ..last.clone() });
            self.limit();
        }
    }

    /// Judges the process. `None` before the first point.
    pub fn trend(&self, options: &Options) -> Option<Trend> {
        let last = self.last.as_ref().filter(|_| self.points() > 0)?;
        let mut facts = self.facts.clone();
        for instant in &mut facts.instants {
            *instant = Instant {
                at_ns: instant.at_ns,
                marks: instant.marks,
                objects_known: instant.objects_known,
                exact: None,
                ..last.clone()
            };
        }
        let changes = self.changing();
        facts.rows.retain(|row| changes[row.site as usize]);
        Some(Trend::of(&facts, options))
    }

    /// By number of the site: whether it differs between two points. The others are steady.
    fn changing(&self) -> Vec<bool> {
        let mut seen: Vec<Option<(Tally, usize)>> = vec![None; self.facts.sites.len()];
        let mut changing = vec![false; self.facts.sites.len()];
        for Row { site, tally, .. } in &self.facts.rows {
            let site = *site as usize;
            match &mut seen[site] {
                Some((first, count)) => {
                    changing[site] |= first != tally;
                    *count += 1;
                }
                first => *first = Some((*tally, 1)),
            }
        }
        let everywhere = self.points();
        for (changes, seen) in changing.iter_mut().zip(seen) {
            *changes |= seen.is_none_or(|(_, count)| count != everywhere);
        }
        changing
    }

    fn limit(&mut self) {
        if self.points() < POINTS_MAX {
            return;
        }
        // The last point stays.
        self.facts.keep_points(|nth| nth % 2 == 1);
        let instants = &self.facts.instants;
        let span = instants[instants.len() - 1].at_ns - instants[0].at_ns;
        self.spacing_ns = self.spacing_ns.max(span / instants.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::trend::{Class, Summary};
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
        let summaries = Summary::folded((1..=20).map(|second| summary(second, bytes(second))));
        let expected = Trend::of(&summaries, &Options::default());
        let trend = history(20, bytes).trend(&Options::default()).expect("points");
        assert_eq!(trend.classes.growing(), 1);
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
        let history = history(280, |second| second << 12);
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
