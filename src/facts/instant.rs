//! A process at one instant: what a snapshot says beside its rows.

use serde::Serialize;

use super::{Sampling, Snapshot, Tally, device_name, is_finished};
use crate::analysis::opaque::OpaquePool;
use crate::analysis::program::Program;

#[derive(Debug, Clone)]
pub struct Instant {
    /// The input as named on the command line.
    pub source: String,
    pub program: Program,
    pub process: Process,
    /// On the recording's own clock.
    pub at_ns: u64,
    /// The process has ended, and the snapshot shows what it left.
    pub at_end: bool,
    /// The number of marks set by then, and the name of the last.
    pub marks: u64,
    pub mark: Option<String>,
    /// The memory of all rows, if they are estimates from sampled stacks and it is not.
    pub exact: Option<Tally>,
    pub opaque_pools: Vec<OpaquePool>,
    /// Whether the objects of this snapshot are known.
    pub objects_known: bool,
    pub devices: Vec<DeviceUse>,
    pub lost_allocations: u64,
    pub sampling: Option<Sampling>,
    /// No call site has a function's name.
    pub bare: bool,
}

/// Identifies a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Process {
    pub started_unix_ns: u64,
    pub host: String,
    pub pid: u32,
    pub command_line: Vec<String>,
    pub ranks: std::collections::BTreeMap<String, String>,
}

/// A device at one instant.
#[derive(Debug, Clone)]
pub struct DeviceUse {
    pub label: String,
    pub name: String,
    /// Bytes in total and in use, if the driver was asked.
    pub total_and_used: Option<(u64, u64)>,
}

impl Instant {
    pub(super) fn of(snapshot: &Snapshot, source: String) -> Instant {
        let process = &snapshot.process;
        let mut marks = (snapshot.marks.iter()).filter(|mark| mark.time_ns <= snapshot.taken.at_ns);
        let automatic = snapshot.taken.automatic.as_ref();
        let taken_at_mark = automatic.and_then(|automatic| automatic.name.clone());
        Instant {
            source,
            program: Program::of(snapshot),
            process: Process {
                started_unix_ns: process.started_unix_ns,
                host: process.host.clone(),
                pid: process.pid,
                command_line: process.command_line.clone(),
                ranks: process.ranks.clone(),
            },
            at_ns: snapshot.taken.at_ns,
            at_end: is_finished(snapshot),
            marks: marks.clone().count() as u64,
            mark: taken_at_mark.or_else(|| marks.next_back().map(|mark| mark.name.clone())),
            exact: None,
            opaque_pools: Vec::new(),
            objects_known: snapshot.objects_known,
            devices: devices(snapshot),
            lost_allocations: snapshot.losses.lost_allocations,
            sampling: snapshot.sampling,
            bare: false,
        }
    }

    /// Wall clock of the snapshot's contents, not of reading it: a finished recording may be read a year later.
    pub fn at_unix_ns(&self) -> u64 {
        self.process.started_unix_ns.saturating_add(self.at_ns)
    }
}

fn devices(snapshot: &Snapshot) -> Vec<DeviceUse> {
    let usage_of = |index: usize| {
        let devices = &snapshot.usage.as_ref()?.devices;
        let usage = devices.iter().find(|usage| usage.device == index)?;
        Some((usage.total_bytes, usage.used_bytes))
    };
    let of = |index: usize| DeviceUse {
        label: device_name(snapshot, Some(index)),
        name: snapshot.devices[index].name.clone(),
        total_and_used: usage_of(index),
    };
    (0..snapshot.devices.len()).map(of).collect()
}
