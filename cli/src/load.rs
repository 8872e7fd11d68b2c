//! Arguments to snapshots: process ids, recordings, snapshot files of culeak or PyTorch, pipes, `-`, and folders.
//!
//! A number is a process ([`process`]); the first bytes of a file determine its type ([`file`]). A folder means the recordings
//! in it, or, if there are none, its snapshots ([`members`]). Patterns and lists name several of these ([`listed`]). Inputs are
//! protected ([`crate::output::protect`]), so that no command replaces them.
//!
//! [`at`] reduces an input to a point in time, [`segments`] puts the kernel driver's side in the place of the memory, [`holders`]
//! searches for what keeps its memory alive, [`kept`] keeps inputs in memory, [`names`] has names looked up, [`packages`] adds
//! versions, [`sidecar`] adds holders that `run --why` found, and [`many`] adds several inputs up as one job. Deliberately absent:
//! reading symbols; see `symbolize`.

pub mod at;
mod by_holder;
pub use by_holder::name_by_holder;
mod file;
pub mod holders;
pub mod incomplete;
pub mod kept;
mod listed;
mod loaded;
pub mod many;
mod members;
pub mod memory_viz;
pub mod names;
pub mod packages;
mod process;
pub mod segments;
pub mod sidecar;
pub mod timeline;
mod trace;
pub mod unrecorded;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use culeak::analysis::check::Unseen;
use culeak::analysis::lives::Logged;
use culeak::reader::{self, ReadError};
use culeak::snapshot::Snapshot;
use culeak::timeline::Timeline;

pub use by_holder::by_holder;
pub use file::must_be_recording;
pub use listed::in_folder;
pub use loaded::Loaded;
pub use members::Members;
pub use names::NameArgs;
pub use process::{as_pid, forbid_searches, has_no_library, process_lives, recording_of};
pub use trace::traced;

use file::Reader;

use crate::errors::Failure;
use crate::escape::Escaped;
use crate::progress::{self, Progress, Unit};

/// The source of one snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Process(u32),
    /// Read only if it is a regular file: its name may come from a folder.
    File(PathBuf),
    /// A FIFO that is an argument itself. Opening it waits for a writer.
    Pipe(PathBuf),
    StandardInput,
}

/// That a recording of this host, whose process has ended, is not the file that the process wrote to.
pub fn of_early_copy(recording: &Path) -> Option<Unseen> {
    let what =
        "the file is a copy, made before the process ended, of the recording: what was recorded later is not known";
    let next = "leave recordings in place until the run ends";
    let is_one = reader::is_early_copy(recording).is_ok_and(|is_one| is_one);
    is_one.then(|| Unseen::part("", what, next))
}

/// What an argument names.
#[derive(Debug, Default)]
pub struct Sources {
    pub places: Vec<Place>,
    /// What of it cannot be read, with the reason. Without places there is at least one.
    pub failures: Vec<Failure>,
    /// What lies below it and is no input, and what its runs did not record, in sentences. A check of the rest has no verdict.
    pub left_out: Vec<String>,
}

impl Sources {
    fn failed(failure: Failure) -> Sources {
        Sources {
            failures: vec![failure],
            ..Sources::default()
        }
    }

    fn of(place: Place) -> Sources {
        Sources {
            places: vec![place],
            ..Sources::default()
        }
    }

    fn all(found: impl IntoIterator<Item = Sources>) -> Sources {
        let mut all = Sources::default();
        // A folder may be named twice.
        let (mut failed, mut said) = (BTreeSet::new(), BTreeSet::new());
        for found in found {
            all.places.extend(found.places);
            let failures = found.failures.into_iter();
            all.failures
                .extend(failures.filter(|failure| failed.insert(failure.message.clone())));
            let left_out = found.left_out.into_iter();
            all.left_out
                .extend(left_out.filter(|sentence| said.insert(sentence.clone())));
        }
        all
    }

    /// What each argument of a command names.
    pub fn each(arguments: &[impl AsRef<OsStr>]) -> Sources {
        Sources::all(arguments.iter().map(places))
    }

    /// As [`each`](Sources::each). Several files are a job; one file speaks of its process alone.
    pub fn of_all(arguments: &[impl AsRef<OsStr>]) -> Sources {
        let found = Sources::each(arguments);
        match found.places.len() > 1 {
            true => found.with_unrecorded(),
            false => found,
        }
    }

