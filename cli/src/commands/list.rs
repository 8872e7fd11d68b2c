//! `culeak snapshot --list`: the processes of this user that use CUDA, recorded or not.
//!
//! A recording is found among the files that a process maps, so nothing has to be registered and nothing can be stale.
//! Processes that end during the scan are left out. Deliberately absent: other users' processes, whose memory maps only root
//! may read.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;

use culeak::analysis::site::file_name;
use culeak::kind::Place;
use culeak::snapshot::Snapshot;
use nix::unistd::geteuid;
use serde::Serialize;

use crate::document::columns;
use crate::errors::Failure;
use crate::escape::Escaped;
use crate::load;
use crate::text::parts::{BOLD, DIM, Styled};
use crate::text::{self, units};

/// A process that maps the CUDA driver or a recording.
struct Found {
    pid: u32,
    name: String,
    recording: Recording,
}

enum Recording {
    Readable(Box<Snapshot>),
    Unreadable(String),
    /// The driver is mapped, but not a recording.
    Missing,
}

/// The list as JSON.
#[derive(Serialize)]
struct List<'f> {
    format: &'static str,
    version: u32,
    processes: Vec<Listed<'f>>,
}

#[derive(Serialize)]
struct Listed<'f> {
    pid: u32,
    program: &'f str,
    /// `recorded`, `unreadable` or `not_recorded`.
    state: &'static str,
    recording: Option<&'f str>,
    device_bytes: Option<u64>,
    host_bytes: Option<u64>,
    /// Why the recording cannot be read.
    reason: Option<&'f str>,
}

pub fn execute(json: bool) -> Result<ExitCode, Failure> {
    let found = scan()?;
    match json {
        true => text::print_json(&List {
            format: "culeak-processes",
            version: 1,
            processes: found.iter().map(listed).collect(),
        })?,
        false => text::print_lines(|out| write(&found, out))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn listed(found: &Found) -> Listed<'_> {
    let Found { pid, name, recording } = found;
    let listed = |state| Listed {
        pid: *pid,
        program: name,
        state,
        recording: None,
        device_bytes: None,
        host_bytes: None,
        reason: None,
    };
    match recording {
        Recording::Readable(snapshot) => Listed {
            recording: Some(&snapshot.process.recording),
            device_bytes: Some(live(snapshot, |place| place.on_device())),
            host_bytes: Some(live(snapshot, |place| place == Place::Host)),
            ..listed("recorded")
        },
        Recording::Unreadable(why) => Listed {
            reason: Some(why),
            ..listed("unreadable")
        },
        Recording::Missing => listed("not_recorded"),
    }
}

/// The processes of this user that are being recorded, by their ids.
pub fn recorded() -> Result<Vec<u32>, Failure> {
    let is_recorded = |pid: &u32| memory_map(*pid).is_some_and(|maps| uses(&maps) == Use::Recorded);
    let mut pids: Vec<u32> = pids()?.filter(is_recorded).collect();
    pids.sort_unstable();
    Ok(pids)
}

fn pids() -> Result<impl Iterator<Item = u32>, Failure> {
    let entries = fs::read_dir("/proc")
        .map_err(|error| Failure::new(format!("/proc: cannot be read: {error}; is it mounted?")))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()))
}

