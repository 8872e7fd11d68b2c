//! Files and pipes to snapshots; the first bytes determine the type, never the name.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use culeak::file::spool::NOTE;
use culeak::reader::{self, ReadError, open_regular};
use culeak::snapshot::{self, Snapshot, streaming};
use serde::Deserialize;

use super::{memory_viz, sidecar};
use crate::errors::Failure;
use crate::progress::{Progress, Unit};
use crate::{output, pickle};

/// How recordings are read: [`reader::read`], [`reader::read_with_totals`] or [`reader::read_timeline`].
pub type Reader<'r> = &'r dyn Fn(&Path) -> Result<Snapshot, ReadError>;

/// Refuses a file that is neither empty nor a recording.
///
/// # Errors
/// The file is something else, or cannot be read.
pub fn must_be_recording(path: &Path) -> Result<(), Failure> {
    let shown = path.display().to_string();
    let start = start_of(path, 64).map_err(|error| unreadable(&shown, &error))?;
    if start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{') {
        return Err(Failure::new(format!(
            "{shown}: a snapshot, which does not change; use `culeak report`, or name the recording"
        )));
    }
    match culeak::reader::identity(path) {
        // The recording is being created.
        Ok(_) | Err(ReadError::Empty(_) | ReadError::Unfinished(_)) => Ok(()),
        Err(error) => Err(Failure::new(error.to_string())),
    }
}

/// Whether opening this file waits for a writer.
pub fn is_pipe(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo())
}

/// Whether a file begins like a snapshot, whose first field is its format.
pub fn begins_as_snapshot(path: &Path) -> bool {
    start_of(path, 256).is_ok_and(|start| String::from_utf8_lossy(&start).contains(snapshot::FORMAT))
}

/// Whether a file begins like a recording, or like the note at the place of a spooled one.
///
/// # Errors
/// It may not be read.
pub fn begins_as_recording(path: &Path) -> io::Result<bool> {
    match start_of(path, 8) {
        Ok(start) => Ok(reader::is_recording(&start) || start == NOTE),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        Err(_) => Ok(false),
    }
}

/// At most so many of a file's first bytes.
fn start_of(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    open_regular(path)?.take(most).read_to_end(&mut start)?;
    Ok(start)
}

/// The process of a snapshot: its id, and when it started.
pub fn identity(path: &Path) -> Option<(u32, u64)> {
    #[derive(Deserialize)]
    struct OfProcess {
        pid: u32,
        started_unix_ns: u64,
    }
    #[derive(Deserialize)]
    struct Whole {
        process: OfProcess,
    }
    let file = io::BufReader::new(open_regular(path).ok()?);
    let Whole { process } = serde_json::from_reader(file).ok()?;
    Some((process.pid, process.started_unix_ns))
}

/// Reads a regular file, and refuses any other without opening it. All inputs are opened here, except the FIFOs that are
/// arguments themselves ([`read_named_pipe`]).
pub fn read(path: &Path, shown: &str, reader: Reader) -> Result<Snapshot, Failure> {
    let metadata = fs::metadata(path).map_err(|error| unreadable(shown, &error))?;
    output::protect(&metadata);
    if metadata.is_dir() {
        return Err(Failure::new(format!(
            "{shown}: is a folder; name a recording or snapshot in it"
        )));
    }
    if metadata.file_type().is_fifo() {
        return Err(Failure::new(format!(
            "{shown}: a pipe, which is read only if it is an argument itself; name it, or leave it out"
        )));
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
        // The type of an ELF file.
        const CORE: u8 = 4;
        // The reader of recordings reports what is wrong with any other file.
        let mut snapshot = reader(path).map_err(|error| match error {
            ReadError::Foreign(_) if start.starts_with(b"\x7fELF") && start.get(16) == Some(&CORE) => Failure::new(
                format!("{shown}: a core file, not a recording; to search it: culeak why --core {shown}"),
            ),
            ReadError::Foreign(_) if start.starts_with(b"\x7fELF") => Failure::new(format!(
                "{shown}: a program, not a recording; to run and record it, put -- before it: culeak run -- {shown}"
            )),
            error => Failure::new(error.to_string()),
        })?;
        sidecar::attach(path, &mut snapshot);
        return Ok(snapshot);
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

/// A file that reports how far it has been read.
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
        // Large files are read in pieces, so that the bar moves.
        const PIECE: usize = 1 << 22;
        let most = into.len().min(PIECE);
        let count = self.file.read(&mut into[..most])?;
        self.progress.advance(count as u64);
        Ok(count)
    }
}

