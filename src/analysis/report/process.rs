//! The process that a snapshot shows, and whether it has ended.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::point::Point;
use crate::snapshot::{ProcessState, Snapshot};

/// The process that a snapshot shows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessLine<'a> {
    /// In the process's own namespace.
    pub pid: u32,
    pub command_line: &'a [String],
    pub executable: &'a str,
    pub host: &'a str,
    /// Variables such as RANK that were set.
    pub ranks: &'a BTreeMap<String, String>,
    pub state: ProcessState,
    /// Wall clock, nanoseconds since 1970.
    pub started_unix_ns: u64,
    pub lasted_ns: u64,
    /// Path of the recording.
    pub recording: &'a str,
    /// The state is that of the moment at which a snapshot was taken.
    #[serde(skip)]
    pub is_of_snapshot: bool,
    /// PyTorch's allocator, if it took the snapshot; else empty.
    #[serde(skip)]
    pub by: &'a str,
}

/// The process that a snapshot shows.
pub fn process_line(snapshot: &Snapshot) -> ProcessLine<'_> {
    let process = &snapshot.process;
    ProcessLine {
        pid: process.pid,
        command_line: &process.command_line,
        executable: &process.executable,
        host: &process.host,
        ranks: &process.ranks,
        state: process.state,
        started_unix_ns: process.started_unix_ns,
        lasted_ns: snapshot.taken.lasted_ns.unwrap_or(snapshot.taken.at_ns),
        recording: &process.recording,
        is_of_snapshot: snapshot.taken.automatic.is_some(),
        by: if snapshot.taken.is_by_pytorch() {
            &snapshot.taken.by
        } else {
            ""
        },
    }
}

/// Whether the process ended by itself and the rows are its last state, so what is left is leaked. What a process held when it was
/// killed it had no chance to free.
pub fn is_leaked(snapshot: &Snapshot) -> bool {
    is_finished(snapshot) && snapshot.process.state == ProcessState::Exited
}

/// Whether the process has ended and the rows are its last state. An automatic snapshot shows a running process.
pub fn is_finished(snapshot: &Snapshot) -> bool {
    let is_last = matches!(snapshot.taken.point, None | Some(Point::Exit));
    is_last && snapshot.taken.automatic.is_none() && snapshot.process.state.has_ended()
}
