//! The recorded process: who and where it is, and whether it still runs.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem::offset_of;
use std::path::Path;

use super::elapsed::Elapsed;
use super::liveness::{Liveness, liveness};
use super::{RawSnapshot, Source};
use crate::format::*;
use crate::job_variables::{NAME_MAX, SET_BY_PROGRAM, SET_MOST, VALUE_MAX};
use crate::snapshot::{Process, ProcessState};

/// Whether the process has stored its end by now.
fn ended_since(path: &Path) -> bool {
    let header = Source::open(path).and_then(|source| source.header());
    header.is_ok_and(|header| header.field::<u64>(offset_of!(Header, ended_ns)) != 0)
}

impl RawSnapshot {
    /// The recorded process, and the time since the recording began in nanoseconds.
    pub fn process(&self, path: &Path) -> (Process, u64) {
        let header = &self.header;
        let pid: u32 = header.field(offset_of!(Header, pid));
        let host = self.header_text(offset_of!(Header, host)).unwrap_or_default();
        let same_host = host_name().is_some_and(|name| name == host);
        let ended = header.field::<u64>(offset_of!(Header, ended_ns)) != 0;
        let seen_ended = header.field::<u32>(offset_of!(Header, seen_ended)) != 0;
        let is_dump = header.field::<u64>(offset_of!(Header, dumped_plus_one)) != 0;
        let (state, pid_here) = match (ended, same_host) {
            // An automatic snapshot: it was taken while the process ran.
            _ if is_dump => (ProcessState::Running, None),
            (true, _) => (ProcessState::Exited, None),
            (false, _) if seen_ended => (ProcessState::Ended, None),
            (false, false) => (ProcessState::Unknown, None),
            (false, true) => match liveness(header, path) {
                Liveness::Running(here) => (ProcessState::Running, Some(here)),
                // It may have ended by exit since the header was read.
                Liveness::Gone if ended_since(path) => (ProcessState::Exited, None),
                Liveness::Gone => (ProcessState::Ended, None),
                Liveness::Unknown => (ProcessState::Unknown, None),
            },
        };
        let command_line = self.header_text(offset_of!(Header, command_line)).unwrap_or_default();
        let mut ranks = BTreeMap::new();
        for (index, name) in RANK_VARIABLES.iter().enumerate() {
            if let Some(value) = self.header_text(offset_of!(Header, ranks) + index * size_of::<Text>()) {
                ranks.insert((*name).to_string(), value);
            }
        }
        for (_, row) in self.rows::<VariableRow>(Section::Variables, |row| row.name.bytes > 0) {
            let (name, value) = (row.name.at_most(NAME_MAX), row.value.at_most(VALUE_MAX));
            let (name, value) = (self.text(name), self.text(value));
            match ranks.entry(name) {
                Entry::Vacant(row) => drop(row.insert(value)),
                Entry::Occupied(mut row) if row.key() == SET_BY_PROGRAM => {
                    // A damaged file may have any number of them.
                    if row.get().matches("; ").count() + 1 < SET_MOST {
                        *row.get_mut() += &format!("; {value}");
                    }
                }
                Entry::Occupied(_) => {}
            }
        }
        let process = Process {
            pid,
            pid_here: pid_here.filter(|&here| here != pid),
            parent_pid: header.field(offset_of!(Header, parent_pid)),
            executable: self.header_text(offset_of!(Header, executable)).unwrap_or_default(),
            command_line: command_line.split_terminator('\0').map(str::to_string).collect(),
            host,
            ranks,
            started_unix_ns: header.field(offset_of!(Header, started_unix_ns)),
            state,
            depth: header.field(offset_of!(Header, depth)),
            recording: path.display().to_string(),
            python: self.python(),
            packages: BTreeMap::new(),
        };
        (process, Elapsed::since_start(header).ns())
    }

    fn header_text(&self, offset: usize) -> Option<String> {
        let text: Text = self.header.field(offset);
        text.present().map(|text| self.text(text))
    }
}

/// The name of this host; `None` if it cannot be read.
pub fn host_name() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .map(|name| name.trim_end().to_string())
}
