//! Recordings with their event log, and the states that follow from it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use culeak::analysis::boundaries;
use culeak::point::{POINT, Point};
use culeak::reader;
use culeak::snapshot::Snapshot;
use culeak::timeline::Timeline;

use super::{Loaded, Place, file, process, single};
use crate::errors::Failure;
use crate::output;

/// A recording with its event log.
pub struct WithTimeline {
    /// The final state.
    pub item: Loaded,
    pub timeline: Timeline,
}

/// Reads the recording that an argument names.
///
/// # Errors
/// It names no recording, or several, or one without an event log.
pub fn one_with_timeline(argument: impl AsRef<OsStr>) -> Result<WithTimeline, Failure> {
    of_place(&single(argument.as_ref())?)
}

/// As [`one_with_timeline`].
///
/// # Errors
/// See there.
pub fn of_place(place: &Place) -> Result<WithTimeline, Failure> {
    let (path, source, root) = match place {
        Place::Process(pid) => {
            let (path, root) = process::recording_of(*pid)?;
            (path, pid.to_string(), Some(root))
        }
        Place::File(path) => (path.clone(), path.display().to_string(), None::<PathBuf>),
        Place::StandardInput => {
            return Err(Failure::new(
                "-: the event log of a recording cannot be read from a pipe; name the file",
            ));
        }
    };
    if let Ok(metadata) = path.metadata() {
        output::protect(&metadata);
    }
    if file::begins_as_snapshot(&path) {
        return Err(Failure::new(format!(
            "{source}: a snapshot, which shows one moment and has no event log; name the recording"
        )));
    }
    let (snapshot, timeline) = read(&path).map_err(|reason| Failure::new(format!("{source}: {reason}")))?;
    Ok(WithTimeline {
        item: Loaded {
            snapshot,
            source,
            root,
            points: None,
            timeline: None,
        },
        timeline,
    })
}

/// Reads the snapshot of a source, and the event log if the source is a recording that has one.
///
/// # Errors
/// As [`Place::load`].
pub fn with_log_if_any(place: &Place) -> Result<(Loaded, Option<Timeline>), Failure> {
    let (path, source, root) = match place {
        Place::Process(pid) => {
            let (path, root) = process::recording_of(*pid)?;
            (path, pid.to_string(), Some(root))
        }
        Place::File(path) => (path.clone(), path.display().to_string(), None::<PathBuf>),
        Place::StandardInput => return Ok((place.load()?, None)),
    };
    // A pipe can be read only once.
    let metadata = path.metadata().ok().filter(|metadata| metadata.is_file());
    let Some(metadata) = metadata.filter(|_| reader::identity(&path).is_ok()) else {
        return Ok((place.load()?, None));
    };
    output::protect(&metadata);
    let (snapshot, timeline) = reader::read_timeline(&path).map_err(|error| Failure::new(error.to_string()))?;
    let item = Loaded {
        snapshot,
        source,
        root,
        points: None,
        timeline: None,
    };
    Ok((item, timeline))
}

/// The state of a recorded process at a mark or a time, from its event log.
///
/// # Errors
/// The recording cannot be read, has no event log, or one that does not cover this point.
pub fn timeline_state(path: &Path, point: &Point) -> Result<Snapshot, String> {
    let (snapshot, timeline) = read(path)?;
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
    let WithTimeline { mut item, timeline } = of_place(place)?;
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
        Point::Mark(name) => boundaries::times(snapshot, name).map(|times| times.last().copied().unwrap_or_default()),
        Point::Peak => Err(format!(
            "devices may reach their peaks at different times; expected one moment of {POINT}, except peak"
        )),
    }
}

/// The final state of a recording, and its event log.
fn read(path: &Path) -> Result<(Snapshot, Timeline), String> {
    let shown = format!("{}: ", path.display());
    let (snapshot, timeline) = reader::read_timeline(path).map_err(|error| {
        let text = error.to_string();
        text.strip_prefix(&shown).map_or(text.clone(), str::to_owned)
    })?;
    match timeline {
        Some(timeline) => Ok((snapshot, timeline)),
        None => Err("this recording has no event log; record one with: culeak run --timeline -- PROGRAM".to_owned()),
    }
}
