//! From an argument to snapshots: a process id, a recording, a snapshot file of ours or PyTorch's, a pipe, `-`, or a folder.
//!
//! A number is a process; what a file is, its first bytes say, never its name. A folder stands for the recordings in it, or
//! without any for its snapshots. Every way this can fail is one line: what was read, why not, what to do. What was named is
//! remembered ([`output::protect`]), so that no command writes over it. Deliberately absent: symbols; see `symbolize`.

pub mod memory_viz;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use culeak::reader::{self, ReadError, open_regular};
use culeak::snapshot::{self, Snapshot, streaming};
use serde::Deserialize;

use crate::errors::Failure;
use crate::progress::{self, Progress, Unit};
use crate::{output, pickle};

/// A snapshot and how the user may name it again.
pub struct Loaded {
    pub snapshot: Snapshot,
    pub source: String,
    /// Where the process sees its files, when that is not where we do: `/proc/PID/root`.
    pub root: Option<PathBuf>,
}

/// How recordings are read: [`reader::read`] or [`reader::read_with_totals`].
type Reader = fn(&Path) -> Result<Snapshot, ReadError>;

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
        let entries = fs::read_dir(folder).map_err(|error| unreadable(&shown, &error))?;
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        let extension = |path: &PathBuf| path.extension().unwrap_or_default().to_owned();
        let (recordings, others): (Vec<_>, Vec<_>) = paths.into_iter().partition(|path| extension(path) == "culeak");
        let is_snapshot = |path: &PathBuf| match extension(path) {
            kept if kept == "culeak-snapshot" => true,
            json => json == "json" && begins_as_snapshot(path),
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

/// Whether a file begins as a snapshot does; its first field says so.
fn begins_as_snapshot(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(256).read_to_end(&mut start));
    read.is_ok() && String::from_utf8_lossy(&start).contains(snapshot::FORMAT)
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
                (from_file(path, &source, read)?, source)
            }
            Place::StandardInput => (from_stdin(read)?, "-".to_owned()),
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
        snapshot: from_pipe(bytes, &source, reader::read)?,
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

/// A number names a process unless a file of that name lies here and no such process lives.
pub fn as_pid(argument: impl AsRef<OsStr>) -> Option<u32> {
    let argument = argument.as_ref().to_str()?;
    let pid = argument.parse().ok()?;
    (argument.bytes().all(|b| b.is_ascii_digit()) && (process_lives(pid) || !Path::new(argument).exists()))
        .then_some(pid)
}

pub fn process_lives(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn from_process(pid: u32, read: Reader) -> Result<Loaded, Failure> {
    let (path, root) = recording_of(pid)?;
    let snapshot = from_file(&path, &path.display().to_string(), read)?;
    Ok(Loaded {
        snapshot,
        source: pid.to_string(),
        root: Some(root),
    })
}

/// A process's recording, and where it sees its files.
///
/// # Errors
/// There is no such process, it has no recording, or it may not be looked at.
pub fn recording_of(pid: u32) -> Result<(PathBuf, PathBuf), Failure> {
    if !process_lives(pid) {
        return Err(Failure::new(format!(
            "process {pid}: no such process; its recording stays behind as *.{pid}.culeak where it ran"
        )));
    }
    let maps = fs::read(format!("/proc/{pid}/maps"))
        .map_err(|error| Failure::new(no_map(pid, &error, nix::unistd::geteuid().is_root())))?;
    // In a container it has another number, by which it named its recording.
    let own_pid = reader::own_pid(pid).unwrap_or(pid);
    let recording = mapped_recording(&maps, own_pid).ok_or_else(|| {
        Failure::new(format!(
            "process {pid}: has no recording (not started under culeak, or no CUDA call yet); start it with `culeak run -- …`"
        ))
    })?;
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let inside = root.join(recording.strip_prefix("/").unwrap_or(&recording));
    // The path means what the process meant by it, which in another mount namespace is not our file of that name.
    let path = if same_file(&inside, &recording) || !inside.exists() {
        recording.clone()
    } else {
        inside
    };
    if !path.exists() {
        return Err(Failure::new(format!(
            "process {pid}: its recording {} was deleted while in use; restart the program",
            recording.display()
        )));
    }
    Ok((path, root))
}

/// Why a process's memory map, which names its recording, cannot be read.
fn no_map(pid: u32, error: &io::Error, is_root: bool) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied if is_root => format!(
            "process {pid}: its memory map may not be read even by root (without CAP_SYS_PTRACE, as in most containers), so \
             whether it is recorded is unknown; if it is, name its recording (*.{pid}.culeak)"
        ),
        io::ErrorKind::PermissionDenied => format!(
            "process {pid}: its memory map may not be read (another user's process?); run culeak as that user or as root"
        ),
        io::ErrorKind::NotFound => {
            format!("process {pid}: it ended while it was being read; name its recording (*.{pid}.culeak) instead")
        }
        _ => format!(
            "process {pid}: its memory map cannot be read ({error}); name its recording (*.{pid}.culeak) instead"
        ),
    }
}