pub fn read_stdin(reader: Reader) -> Result<Snapshot, Failure> {
    let stdin = io::stdin();
    let own = stdin.as_fd().try_clone_to_owned().map(File::from);
    if let Ok(metadata) = own.and_then(|file| file.metadata()) {
        output::protect(&metadata);
    }
    read_pipe(stdin.lock(), "standard input", reader)
}

/// Reads a FIFO, or a process substitution. Opening it waits for a writer.
pub fn read_named_pipe(path: &Path, shown: &str, reader: Reader) -> Result<Snapshot, Failure> {
    let pipe = File::open(path).map_err(|error| unreadable(shown, &error))?;
    if let Ok(metadata) = pipe.metadata() {
        output::protect(&metadata);
    }
    read_pipe(pipe, shown, reader)
}

/// Reads a pipe, which can be read only once.
pub fn read_pipe(mut input: impl Read, shown: &str, reader: Reader) -> Result<Snapshot, Failure> {
    let mut bytes = Vec::new();
    let taken = input.by_ref().take(64).read_to_end(&mut bytes);
    taken.map_err(|error| unreadable(shown, &error))?;
    if reader::is_recording(&bytes) {
        return spooled(&bytes, input, shown, reader);
    }
    input
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(shown, &error))?;
    if pickle::is_pickle(&bytes) {
        return unpickle(&bytes, shown);
    }
    if bytes.is_empty() {
        return Err(Failure::new(format!(
            "{shown}: empty; pipe a recording or the output of `culeak snapshot … -o -` into it"
        )));
    }
    parse(&bytes, shown)
}

/// Copies a recording from a pipe to a file, since reading a recording needs random access.
fn spooled(start: &[u8], mut rest: impl Read, shown: &str, reader: Reader) -> Result<Snapshot, Failure> {
    let mut copy = || {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(start)?;
        io::copy(&mut rest, &mut file)?;
        Ok(file)
    };
    let file = copy().map_err(|error: io::Error| {
        format!(
            "{shown}: the recording cannot be copied to {} ({error}); set TMPDIR to a folder with room for it",
            std::env::temp_dir().display()
        )
    })?;
    let mut snapshot = reader(file.path()).map_err(|error| {
        let own = file.path().display().to_string();
        Failure::new(error.to_string().replacen(&own, shown, 1))
    })?;
    shown.clone_into(&mut snapshot.process.recording);
    Ok(snapshot)
}

pub fn unreadable(shown: &str, error: &io::Error) -> Failure {
    Failure::new(match error.kind() {
        io::ErrorKind::NotFound => {
            format!("{shown}: no such file or process; `culeak snapshot --list` shows what is running")
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "{shown}: permission denied; only the user who ran the program can read its recording; run culeak as that user"
            )
        }
        _ => format!("{shown}: cannot be read ({error}); check the file and try again"),
    })
}

/// Reads a memory snapshot of PyTorch.
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

/// The fields that identify a JSON file.
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

/// Validates a snapshot that was read.
fn checked(snapshot: Snapshot, shown: &str) -> Result<Snapshot, Failure> {
    known(Some(&snapshot.format), Some(snapshot.version.into()), shown)?;
    snapshot.validate().map_err(|error| damaged(&error, shown))?;
    Ok(snapshot)
}

/// Checks whether JSON that cannot be parsed as a snapshot claims to be one.
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
                "a {} of culeak, not a snapshot; name a recording, or the output of `culeak snapshot`",
                &other[7..]
            ));
        }
        _ => return bad("JSON of another program; take a snapshot with `culeak snapshot`".to_owned()),
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
        _ => bad("a snapshot without a valid version; take it again with `culeak snapshot`".to_owned()),
    }
}
