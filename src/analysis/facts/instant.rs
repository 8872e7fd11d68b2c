//! A process at one instant: what a snapshot says beside its rows. It is the line of the process in documents about jobs.

use serde::Serialize;

use super::{Sampling, Snapshot, Tally, device_name, is_finished};
use crate::analysis::job::member::Member;
use crate::analysis::opaque::OpaquePool;
use crate::analysis::program::Program;
use crate::point::Point;
use crate::snapshot::ProcessState;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Instant {
    /// The input as named on the command line.
    pub source: String,
    #[serde(flatten)]
    pub member: Member,
    pub state: ProcessState,
    /// It has ended, and what it held at its end or exit is shown.
    pub finished: bool,
    /// The process has ended, and the snapshot shows what it left.
    #[serde(skip)]
    pub at_end: bool,
    /// Ordinals in the process.
    pub devices: Vec<i32>,
    /// Memory in use, without pools.
    pub held: Tally,
    /// Memory of caching allocators.
    pub pools: Tally,
    /// The part of it whose blocks were not recorded.
    pub opaque_pools: Vec<OpaquePool>,
    /// The sum of the exact peaks of its devices.
    pub peak_bytes: u64,
    /// What the driver reports beyond everything that is known; `None` if the driver was not asked.
    pub unexplained_bytes: Option<i128>,
    /// Requests that CUDA refused.
    pub failed: Tally,
    /// Memory that suppressions removed from its call sites.
    pub suppressed: Tally,
    /// Memory that did not pass the filter.
    pub left_out: Tally,
    /// It has no mark of the name that the filter starts at, so all of its memory passes.
    pub lacks_mark: bool,
    /// Allocations that were not recorded.
    pub lost_allocations: u64,
    #[serde(skip)]
    pub lost_marks: u64,
    /// Automatic snapshots that were not written.
    #[serde(skip)]
    pub lost_snapshots: u64,
    /// Nothing that a report counts is missing.
    #[serde(skip)]
    pub is_complete: bool,
    /// How stacks were sampled: what it holds at call sites is estimated.
    #[serde(skip)]
    pub sampling: Option<Sampling>,
    /// `held` is an estimate, too: what a filter selected, or what was held at a peak.
    #[serde(skip)]
    pub held_is_estimated: bool,
    /// It is an automatic snapshot, and not the recording.
    #[serde(skip)]
    pub is_automatic: bool,
    /// Wall clock of the contents, not of reading them: a finished recording may be read a year later.
    pub at_unix_ns: u64,
    #[serde(skip)]
    pub process: Process,
    /// On the recording's own clock.
    #[serde(skip)]
    pub at_ns: u64,
    /// The number of marks set by then, and the name of the last.
    #[serde(skip)]
    pub marks: u64,
    #[serde(skip)]
    pub mark: Option<String>,
    /// The memory of all rows, if they are estimates from sampled stacks and it is not.
    #[serde(skip)]
    pub exact: Option<Tally>,
    /// Whether the objects of this snapshot are known.
    #[serde(skip)]
    pub objects_known: bool,
    #[serde(skip)]
    pub usage: Vec<DeviceUse>,
    /// No call site has a function's name.
    #[serde(skip)]
    pub bare: bool,
}

/// Identifies a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Process {
    pub started_unix_ns: u64,
    pub host: String,
    pub pid: u32,
    pub command_line: Vec<String>,
    pub ranks: std::collections::BTreeMap<String, String>,
    /// PyTorch's allocator, if it took the snapshot; else empty.
    #[serde(skip)]
    pub by: String,
}

/// A device at one instant.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceUse {
    pub label: String,
    pub name: String,
    /// Bytes in total and in use, if the driver was asked.
    pub total_and_used: Option<(u64, u64)>,
}

impl Instant {
    /// Without the sums of its rows.
    pub fn of(snapshot: &Snapshot, source: String) -> Instant {
        let (process, taken) = (&snapshot.process, &snapshot.taken);
        let mut marks = (snapshot.marks.iter()).filter(|mark| mark.time_ns <= taken.at_ns);
        let taken_at_mark = taken.automatic.as_ref().and_then(|automatic| automatic.name.clone());
        let at_end = is_finished(snapshot);
        let peaks = snapshot.device_peaks.iter().map(|peak| peak.peak_bytes);
        let lasted_ns = taken.lasted_ns.unwrap_or(taken.at_ns);
        Instant {
            source,
            member: Member::of(snapshot),
            state: process.state,
            finished: at_end || taken.point == Some(Point::End) && process.state != ProcessState::Running,
            at_end,
            devices: snapshot.devices.iter().map(|device| device.ordinal).collect(),
            peak_bytes: peaks.fold(0, u64::saturating_add),
            failed: Tally::total(snapshot.failed.iter().map(Tally::from)),
            lost_allocations: snapshot.losses.lost_allocations,
            lost_marks: snapshot.losses.lost_marks,
            lost_snapshots: snapshot.losses.lost_snapshots,
            is_complete: snapshot.is_complete(),
            sampling: snapshot.sampling,
            is_automatic: taken.automatic.is_some(),
            at_unix_ns: process.started_unix_ns.saturating_add(lasted_ns),
            process: Process {
                started_unix_ns: process.started_unix_ns,
                host: process.host.clone(),
                pid: process.pid,
                command_line: process.command_line.clone(),
                ranks: process.ranks.clone(),
                by: if taken.is_by_pytorch() {
                    taken.by.clone()
                } else {
                    String::new()
                },
            },
            at_ns: taken.at_ns,
            marks: marks.clone().count() as u64,
            mark: taken_at_mark.or_else(|| marks.next_back().map(|mark| mark.name.clone())),
            objects_known: snapshot.objects_known,
            usage: devices(snapshot),
            ..Instant::default()
        }
    }

    /// As [`Instant::of`], without what only a trend needs: a job may have a hundred thousand processes.
    pub fn in_job(snapshot: &Snapshot, source: String) -> Instant {
        Instant {
            process: Process::default(),
            mark: None,
            usage: Vec::new(),
            ..Instant::of(snapshot, source)
        }
    }

    /// What is shown was never freed, although the process exited: a killed one had no time to, and the shutdown of an interpreter
    /// frees much of what a script holds when it ends.
    pub fn leaked(&self) -> bool {
        self.at_end && self.state == ProcessState::Exited
    }

    /// The variance of each byte held, if that is an estimate; 0 if it is exact.
    pub fn held_scatter(&self) -> f64 {
        if self.held_is_estimated {
            self.site_scatter()
        } else {
            0.0
        }
    }

    /// The variance of each byte at a call site of which no block was chosen; 0 if it is exact.
    pub fn site_scatter(&self) -> f64 {
        // The variance of a block is less than its size times the distance.
        self.sampling.as_ref().map_or(0.0, |sampling| sampling.most() as f64)
    }

    /// By what processes are listed: program, rank, host and pid.
    pub fn order(&self) -> (Program, u32, String, u32, String) {
        let Member { program, host, pid, .. } = self.member.clone();
        let rank = self.member.rank.unwrap_or(u32::MAX);
        (program, rank, host, pid, self.source.clone())
    }

    /// Wall clock of the rows.
    pub fn time_unix_ns(&self) -> u64 {
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
