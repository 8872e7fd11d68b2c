//! `culeak snapshot --list`: the processes of this user that use CUDA, recorded or not; for `culeak mcp`, also the files of a folder.
//!
//! A recording is found among the files that a process maps, so nothing has to be registered and nothing can be stale.
//! Processes that end during the scan are left out. Deliberately absent: other users' processes, whose memory maps only root
//! may read.

use std::cmp::Reverse;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use culeak::analysis::program::Program;
use culeak::analysis::report::shell_word;
use culeak::kind::Place;
use culeak::proc::{self, Files};
use culeak::snapshot::{READABLE, Snapshot};
use nix::unistd::geteuid;
use serde::Serialize;

use crate::document::{self, Cell, DIM, Document, Rows, Text, styled};
use crate::errors::Failure;
use crate::load;
use crate::text;

/// The list as JSON.
#[derive(Serialize)]
struct List {
    format: &'static str,
    version: u32,
    processes: Vec<Listed>,
}

#[derive(Default, Serialize)]
struct Listed {
    pid: u32,
    program: String,
    /// `recorded`, `unreadable` or `not_recorded`.
    state: &'static str,
    recording: Option<String>,
    device_bytes: Option<u64>,
    host_bytes: Option<u64>,
    /// Why the recording cannot be read.
    reason: Option<String>,
}

