//! The ledgers of two points, line by line, and what each line gained: what start-up took, or the capture of one graph.
//!
//! Lines pair by what they are and whom they are of. The live blocks of a framework are divided by category first, so
//! parameters and the KV cache have lines of their own. What the lines gained therefore adds up to what the driver gave.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Ledger, Line, LineKind};
use crate::analysis::categories::{Categories, Category, Sorter};
use crate::analysis::diff::{Side, elapsed, same_process, side, warnings};
use crate::analysis::framework::block_owner;
use crate::analysis::groups::Groups;
use crate::analysis::site::CallStacks;
use crate::kind::Place;
use crate::snapshot::Snapshot;
use crate::tally::Tally;

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

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
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

/// What pairs the lines of a device, in their order.
type Key<'a> = (LineKind, Option<&'a str>, Option<Category>);
type Lines<'a> = BTreeMap<Key<'a>, [Option<Line<'a>>; 2]>;

impl<'a> LedgerDiff<'a> {
    /// `categories`: the rules that divide the blocks of frameworks.
    pub fn of(before: &'a Snapshot, after: &'a Snapshot, categories: &Categories) -> LedgerDiff<'a> {
        let mut devices: BTreeMap<i32, (DeviceChange, Lines)> = BTreeMap::new();
        let mut host: BTreeMap<&'static str, [Tally; 2]> = BTreeMap::new();
        let (mut held, mut missing) = ([Tally::default(); 2], Vec::new());
        for (nth, snapshot) in [before, after].into_iter().enumerate() {
            let (ledger, parts) = ledger(snapshot, categories);
            for (kind, tally) in ledger.host {
                host.entry(kind).or_default()[nth] = tally;
            }
            missing.extend(ledger.segments_missing.map(|why| {
                let which = ["first", "second"][nth];
                format!("the {which} ledger has no code, contexts, graphs and other memory that the driver took for itself: {why}")
            }));
            for device in ledger.devices {
                let (change, lines) = devices.entry(device.ordinal).or_default();
                (change.ordinal, change.name) = (device.ordinal, device.name);
                change.unexplained[nth] = device.unexplained;
                for line in device.lines {
                    if line.what.is_of_process() {
                        change.process[nth] += line.bytes;
                        held[nth].join(tally(&line));
                    }
                    let owner = line.of.filter(|_| line.what == LineKind::Blocks);
                    let parts = owner.and_then(|owner| parts.get(&(device.ordinal, owner)));
                    for (category, part) in divided(&line, parts) {
                        let known = &mut lines.entry((line.what, line.of, category)).or_default()[nth];
                        let (bytes, count) = known.as_ref().map_or((0, 0), |known| (known.bytes, known.count));
                        *known = Some(Line {
                            bytes: bytes + part.bytes,
                            count: count + part.count,
                            ..part
                        });
                    }
                }
            }
        }
        let same_process = same_process(before, after);
        missing.extend(warnings([(before, false), (after, false)], same_process));
        let devices = devices.into_values().map(|(change, lines)| DeviceChange {
            lines: lines.into_iter().map(|(key, sides)| line_change(key, sides)).collect(),
            ..change
        });
        LedgerDiff {
            format: FORMAT,
            version: VERSION,
            before: side(before, held[0]),
            after: side(after, held[1]),
            same_process,
            elapsed_ns: elapsed(before, after).filter(|_| same_process),
            devices: devices.collect(),
            host,
            warnings: missing,
        }
    }
}

/// Blocks of a framework on a device by category.
type Parts<'a> = BTreeMap<(i32, &'a str), BTreeMap<Category, Tally>>;

fn ledger<'a>(snapshot: &'a Snapshot, categories: &Categories) -> (Ledger<'a>, Parts<'a>) {
    let stacks = CallStacks::of(snapshot);
    let groups = Groups::of(snapshot, &stacks);
    let sorter = Sorter::new(categories, snapshot);
    let mut parts = Parts::new();
    let blocks = groups
        .all
        .iter()
        .filter(|group| group.call.kind.place() == Place::Within);
    // Without their stacks, blocks have no category.
    for group in blocks.filter(|_| snapshot.sampling.is_none()) {
        if let Some(device) = group.call.device {
            let owner = (snapshot.devices[device].ordinal, block_owner(group.call));
            let category = sorter.category(group.stack, group.call, &stacks);
            let of_owner = parts.entry(owner).or_default();
            of_owner.entry(category).or_default().join(group.tally());
        }
    }
    (Ledger::of(snapshot, &stacks, &groups), parts)
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
