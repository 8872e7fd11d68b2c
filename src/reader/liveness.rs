//! Whether the process of a recording still runs, and under which number it is known here.
//!
//! A process id alone says little: it may be used again, an exec keeps it, and in another pid namespace (a container's) it
//! means another process. So the process must have begun when the header says, and still map the recording, which neither
//! an exec nor an end leaves mapped. Where one of these cannot be looked at, the others decide. A process of another pid
//! namespace is looked for among all that are visible here.

use std::fs;
use std::io::{BufRead, BufReader};
use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Bytes, header_word};
use crate::format::Header;

/// What is known here of a recording's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It runs, and this is its number here.
    Running(u32),
    Gone,
    /// Its pid namespace is not one that can be looked into from here.
    Unknown,
}

/// Of the initial pid namespace, in which all processes have a number (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;

/// Of the process that made a recording on this host.
pub fn liveness(header: &Bytes, recording: &Path) -> Liveness {
    let process = Recorded {
        pid: header.half(offset_of!(Header, pid)),
        start_ticks: header_word(header, offset_of!(Header, process_start_ticks)),
        pid_namespace: header_word(header, offset_of!(Header, pid_namespace)),
        time_namespace: header_word(header, offset_of!(Header, time_namespace)),
        file_number: header_word(header, offset_of!(Header, file_number)),
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
        // Who may not look at process 1 may not look at all of the others either.
        None if ours == Some(INITIAL_PID_NAMESPACE) && Path::new("/proc/1/status").exists() => Liveness::Gone,
        None => Liveness::Unknown,
    }
}

/// What a header says.
struct Recorded<'a> {
    pid: u32,
    start_ticks: u64,
    pid_namespace: u64,
    time_namespace: u64,
    file_number: u64,
    file_name: &'a [u8],
}

impl Recorded<'_> {
    /// Whether it is the process that has this number here.
    fn runs_as(&self, pid: u32) -> bool {
        let Some(ticks) = start_ticks(pid) else { return false };
        // A time namespace may move the time that this host started, and with it all that is counted from there.
        let comparable =
            self.time_namespace == 0 || namespace("self", "time").is_none_or(|ours| ours == self.time_namespace);
        (!comparable || ticks == self.start_ticks) && self.is_mapped_by(pid).unwrap_or(comparable)
    }

    /// Whether that process maps the recording. `None`: it may not be asked, or the recording does not say which file it is.
    ///
    /// Some file systems show another inode there than to those who ask by name, so the name counts as well.
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
            if inode == number.as_bytes() || (!name.is_empty() && name == self.file_name) {
                return Some(true);
            }
        }
        Some(false)
    }

    /// The number here of the process, whose own number is one of another pid namespace.
    fn find(&self) -> Option<u32> {
        let entries = fs::read_dir("/proc").ok()?;
        let mut pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.find(|&pid: &u32| {
            let nested = numbers(pid).is_some_and(|numbers| numbers.len() > 1 && numbers.last() == Some(&self.pid));
            // Other users' namespaces may not be looked at.
            nested
                && namespace(&pid.to_string(), "pid").is_none_or(|theirs| theirs == self.pid_namespace)
                && self.runs_as(pid)
        })
    }
}

/// The inode of a namespace of a process.
fn namespace(pid: &str, kind: &str) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{pid}/ns/{kind}")).ok()?.ino())
}

/// The numbers of a process in this pid namespace and in those within it, down to its own.
fn numbers(pid: u32) -> Option<Vec<u32>> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(b"NSpid:"))?;
    let words = std::str::from_utf8(line).ok()?.split_whitespace();
    words.map(|word| word.parse().ok()).collect()
}

/// The number of a process in its own pid namespace, given the one it has here.
pub fn own_pid(pid: u32) -> Option<u32> {
    numbers(pid)?.last().copied()
}

/// Field 22 of /proc/PID/stat: when the process started, in clock ticks since boot.
pub fn start_ticks(pid: u32) -> Option<u64> {
    // The name in parentheses may hold anything, so count from its end.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(&stat[end + 1..]).ok()?;
    fields.split_whitespace().nth(19)?.parse().ok()
}
