//! Inputs at another point in time: the end, the peak, exit, a mark, or a time.
//!
//! The end and the peak are in every recording ([`Snapshot::at`]). A mark needs an automatic snapshot that was taken at it, or
//! a timeline; a time needs a timeline.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use culeak::analysis::boundaries::{times, was_taken_at};
use culeak::analysis::check::{self, Rules, Unseen};
use culeak::analysis::filter::mark_time;
use culeak::analysis::points::Points;
use culeak::point::Point;
use culeak::snapshot::{PointError, ProcessState, Snapshot};

use super::members::recording_beside;
use super::names::NameArgs;
use super::timeline::timeline_state;
use super::{Loaded, Place, in_folder, sidecar};
use crate::errors::Failure;
use crate::escape::Escaped;
use crate::progress;
use crate::text::units;

/// Looks up the names of an input and reduces it to a point in time. `None`: the default of reports, which is the end of a
/// Python script that ended, and the last state of any other process. Warns of what the result is not.
///
/// # Errors
/// The input does not contain the point; the message names the input and what to do.
pub fn show(item: &mut Loaded, point: Option<&Point>, names: &NameArgs) -> Result<(), Failure> {
    find(item, point, names)?;
    for Unseen { what, next, .. } in &item.unseen {
        progress::say(format_args!("warning: {}: {what}; {next}", Escaped(&item.source)));
    }
    Ok(())
}

/// As [`show`], for a check with these rules. Without limits and a baseline, the default is the last state.
///
/// # Errors
/// See [`show`]; or the baseline was taken at another point.
pub fn judge(item: &mut Loaded, rules: &Rules, names: &NameArgs) -> Result<(), Failure> {
    let point = check::point_of(&item.snapshot, rules);
    find(item, Some(&point), names)?;
    match check::other_point(&item.snapshot, rules) {
        Some(reason) => Err(Failure::new(format!("{}: {reason}", item.source))),
        None => Ok(()),
    }
}

/// As [`show`], without the warnings.
///
/// # Errors
/// See [`show`].
pub fn find(item: &mut Loaded, point: Option<&Point>, names: &NameArgs) -> Result<(), Failure> {
    let point = point.cloned().unwrap_or_else(|| item.snapshot.usual_point());
    if let Some(snapshot) = elsewhere(item, &point)? {
        item.snapshot = snapshot;
        // Its tables are not those of the events.
        item.timeline = None;
        names.name_frames(item);
        return Ok(());
    }
    names.name_frames(item);
    if point == Point::Exit || item.snapshot.taken.point.as_ref() == Some(&point) {
        return reduce(item, &point);
    }
    let points = Points::of(&item.snapshot);
    reduce(item, &point)?;
    item.points = Some(points);
    Ok(())
}

fn reduce(item: &mut Loaded, point: &Point) -> Result<(), Failure> {
    let snapshot = std::mem::take(&mut item.snapshot);
    item.snapshot = snapshot.into_at(point).map_err(|error| failure(item, &error))?;
    Ok(())
}

fn failure(item: &Loaded, error: &PointError) -> Failure {
    Failure::new(format!("{}: {error}", item.source))
}

/// The snapshot of a mark or a time, which is not in the input itself; `None` for other points.
fn elsewhere(item: &mut Loaded, point: &Point) -> Result<Option<Snapshot>, Failure> {
    if item.snapshot.taken.point.as_ref() == Some(point) {
        return Ok(None);
    }
    let recording = PathBuf::from(&item.snapshot.process.recording);
    let mut snapshot = match point {
        Point::Mark(name) if was_taken_at(&item.snapshot, name) => {
            item.unseen.extend(unless_last(item, name));
            item.snapshot.clone()
        }
        Point::Mark(name) => at_mark(item, name)?,
        Point::Time(_) => timeline_state(&recording, point).map_err(|reason| format!("{}: {reason}", item.source))?,
        Point::End | Point::Peak | Point::Exit => return Ok(None),
    };
    snapshot.taken.point = Some(point.clone());
    // What holds memory at the end need not have held it then.
    snapshot.holders.take_if(|holders| holders.search.point.is_some());
    Ok(Some(snapshot))
}

fn no_mark(item: &Loaded, name: &str, reason: &str) -> Failure {
    Failure::new(match times(&item.snapshot, name) {
        Ok(_) => format!(
            "{}: has no snapshot of the mark {} beside it ({reason}); record with `culeak run --snapshot mark`",
            item.source,
            Escaped(name)
        ),
        Err(unknown) => format!("{}: {unknown}", item.source),
    })
}