pub fn execute(json: bool) -> Result<ExitCode, Failure> {
    let processes = listed()?;
    match json {
        true => text::print_json(&List {
            format: "culeak-processes",
            version: 1,
            processes,
        })?,
        false => document::print(|| page(&processes))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn listed() -> Result<Vec<Listed>, Failure> {
    Ok(using_cuda()?.iter().filter_map(Listed::of).collect())
}

/// The newest recordings and snapshots of a folder, and the processes.
///
/// # Errors
/// It is no folder, or the processes cannot be listed.
pub fn of_folder(folder: &Path) -> Result<Document, Failure> {
    /// Each is read.
    const SHOWN: usize = 12;
    if !folder.is_dir() {
        return Err(Failure::new(format!("{}: is no folder; name one", folder.display())));
    }
    let members = load::Members::of(folder);
    let written = |path: &PathBuf| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let mut files: Vec<PathBuf> = members.recordings.into_iter().chain(members.snapshots).collect();
    files.sort_by_cached_key(|path| Reverse(written(path)));
    let mut page = Document::default();
    page.warnings(members.failures.iter().map(ToString::to_string));
    page.warnings(members.left_out);
    page.warnings(members.unrecorded);
    page.more(
        files.len().saturating_sub(SHOWN),
        "file",
        ", older; name a folder, or a pattern such as runs/*.culeak",
    );
    let files = files.iter().take(SHOWN).map(|path| Listed::of_file(path));
    page.append(self::page(&files.chain(listed()?).collect::<Vec<_>>()));
    Ok(page)
}

/// The processes of this user that are being recorded, by their ids.
pub fn recorded() -> Result<Vec<u32>, Failure> {
    let recorded = using_cuda()?
        .into_iter()
        .filter(|(_, files)| !files.recordings.is_empty());
    Ok(recorded.map(|(pid, _)| pid).collect())
}

/// The processes of this user that map a recording or the CUDA driver, by id.
fn using_cuda() -> Result<Vec<(u32, Files)>, Failure> {
    let pids = proc::numbers("/proc");
    let pids = pids.map_err(|error| format!("/proc: cannot be read: {error}; is it mounted?"))?;
    let user = geteuid();
    let is_ours = |pid: &u32| {
        let owner = fs::metadata(format!("/proc/{pid}")).map(|folder| folder.uid());
        user.is_root() || owner.is_ok_and(|owner| owner == user.as_raw())
    };
    let with_files = |pid| Some((pid, Files::of(&proc::mappings(pid).ok()?)));
    let uses_cuda = |(_, files): &(u32, Files)| files.driver.is_some() || !files.recordings.is_empty();
    let mut found: Vec<_> = pids.filter(is_ours).filter_map(with_files).filter(uses_cuda).collect();
    found.sort_unstable_by_key(|(pid, _)| *pid);
    Ok(found)
}

impl Listed {
    /// `None`: the process has ended.
    fn of((pid, files): &(u32, Files)) -> Option<Listed> {
        let loaded = (!files.recordings.is_empty()).then(|| load::one(pid.to_string()));
        let program = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        let listed = Listed {
            pid: *pid,
            program: program.trim_end().to_owned(),
            ..Listed::default()
        };
        Some(match loaded {
            Some(Ok(loaded)) => listed.holding(&loaded.snapshot),
            Some(Err(failure)) => listed.unreadable(failure),
            None => Listed {
                state: "not_recorded",
                ..listed
            },
        })
    }

    /// A recording or a snapshot, at the point that a report shows: a script frees its memory when it ends.
    fn of_file(path: &Path) -> Listed {
        let loaded = load::Place::File(path.to_owned()).load_without_peaks();
        let usual = loaded.and_then(|item| {
            let point = item.snapshot.usual_point();
            let snapshot = item.snapshot.into_at(&point);
            snapshot.map_err(|error| Failure::new(error.to_string()))
        });
        let name = path.strip_prefix(".").unwrap_or(path).display().to_string();
        match usual {
            Ok(snapshot) => Listed {
                pid: snapshot.process.pid,
                program: Program::of(&snapshot).to_string(),
                state: "file",
                recording: Some(name),
                ..Listed::default().holding(&snapshot)
            },
            Err(failure) => Listed::default().unreadable(failure),
        }
    }

    fn holding(self, snapshot: &Snapshot) -> Listed {
        let live = |counts: fn(Place) -> bool| {
            let all = snapshot.allocations.iter();
            let counted = all.filter(|allocation| counts(allocation.kind.place()));
            Some(counted.fold(0, |sum: u64, allocation| sum.saturating_add(allocation.bytes)))
        };
        Listed {
            state: "recorded",
            device_bytes: live(Place::on_device),
            host_bytes: live(|place| place == Place::Host),
            recording: Some(snapshot.process.recording.clone()),
            ..self
        }
    }

    fn unreadable(self, failure: Failure) -> Listed {
        Listed {
            state: "unreadable",
            reason: Some(failure.message),
            ..self
        }
    }

    fn size(&self, bytes: Option<u64>) -> Cell {
        match (bytes, self.state) {
            (Some(bytes), _) => Cell::Size(bytes),
            (None, "unreadable") => Cell::Number("?".to_owned()),
            (None, _) => Cell::Number("-".to_owned()),
        }
    }
}

fn page(processes: &[Listed]) -> Document {
    let mut page = Document::default();
    if processes.is_empty() {
        page.line("no process of this user uses CUDA");
        page.next("culeak run -- PROGRAM");
        return page;
    }
    let table = Rows::of(processes)
        .column("pid", |one| Cell::Number(one.pid.to_string()))
        .column("program", |one| one.program.clone())
        .column("device", |one| one.size(one.device_bytes))
        .column("host", |one| one.size(one.host_bytes))
        .column("recording", |one| {
            match one.recording.as_ref().or(one.reason.as_ref()) {
                Some(text) => Text::from(text.as_str()),
                None => styled(
                    DIM,
                    format!(
                        "not recorded; if it uses one of {READABLE}, see `culeak why {}`",
                        one.pid
                    ),
                ),
            }
        });
    page.table(table);
    let first = |state| processes.iter().find(|process| process.state == state);
    if let Some(file) = first("file").and_then(|file| file.recording.as_ref()) {
        page.next(format!("culeak report {}", shell_word(file)));
    } else if let Some(process) = first("recorded") {
        page.next(format!("culeak snapshot {} -o now.json", process.pid));
    } else if let Some(process) = first("not_recorded") {
        let why = format!("culeak why {}", process.pid);
        page.next(format!(
            "culeak run -- PROGRAM; without it, only {READABLE} can be read: {why}"
        ));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_cuda_is_not_listed() {
        let found = using_cuda().expect("readable");
        assert!(found.iter().all(|(pid, _)| *pid != std::process::id()));
    }

    #[test]
    fn each_state_has_its_row() {
        let state = |pid, state, bytes: Option<u64>, recording: Option<&str>, reason: Option<&str>| Listed {
            pid,
            program: "train".to_owned(),
            state,
            recording: recording.map(str::to_owned),
            device_bytes: bytes,
            host_bytes: bytes,
            reason: reason.map(str::to_owned),
        };
        let text = page(&[
            state(7, "recorded", Some(1 << 20), Some("/tmp/train.7.culeak"), None),
            state(8, "unreadable", None, None, Some("process 8: denied")),
            state(9, "not_recorded", None, None, None),
        ])
        .plain();
        let words = |nth: usize| {
            text.lines()
                .nth(nth)
                .expect("a line")
                .split_whitespace()
                .collect::<Vec<_>>()
        };
        assert_eq!(words(0), ["pid", "program", "device", "host", "recording"]);
        assert_eq!(words(1), ["7", "train", "1", "MiB", "1", "MiB", "/tmp/train.7.culeak"]);
        assert_eq!(words(2)[..4], ["8", "train", "?", "?"]);
        assert_eq!(words(3)[..5], ["9", "train", "-", "-", "not"]);
        assert!(text.ends_with("next: culeak snapshot 7 -o now.json\n"), "{text}");
        assert!(page(&[]).plain().contains("no process of this user uses CUDA"));
    }
}
