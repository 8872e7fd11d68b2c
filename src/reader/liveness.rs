//! Whether the process of a recording still runs, and its pid here.
//!
//! A pid alone proves little: it may be reused, an exec keeps it, and in another pid namespace (a container's) it means
//! another process. So the process must have the start time in the header, and must still map the recording, which neither
//! an exec nor the end of the process leaves mapped. If one of these cannot be checked, the others decide. A process of
//! another pid namespace is searched for among all processes that are visible here.

use std::fs;
use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Bytes;
use crate::file::spool;
use crate::format::Header;
use crate::proc;

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
        let Some(ticks) = proc::start_ticks(pid) else {
            return false;
        };
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
        let mappings = proc::mappings(pid).ok()?;
        let has_name = |mapping: &proc::Mapping| {
            let name = mapping.file().and_then(Path::file_name);
            let name = without_spool_prefix(name.map_or(&[], |name| name.as_encoded_bytes()));
            !name.is_empty() && name == self.file_name
        };
        Some(
            mappings
                .iter()
                .any(|mapping| mapping.inode == self.file_number || has_name(mapping)),
        )
    }

    /// The pid here of a process of another pid namespace.
    fn find(&self) -> Option<u32> {
        proc::numbers("/proc").ok()?.find(|&pid: &u32| {
            let nested = proc::nested_pids(pid).is_some_and(|pids| pids.len() > 1 && pids.last() == Some(&self.pid));
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
