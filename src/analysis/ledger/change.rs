//! The ledgers of two points, line by line, and what each line gained: what start-up took, or the capture of one graph.
//!
//! Lines pair by what they are and whom they are of. The live blocks of a framework are divided by category first, so
//! parameters and the KV cache have lines of their own. What the lines gained therefore adds up to what the driver gave.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{DeviceLedger, Ledger, Line, LineKind};
use crate::analysis::categories::{Categories, Category, Sorter};
use crate::analysis::diff::{Side, elapsed, same_process, side, warnings};
use crate::analysis::framework::block_owner;
use crate::analysis::groups::Groups;
use crate::analysis::site::CallStacks;
use crate::analysis::tally::Tally;
use crate::kind::Place;
use crate::snapshot::Snapshot;

/// The value of [`LedgerDiff::format`].
pub const FORMAT: &str = "culeak-ledger-diff";
pub const VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LedgerDiff<'a> {
    pub format: &'static str,
    pub version: u32,
    /// Its `held`: the lines of this process on all devices.
    pub before: Side<'a>,
    pub after: Side<'a>,
    /// Both show the same process.
    pub same_process: bool,
    /// Time between the two, if both show the same process and the first is not the later one.
    pub elapsed_ns: Option<u64>,
    /// By CUDA's ordinal.
    pub devices: Vec<DeviceChange<'a>>,
    /// Memory that is in no device's sum, by kind: pinned, registered, host-physical.
    pub host: BTreeMap<&'static str, [Tally; 2]>,
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceChange<'a> {
    pub ordinal: i32,
    pub name: &'a str,
    /// In the order of the ledger's lines, and blocks in the order of the categories.
    pub lines: Vec<LineChange<'a>>,
    /// The sum of the lines of this process, before and after.
    pub process: [i128; 2],
    /// What no line explains, if the driver was asked.
    pub unexplained: [Option<i128>; 2],
}

/// A line of the ledger in either or both.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LineChange<'a> {
    pub what: LineKind,
    /// The framework or library that the line is about.
    pub of: Option<&'a str>,
    /// What live blocks are for; `None` for other lines, and for blocks of sampled stacks.
    pub category: Option<Category>,
    pub before: Option<Line<'a>>,
    pub after: Option<Line<'a>>,
    pub bytes_delta: i128,
    pub count_delta: i128,
}

type Key<'a> = (LineKind, Option<&'a str>, Option<Category>);
type Lines<'a> = BTreeMap<Key<'a>, Line<'a>>;

impl<'a> LedgerDiff<'a> {
    /// `categories`: the rules that divide the blocks of frameworks.
    pub fn of(before: &'a Snapshot, after: &'a Snapshot, categories: &Categories) -> LedgerDiff<'a> {
        let snapshots = [before, after];
        let ledgers = snapshots.map(|snapshot| ledger(snapshot, categories));
        let mut devices: BTreeMap<i32, [Option<&(DeviceLedger, Lines)>; 2]> = BTreeMap::new();
        let mut host: BTreeMap<&'static str, [Tally; 2]> = BTreeMap::new();
        let mut missing = Vec::new();
        for (nth, (ledger, of_devices)) in ledgers.iter().enumerate() {
            for device in of_devices {
                devices.entry(device.0.ordinal).or_default()[nth] = Some(device);
            }
            for (kind, tally) in &ledger.host {
                host.entry(kind).or_default()[nth] = *tally;
            }
            let which = ["first", "second"][nth];
            missing.extend(ledger.segments_missing.as_ref().map(|why| {
                format!("the {which} ledger has no code, contexts, graphs and other memory that the driver took for itself: {why}")
            }));
        }
        let held = |nth: usize| {
            let lines = ledgers[nth].1.iter().flat_map(|(_, lines)| lines.values());
            Tally::total(lines.filter(|line| line.what.is_of_process()).map(tally))
        };
        let same_process = same_process(before, after);
        missing.extend(warnings([(before, false), (after, false)], same_process));
        LedgerDiff {
            format: FORMAT,
            version: VERSION,
            before: side(before, held(0)),
            after: side(after, held(1)),
            same_process,
            elapsed_ns: elapsed(before, after).filter(|_| same_process),
            devices: devices
                .into_iter()
                .map(|(ordinal, sides)| device_change(ordinal, sides))
                .collect(),
            host,
            warnings: missing,
        }
    }
}

