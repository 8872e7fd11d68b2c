//! Memory that one process exports by an IPC handle and others open: one memory with several users. It counts for the process that
//! allocated it; an opened handle counts 0 bytes.
//!
//! A handle has the same number in all processes (`Call::shared`), and is valid on one host.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use serde::Serialize;

use super::member::ProcessRef;
use super::names::Names;
use super::sites::{Site, Sites};
use crate::analysis::facts::SiteId;
use crate::kind::Kind;
use crate::snapshot::Snapshot;

/// The most handles of one process, and of a job, that are kept.
const OF_PROCESS: usize = 4096;
const OF_JOB: usize = 1 << 17;
/// The most users that a row lists.
const USERS: usize = 64;

/// An exported block, or an opened handle, of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedPart {
    pub number: u64,
    pub is_opened: bool,
    /// Of the block; for an opened handle as the driver says.
    pub bytes: u64,
    pub site: SiteId,
}

/// The exported blocks and the opened handles of a process. `site_of`: the call site of a stack.
pub(super) fn parts(snapshot: &Snapshot, mut site_of: impl FnMut(Option<usize>) -> Option<SiteId>) -> Vec<SharedPart> {
    if !snapshot.allocations.calls().iter().any(|call| call.shared.is_some()) {
        return Vec::new();
    }
    let rows = snapshot.allocations.iter();
    let shared = rows.filter_map(|row| Some((row, row.call.shared?)));
    let parts = shared.filter_map(|(row, number)| {
        Some(SharedPart {
            number,
            is_opened: row.kind == Kind::Ipc,
            bytes: if row.kind == Kind::Ipc {
                row.requested
            } else {
                row.bytes
            },
            site: site_of(row.stack)?,
        })
    });
    parts.take(OF_PROCESS).collect()
}

/// Blocks of one call site of one process that the same processes have open.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SharedRow {
    pub bytes: u64,
    pub blocks: u64,
    /// The process that allocated them; `None` if it is not among the processes.
    pub owner: Option<ProcessRef>,
    /// Where it allocated them.
    pub site: Option<Site>,
    /// Some of the processes that have them open, if there are many, and the number of all.
    pub users: Vec<ProcessRef>,
    pub of_users: u64,
    /// A call site at which the first of them opened a block.
    pub opened_at: Site,
}

/// One memory.
#[derive(Debug, Default)]
struct Memory {
    /// Process, call site and bytes.
    owner: Option<(u32, SiteId, u64)>,
    users: Vec<(u32, SiteId, u64)>,
}

/// The owner and its call site, and the users by number.
type Alike = (Option<(u32, SiteId)>, Vec<u32>);

#[derive(Default)]
struct SharedSum {
    bytes: u64,
    blocks: u64,
    opened_at: BTreeSet<SiteId>,
}

/// The shared memory of a job, by host and number.
#[derive(Debug, Default)]
pub(super) struct Shared {
    memories: HashMap<(String, u64), Memory>,
    /// Handles beyond [`OF_JOB`].
    beyond: u64,
}

impl Shared {
    pub fn add(&mut self, process: u32, host: &str, parts: &[SharedPart]) {
        for part in parts {
            let key = (host.to_owned(), part.number);
            if self.memories.len() >= OF_JOB && !self.memories.contains_key(&key) {
                self.beyond += 1;
                continue;
            }
            let memory = self.memories.entry(key).or_default();
            let of_process = (process, part.site, part.bytes);
            match part.is_opened {
                true => memory.users.push(of_process),
                false => memory.owner = Some(of_process),
            }
        }
    }

    /// The largest first, and the number of handles that were not kept.
    pub fn rows(self, sites: &Sites, names: &Names) -> (Vec<SharedRow>, u64) {
        let mut alike: BTreeMap<Alike, SharedSum> = BTreeMap::new();
        for memory in self.memories.into_values() {
            let Some(first) = memory.users.iter().min() else {
                continue;
            };
            let users: BTreeSet<u32> = memory.users.iter().map(|user| user.0).collect();
            let owner = memory.owner.map(|(process, site, _)| (process, site));
            let bytes = memory.owner.map_or(first.2, |owner| owner.2);
            let sum = alike.entry((owner, users.into_iter().collect())).or_default();
            sum.bytes = sum.bytes.saturating_add(bytes);
            sum.blocks += 1;
            sum.opened_at.insert(first.1);
        }
        // The numbers of sites depend on which process was read first, their texts do not.
        let first_of = |opened: BTreeSet<SiteId>| {
            let sites = opened.into_iter().map(|site| sites.get(site));
            sites.min_by_key(|site| (site.label.clone(), site.place.clone()))
        };
        let row = |((owner, users), sum): (Alike, SharedSum)| {
            Some(SharedRow {
                bytes: sum.bytes,
                blocks: sum.blocks,
                owner: owner.and_then(|(number, _)| names.process(number)),
                site: owner.map(|(_, site)| sites.get(site)),
                of_users: users.len() as u64,
                users: (users.iter().filter_map(|user| names.process(*user)))
                    .take(USERS)
                    .collect(),
                opened_at: first_of(sum.opened_at)?,
            })
        };
        let mut rows: Vec<SharedRow> = alike.into_iter().filter_map(row).collect();
        let text = |row: &SharedRow| {
            let site = row.site.as_ref().map(|site| (site.label.clone(), site.place.clone()));
            (row.owner.clone(), site, row.users.first().cloned())
        };
        rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| text(a).cmp(&text(b))));
        (rows, self.beyond)
    }
}
