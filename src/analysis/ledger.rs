//! The ledger: what holds each byte of a device that the driver reports as used.
//!
//! ```text
//! used, by the driver    =  blocks of frameworks (tensors, buffers), by framework
//!                         + the rest of their caching allocators' memory, by framework
//!                         + memory of CUDA libraries, by library
//!                         + the program's own allocations
//!                         + this process's context and modules      what the driver counts for the process, minus the above
//!                         + other processes
//!                         + unexplained                             the remainder, which may be negative
//! ```
//!
//! The sum is exact by construction, because [`DeviceLedger::unexplained`] is the remainder. The lines above the
//! context come from records. The others need the driver's figures ([`Usage`]); without these, the ledger contains the
//! records' side and the reason. Blocks lie within records, so their bytes are subtracted from the enclosing record and
//! never counted twice. This holds for damaged files too: overlaps are cut, and blocks outside all recorded memory are
//! counted separately.
//!
//! Host memory and managed memory have separate totals: managed memory migrates, and its location cannot be observed
//! from outside. Deliberately absent: the slack of the driver's own pools. Only the process itself could query it. The
//! driver counts it for the process, so it is part of the line of the context.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analysis::framework::Watched;
use crate::analysis::groups::{Group, Groups};
use crate::analysis::site::CallStacks;
use crate::analysis::tally::Tally;
use crate::kind::Place;
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::{BY_PYTORCH, DeviceUsage, ProcessState, Snapshot, Usage};

mod modes;
mod segments;

pub use modes::Mode;
use modes::pytorch_modes;
pub use segments::{Cache, Segment};
use segments::{Holder, Spread};

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ledger<'a> {
    /// By CUDA's ordinal.
    pub devices: Vec<DeviceLedger<'a>>,
    /// Memory that is in no device's sum, by kind: pinned, registered, host-physical.
    pub host: BTreeMap<&'static str, Tally>,
    /// The library that supplied the driver's figures.
    pub source: Option<&'a str>,
    /// Why the driver's figures are missing for at least one device.
    pub missing: Option<String>,
    /// The observed modes of PyTorch's allocator.
    pub pytorch: Vec<Mode>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceLedger<'a> {
    pub ordinal: i32,
    pub name: &'a str,
    pub uuid: &'a str,
    /// The driver's figures; `None` if it was not asked.
    pub driver: Option<DriverSide>,
    /// In the order of [`What`], then by bytes, largest first.
    pub lines: Vec<Line<'a>>,
    /// Sum of the lines.
    pub known: i128,
    /// The bytes that the driver reports as used, minus `known`.
    pub unexplained: Option<i128>,
    /// Managed memory requested on this device, wherever it is now. In no sum.
    pub managed: Tally,
    /// Blocks outside all memory recorded for this device. In no sum.
    pub outside: Tally,
    /// The caching allocators whose blocks were recorded.
    pub caches: Vec<Cache<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DriverSide {
    pub total_bytes: u64,
    pub used_bytes: u64,
    pub reserved_bytes: u64,
    /// The driver reported what this process uses.
    pub knows_process: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line<'a> {
    pub what: What,
    /// The framework or library that the line is about.
    pub of: Option<&'a str>,
    pub bytes: i128,
    /// Number of blocks, records or processes; 0 if they cannot be counted.
    pub count: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Live tensors and buffers.
    Blocks,
    /// A caching allocator's memory without its live blocks.
    Cached,
    /// A caching allocator's memory, if its blocks were not recorded.
    Pool,
    Library,
    Program,
    Context,
    OtherProcesses,
}

