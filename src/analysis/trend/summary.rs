//! A summary: what a trend needs of one snapshot, which is bytes and blocks per call site and the time.
//!
//! A trend may read thousands of snapshots with millions of records each, so each snapshot is dropped after it is
//! summarized. Sites are therefore owned text.

use serde::Serialize;

use super::Options;
use crate::analysis::function_name::plain;
use crate::analysis::objects;
use crate::analysis::opaque::OpaquePool;
use crate::analysis::pairing::Key;
use crate::analysis::program::Program;
use crate::analysis::report::{By, Row, RowsOfKinds, Tally, device_name, is_finished};
use crate::analysis::site::CallStacks;
pub use crate::analysis::site::text::{Site, SiteFrame};
use crate::kind::Kind;
use crate::snapshot::{Sampling, Snapshot};

/// One snapshot of one process.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The input as named on the command line.
    pub source: String,
    pub program: Program,
    pub(super) process: Process,
    /// On the recording's own clock.
    pub(super) at_ns: u64,
    /// The process has ended, and the snapshot shows what it left.
    pub(super) at_end: bool,
    /// The number of marks set by then, and the name of the last.
    pub(super) marks: u64,
    pub(super) mark: Option<String>,
    /// Memory, then objects.
    pub(super) rows: Vec<SummaryRow>,
    /// The memory of all rows, if they are estimates from sampled stacks and it is not.
    pub(super) exact: Option<Tally>,
    pub(super) opaque_pools: Vec<OpaquePool>,
    /// Whether the objects of this snapshot are known.
    pub(super) objects_known: bool,
    pub(super) devices: Vec<DeviceSummary>,
    pub(super) lost_allocations: u64,
    pub(super) sampling: Option<Sampling>,
    pub(super) bare: bool,
}

/// Identifies a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Process {
    pub started_unix_ns: u64,
    pub host: String,
    pub pid: u32,
    pub command_line: Vec<String>,
    pub ranks: std::collections::BTreeMap<String, String>,
}

#[derive(Debug, Clone)]
pub(super) struct SummaryRow {
    pub key: Key,
    pub site: Site,
    pub tally: Tally,
    /// It is an estimate from sampled stacks.
    pub is_estimate: bool,
    /// The device that holds most of it.
    pub device: Option<String>,
}

/// A device in one snapshot.
#[derive(Debug, Clone)]
pub(super) struct DeviceSummary {
    pub label: String,
    pub name: String,
    /// Bytes in total and in use, if the driver was asked.
    pub total_and_used: Option<(u64, u64)>,
}

impl Summary {
    pub fn of(snapshot: &Snapshot, source: String, options: &Options) -> Summary {
        let stacks = CallStacks::of(snapshot);
        let RowsOfKinds {
            rows,
            total: (total, errors),
            opaque_pools,
            ..
        } = RowsOfKinds::of(snapshot, &stacks, &options.kinds, options.by);
        let objects = objects::rows(snapshot, &stacks, &options.kinds, options.by);
        let process = &snapshot.process;
        let mut marks = snapshot
            .marks
            .iter()
            .filter(|mark| mark.time_ns <= snapshot.taken.at_ns);
        let automatic = snapshot.taken.automatic.as_ref();
        let taken_at_mark = automatic.and_then(|automatic| automatic.name.clone());
        Summary {
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
            bare: !rows.is_empty()
                && rows
                    .iter()
                    .all(|row| row.site().is_some_and(|site| site.function.is_none())),
            rows: (rows.iter().map(|row| SummaryRow::of(row, options.by)))
                .chain(
                    objects
                        .iter()
                        .map(|(kind, row)| SummaryRow::of_objects(*kind, row, options.by)),
                )
                .collect(),
            exact: (snapshot.sampling.is_some() && errors.is_none()).then_some(total),
            opaque_pools,
            objects_known: snapshot.objects_known,
            devices: devices(snapshot),
            lost_allocations: snapshot.losses.lost_allocations,
            sampling: snapshot.sampling,
        }
    }

    /// Wall clock of the snapshot's contents, not of reading it: a finished recording may be read a year later.
    pub(super) fn at_unix_ns(&self) -> u64 {
        self.process.started_unix_ns.saturating_add(self.at_ns)
    }

    pub(super) fn total(&self) -> Tally {
        let memory = self.rows.iter().filter(|row| row.site.object.is_none());
        let sum = || Tally::total(memory.map(|row| row.tally));
        self.exact.unwrap_or_else(sum)
    }
}

impl SummaryRow {
    fn of(row: &Row, by: By) -> SummaryRow {
        let key = if by == By::Site {
            Key::of_site(row)
        } else {
            Key::of_stack(row)
        };
        let stack = &row.stacks[0].stack;
        SummaryRow {
            site: Site {
                label: plain(&row.label).into_owned(),
                pool: row.pool,
                allocator: row.allocator,
                library: row.library,
                kinds: row.kinds.keys().copied().collect(),
                fingerprint: key.exact,
                ..Site::of(stack)
            },
            key,
            tally: row.tally(),
            is_estimate: row.estimated.is_some(),
            device: row
                .devices
                .iter()
                .filter(|(name, _)| name.starts_with("GPU "))
                .max_by_key(|(_, tally)| tally.bytes)
                .map(|(name, _)| name.clone()),
        }
    }
}

impl SummaryRow {
    fn of_objects(kind: Kind, row: &Row, by: By) -> SummaryRow {
        let mut of = SummaryRow::of(row, by);
        (of.key, of.site.object) = (of.key.of_kind(kind), Some(kind.name()));
        of
    }
}

fn devices(snapshot: &Snapshot) -> Vec<DeviceSummary> {
    let usage_of = |index: usize| {
        let usage = snapshot
            .usage
            .as_ref()?
            .devices
            .iter()
            .find(|usage| usage.device == index)?;
        Some((usage.total_bytes, usage.used_bytes))
    };
    let summary = |index: usize| DeviceSummary {
        label: device_name(snapshot, Some(index)),
        name: snapshot.devices[index].name.clone(),
        total_and_used: usage_of(index),
    };
    (0..snapshot.devices.len()).map(summary).collect()
}
