//! The ledger: what holds each byte of a device that the driver reports as used.
//!
//! ```text
//! used, by the driver    =  blocks of frameworks (tensors, buffers), by framework
//!                         + the rest of their caching allocators' memory, by framework
//!                         + memory of CUDA libraries, by library
//!                         + the program's own allocations
//!                         + what the kernel driver gave beyond these    rounding, pools, local memory, code, streams,
//!                                                                      graphs, the context: see `process`
//!                         = this process
//!                         + other processes
//!                         + the driver's own                            by context and device, and page tables: see `driver`
//!                         + unexplained                                 the remainder, which may be negative
//! ```
//!
//! The sum is exact by construction, because [`DeviceLedger::unexplained`] is the remainder. The lines of the process come
//! from the recording alone. The others need the driver's figures ([`Usage`]); without these, the ledger contains the process's
//! side and the reason. If the recording has no segments, one line stands for all that the driver counts for the process beyond its
//! blocks. Blocks lie within records, so their bytes are subtracted from the enclosing record and
//! never counted twice. This holds for damaged files too: overlaps are cut, and blocks outside all recorded memory are
//! counted separately.
//!
//! Host memory and managed memory have separate totals: managed memory migrates, and its location cannot be observed
//! from outside. The driver counts it for no process, so what lies on the device is part of the remainder.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analysis::framework::Watched;
use crate::analysis::groups::{Group, Groups};
use crate::analysis::site::CallStacks;
use crate::kind::{Kind, Place};
use crate::point::Point;
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::{DeviceUsage, ProcessState, Snapshot, Usage};
use crate::tally::Tally;

mod caches;
pub mod change;
mod driver;
mod driver_calls;
mod host;
mod line;
mod modes;
mod pages;
mod process;
pub mod segments;

pub use caches::{Cache, CacheSegment};
use caches::{Holder, Spread};
pub use change::{DeviceChange, LedgerDiff, LineChange};
pub use driver_calls::{Purpose, name_segments};
pub use host::{HostLine, HostLineKind};
pub use line::{Line, LineKind};
pub use modes::Mode;
use modes::pytorch_modes;
use process::ProcessSide;
pub use process::{AtPeakOfProcess, MemoryPool, Part, PoolOf, ProcessSum};

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Ledger<'a> {
    /// By CUDA's ordinal.
    pub devices: Vec<DeviceLedger<'a>>,
    /// Memory that is in no device's sum, by kind: pinned, registered, host-physical.
    pub host: BTreeMap<&'static str, Tally>,
    /// What is known of host memory beyond its kinds.
    pub host_lines: Vec<HostLine>,
    /// The library that supplied the driver's figures.
    pub source: Option<&'a str>,
    /// Why the driver's figures are missing for at least one device.
    pub missing: Option<String>,
    /// Why the recording does not show what the kernel driver gave to the process; `None` if it does.
    pub segments_missing: Option<String>,
    /// The observed modes of PyTorch's allocator.
    pub pytorch: Vec<Mode>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceLedger<'a> {
    pub ordinal: i32,
    pub name: &'a str,
    pub uuid: &'a str,
    /// The driver's figures; `None` if it was not asked.
    pub driver: Option<&'a DeviceUsage>,
    /// In the order of [`LineKind`], then by bytes, largest first.
    pub lines: Vec<Line<'a>>,
    /// The sum of the lines of this process, if what the kernel driver gave to it was recorded.
    pub process: Option<ProcessSum>,
    /// Sum of the lines.
    pub known: i128,
    /// The bytes that the driver reports as used, minus `known`.
    pub unexplained: Option<i128>,
    /// Managed memory was requested on this device, so the remainder includes the part of it that lies there.
    pub had_managed: bool,
    /// Managed memory requested on this device, wherever it is now. In no sum.
    pub managed: Tally,
    /// Blocks outside all memory recorded for this device. In no sum.
    pub outside: Tally,
    /// The caching allocators whose blocks were recorded.
    pub caches: Vec<Cache<'a>>,
}

