//! `culeak check --at mark:NAME --same-as-last` and `--not-above SIZE`: what a program holds at a mark that it sets again and
//! again.
//!
//! The state at a mark comes from the event log of a recording, or else from the automatic snapshots beside it that were taken
//! at marks of this name.

use std::path::Path;

use clap::Args;
use culeak::analysis::boundaries::{self, Boundary, HeldAt, was_taken_at};
use culeak::analysis::check::{self, BySite, Rules};
use culeak::point::Point;
use culeak::snapshot::Snapshot;
use culeak::timeline::Timeline;

use crate::errors::Failure;
use crate::load::{self, Loaded, Place};
use crate::options::NameArgs;
use crate::options::rules::RuleArgs;
use crate::text::units;

/// Compare what is held at a mark that the program sets again and again
#[derive(Debug, Args)]
pub struct BoundaryArgs {
    /// Fail if a call site holds more at the last mark than at the previous mark of this name; with limits, if it is over them
    #[arg(long, requires = "at", group = "boundary", conflicts_with_all = ["update_baseline", "since"])]
    pub same_as_last: bool,
    /// Fail if more than SIZE was held at any mark of this name
    #[arg(
        long, value_name = "SIZE", requires = "at", group = "boundary", value_parser = units::parse_size,
        conflicts_with_all = ["update_baseline", "same_as_last", "max_leaked"]
    )]
    pub not_above: Option<u64>,
}

/// An input as it was at the mark, and the rules for it.
pub struct AtBoundary {
    pub item: Loaded,
    pub rules: Rules,
}

impl BoundaryArgs {
    /// # Errors
    /// There is a baseline too, maybe from the config file, or a limit of objects.
    pub fn suits(&self, rules: &RuleArgs) -> Result<(), Failure> {
        match (self.is_given(), &rules.baseline) {
            (true, Some(path)) => Err(Failure::new(format!(
                "--baseline {}: a baseline holds the leaks of another run, but --same-as-last and --not-above compare marks of \
                 one run; leave out one of them, or pass --no-config if the config file names the baseline",
                path.display()
            ))),
            (true, None) if !rules.max_objects.is_empty() => Err(Failure::new(
                "--max-objects: objects are judged at one point, but --same-as-last and --not-above compare memory at several \
                 marks; judge objects in a check of their own, or pass --no-config if the config file limits them",
            )),
            _ => Ok(()),
        }
    }

    pub fn is_given(&self) -> bool {
        self.same_as_last || self.not_above.is_some()
    }

    /// Reads an input as it was at the mark.
    ///
    /// # Errors
    /// It cannot be read, has no such mark, no state of it is known, or call sites are estimates.
    pub fn load(&self, place: &Place, rules: &Rules, names: &NameArgs) -> Result<AtBoundary, Failure> {
        let mark = mark(rules)?;
        let (mut item, timeline) = load::timeline::with_log_if_any(place)?;
        // Rules match names, which all states share.
        names.name_frames(&mut item);
        let source = item.source.clone();
        if self.same_as_last && item.snapshot.sampling.is_some() {
            return Err(Failure::new(format!(
                "{source}: --same-as-last compares call sites, and the stacks were sampled, so a difference may be chance; record \
                 without --sample, or limit the whole with --not-above"
            )));
        }
        let found = match (self.not_above, timeline) {
            (None, Some(timeline)) => same_as_last(&mut item, mark, &timeline, rules),
            (None, None) => same_as_last_snapshot(&mut item, mark, rules, names),
            (Some(_), Some(timeline)) => highest(&mut item, mark, &timeline, rules).map(alone),
            (Some(_), None) => highest_of_snapshots(&mut item, mark, rules, names).map(alone),
        };
        let (boundary, previous) = found.map_err(|reason| Failure::new(format!("{source}: {reason}")))?;
        item.snapshot.taken.point = Some(Point::Mark(mark.to_owned()));
        let mut rules = rules.clone();
        rules.limits.max_leaked = self.not_above.or(rules.limits.max_leaked);
        rules.boundary = Some(boundary);
        rules.previous = previous;
        Ok(AtBoundary { item, rules })
    }
}

/// The name of the mark.
fn mark(rules: &Rules) -> Result<&str, Failure> {
    match &rules.at {
        Some(Point::Mark(name)) => Ok(name),
        other => {
            let other = other.as_ref().map_or_else(String::new, ToString::to_string);
            Err(Failure::new(format!(
                "--at {other}: --same-as-last and --not-above compare marks that the program sets again and again; name one \
                 with --at mark:NAME"
            )))
        }
    }
}

/// A boundary, and what was held at the previous one if they are compared.
type Compared = (Boundary, Option<BySite>);

fn alone(boundary: Boundary) -> Compared {
    (boundary, None)
}

/// The program's state at the last mark, and what it held at the previous one.
fn same_as_last(item: &mut Loaded, mark: &str, timeline: &Timeline, rules: &Rules) -> Result<Compared, String> {
    let boundary = boundaries::last(&item.snapshot, mark)?;
    let previous = boundary.previous_ns.unwrap_or(0);
    if previous < timeline.since_ns {
        return Err(before_log(mark, previous, timeline));
    }
    let (mut before, mut at_mark) = (None, None);
    boundaries::states(
        &item.snapshot,
        timeline,
        &[previous, boundary.time_ns],
        |number, state| match number {
            0 => before = Some(check::judged_by_site(state, rules)),
            _ => at_mark = Some(state.clone()),
        },
    );
    item.snapshot = at_mark.ok_or_else(|| before_log(mark, previous, timeline))?;
    Ok((boundary, before))
}