/// Refuses a file that has a content and is no recording.
///
/// # Errors
/// Says what it is instead, as far as that can be told.
pub fn must_be_recording(path: &Path) -> Result<(), Failure> {
    let shown = path.display().to_string();
    let mut start = Vec::new();
    let file = open_regular(path).map_err(|error| unreadable(&shown, &error))?;
    file.take(64)
        .read_to_end(&mut start)
        .map_err(|error| unreadable(&shown, &error))?;
    if start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{') {
        return Err(Failure::new(format!(
            "{shown}: a snapshot, which does not change; use culeak report, or name the recording"
        )));
    }
    match culeak::reader::identity(path) {
        // It is being made.
        Ok(_) | Err(ReadError::Empty(_) | ReadError::Unfinished(_)) => Ok(()),
        Err(error) => Err(Failure::new(error.to_string())),
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
    matches!((identity(a), identity(b)), (Ok(a), Ok(b)) if a == b)
}

/// The recording among the files a process maps: its own by name, else any.
fn mapped_recording(maps: &[u8], pid: u32) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for line in maps.split(|&byte| byte == b'\n') {
        let Some(start) = line.iter().position(|&byte| byte == b'/') else {
            continue;
        };
        let path = line[start..].strip_suffix(b" (deleted)").unwrap_or(&line[start..]);
        let path = with_line_breaks(path);
        if path.as_os_str().as_bytes().ends_with(b".culeak") && !found.contains(&path) {
            found.push(path);
        }
    }
    let own = format!(".{pid}.culeak");
    let position = found
        .iter()
        .position(|path| path.as_os_str().as_bytes().ends_with(own.as_bytes()))
        .unwrap_or(0);
    (!found.is_empty()).then(|| found.swap_remove(position))
}

/// A path as the kernel writes it in a memory map: a line break in it is `\012`.
fn with_line_breaks(path: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, behind @ ..] = rest {
        let escaped = rest.strip_prefix(b"\\012");
        plain.push(if escaped.is_some() { b'\n' } else { *first });
        rest = escaped.unwrap_or(behind);
    }
    PathBuf::from(OsString::from_vec(plain))
}