impl<'a> Ledger<'a> {
    pub fn of(snapshot: &'a Snapshot, stacks: &CallStacks<'a>, groups: &Groups<'a>) -> Ledger<'a> {
        if snapshot.allocations.is_summed() {
            return Ledger::at_peak(snapshot, stacks);
        }
        let count = groups.all.len() as u64;
        let _progress = Progress::over("adding up the ledger", count, Unit::Of("groups"));
        let mut spread = Spread::of(snapshot, stacks, groups);
        let devices = by_ordinal(snapshot).into_iter();
        let devices: Vec<_> = devices
            .map(|device| device_ledger(snapshot, device, &mut spread, stacks, groups))
            .collect();
        let mut host: BTreeMap<&'static str, Tally> = BTreeMap::new();
        for group in groups.of_place(Place::Host) {
            host.entry(group.call.kind.name()).or_default().join(group.tally());
        }
        let complete = devices.iter().all(|device| device.driver.is_some());
        Ledger {
            host,
            host_lines: host::lines(snapshot, stacks, groups),
            segments_missing: segments_missing(snapshot),
            source: snapshot
                .usage
                .as_ref()
                .map(|usage| usage.source.as_str())
                .filter(|_| !devices.is_empty()),
            missing: (!complete).then(|| missing(snapshot)),
            pytorch: pytorch_modes(groups, stacks).into_iter().collect(),
            devices,
        }
    }

    /// At the peak, memory of the program is known by stack, without the addresses that a ledger needs, and at the instant of
    /// its own peak. What the kernel driver gave has its own peak, and is listed whole.
    fn at_peak(snapshot: &'a Snapshot, stacks: &CallStacks<'a>) -> Ledger<'a> {
        let devices = by_ordinal(snapshot).into_iter().filter_map(|device| {
            let side = ProcessSide::at_peak(snapshot, device, stacks)?;
            Some(DeviceLedger {
                known: sum(&side.lines),
                process: Some(side.sum),
                lines: side.lines,
                ..DeviceLedger::empty(snapshot, device)
            })
        });
        Ledger {
            devices: devices.collect(),
            segments_missing: segments_missing(snapshot),
            missing: Some(
                "the program's own memory at its peak is known by stack, and the driver was not asked then".to_owned(),
            ),
            ..Ledger::default()
        }
    }
}

/// Devices in the order of CUDA's ordinals.
fn by_ordinal(snapshot: &Snapshot) -> Vec<usize> {
    let mut order: Vec<usize> = (0..snapshot.devices.len()).collect();
    order.sort_by_key(|&device| (snapshot.devices[device].ordinal, device));
    order
}