impl<'a> Ledger<'a> {
    pub fn of(snapshot: &'a Snapshot, stacks: &CallStacks, groups: &Groups<'a>) -> Ledger<'a> {
        if snapshot.allocations.is_summed() {
            return Ledger {
                devices: Vec::new(),
                host: BTreeMap::new(),
                source: None,
                missing: Some("a peak is recorded by stack, without the addresses that a ledger needs".to_owned()),
                pytorch: Vec::new(),
            };
        }
        let count = groups.all.len() as u64;
        let _progress = Progress::over("adding up the ledger", count, Unit::Of("groups"));
        let mut spread = Spread::of(snapshot, stacks, groups);
        let mut order: Vec<usize> = (0..snapshot.devices.len()).collect();
        order.sort_by_key(|&device| (snapshot.devices[device].ordinal, device));
        let devices: Vec<_> = order
            .into_iter()
            .map(|device| device_ledger(snapshot, device, &mut spread, groups))
            .collect();
        let mut host: BTreeMap<&'static str, Tally> = BTreeMap::new();
        for group in of_place(groups, Place::Host) {
            host.entry(group.call.kind.name()).or_default().join(group.tally());
        }
        let complete = devices.iter().all(|device| device.driver.is_some());
        Ledger {
            host,
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
}

fn of_place<'c>(groups: &'c Groups, place: Place) -> impl Iterator<Item = &'c Group<'c>> {
    groups.all.iter().filter(move |group| group.call.kind.place() == place)
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
        _ if snapshot.taken.by == BY_PYTORCH => "PyTorch's snapshot covers its own allocator only",
        ProcessState::Unknown => {
            "recorded on another host or in another container, whose driver cannot be asked from here"
        }
    };
    reported.unwrap_or_else(|| otherwise.to_owned())
}

fn device_ledger<'a>(
    snapshot: &'a Snapshot,
    device: usize,
    spread: &mut Spread<'a>,
    groups: &Groups,
) -> DeviceLedger<'a> {
    let mut lines = record_lines(spread, device, &groups.watched);
    let records = sum(&lines);
    let usage = |usage: &Usage| usage.devices.iter().find(|usage| usage.device == device).cloned();
    let usage = snapshot.usage.as_ref().and_then(usage);
    if let Some(usage) = &usage {
        lines.extend(driver_lines(usage, records));
    }
    let known = sum(&lines);
    let managed = of_place(groups, Place::Managed).filter(|group| group.call.device == Some(device));
    let managed = Tally::total(managed.map(|group| group.tally()));
    let shown = &snapshot.devices[device];
    DeviceLedger {
        ordinal: shown.ordinal,
        name: &shown.name,
        uuid: &shown.uuid,
        lines,
        known,
        unexplained: usage.as_ref().map(|usage| i128::from(usage.used_bytes) - known),
        managed,
        outside: spread.outside(device),
        caches: spread.take_caches(device),
        driver: usage.map(|usage| DriverSide {
            total_bytes: usage.total_bytes,
            used_bytes: usage.used_bytes,
            reserved_bytes: usage.reserved_bytes,
            knows_process: usage.process_bytes.is_some(),
        }),
    }
}

/// The lines that come from records: blocks by framework, then their holders without the blocks.
fn record_lines<'a>(spread: &Spread<'a>, device: usize, watched: &Watched) -> Vec<Line<'a>> {
    let mut lines: BTreeMap<(What, Option<&'a str>), Line<'a>> = BTreeMap::new();
    let mut add = |what, of, bytes: i128, count| {
        let line = lines.entry((what, of)).or_insert(Line {
            what,
            of,
            bytes: 0,
            count: 0,
        });
        line.bytes += bytes;
        line.count += count;
    };
    for (holder, held, blocks) in spread.held(device) {
        let mut rest = held.bytes;
        for (owner, tally) in blocks {
            rest -= tally.bytes;
            add(What::Blocks, Some(owner), tally.bytes, tally.count);
        }
        match holder {
            Holder::Pool(owner) if watched.contains(owner) => add(What::Cached, Some(owner), rest, held.count),
            Holder::Pool(owner) => add(What::Pool, Some(owner), rest, held.count),
            Holder::Library(name) => add(What::Library, Some(name), rest, held.count),
            Holder::Program => add(What::Program, None, rest, held.count),
        }
    }
    let mut lines: Vec<_> = lines.into_values().collect();
    lines.sort_by_key(|line| (line.what, std::cmp::Reverse(line.bytes)));
    lines
}

/// The lines that come from the driver.
fn driver_lines(usage: &DeviceUsage, records: i128) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some(process) = usage.process_bytes {
        lines.push(Line {
            what: What::Context,
            of: None,
            // If records exceed the driver's figure, the remainder becomes negative.
            bytes: (i128::from(process) - records).max(0),
            count: 0,
        });
    }
    if let Some(others) = usage.others {
        lines.push(Line {
            what: What::OtherProcesses,
            of: None,
            bytes: others.bytes.into(),
            count: others.count,
        });
    }
    lines
}

fn sum(lines: &[Line]) -> i128 {
    lines.iter().map(|line| line.bytes).sum()
}

#[cfg(test)]
mod tests;