    /// Adds what the runs of these recordings did not record.
    fn with_unrecorded(mut self) -> Sources {
        let file = |place: &Place| match place {
            Place::File(path) => Some(path.clone()),
            _ => None,
        };
        let files: Vec<PathBuf> = self.places.iter().filter_map(file).collect();
        for sentence in members::unrecorded_of(&files) {
            // Folders have other names there.
            let note = incomplete::note_in(&sentence);
            if !self.left_out.iter().any(|known| incomplete::note_in(known) == note) {
                self.left_out.push(sentence);
            }
        }
        self
    }
}

/// The sources that an argument names: one; for a folder its recordings, or its snapshots if it has no recordings; for a
/// pattern those of each path that matches; for `-` with a list those of each line, which is as an argument.
pub fn places(argument: impl AsRef<OsStr>) -> Sources {
    let argument = argument.as_ref();
    if argument != "-" {
        let is_pipe = as_pid(argument).is_none() && file::is_pipe(Path::new(argument));
        return match is_pipe {
            true => Sources::of(Place::Pipe(PathBuf::from(argument))),
            false => places_of_word(argument),
        };
    }
    match listed::on_standard_input() {
        Ok(None) => Sources::of(Place::StandardInput),
        Ok(Some(lines)) => Sources::all(lines.iter().map(|line| places_of_line(line))).with_unrecorded(),
        Err(error) => Sources::failed(file::unreadable("standard input", &error)),
    }
}

/// Removes, with a note, places that name a file or a process again, and copies of recordings: their memory would count twice.
pub fn once(places: Vec<Place>) -> Vec<Place> {
    let mut seen = BTreeSet::new();
    let is_new = |place: &Place| {
        let identity = match place {
            Place::Process(pid) => Some((u64::MAX, u64::from(*pid))),
            Place::File(path) => path.metadata().ok().map(|file| (file.dev(), file.ino())),
            Place::Pipe(_) | Place::StandardInput => None,
        };
        let is_new = identity.is_none_or(|identity| seen.insert(identity));
        if !is_new {
            let shown = place.to_string();
            progress::note(format_args!("note: {}: named again; it is read once", Escaped(&shown)));
        }
        is_new
    };
    without_copies(places.into_iter().filter(is_new).collect())
}

/// Of the recordings of one process, the first that says how it ended, or else all that may be the recording itself: those that were
/// copied before are left out.
fn without_copies(places: Vec<Place>) -> Vec<Place> {
    let mut recordings: HashMap<_, Vec<(usize, Version)>> = HashMap::new();
    for (nth, place) in places.iter().enumerate() {
        if let Some((process, version)) = place.recorded() {
            recordings.entry(process).or_default().push((nth, version));
        }
    }
    let mut copies: HashMap<usize, String> = HashMap::new();
    for of_process in recordings.into_values() {
        let last = of_process.iter().map(|(_, version)| *version).max();
        let mut latest = of_process.iter().filter(|(_, version)| Some(*version) == last);
        let Some((first, version)) = latest.next() else {
            continue;
        };
        let is_copy = |of: &(usize, Version)| of.1 < *version || *version == Version::Ended && of.0 != *first;
        let copied = of_process.iter().copied().filter(is_copy);
        copies.extend(copied.map(|(nth, _)| (nth, places[*first].to_string())));
    }
    let mut left = Vec::with_capacity(places.len());
    for (nth, place) in places.into_iter().enumerate() {
        let Some(of) = copies.get(&nth) else {
            left.push(place);
            continue;
        };
        let shown = place.to_string();
        progress::note(format_args!(
            "note: {}: a copy of {}, of the same process; it is left out",
            Escaped(&shown),
            Escaped(of)
        ));
    }
    left
}

/// What a file has of its process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Version {
    /// A copy from before its end.
    Early,
    /// The recording of a process that may run, or on some file systems a copy of it.
    Open,
    Ended,
}

fn places_of_line(line: &OsStr) -> Sources {
    match line == "-" {
        true => Sources::failed(Failure::new(
            "-: standard input contains a list, so it cannot be an input of this list; name a file",
        )),
        false => places_of_word(line),
    }
}

/// The sources that a process id, a pattern or a path names.
fn places_of_word(argument: &OsStr) -> Sources {
    if let Some(pid) = as_pid(argument) {
        return Sources::of(Place::Process(pid));
    }
    match listed::matching(argument) {
        None => places_of_path(Path::new(argument)),
        Some(matching) if matching.is_empty() => Sources::failed(Failure::new(format!(
            "{}: no file matches this pattern; name others",
            argument.display()
        ))),
        Some(matching) => Sources::all(matching.iter().map(|path| places_of_path(path))).with_unrecorded(),
    }
}

