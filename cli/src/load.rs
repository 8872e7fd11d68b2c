//! From an argument to snapshots: a process id, a recording, a snapshot file of ours or PyTorch's, a pipe, `-`, or a folder.
//!
//! A number is a process; what a file is, its first bytes say, never its name. A folder stands for the recordings in it, or
//! without any for its snapshots. Every way this can fail is one line: what was read, why not, what to do. What was named is
//! remembered ([`output::protect`]), so that no command writes over it. Deliberately absent: symbols; see `symbolize`.

mod file;
pub mod memory_viz;
mod process;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use culeak::reader;
use culeak::snapshot::Snapshot;

pub use file::must_be_recording;
pub use process::{as_pid, process_lives, recording_of};

use file::Reader;

use crate::errors::Failure;
use crate::progress::{self, Progress, Unit};

/// A snapshot and how the user may name it again.
pub struct Loaded {
    pub snapshot: Snapshot,
    pub source: String,
    /// Where the process sees its files, when that is not where we do: `/proc/PID/root`.
    pub root: Option<PathBuf>,
}

/// One snapshot to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Process(u32),
    File(PathBuf),
    StandardInput,
}

/// What an argument stands for: one place, or of a folder each recording in it; if it has none, each snapshot.
///
/// # Errors
/// A folder that cannot be read, or has nothing of ours.
pub fn places(argument: impl AsRef<OsStr>) -> Result<Vec<Place>, Failure> {
    let argument = argument.as_ref();
    if let Some(pid) = as_pid(argument) {
        return Ok(vec![Place::Process(pid)]);
    }
    let path = Path::new(argument);
    if argument == "-" {
        return Ok(vec![Place::StandardInput]);
    }
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

/// The files of a folder that are ours, in the order of their names.
pub struct Members {
    /// `*.culeak`.
    pub recordings: Vec<PathBuf>,
    /// `*.culeak-snapshot`, and those of `*.json` that are snapshots: other people's JSON may lie there too.
    pub snapshots: Vec<PathBuf>,
}

impl Members {
    /// # Errors
    /// The folder cannot be read, or there are none.
    pub fn of(folder: &Path) -> Result<Members, Failure> {
        let shown = folder.display().to_string();
        let entries = fs::read_dir(folder).map_err(|error| file::unreadable(&shown, &error))?;
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        let extension = |path: &PathBuf| path.extension().unwrap_or_default().to_owned();
        let (recordings, others): (Vec<_>, Vec<_>) = paths.into_iter().partition(|path| extension(path) == "culeak");
        let is_snapshot = |path: &PathBuf| match extension(path) {
            kept if kept == "culeak-snapshot" => true,
            json => json == "json" && file::begins_as_snapshot(path),
        };
        let snapshots: Vec<PathBuf> = others.into_iter().filter(is_snapshot).collect();
        if recordings.is_empty() && snapshots.is_empty() {
            return Err(Failure::new(format!(
                "{shown}: a folder without recordings (*.culeak), automatic snapshots (*.culeak-snapshot) or snapshots (*.json); \
                 name another"
            )));
        }
        Ok(Members { recordings, snapshots })
    }
}

impl Place {
    /// Reads it.
    pub fn load(&self) -> Result<Loaded, Failure> {
        self.load_by(reader::read)
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
        })
    }
}

/// Reads one input that must be exactly one process.
pub fn one(argument: impl AsRef<OsStr>) -> Result<Loaded, Failure> {
    single(argument.as_ref())?.load()
}

/// The same of a file whose bytes were read already: from a pipe they do not come twice.
pub fn read_already(path: &Path, bytes: &[u8]) -> Result<Loaded, Failure> {
    if path.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return one(path);
    }
    let source = path.display().to_string();
    Ok(Loaded {
        snapshot: file::read_pipe(bytes, &source, reader::read)?,
        source,
        root: None,
    })
}

/// The same, with what every stack asked for in all.
pub fn one_with_totals(argument: impl AsRef<OsStr>) -> Result<Loaded, Failure> {
    single(argument.as_ref())?.load_by(reader::read_with_totals)
}

fn single(argument: &OsStr) -> Result<Place, Failure> {
    let mut found = places(argument)?;
    match found.len() {
        1 => Ok(found.remove(0)),
        n => Err(Failure::new(format!(
            "{}: a folder with {n} recordings or snapshots; name one of them",
            argument.display()
        ))),
    }
}

/// What several inputs stand for.
pub struct Several {
    pub items: Vec<Loaded>,
    /// How many could not be read, each of which was said.
    pub unreadable: usize,
}

/// Reads inputs, which may be folders. One that cannot be read does not spoil the others.
///
/// # Errors
/// None of them can be read.
pub fn all(arguments: &[impl AsRef<OsStr>]) -> Result<Several, Failure> {
    all_by(arguments, reader::read)
}

/// The same, with what every stack asked for in all.
///
/// # Errors
/// As above.
pub fn all_with_totals(arguments: &[impl AsRef<OsStr>]) -> Result<Several, Failure> {
    all_by(arguments, reader::read_with_totals)
}

fn all_by(arguments: &[impl AsRef<OsStr>], read: Reader) -> Result<Several, Failure> {
    let (mut found, mut items, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for argument in arguments {
        match places(argument) {
            Ok(places) => found.extend(places),
            Err(failure) => failures.push(failure),
        }
    }
    let progress = Progress::over("reading", found.len() as u64, Unit::Of("files"));
    for place in &found {
        match place.load_by(read) {
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
    })
}

#[cfg(test)]
mod tests;
