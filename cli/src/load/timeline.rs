//! Recordings with their event log, and the states that follow from it.

use std::ffi::OsStr;
use std::path::Path;

use culeak::analysis::filter::{mark_time, no_mark};
use culeak::point::{POINT, Point};
use culeak::snapshot::Snapshot;
use culeak::timeline::Timeline;

use super::{Loaded, Place, single};
use crate::errors::Failure;

/// Reads the recording that an argument names, in its final state, with its event log.
///
/// # Errors
/// It names no recording, or several, or one without an event log.
pub fn one_with_timeline(argument: impl AsRef<OsStr>) -> Result<(Loaded, Timeline), Failure> {
    of_place(&single(argument.as_ref())?)
}

fn of_place(place: &Place) -> Result<(Loaded, Timeline), Failure> {
    let (item, timeline) = place.load_with_events()?;
    match timeline {
        Some(timeline) => Ok((item, timeline)),
        None => Err(Failure::new(format!(
            "{}: has no event log; record one with: culeak run --timeline -- PROGRAM, and name the recording",
            item.source
        ))),
    }
}

/// The state of a recorded process at a mark or a time, from its event log.
///
/// # Errors
/// The recording cannot be read, has no event log, or one that does not cover this point.
pub fn timeline_state(path: &Path, point: &Point) -> Result<Snapshot, String> {
    let recording = of_place(&Place::File(path.to_owned())).map_err(|failure| {
        let shown = format!("{}: ", path.display());
        failure.message.trim_start_matches(&shown).to_owned()
    })?;
    let (item, timeline) = recording;
    let snapshot = item.snapshot;
    let time_ns = time_of(&snapshot, &timeline, point)?;
    let mut state = timeline
        .state_at(&snapshot, time_ns)
        .map_err(|unknown| unknown.to_string())?;
    state.taken.point = Some(point.clone());
    Ok(state)
}

/// The memory that was allocated between two points and was live at the second one, as a snapshot without names.
///
/// # Errors
/// As [`of_place`]; or the recording does not cover the window.
pub fn left_between(place: &Place, from: &Point, to: &Point) -> Result<Loaded, Failure> {
    let (mut item, timeline) = of_place(place)?;
    let source = item.source.clone();
    let failed = |reason: String| Failure::new(format!("{source}: {reason}"));
    let time = |point| time_of(&item.snapshot, &timeline, point).map_err(failed);
    let left = timeline.left_by(&item.snapshot, time(from)?, time(to)?);
    item.snapshot = left.map_err(|unknown| failed(unknown.to_string()))?;
    if let Point::Mark(_) = to {
        item.snapshot.taken.point = Some(to.clone());
    }
    Ok(item)
}

/// The time of a point that is a moment.
///
/// # Errors
/// The process has no such moment.
pub fn time_of(snapshot: &Snapshot, timeline: &Timeline, point: &Point) -> Result<u64, String> {
    match point {
        Point::Time(time_ns) => Ok(*time_ns),
        Point::Exit => Ok(timeline.until_ns),
        Point::End => snapshot.end.map(|end| end.time_ns).ok_or_else(|| {
            "the process has no end of its own work: it is running, or ended by a signal or _exit; use exit".to_owned()
        }),
        Point::Mark(name) => mark_time(snapshot, name).ok_or_else(|| {
            let (what, next) = no_mark(snapshot, name);
            format!("{what}; {next}")
        }),
        Point::Peak => Err(format!(
            "devices may reach their peaks at different times; expected one moment of {POINT}, except peak"
        )),
    }
}