fn from_file(path: &Path, shown: &str, read: Reader) -> Result<Snapshot, Failure> {
    let metadata = fs::metadata(path).map_err(|error| unreadable(shown, &error))?;
    output::protect(&metadata);
    if metadata.is_dir() {
        return Err(Failure::new(format!(
            "{shown}: is a folder; name a recording or snapshot in it"
        )));
    }
    // Process substitution, or a FIFO that the user made. This waits for its writer, as any reader of one does.
    if metadata.file_type().is_fifo() {
        let pipe = File::open(path).map_err(|error| unreadable(shown, &error))?;
        return from_pipe(pipe, shown, read);
    }
    if !metadata.is_file() {
        return Err(Failure::new(format!(
            "{shown}: is neither a file nor a pipe; name a recording, a snapshot, a process id or -"
        )));
    }
    let mut file = open_regular(path).map_err(|error| unreadable(shown, &error))?;
    let mut start = [0; 64];
    let length = file.read(&mut start).map_err(|error| unreadable(shown, &error))?;
    let start = &start[..length];
    let json = start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    if !json && !pickle::is_pickle(start) {
        // What is wrong with anything else, the reader of recordings says best.
        return read(path).map_err(|error| Failure::new(error.to_string()));
    }
    let mut text = || -> io::Result<Result<Snapshot, Vec<u8>>> {
        if json {
            file.rewind()?;
            if let Some(snapshot) = streaming::read(Watched::new(&mut file, metadata.len()))? {
                return Ok(Ok(snapshot));
            }
        }
        let mut bytes = Vec::new();
        file.rewind()?;
        Watched::new(&mut file, metadata.len()).read_to_end(&mut bytes)?;
        Ok(Err(bytes))
    };
    match text().map_err(|error| unreadable(shown, &error))? {
        Ok(snapshot) => checked(snapshot, shown),
        Err(bytes) if json => parse(&bytes, shown),
        Err(bytes) => unpickle(&bytes, shown),
    }
}

/// A file that shows how far it has been read.
struct Watched<'f> {
    file: &'f mut File,
    progress: Progress,
}

impl<'f> Watched<'f> {
    fn new(file: &'f mut File, bytes: u64) -> Watched<'f> {
        Watched {
            file,
            progress: Progress::over("reading", bytes, Unit::Bytes),
        }
    }
}

impl Read for Watched<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // Large files are read a piece at a time, so that there is something to see.
        const PIECE: usize = 1 << 22;
        let most = into.len().min(PIECE);
        let count = self.file.read(&mut into[..most])?;
        self.progress.advance(count as u64);
        Ok(count)
    }
}

fn from_stdin(read: Reader) -> Result<Snapshot, Failure> {
    let stdin = io::stdin();
    let own = stdin.as_fd().try_clone_to_owned().map(File::from);
    if let Ok(metadata) = own.and_then(|file| file.metadata()) {
        output::protect(&metadata);
    }
    from_pipe(stdin.lock(), "standard input", read)
}

/// Reads what can be read only once.
fn from_pipe(mut input: impl Read, shown: &str, read: Reader) -> Result<Snapshot, Failure> {
    let mut bytes = Vec::new();
    let taken = input.by_ref().take(64).read_to_end(&mut bytes);
    taken.map_err(|error| unreadable(shown, &error))?;
    if reader::is_recording(&bytes) {
        return spooled(&bytes, input, shown, read);
    }
    input
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(shown, &error))?;
    if pickle::is_pickle(&bytes) {
        return unpickle(&bytes, shown);
    }
    if bytes.is_empty() {
        return Err(Failure::new(format!(
            "{shown}: empty; pipe a recording, or the output of `culeak snapshot … -o -`, into it"
        )));
    }
    parse(&bytes, shown)
}

/// A recording is read here and there, so one that comes through a pipe is put into a file first.
fn spooled(start: &[u8], mut rest: impl Read, shown: &str, read: Reader) -> Result<Snapshot, Failure> {
    let mut copy = || {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(start)?;
        io::copy(&mut rest, &mut file)?;
        Ok(file)
    };
    let file = copy().map_err(|error: io::Error| {
        Failure::new(format!(
            "{shown}: the recording cannot be copied to {} ({error}); set TMPDIR to a folder with room for it",
            std::env::temp_dir().display()
        ))
    })?;
    let mut snapshot = read(file.path()).map_err(|error| {
        let own = file.path().display().to_string();
        Failure::new(error.to_string().replacen(&own, shown, 1))
    })?;
    shown.clone_into(&mut snapshot.process.recording);
    Ok(snapshot)
}