/// The sources that a path names: the file, or the files of a folder. Snapshots of a folder count only if neither it nor a
/// folder in it has recordings; those of other processes than the recordings' are left out then.
fn places_of_path(path: &Path) -> Sources {
    if !path.is_dir() {
        return Sources::of(Place::File(path.to_path_buf()));
    }
    let members = Members::of(path);
    let strangers = members.strangers().map(|snapshot| {
        format!(
            "{}: a snapshot of a process that has no recording here is left out; name it too, or only files, such as {}/*.culeak",
            snapshot.display(),
            path.display()
        )
    });
    let left_out = strangers
        .chain(members.left_out.iter().cloned())
        .chain(members.unrecorded.iter().cloned())
        .collect();
    let paths = match members.recordings.is_empty() {
        true => members.snapshots,
        false => members.recordings,
    };
    let found = Sources {
        places: paths.into_iter().map(Place::File).collect(),
        failures: members.failures,
        left_out,
    };
    found.with_unrecorded()
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Process(pid) => write!(out, "{pid}"),
            Place::File(path) | Place::Pipe(path) => path.display().fmt(out),
            Place::StandardInput => out.write_str("-"),
        }
    }
}

impl Place {
    /// The process of a recording (host, number, and when the recording began), and what the file has of it.
    fn recorded(&self) -> Option<((String, u32, u64), Version)> {
        let Place::File(path) = self else { return None };
        let of = reader::identity(path).ok().filter(|of| !of.is_dump)?;
        let is_early = || reader::is_early_copy(path).is_ok_and(|is_one| is_one);
        let version = match of.has_ended {
            true => Version::Ended,
            false if is_early() => Version::Early,
            false => Version::Open,
        };
        Some(((of.host, of.pid, of.started_unix_ns), version))
    }

    /// Whether the source can be read only once.
    pub fn is_pipe(&self) -> bool {
        matches!(self, Place::Pipe(_) | Place::StandardInput)
    }

    /// Reads the snapshot.
    ///
    /// # Errors
    /// The source cannot be read; the message says what to do.
    pub fn load(&self) -> Result<Loaded, Failure> {
        match self {
            Place::File(path) => kept::or_read(path, || self.load_by(&reader::read)),
            _ => self.load_by(&reader::read),
        }
    }

    /// As [`Place::load`], without what was live at the peaks if it is a recording.
    ///
    /// # Errors
    /// As [`Place::load`].
    pub fn load_without_peaks(&self) -> Result<Loaded, Failure> {
        self.load_by(&reader::read_without_peaks)
    }

    /// As [`Place::load_without_peaks`], with the keys of the stacks if it is a recording. Stacks whose key is `known` are empty
    /// then ([`reader::read_unknown_stacks`]).
    ///
    /// # Errors
    /// As [`Place::load`].
    pub fn load_unknown_stacks(
        &self,
        known: &dyn Fn(u64, bool) -> bool,
    ) -> Result<(Loaded, Option<Vec<u64>>), Failure> {
        self.load_beside(|path| reader::read_unknown_stacks(path, known))
    }

    /// As [`Place::load`], with the totals of every stack since the start.
    ///
    /// # Errors
    /// As [`Place::load`].
    pub fn load_with_totals(&self) -> Result<Loaded, Failure> {
        self.load_by(&reader::read_with_totals)
    }

    /// As [`Place::load`], and the events of the process if they were logged.
    ///
    /// # Errors
    /// As [`Place::load`].
    pub fn load_with_events(&self) -> Result<(Loaded, Option<Timeline>), Failure> {
        let (loaded, timeline) = self.load_beside(reader::read_timeline)?;
        Ok((loaded, timeline.flatten()))
    }

    /// As [`Place::load_with_events`], with the events in the item.
    ///
    /// # Errors
    /// As [`Place::load`].
    pub fn load_with_timeline(&self) -> Result<Loaded, Failure> {
        let (mut loaded, timeline) = self.load_with_events()?;
        loaded.timeline = timeline.map(|timeline| Logged {
            timeline,
            last: loaded.snapshot.allocations.clone(),
        });
        Ok(loaded)
    }