/// The state at the last mark of this name: in the automatic snapshot that was taken at it, or else in the event log. If it is in
/// neither, the state at an older mark.
fn at_mark(item: &mut Loaded, name: &str) -> Result<Snapshot, Failure> {
    let mut last: Option<Loaded> = None;
    let unreadable = each_at_mark(&item.snapshot, name, |found| {
        let is_later = |last: &Loaded| last.snapshot.taken.at_ns <= found.snapshot.taken.at_ns;
        if last.as_ref().is_none_or(is_later) {
            last = Some(found);
        }
    });
    // `None`: the recording lost the mark, or the input is older.
    let wanted = mark_time(&item.snapshot, name);
    let of_log = |item: &Loaded| {
        let recording = PathBuf::from(&item.snapshot.process.recording);
        timeline_state(&recording, &Point::Mark(name.to_owned()))
    };
    let Some(last) = last else {
        return of_log(item).map_err(|reason| no_mark(item, name, &reason));
    };
    if let Some(time_ns) = wanted.filter(|_| mark_time(&last.snapshot, name) < wanted) {
        if let Ok(state) = of_log(item) {
            return Ok(state);
        }
        let what = format!(
            "the last mark {name:?}, set {} after the start, has no snapshot{}; an older one is shown",
            units::duration(time_ns),
            because(&item.snapshot, &unreadable)
        );
        item.unseen.push(Unseen::part("--at", what, RECORD_MARKS));
    }
    item.source = last.source;
    Ok(last.snapshot)
}

/// An automatic snapshot was taken at a mark of this name, but perhaps not at the last one: only its recording has all marks.
fn unless_last(item: &Loaded, name: &str) -> Option<Unseen> {
    let recording = recording_beside(Path::new(&item.source));
    let last = recording.and_then(|path| Some(mark_time(&Place::File(path).load().ok()?.snapshot, name)));
    let what = match last {
        Some(last) if last <= mark_time(&item.snapshot, name) => return None,
        Some(_) => format!("the program set the mark {name:?} again after this snapshot"),
        None => format!(
            "whether this is the last mark {name:?} is not known without the recording, which is not beside the snapshot"
        ),
    };
    let next = "name the recording, or the snapshot without --at to judge it as it is";
    Some(Unseen::part("--at", what, next))
}

/// What to do if marks lack their snapshots.
pub const RECORD_MARKS: &str = "record with culeak run --timeline, which has the state at every mark";

/// Why marks lack their snapshots, in parentheses.
pub fn because(recording: &Snapshot, unreadable: &[Failure]) -> String {
    let lost = recording.losses.lost_snapshots;
    let lost = (lost > 0).then(|| format!("{} not written", units::plural(lost, "snapshot was", "snapshots were")));
    let unreadable = unreadable.iter().map(|failure| failure.message.clone());
    let reasons: Vec<String> = unreadable.chain(lost).collect();
    match reasons.as_slice() {
        [] => String::new(),
        reasons => format!(" ({})", reasons.join("; ")),
    }
}

/// Visits each automatic snapshot of a process that was taken at a mark of this name and lies beside the recording. Returns why
/// others cannot be read: any of them may be one.
pub fn each_at_mark(recording: &Snapshot, name: &str, mut visit: impl FnMut(Loaded)) -> Vec<Failure> {
    let identity = |snapshot: &Snapshot| (snapshot.process.pid, snapshot.process.started_unix_ns);
    let mut unreadable = Vec::new();
    for path in automatic_snapshots(Path::new(&recording.process.recording)) {
        match Place::File(path).load() {
            Ok(mut found) => {
                let snapshot = &mut found.snapshot;
                if identity(snapshot) == identity(recording) && was_taken_at(snapshot, name) {
                    // It knows what was known then.
                    snapshot.losses.lost_marks = recording.losses.lost_marks;
                    if recording.process.state == ProcessState::Unknown {
                        snapshot.process.state = ProcessState::Unknown;
                    }
                    visit(found);
                }
            }
            Err(failure) => unreadable.push(failure),
        }
    }
    unreadable
}

/// The automatic snapshots that were written beside a recording, sorted by name.
pub fn automatic_snapshots(recording: &Path) -> Vec<PathBuf> {
    let begins = sidecar::named_after(recording, "");
    let Some(begins) = begins.file_name().map(OsStr::to_string_lossy) else {
        return Vec::new();
    };
    let is_automatic = |file: &str| {
        let why = file
            .strip_prefix(&*begins)
            .and_then(|rest| rest.strip_suffix(".culeak-snapshot"));
        // Otherwise it is of a recording whose name is longer.
        why.is_some_and(|why| !why.contains('.'))
    };
    in_folder(recording.parent().unwrap_or(Path::new("")), is_automatic)
}