fn unreadable(shown: &str, error: &io::Error) -> Failure {
    Failure::new(match error.kind() {
        io::ErrorKind::NotFound => {
            format!("{shown}: no such file or process; `culeak snapshot --list` shows what is running")
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "{shown}: permission denied; recordings belong to the user who ran the program, so read it as that user"
            )
        }
        _ => format!("{shown}: cannot be read ({error}); check the file and try again"),
    })
}

/// Reads a snapshot that PyTorch took.
fn unpickle(bytes: &[u8], shown: &str) -> Result<Snapshot, Failure> {
    let bad = |reason: String| {
        Failure::new(format!(
            "{shown}: {reason}; take it again with torch.cuda.memory._dump_snapshot"
        ))
    };
    let snapshot = memory_viz::read(bytes, shown).map_err(bad)?;
    snapshot.validate().map_err(bad)?;
    Ok(snapshot)
}

/// The two fields that say what a JSON file is.
#[derive(Deserialize)]
struct Envelope {
    format: Option<serde_json::Value>,
    version: Option<serde_json::Value>,
}

/// Reads a snapshot's JSON.
fn parse(bytes: &[u8], shown: &str) -> Result<Snapshot, Failure> {
    match serde_json::from_slice::<Snapshot>(bytes) {
        Ok(snapshot) => checked(snapshot, shown),
        Err(error) => {
            envelope(bytes, shown)?;
            Err(damaged(&error.to_string(), shown))
        }
    }
}

fn damaged(reason: &str, shown: &str) -> Failure {
    Failure::new(format!(
        "{shown}: a damaged snapshot ({reason}); take it again with `culeak snapshot`"
    ))
}

/// What was read, if it is a snapshot that this version knows, and whole.
fn checked(snapshot: Snapshot, shown: &str) -> Result<Snapshot, Failure> {
    known(Some(&snapshot.format), Some(snapshot.version.into()), shown)?;
    snapshot.validate().map_err(|error| damaged(&error, shown))?;
    Ok(snapshot)
}

/// Why a file that cannot be read as a snapshot is none of ours.
fn envelope(bytes: &[u8], shown: &str) -> Result<(), Failure> {
    let envelope: Envelope = serde_json::from_slice(bytes).map_err(|error| {
        let reason = if error.is_eof() {
            format!(
                "a JSON file that ends in the middle (line {}); take the snapshot again",
                error.line()
            )
        } else {
            format!("not valid JSON ({error}); take the snapshot again with `culeak snapshot`")
        };
        Failure::new(format!("{shown}: {reason}"))
    })?;
    let format = envelope.format.as_ref().and_then(|format| format.as_str());
    let version = envelope.version.as_ref().and_then(serde_json::Value::as_u64);
    known(format, version, shown)
}

fn known(format: Option<&str>, version: Option<u64>, shown: &str) -> Result<(), Failure> {
    let bad = |reason: String| Err(Failure::new(format!("{shown}: {reason}")));
    match format {
        Some(snapshot::FORMAT) => {}
        Some(other) if other.starts_with("culeak-") => {
            return bad(format!(
                "a {} of culeak, not a snapshot; use the recording or `culeak snapshot` output",
                &other[7..]
            ));
        }
        _ => return bad("JSON of some other program; make a snapshot with `culeak snapshot`".to_owned()),
    }
    match version {
        Some(version) if version == u64::from(snapshot::VERSION) => Ok(()),
        Some(version @ 1..) => {
            let release = if version > u64::from(snapshot::VERSION) {
                "newer"
            } else {
                "older"
            };
            bad(format!(
                "written by snapshot version {version}, this build reads version {}; take it again or use the {release} release",
                snapshot::VERSION
            ))
        }
        _ => bad("snapshot without a valid version; take it again with `culeak snapshot`".to_owned()),
    }
}

#[cfg(test)]
mod tests;