fn before_log(mark: &str, time_ns: u64, timeline: &Timeline) -> String {
    format!(
        "the mark {mark:?} was set {} after the start, before the event log begins ({}), because the log was full; record with a \
         larger --timeline=SIZE",
        units::duration(time_ns),
        units::duration(timeline.since_ns)
    )
}

fn same_as_last_snapshot(item: &mut Loaded, mark: &str, rules: &Rules, names: &NameArgs) -> Result<Compared, String> {
    // The recording may know later marks, of which there is no snapshot.
    let known = boundaries::last(&item.snapshot, mark)?;
    let mut found = at_marks(item, mark, names)?;
    let last = found.pop().ok_or_else(|| no_state(item, mark))?;
    let boundary = boundaries::last(&last.snapshot, mark)?;
    let before = found.pop().ok_or_else(|| {
        format!(
            "what was held at the previous mark {mark:?} is not known: there is only one snapshot of this mark; name the \
             recording that it lies beside, or record again with culeak run --timeline"
        )
    })?;
    let previous = boundaries::times(&before.snapshot, mark)?.last().copied();
    let held = check::judged_by_site(&before.snapshot, rules);
    *item = last;
    let boundary = Boundary {
        count: known.count.max(boundary.count),
        previous_ns: previous,
        ..boundary
    };
    Ok((boundary, Some(held)))
}

fn highest(item: &mut Loaded, mark: &str, timeline: &Timeline, rules: &Rules) -> Result<Boundary, String> {
    let times = boundaries::times(&item.snapshot, mark)?;
    let mut held = Vec::new();
    let mut highest: Option<(usize, u64, Snapshot)> = None;
    boundaries::states(&item.snapshot, timeline, &times, |number, state| {
        let tally = check::judged(state, rules);
        let time_ns = times[number];
        held.push(HeldAt { time_ns, tally });
        if highest.as_ref().is_none_or(|(_, bytes, _)| tally.bytes > *bytes) {
            highest = Some((number, tally.bytes, state.clone()));
        }
    });
    let last = times.last().copied().unwrap_or(0);
    let (number, _, state) = highest.ok_or_else(|| before_log(mark, last, timeline))?;
    item.snapshot = state;
    Ok(Boundary {
        mark: mark.to_owned(),
        number: number + 1,
        count: times.len(),
        time_ns: times[number],
        previous_ns: None,
        held,
    })
}

fn highest_of_snapshots(item: &mut Loaded, mark: &str, rules: &Rules, names: &NameArgs) -> Result<Boundary, String> {
    let count = boundaries::times(&item.snapshot, mark)?.len();
    let found = at_marks(item, mark, names)?;
    let mut held = Vec::new();
    let mut highest: Option<(usize, u64, Loaded)> = None;
    for at_mark in found {
        // Its mark is the last that it knows.
        let times = boundaries::times(&at_mark.snapshot, mark)?;
        let tally = check::judged(&at_mark.snapshot, rules);
        let time_ns = times.last().copied().unwrap_or(at_mark.snapshot.taken.at_ns);
        held.push(HeldAt { time_ns, tally });
        if highest.as_ref().is_none_or(|(_, bytes, _)| tally.bytes > *bytes) {
            highest = Some((times.len(), tally.bytes, at_mark));
        }
    }
    let (number, _, at_mark) = highest.ok_or_else(|| no_state(item, mark))?;
    let time_ns = boundaries::times(&at_mark.snapshot, mark)?.last().copied().unwrap_or(0);
    *item = at_mark;
    Ok(Boundary {
        mark: mark.to_owned(),
        number,
        count: count.max(number),
        time_ns,
        previous_ns: None,
        held,
    })
}

fn no_state(item: &Loaded, mark: &str) -> String {
    let has = match item.snapshot.taken.automatic {
        Some(_) => "was not taken at this mark",
        None => "has no event log, and no automatic snapshot at this mark lies beside it",
    };
    format!(
        "what was held at the mark {mark:?} is not known: this file {has}; record again with culeak run --timeline, or with \
         --snapshot-at-mark"
    )
}

/// The automatic snapshots at marks of this name that lie beside a recording, oldest first; or the input itself, if it is one.
fn at_marks(item: &mut Loaded, mark: &str, names: &NameArgs) -> Result<Vec<Loaded>, String> {
    if was_taken_at(&item.snapshot, mark) {
        return Ok(vec![Loaded {
            snapshot: std::mem::take(&mut item.snapshot),
            source: item.source.clone(),
            root: item.root.clone(),
            points: None,
            timeline: None,
        }]);
    }
    let mut found = Vec::new();
    for path in load::at::automatic_snapshots(Path::new(&item.snapshot.process.recording)) {
        // A file that is being written is not a snapshot yet.
        let Ok(mut other) = Place::File(path).load() else {
            continue;
        };
        let identity = |snapshot: &Snapshot| (snapshot.process.pid, snapshot.process.started_unix_ns);
        if identity(&other.snapshot) == identity(&item.snapshot) && was_taken_at(&other.snapshot, mark) {
            names.name_frames(&mut other);
            found.push(other);
        }
    }
    found.sort_by_key(|other| other.snapshot.taken.at_ns);
    Ok(found)
}