/// The ledger of a snapshot, and the lines of its devices with blocks divided by category.
fn ledger<'a>(snapshot: &'a Snapshot, categories: &Categories) -> (Ledger<'a>, Vec<(DeviceLedger<'a>, Lines<'a>)>) {
    let stacks = CallStacks::of(snapshot);
    let groups = Groups::of(snapshot, &stacks);
    let mut ledger = Ledger::of(snapshot, &stacks, &groups);
    let sorter = Sorter::new(categories, snapshot);
    let mut parts: BTreeMap<(i32, &str), BTreeMap<Category, Tally>> = BTreeMap::new();
    let blocks = groups
        .all
        .iter()
        .filter(|group| group.call.kind.place() == Place::Within);
    // Without their stacks, blocks have no category.
    for group in blocks.filter(|_| snapshot.sampling.is_none()) {
        if let Some(device) = group.call.device {
            let device = (snapshot.devices[device].ordinal, block_owner(group.call));
            let category = sorter.category(group.stack, group.call, &stacks);
            parts
                .entry(device)
                .or_default()
                .entry(category)
                .or_default()
                .join(group.tally());
        }
    }
    let devices = std::mem::take(&mut ledger.devices).into_iter().map(|device| {
        let mut lines = Lines::new();
        for line in &device.lines {
            let owner = line.of.filter(|_| line.what == LineKind::Blocks);
            let parts = owner.and_then(|owner| parts.get(&(device.ordinal, owner)));
            for (category, part) in divided(line, parts) {
                let shown = lines
                    .entry((line.what, line.of, category))
                    .or_insert(Line::new(line.what, line.of, 0, 0, true));
                let (bytes, count) = (shown.bytes + part.bytes, shown.count + part.count);
                *shown = Line { bytes, count, ..part };
            }
        }
        (device, lines)
    });
    let devices = devices.collect();
    (ledger, devices)
}

/// A line by category. Whole, if parts of its blocks lie outside recorded memory and are in no line: which parts is not known.
fn divided<'a>(line: &Line<'a>, parts: Option<&BTreeMap<Category, Tally>>) -> Vec<(Option<Category>, Line<'a>)> {
    let bytes = |parts: &BTreeMap<Category, Tally>| parts.values().map(|part| i128::from(part.bytes)).sum::<i128>();
    let Some(parts) = parts.filter(|parts| bytes(parts) == line.bytes) else {
        return vec![(None, line.clone())];
    };
    let of_category = |part: &Tally| Line {
        bytes: part.bytes.into(),
        count: part.count,
        ..line.clone()
    };
    parts
        .iter()
        .map(|(category, part)| (Some(*category), of_category(part)))
        .collect()
}

fn tally(line: &Line) -> Tally {
    Tally::new(u64::try_from(line.bytes.max(0)).unwrap_or(u64::MAX), line.count)
}

fn device_change<'a>(ordinal: i32, sides: [Option<&(DeviceLedger<'a>, Lines<'a>)>; 2]) -> DeviceChange<'a> {
    let mut lines: BTreeMap<Key<'a>, [Option<Line<'a>>; 2]> = BTreeMap::new();
    for (nth, (_, of_side)) in sides.iter().enumerate().filter_map(|(nth, side)| Some((nth, (*side)?))) {
        for (key, line) in of_side {
            lines.entry(*key).or_default()[nth] = Some(line.clone());
        }
    }
    let ledgers = sides.map(|side| side.map(|(ledger, _)| ledger));
    let process = |ledger: Option<&DeviceLedger>| {
        let lines = ledger.into_iter().flat_map(|ledger| &ledger.lines);
        lines
            .filter(|line| line.what.is_of_process())
            .map(|line| line.bytes)
            .sum()
    };
    DeviceChange {
        ordinal,
        name: ledgers[1].or(ledgers[0]).map_or("", |ledger| ledger.name),
        lines: lines.into_iter().map(|(key, sides)| line_change(key, sides)).collect(),
        process: ledgers.map(process),
        unexplained: ledgers.map(|ledger| ledger?.unexplained),
    }
}

fn line_change<'a>((what, of, category): Key<'a>, [before, after]: [Option<Line<'a>>; 2]) -> LineChange<'a> {
    let bytes = |line: &Option<Line>| line.as_ref().map_or(0, |line| line.bytes);
    let count = |line: &Option<Line>| line.as_ref().map_or(0, |line| i128::from(line.count));
    LineChange {
        what,
        of,
        category,
        bytes_delta: bytes(&after) - bytes(&before),
        count_delta: count(&after) - count(&before),
        before,
        after,
    }
}
