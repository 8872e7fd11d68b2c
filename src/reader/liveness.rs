//! Whether the process of a recording still runs, and its pid here.
//!
//! A pid alone proves little: it may be reused, an exec keeps it, and in another pid namespace (a container's) it means
//! another process. So the process must have the start time in the header, and must still map the recording, which neither
//! an exec nor the end of the process leaves mapped. If one of these cannot be checked, the others decide. A process of
//! another pid namespace is searched for among all processes that are visible here.

use std::fs;
use std::io::{BufRead, BufReader};
use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Bytes;
use crate::file::spool;
use crate::format::Header;

/// The state of a recording's process, as far as it can be seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It runs; this is its pid here.
    Running(u32),
    Gone,
    /// Its pid namespace is not visible from here.
    Unknown,
}

/// Inode of the initial pid namespace, in which every process has a pid (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;

/// The state of the process that wrote a recording on this host.
pub fn liveness(header: &Bytes, recording: &Path) -> Liveness {
    let process = Recorded {
        pid: header.field(offset_of!(Header, pid)),
        start_ticks: header.field(offset_of!(Header, process_start_ticks)),
        pid_namespace: header.field(offset_of!(Header, pid_namespace)),
        time_namespace: header.field(offset_of!(Header, time_namespace)),
        file_number: header.field(offset_of!(Header, file_number)),
        file_name: recording.file_name().map_or(&[], |name| name.as_encoded_bytes()),
    };
    let ours = namespace("self", "pid");
    if process.pid_namespace == 0 || ours.is_none_or(|ours| ours == process.pid_namespace) {
        return match process.runs_as(process.pid) {
            true => Liveness::Running(process.pid),
            false => Liveness::Gone,
        };
    }
    match process.find() {
        Some(pid) => Liveness::Running(pid),
        // A reader that may not inspect process 1 may not inspect all of the others either.
        None if ours == Some(INITIAL_PID_NAMESPACE) && Path::new("/proc/1/status").exists() => Liveness::Gone,
        None => Liveness::Unknown,
    }
}

/// The identity in a header.
struct Recorded<'a> {
    pid: u32,
    start_ticks: u64,
    pid_namespace: u64,
    time_namespace: u64,
    file_number: u64,
    file_name: &'a [u8],
}

impl Recorded<'_> {
    /// Whether the process with this pid here is the recorded one.
    fn runs_as(&self, pid: u32) -> bool {
        let Some(ticks) = start_ticks(pid) else { return false };
        // A time namespace may shift the boot time, and with it the start times of processes.
        let comparable =
            self.time_namespace == 0 || namespace("self", "time").is_none_or(|ours| ours == self.time_namespace);
        (!comparable || ticks == self.start_ticks) && self.is_mapped_by(pid).unwrap_or(comparable)
    }

    /// Whether the process maps the recording. `None`: its mappings may not be read, or the inode of the recording is unknown.
    ///
    /// Some file systems show another inode in `maps` than `stat` does, so an equal file name counts as well.
    fn is_mapped_by(&self, pid: u32) -> Option<bool> {
        if self.file_number == 0 {
            return None;
        }
        let maps = BufReader::new(fs::File::open(format!("/proc/{pid}/maps")).ok()?);
        let number = self.file_number.to_string();
        for line in maps.split(b'\n') {
            // `start-end flags offset device inode   path`
            let line = line.ok()?;
            let mut words = line.splitn(6, |&byte| byte == b' ');
            let inode = words.nth(4).unwrap_or_default();
            let path = words.next().unwrap_or_default();
            let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
            let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
            let name = without_spool_prefix(name);
            if inode == number.as_bytes() || (!name.is_empty() && name == self.file_name) {
                return Some(true);
            }
        }
        Some(false)
    }

    /// The pid here of a process of another pid namespace.
    fn find(&self) -> Option<u32> {
        let entries = fs::read_dir("/proc").ok()?;
        let mut pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.find(|&pid: &u32| {
            let nested = pids_of(pid).is_some_and(|pids| pids.len() > 1 && pids.last() == Some(&self.pid));
            // The namespaces of other users' processes may not be readable.
            nested
                && namespace(&pid.to_string(), "pid").is_none_or(|theirs| theirs == self.pid_namespace)
                && self.runs_as(pid)
        })
    }
}

/// The name of the recording that a spool of this name is of; any other name as it is.
fn without_spool_prefix(name: &[u8]) -> &[u8] {
    let numbered = name.strip_prefix(spool::PREFIX.as_bytes());
    let name_in = |numbered: &'_ [u8]| Some(numbered.iter().position(|&byte| byte == b'.')? + 1);
    numbered
        .and_then(|numbered| numbered.get(name_in(numbered)?..))
        .unwrap_or(name)
}

/// The inode of a process's namespace.
fn namespace(pid: &str, kind: &str) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{pid}/ns/{kind}")).ok()?.ino())
}

/// The pids of a process, from this pid namespace down to its own.
fn pids_of(pid: u32) -> Option<Vec<u32>> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(b"NSpid:"))?;
    let words = std::str::from_utf8(line).ok()?.split_whitespace();
    words.map(|word| word.parse().ok()).collect()
}

/// The pid of a process in its own pid namespace, given its pid here.
pub fn own_pid(pid: u32) -> Option<u32> {
    pids_of(pid)?.last().copied()
}

/// Field 22 of /proc/PID/stat: when the process started, in clock ticks since boot.
pub fn start_ticks(pid: u32) -> Option<u64> {
    // The name in parentheses may contain anything, so fields are counted from its end.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(&stat[end + 1..]).ok()?;
    fields.split_whitespace().nth(19)?.parse().ok()
}