impl<'a> DeviceLedger<'a> {
    fn empty(snapshot: &'a Snapshot, device: usize) -> DeviceLedger<'a> {
        let shown = &snapshot.devices[device];
        DeviceLedger {
            ordinal: shown.ordinal,
            name: &shown.name,
            uuid: &shown.uuid,
            ..DeviceLedger::default()
        }
    }
}

fn missing(snapshot: &Snapshot) -> String {
    let reported = snapshot.usage.as_ref().and_then(|usage| usage.missing.clone());
    let otherwise = match snapshot.process.state {
        ProcessState::Exited | ProcessState::Ended => {
            "the process has ended, so the driver no longer counts anything for it"
        }
        _ if snapshot.taken.automatic.is_some() => {
            "the recorder took this snapshot by itself, and it does not query the driver"
        }
        ProcessState::Running => "the driver was not asked when this snapshot was taken",
        _ if snapshot.taken.covers_allocators_only() => "only the framework's allocator is known",
        ProcessState::Unknown => {
            "recorded on another host or in another container, whose driver cannot be asked from here"
        }
    };
    reported.unwrap_or_else(|| otherwise.to_owned())
}

/// Why the recording lacks what the kernel driver gave.
fn segments_missing(snapshot: &Snapshot) -> Option<String> {
    if process::has_segments(snapshot) || snapshot.devices.is_empty() {
        return None;
    }
    if let Some(why) = &snapshot.losses.segments_ended {
        return Some(format!("what the kernel driver gave is not known, since {why}"));
    }
    let why = match snapshot.taken.point {
        _ if snapshot.taken.covers_allocators_only() => "only the framework's allocator is known",
        Some(Point::Mark(_) | Point::Time(_)) => "the event log lacks what the kernel driver gave",
        _ => {
            "the recording lacks what the kernel driver gave; it is older, or its recorder could not observe that driver"
        }
    };
    Some(why.to_owned())
}

fn device_ledger<'a>(
    snapshot: &'a Snapshot,
    device: usize,
    spread: &mut Spread<'a>,
    stacks: &CallStacks<'a>,
    groups: &Groups,
) -> DeviceLedger<'a> {
    let mut lines = record_lines(spread, device, &groups.watched);
    let records = sum(&lines);
    let usage = |usage: &'a Usage| usage.devices.iter().find(|usage| usage.device == device);
    let usage = snapshot.usage.as_ref().and_then(usage);
    let driver_bytes = usage.and_then(|usage| usage.process_bytes);
    let side = ProcessSide::of(snapshot, device, stacks, driver_bytes);
    let mut own = None;
    let mut process = None;
    match side {
        Some(mut side) => {
            lines.append(&mut side.lines);
            own = Some((side.contexts, side.channels));
            process = Some(side.sum);
        }
        // If records exceed the driver's figure, the remainder becomes negative.
        None => lines.extend(driver_bytes.map(|bytes| {
            let bytes = (i128::from(bytes) - records).max(0);
            Line::new(LineKind::Context, None, bytes, 0, true)
        })),
    }
    if let Some(usage) = usage {
        lines.extend(driver::other_processes(usage));
        let rest = i128::from(usage.used_bytes) - sum(&lines);
        if let Some((contexts, channels)) = own {
            let pinned = pinned(groups, device);
            lines.extend(driver::own_lines(usage, contexts, channels, pinned, rest));
        }
    }
    let known = sum(&lines);
    let managed = groups
        .of_place(Place::Managed)
        .filter(|group| group.call.device == Some(device));
    let managed = Tally::total(managed.map(|group| group.tally()));
    let mut counters = snapshot.counters.iter();
    DeviceLedger {
        lines,
        process,
        known,
        unexplained: usage.map(|usage| i128::from(usage.used_bytes) - known),
        had_managed: managed.count > 0
            || counters
                .any(|of| of.kind == Kind::Managed && of.device.is_none_or(|of| of == device) && of.total_count > 0),
        managed,
        outside: spread.outside(device),
        caches: spread.take_caches(device),
        driver: usage,
        ..DeviceLedger::empty(snapshot, device)
    }
}

/// Pinned host memory that contexts of a device map.
fn pinned(groups: &Groups, device: usize) -> u128 {
    let of_device = |group: &&Group| group.call.device.is_none_or(|of| of == device);
    let groups = groups.of_place(Place::Host).filter(of_device);
    groups.fold(0, |sum, group| sum.saturating_add(group.bytes))
}

/// The lines that come from records: blocks by framework, then their holders without the blocks.
fn record_lines<'a>(spread: &Spread<'a>, device: usize, watched: &Watched) -> Vec<Line<'a>> {
    let mut lines: BTreeMap<(LineKind, Option<&'a str>), Line<'a>> = BTreeMap::new();
    let mut add = |what, of, bytes: i128, count| {
        let line = lines.entry((what, of)).or_insert(Line::new(what, of, 0, 0, true));
        line.bytes += bytes;
        line.count += count;
    };
    for (holder, held, blocks) in spread.held(device) {
        let mut rest = held.bytes;
        for (owner, tally) in blocks {
            rest -= tally.bytes;
            add(LineKind::Blocks, Some(owner), tally.bytes, tally.count);
        }
        match holder {
            Holder::Pool(owner) if watched.contains(owner) => add(LineKind::Cached, Some(owner), rest, held.count),
            Holder::Pool(owner) => add(LineKind::Pool, Some(owner), rest, held.count),
            Holder::Library(name) => add(LineKind::Library, Some(name), rest, held.count),
            Holder::Program => add(LineKind::Program, None, rest, held.count),
        }
    }
    let mut lines: Vec<_> = lines.into_values().collect();
    lines.sort_by_key(|line| (line.what, std::cmp::Reverse(line.bytes)));
    lines
}

fn sum(lines: &[Line]) -> i128 {
    lines.iter().map(|line| line.bytes).sum()
}

#[cfg(test)]
mod tests;
