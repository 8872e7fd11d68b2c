//! Arguments to snapshots: process ids, recordings, snapshot files of culeak or PyTorch, pipes, `-`, and folders.
//!
//! A number is a process ([`process`]); the first bytes of a file determine its type ([`file`]). A folder means the recordings
//! in it, or, if there are none, its snapshots. Inputs are protected ([`crate::output::protect`]), so that no command replaces
//! them. [`at`] reduces an input to a point in time, [`segments`] puts the kernel driver's side in the place of the memory, [`holders`] searches for what keeps its memory alive, and [`sidecar`] adds
//! holders that `run --why` found. Deliberately absent: symbols; see `symbolize`.

pub mod at;
mod file;
pub mod holders;
mod listed;
pub mod many;
pub mod memory_viz;
mod process;
pub mod segments;
pub mod sidecar;
pub mod timeline;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use culeak::analysis::over_time::lives::Logged;
use culeak::analysis::points::Points;
use culeak::reader;
use culeak::snapshot::Snapshot;

pub use file::must_be_recording;
pub use process::{as_pid, process_lives, recording_of};

use file::Reader;

use crate::errors::Failure;
use crate::progress::{self, Progress, Unit};

/// A snapshot and the name of its source.
pub struct Loaded {
    pub snapshot: Snapshot,
    /// The argument, as the user can repeat it.
    pub source: String,
    /// The root of the file system as the process sees it, for a running process: `/proc/PID/root`.
    pub root: Option<PathBuf>,
    /// The points of the whole snapshot, if it was reduced to one of them.
    pub points: Option<Points>,
    /// The events that the snapshot was read with; `None` if they were not requested or not logged.
    pub timeline: Option<Logged>,
}

/// The source of one snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Process(u32),
    File(PathBuf),
    StandardInput,
}

/// The sources that an argument names: one; for a folder its recordings, or its snapshots if it has no recordings; for a
/// pattern, or `-` with a list of paths, those of each path.
///
/// # Errors
/// A folder cannot be read, or contains neither, or nothing matches the pattern.
pub fn places(argument: impl AsRef<OsStr>) -> Result<Vec<Place>, Failure> {
    let argument = argument.as_ref();
    if let Some(pid) = as_pid(argument) {
        return Ok(vec![Place::Process(pid)]);
    }
    if argument == "-" {
        let listed = listed::on_standard_input().map_err(|error| file::unreadable("standard input", &error))?;
        let Some(listed) = listed else {
            return Ok(vec![Place::StandardInput]);
        };
        let each: Result<Vec<_>, _> = listed.iter().map(places_of_path).collect();
        return Ok(each?.concat());
    }
    if let Some(matching) = listed::matching(argument) {
        if matching.is_empty() {
            return Err(Failure::new(format!(
                "{}: no file matches this pattern; name others",
                argument.display()
            )));
        }
        let each: Result<Vec<_>, _> = matching.iter().map(places_of_path).collect();
        return Ok(each?.concat());
    }
    places_of_path(argument)
}

/// The sources that a path names: the file, or the files of a folder.
fn places_of_path(path: impl AsRef<Path>) -> Result<Vec<Place>, Failure> {
    let path = path.as_ref();
    if !path.is_dir() {
        return Ok(vec![Place::File(path.to_path_buf())]);
    }
    let members = Members::of(path)?;
    let paths = match members.recordings.is_empty() {
        true => members.snapshots,
        false => members.recordings,
    };
    Ok(paths.into_iter().map(Place::File).collect())
}

/// Whether a path is a folder itself, and not a link to one, which may lead in a circle.
fn is_own_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
}

/// The recordings and snapshots in a folder, sorted by name; those of the folders in it, if it has none.
pub struct Members {
    /// `*.culeak`.
    pub recordings: Vec<PathBuf>,
    /// `*.culeak-snapshot`, and those `*.json` files that are snapshots.
    pub snapshots: Vec<PathBuf>,
}

impl Members {
    /// # Errors
    /// The folder cannot be read, or contains no such files.
    pub fn of(folder: &Path) -> Result<Members, Failure> {
        Members::within(folder, listed::DEPTH)
    }

    /// As [`Members::of`]; a folder without any has those of the folders in it, down to this depth.
    fn within(folder: &Path, depth: usize) -> Result<Members, Failure> {
        let shown = folder.display().to_string();
        let entries = fs::read_dir(folder).map_err(|error| file::unreadable(&shown, &error))?;
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        let folders: Vec<PathBuf> = paths.iter().filter(|path| is_own_folder(path)).cloned().collect();
        let extension = |path: &PathBuf| path.extension().unwrap_or_default().to_owned();
        let (recordings, others): (Vec<_>, Vec<_>) = paths.into_iter().partition(|path| extension(path) == "culeak");
        let is_snapshot = |path: &PathBuf| match extension(path) {
            automatic if automatic == "culeak-snapshot" => true,
            json => json == "json" && file::begins_as_snapshot(path),
        };
        let snapshots: Vec<PathBuf> = others.into_iter().filter(is_snapshot).collect();
        if recordings.is_empty() && snapshots.is_empty() {
            let below = folders.iter().filter(|_| depth > 0);
            let below: Vec<Members> = below
                .filter_map(|folder| Members::within(folder, depth - 1).ok())
                .collect();
            if !below.is_empty() {
                return Ok(Members::together(below));
            }
            return Err(Failure::new(format!(
                "{shown}: a folder without recordings (*.culeak), automatic snapshots (*.culeak-snapshot) or snapshots (*.json); \
                 name another"
            )));
        }
        Ok(Members { recordings, snapshots })
    }