fn scan() -> Result<Vec<Found>, Failure> {
    let mut found: Vec<Found> = pids()?.filter_map(inspect).collect();
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

/// The memory map of a process; `None` if it belongs to another user or has ended.
fn memory_map(pid: u32) -> Option<String> {
    let folder = format!("/proc/{pid}");
    let user = geteuid();
    if !user.is_root() && fs::metadata(&folder).ok()?.uid() != user.as_raw() {
        return None;
    }
    let maps = fs::read(format!("{folder}/maps")).ok()?;
    Some(String::from_utf8_lossy(&maps).into_owned())
}

/// `None` if the process belongs to another user, does not use CUDA, or has ended.
fn inspect(pid: u32) -> Option<Found> {
    let recording = match uses(&memory_map(pid)?) {
        Use::Recorded => match load::one(pid.to_string()) {
            Ok(loaded) => Recording::Readable(Box::new(loaded.snapshot)),
            Err(failure) => Recording::Unreadable(failure.message),
        },
        Use::Unrecorded => Recording::Missing,
        Use::None => return None,
    };
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(Found {
        pid,
        name: name.trim_end().to_owned(),
        recording,
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Use {
    Recorded,
    Unrecorded,
    None,
}

/// How a process uses CUDA, from its memory map.
fn uses(maps: &str) -> Use {
    let files = || {
        maps.lines()
            .filter_map(|line| Some(line[line.find('/')?..].trim_end_matches(" (deleted)")))
    };
    if files().any(|path| path.ends_with(".culeak")) {
        Use::Recorded
    } else if files().any(|path| file_name(path).starts_with("libcuda.so")) {
        Use::Unrecorded
    } else {
        Use::None
    }
}

/// On a narrow terminal the path of a recording is below its process, behind this indent at most.
const PATH_INDENT: usize = 12;

fn write(found: &[Found], out: &mut dyn Write) -> io::Result<()> {
    if found.is_empty() {
        writeln!(out, "no process of this user uses CUDA")?;
        return writeln!(out, "next: culeak run -- PROGRAM");
    }
    let name_width = found
        .iter()
        .map(|process| columns::width(&process.name))
        .max()
        .unwrap_or(0)
        .max(7);
    let header = format!(
        "{:>8}  {:name_width$}  {:>10}  {:>10}  recording",
        "pid", "program", "device", "host"
    );
    writeln!(out, "{}", Styled(BOLD, header))?;
    for Found { pid, name, recording } in found {
        let name = columns::padded(&Escaped(name).to_string(), name_width);
        let (device, host, place) = match recording {
            Recording::Readable(snapshot) => {
                let device = units::bytes(live(snapshot, |place| place.on_device()));
                let host = units::bytes(live(snapshot, |place| place == Place::Host));
                let path = Escaped(&snapshot.process.recording).to_string();
                let room = columns::available().map(|available| available.saturating_sub(PATH_INDENT));
                let path = room.map_or_else(|| path.clone(), |room| columns::end_of(&path, room));
                (device, host, path)
            }
            Recording::Unreadable(why) => ("?".to_owned(), "?".to_owned(), Escaped(why).to_string()),
            Recording::Missing => {
                let why = "not recorded; restart it with `culeak run`";
                ("-".to_owned(), "-".to_owned(), Styled(DIM, why).to_string())
            }
        };
        writeln!(out, "{pid:>8}  {name}  {device:>10}  {host:>10}  {place}")?;
    }
    match found
        .iter()
        .find(|process| matches!(process.recording, Recording::Readable(_)))
    {
        Some(process) => writeln!(out, "next: culeak snapshot {} -o now.json", process.pid),
        None => Ok(()),
    }
}

fn live(snapshot: &Snapshot, counts: impl Fn(Place) -> bool) -> u64 {
    let counted = snapshot
        .allocations
        .iter()
        .filter(|allocation| counts(allocation.kind.place()));
    counted.fold(0, |sum, allocation| sum.saturating_add(allocation.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: &str = "7f00-7f10 r-xp 00000000 08:01 42  /usr/lib/libcuda.so.580.65.06\n";

    #[test]
    fn a_mapped_recording_marks_a_recorded_process() {
        let maps = format!("{DRIVER}7f20-7f30 rw-s 00000000 08:01 43  /tmp/my app.k3f9.host.7.culeak (deleted)\n");
        assert_eq!(uses(&maps), Use::Recorded);
    }

    #[test]
    fn a_driver_without_a_recording_is_reported() {
        assert_eq!(uses(DRIVER), Use::Unrecorded);
        assert_eq!(
            uses("7f00-7f10 r-xp 00000000 08:01 42  /usr/lib/libcudart.so.13\n"),
            Use::None
        );
        assert_eq!(uses("7f00-7f10 rw-p 00000000 00:00 0  [heap]\n"), Use::None);
    }

    #[test]
    fn a_process_without_cuda_is_not_listed() {
        assert!(
            inspect(std::process::id()).is_none(),
            "this process has neither a driver nor a recording"
        );
        assert!(scan().is_ok());
    }
}
