//! Holders beside a recording or an automatic snapshot: what `culeak run --why` found while the process waited.
//!
//! `NAME.culeak` has `NAME.culeak-why`, and so has `NAME.culeak-snapshot`; a recording of any other name has `NAME.culeak-why`
//! too. A file that belongs to another process of the same name, or is damaged, is mentioned and not used.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, BufReader};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use culeak::reader::open_regular;
use culeak::snapshot::{Holders, Snapshot};
use serde::{Deserialize, Serialize};

use crate::errors::Failure;
use crate::escape::Escaped;
use crate::output::{self, Overwrite};
use crate::{json, progress};

const FORMAT: &str = "culeak-holders";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Sidecar<'a> {
    format: Cow<'a, str>,
    version: u32,
    process: Identity<'a>,
    holders: Holders,
}

/// The process that a recording is of.
#[derive(Serialize, Deserialize, PartialEq, Eq)]
struct Identity<'a> {
    pid: u32,
    host: Cow<'a, str>,
    started_unix_ns: u64,
}

impl Identity<'_> {
    fn of(snapshot: &Snapshot) -> Identity<'_> {
        Identity {
            pid: snapshot.process.pid,
            host: Cow::Borrowed(&snapshot.process.host),
            started_unix_ns: snapshot.process.started_unix_ns,
        }
    }
}

pub fn beside(recording: &Path) -> PathBuf {
    match recording.extension() {
        Some(ending) if ending == "culeak-snapshot" => recording.with_extension("culeak-why"),
        _ => named_after(recording, "culeak-why"),
    }
}

/// The file of this ending that is named after a recording, as the recorder names its snapshots: `run.culeak` and `run.1` have
/// `run.ENDING` and `run.1.ENDING`.
pub fn named_after(recording: &Path, ending: &str) -> PathBuf {
    let name = recording.as_os_str().as_bytes();
    let stem = name.strip_suffix(b".culeak").unwrap_or(name);
    OsString::from_vec([stem, b".", ending.as_bytes()].concat()).into()
}

/// Writes the holders beside a recording.
///
/// # Errors
/// The file cannot be written.
pub fn write(recording: &Path, snapshot: &Snapshot, holders: Holders) -> Result<(), Failure> {
    let sidecar = Sidecar {
        format: FORMAT.into(),
        version: VERSION,
        process: Identity::of(snapshot),
        holders,
    };
    output::create_private(&beside(recording), Overwrite { force: true }, |out| {
        json::write_pretty(&mut *out, &sidecar)?;
        writeln!(out)
    })
}

/// Adds the holders beside a recording to its snapshot, if there are any.
pub fn attach(recording: &Path, snapshot: &mut Snapshot) {
    let path = beside(recording);
    let reason = match read(&path, snapshot) {
        Ok(holders) => {
            snapshot.holders = Some(holders);
            return;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => error,
    };
    let shown = path.display().to_string();
    progress::say(format_args!(
        "note: {}: what holds the memory is not shown: {reason}",
        Escaped(&shown)
    ));
}

fn read(path: &Path, snapshot: &Snapshot) -> io::Result<Holders> {
    let file = BufReader::new(open_regular(path)?);
    let sidecar: Sidecar =
        serde_json::from_reader(file).map_err(|error| io::Error::other(format!("damaged ({error})")))?;
    if sidecar.format != FORMAT || sidecar.version != VERSION {
        return Err(io::Error::other("written by another version of culeak"));
    }
    if sidecar.process != Identity::of(snapshot) {
        return Err(io::Error::other("it is of another process; delete it"));
    }
    let damaged = |reason| io::Error::other(format!("damaged ({reason})"));
    sidecar.holders.validate().map_err(damaged)?;
    Ok(sidecar.holders)
}

#[cfg(test)]
mod tests {
    use super::*;
    use culeak::snapshot::{HeldBlock, HolderPath};

    fn snapshot() -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.process.pid = 7;
        snapshot.process.host = "box".to_owned();
        snapshot.process.started_unix_ns = 1234;
        snapshot
    }

    fn holders() -> Holders {
        Holders {
            paths: vec![HolderPath {
                origin: "__main__.keep".to_owned(),
                ..HolderPath::default()
            }],
            blocks: vec![HeldBlock::default()],
            ..Holders::default()
        }
    }

    #[test]
    fn holders_are_found_beside_the_recording_of_the_same_process_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let recording = folder.path().join("app.k3f9.box.7.culeak");
        let snapshot_file = folder.path().join("app.k3f9.box.7.out-of-memory-1.culeak-snapshot");
        let mut snapshot = snapshot();
        write(&recording, &snapshot, holders()).expect("written");
        attach(&snapshot_file, &mut snapshot);
        assert_eq!(snapshot.holders, None, "the snapshot has its own");
        attach(&recording, &mut snapshot);
        assert_eq!(snapshot.holders, Some(holders()));
        (snapshot.holders, snapshot.process.started_unix_ns) = (None, 1235);
        attach(&recording, &mut snapshot);
        assert_eq!(snapshot.holders, None, "an earlier process of the same name");
    }

    #[test]
    fn recordings_whose_names_have_other_endings_share_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let [first, second] = ["run.1", "run.2"].map(|name| folder.path().join(name));
        let mut snapshot = snapshot();
        write(&first, &snapshot, holders()).expect("written");
        attach(&second, &mut snapshot);
        assert_eq!(snapshot.holders, None);
        attach(&first, &mut snapshot);
        assert_eq!(snapshot.holders, Some(holders()));
        let oom = "out-of-memory-1.culeak-snapshot";
        assert_eq!(named_after(&first, oom), folder.path().join(format!("run.1.{oom}")));
        assert_eq!(named_after(Path::new("a.culeak"), oom), Path::new(&format!("a.{oom}")));
    }

    #[test]
    fn damaged_files_are_not_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let recording = folder.path().join("app.culeak");
        let mut snapshot = snapshot();
        let mut wrong = holders();
        wrong.blocks[0].path = 1;
        write(&recording, &snapshot, wrong).expect("written");
        attach(&recording, &mut snapshot);
        assert_eq!(snapshot.holders, None);
        for text in ["", "{", "[]", "{\"format\":\"culeak-holders\"}"] {
            std::fs::write(beside(&recording), text).expect("written");
            attach(&recording, &mut snapshot);
            assert_eq!(snapshot.holders, None, "{text}");
        }
    }
}
