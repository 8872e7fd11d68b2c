//! Inputs at another point in time: the end, the peak, exit, a mark, or a time.
//!
//! The end and the peak are in every recording ([`Snapshot::at`]). A mark needs an automatic snapshot that was taken at it, or
//! a timeline; a time needs a timeline.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use culeak::analysis::boundaries::{times, was_taken_at};
use culeak::analysis::check::{self, Rules};
use culeak::analysis::points::Points;
use culeak::point::Point;
use culeak::snapshot::{PointError, Snapshot};

use super::timeline::timeline_state;
use super::{Loaded, file};
use crate::errors::Failure;
use crate::escape::Escaped;
use crate::options::NameArgs;

/// Looks up the names of an input and reduces it to a point in time. `None`: the default of reports, which is the end of a
/// Python script that ended, and the last state of any other process.
///
/// # Errors
/// The input does not contain the point; the message names the input and what to do.
pub fn show(item: &mut Loaded, point: Option<&Point>, names: &NameArgs) -> Result<(), Failure> {
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

/// As [`show`], for a check with these rules. Without limits and a baseline, the default is the last state.
///
/// # Errors
/// See [`show`]; or the baseline was taken at another point.
pub fn judge(item: &mut Loaded, rules: &Rules, names: &NameArgs) -> Result<(), Failure> {
    let point = check::point_of(&item.snapshot, rules);
    show(item, Some(&point), names)?;
    match check::other_point(&item.snapshot, rules) {
        Some(reason) => Err(Failure::new(format!("{}: {reason}", item.source))),
        None => Ok(()),
    }
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
        Point::Mark(name) if was_taken_at(&item.snapshot, name) => item.snapshot.clone(),
        Point::Mark(name) => match at_mark(&recording, name) {
            Some((snapshot, source)) => {
                item.source = source;
                snapshot
            }
            None => timeline_state(&recording, point).map_err(|reason| no_mark(item, name, &reason))?,
        },
        Point::Time(_) => {
            timeline_state(&recording, point).map_err(|reason| Failure::new(format!("{}: {reason}", item.source)))?
        }
        Point::End | Point::Peak | Point::Exit => return Ok(None),
    };
    snapshot.taken.point = Some(point.clone());
    Ok(Some(snapshot))
}

fn no_mark(item: &Loaded, name: &str, reason: &str) -> Failure {
    Failure::new(match times(&item.snapshot, name) {
        Ok(_) => format!(
            "{}: has no snapshot of the mark {} beside it ({reason}); record with `culeak run --snapshot-at-mark`",
            item.source,
            Escaped(name)
        ),
        Err(unknown) => format!("{}: {unknown}", item.source),
    })
}

/// The last automatic snapshot beside a recording that was taken at a mark of this name, and its path.
fn at_mark(recording: &Path, name: &str) -> Option<(Snapshot, String)> {
    let mut last: Option<(Snapshot, String)> = None;
    for path in automatic_snapshots(recording) {
        let source = path.display().to_string();
        // A file that is being written, or damaged, is not the snapshot looked for.
        let Ok(snapshot) = file::read(&path, &source, &culeak::reader::read) else {
            continue;
        };
        let is_later = last
            .as_ref()
            .is_none_or(|(last, _)| last.taken.at_ns <= snapshot.taken.at_ns);
        if was_taken_at(&snapshot, name) && is_later {
            last = Some((snapshot, source));
        }
    }
    last
}

/// The automatic snapshots that were written beside a recording, sorted by name.
pub fn automatic_snapshots(recording: &Path) -> Vec<PathBuf> {
    let Some(name) = recording
        .file_stem()
        .filter(|_| recording.extension() == Some(OsStr::new("culeak")))
    else {
        return Vec::new();
    };
    let folder = recording.parent().filter(|folder| !folder.as_os_str().is_empty());
    let entries = std::fs::read_dir(folder.unwrap_or(Path::new(".")))
        .into_iter()
        .flatten()
        .flatten();
    let is_automatic = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().as_bytes();
        let rest = file.strip_prefix(name.as_bytes());
        rest.is_some_and(|rest| rest.starts_with(b".") && rest.ends_with(b".culeak-snapshot"))
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_automatic).collect();
    paths.sort();
    paths
}