    /// The snapshot, and what `read` returns beside it of a recording.
    fn load_beside<T>(
        &self,
        read: impl Fn(&Path) -> Result<(Snapshot, T), ReadError>,
    ) -> Result<(Loaded, Option<T>), Failure> {
        let beside = RefCell::new(None);
        let loaded = self.load_by(&|path| {
            let (snapshot, more) = read(path)?;
            beside.replace(Some(more));
            Ok(snapshot)
        })?;
        Ok((loaded, beside.into_inner()))
    }

    fn load_by(&self, read: Reader) -> Result<Loaded, Failure> {
        let source = self.to_string();
        let snapshot = match self {
            Place::Process(pid) => return from_process(*pid, read),
            Place::File(path) => file::read(path, &source, read)?,
            Place::Pipe(path) => file::read_named_pipe(path, &source, read)?,
            Place::StandardInput => file::read_stdin(read)?,
        };
        let shown = if source == "-" { "standard input" } else { &source };
        let is_piped_recording = self.is_pipe() && snapshot.process.recording == shown;
        let mut loaded = Loaded::of(snapshot, source);
        loaded.is_of_snapshot = matches!(self, Place::File(path) if file::begins_as_snapshot(path));
        if is_piped_recording {
            loaded.unseen.push(Unseen::part(
                "",
                "the recording came through a pipe, so whether it is whole and the only one is not known",
                "name the file",
            ));
        }
        Ok(loaded)
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
    Ok(Loaded::of(file::read_pipe(bytes, &source, &reader::read)?, source))
}

/// The source that an argument names.
///
/// # Errors
/// It names several, or none.
pub fn single(argument: &OsStr) -> Result<Place, Failure> {
    places(argument).single(argument)
}

impl Sources {
    /// What `load` returns of each place, which is read once. What cannot be read joins the failures.
    pub fn read<T>(&mut self, mut load: impl FnMut(&Place) -> Result<T, Failure>) -> Vec<T> {
        let mut items = Vec::new();
        self.places = once(std::mem::take(&mut self.places));
        let progress = Progress::over("reading", self.places.len() as u64, Unit::Of("files"));
        for place in &self.places {
            match load(place) {
                Ok(item) => items.push(item),
                Err(failure) => self.failures.push(failure),
            }
            progress.advance(1);
        }
        items
    }

    /// The snapshots. What cannot be read is reported and skipped.
    ///
    /// # Errors
    /// No input can be read.
    pub fn load(mut self, load: impl Fn(&Place) -> Result<Loaded, Failure>) -> Result<Several, Failure> {
        warn_of(&self.left_out);
        let items = self.read(load);
        let unreadable = self.failures.len();
        let last = self.failures.pop_if(|_| items.is_empty());
        self.failures.iter().for_each(progress::fail);
        match last {
            Some(failure) => Err(failure),
            None => Ok(Several {
                items,
                unreadable,
                left_out: self.left_out,
            }),
        }
    }

    /// The only source. `argument`: what named it.
    ///
    /// # Errors
    /// See [`single`].
    pub fn single(self, argument: &OsStr) -> Result<Place, Failure> {
        warn_of(&self.left_out);
        if let Some(failure) = self.failures.into_iter().next() {
            return Err(failure);
        }
        let mut places = self.places;
        match places.len() {
            1 => Ok(places.remove(0)),
            n => Err(Failure::new(format!(
                "{}: a folder with {n} recordings or snapshots; name one of them",
                argument.display()
            ))),
        }
    }
}

/// The snapshots of several inputs.
pub struct Several {
    pub items: Vec<Loaded>,
    /// The number of unreadable inputs; each was reported.
    pub unreadable: usize,
    /// As [`Sources::left_out`]; each was reported.
    pub left_out: Vec<String>,
}

/// Says what is no input.
pub fn warn_of(left_out: &[String]) {
    left_out
        .iter()
        .for_each(|sentence| progress::say(format_args!("warning: {}", Escaped(sentence))));
}

fn from_process(pid: u32, read: Reader) -> Result<Loaded, Failure> {
    let (path, root) = match recording_of(pid) {
        Err(failure) if process::is_unrecorded(pid) => return unrecorded::load(pid, failure),
        found => found?,
    };
    let snapshot = file::read(&path, &path.display().to_string(), read)?;
    Ok(Loaded::of(snapshot, pid.to_string()).below(Some(root)))
}

#[cfg(test)]
mod tests;