    /// Folders without recordings contribute their snapshots only if no folder has recordings.
    fn together(folders: Vec<Members>) -> Members {
        let (mut recordings, mut snapshots) = (Vec::new(), Vec::new());
        for members in folders {
            recordings.extend(members.recordings);
            snapshots.extend(members.snapshots);
        }
        Members { recordings, snapshots }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Process(pid) => write!(out, "{pid}"),
            Place::File(path) => path.display().fmt(out),
            Place::StandardInput => out.write_str("-"),
        }
    }
}

impl Place {
    /// Reads the snapshot.
    ///
    /// # Errors
    /// The source cannot be read; the message says what to do.
    pub fn load(&self) -> Result<Loaded, Failure> {
        self.load_by(&reader::read)
    }

    /// As [`Place::load`], without what was live at the peaks if it is a recording.
    ///
    /// # Errors
    /// As [`Place::load`].
    pub fn load_without_peaks(&self) -> Result<Loaded, Failure> {
        self.load_by(&reader::read_without_peaks)
    }

    /// As [`Place::load`], with the events of the process if they were logged.
    ///
    /// # Errors
    /// As [`Place::load`].
    pub fn load_with_timeline(&self) -> Result<Loaded, Failure> {
        let timeline = RefCell::new(None);
        let loaded = self.load_by(&|path| {
            let (snapshot, events) = reader::read_timeline(path)?;
            timeline.replace(events);
            Ok(snapshot)
        })?;
        let logged = timeline.into_inner().map(|timeline| Logged {
            timeline,
            last: loaded.snapshot.allocations.clone(),
        });
        Ok(Loaded {
            timeline: logged,
            ..loaded
        })
    }

    fn load_by(&self, read: Reader) -> Result<Loaded, Failure> {
        let (snapshot, source) = match self {
            Place::Process(pid) => return from_process(*pid, read),
            Place::File(path) => {
                let source = path.display().to_string();
                (file::read(path, &source, read)?, source)
            }
            Place::StandardInput => (file::read_stdin(read)?, "-".to_owned()),
        };
        Ok(Loaded {
            snapshot,
            source,
            root: None,
            points: None,
            timeline: None,
        })
    }
}

/// Reads an argument that must name exactly one snapshot.
///
/// # Errors
/// It names several, or cannot be read.
pub fn one(argument: impl AsRef<OsStr>) -> Result<Loaded, Failure> {
    single(argument.as_ref())?.load()
}

/// As [`one`], for a file whose content has been read already, since a pipe can be read only once.
///
/// # Errors
/// See [`one`].
pub fn read_already(path: &Path, bytes: &[u8]) -> Result<Loaded, Failure> {
    if path.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return one(path);
    }
    let source = path.display().to_string();
    Ok(Loaded {
        snapshot: file::read_pipe(bytes, &source, &reader::read)?,
        source,
        root: None,
        points: None,
        timeline: None,
    })
}

/// As [`one`], with the totals of every stack since the start.
///
/// # Errors
/// See [`one`].
pub fn one_with_totals(argument: impl AsRef<OsStr>) -> Result<Loaded, Failure> {
    single(argument.as_ref())?.load_by(&reader::read_with_totals)
}

/// The source that an argument names.
///
/// # Errors
/// It names several, or none.
pub fn single(argument: &OsStr) -> Result<Place, Failure> {
    let mut found = places(argument)?;
    match found.len() {
        1 => Ok(found.remove(0)),
        n => Err(Failure::new(format!(
            "{}: a folder with {n} recordings or snapshots; name one of them",
            argument.display()
        ))),
    }
}

/// The snapshots of several inputs.
pub struct Several {
    pub items: Vec<Loaded>,
    /// The number of unreadable inputs; each was reported.
    pub unreadable: usize,
}

/// Reads inputs, which may be folders. Unreadable ones are reported and skipped.
///
/// # Errors
/// No input can be read.
pub fn all(arguments: &[impl AsRef<OsStr>]) -> Result<Several, Failure> {
    all_by(arguments, |place| place.load())
}

/// As [`all`], with the events of each process if they were logged.
///
/// # Errors
/// See [`all`].
pub fn all_with_timelines(arguments: &[impl AsRef<OsStr>]) -> Result<Several, Failure> {
    all_by(arguments, Place::load_with_timeline)
}

/// As [`all`], with the totals of every stack since the start.
///
/// # Errors
/// See [`all`].
pub fn all_with_totals(arguments: &[impl AsRef<OsStr>]) -> Result<Several, Failure> {
    all_by(arguments, |place| place.load_by(&reader::read_with_totals))
}

fn all_by(
    arguments: &[impl AsRef<OsStr>],
    load: impl Fn(&Place) -> Result<Loaded, Failure>,
) -> Result<Several, Failure> {
    let (mut found, mut items, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for argument in arguments {
        match places(argument) {
            Ok(places) => found.extend(places),
            Err(failure) => failures.push(failure),
        }
    }
    let progress = Progress::over("reading", found.len() as u64, Unit::Of("files"));
    for place in &found {
        match load(place) {
            Ok(item) => items.push(item),
            Err(failure) => failures.push(failure),
        }
        progress.advance(1);
    }
    drop(progress);
    let unreadable = failures.len();
    let last = if items.is_empty() { failures.pop() } else { None };
    failures.iter().for_each(progress::fail);
    match last {
        Some(failure) => Err(failure),
        None => Ok(Several { items, unreadable }),
    }
}

fn from_process(pid: u32, read: Reader) -> Result<Loaded, Failure> {
    let (path, root) = recording_of(pid)?;
    let snapshot = file::read(&path, &path.display().to_string(), read)?;
    Ok(Loaded {
        snapshot,
        source: pid.to_string(),
        root: Some(root),
        points: None,
        timeline: None,
    })
}

#[cfg(test)]
mod schemas;
#[cfg(test)]
mod tests;
