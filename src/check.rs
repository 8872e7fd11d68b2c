//! The verdict on a snapshot: does it hold more than allowed, and which sites are to blame.
//!
//! Without any limit, any leak is one too many. With one limit, the other is off. Claims (records that hold no memory)
//! count only when their kind is asked for by name, since a reserved address range is no leak of memory. Pools of caching
//! allocators are no leak either: where their blocks are known, those are judged, else nothing is. A recording
//! that lost allocations cannot be called clean, so it fails unless that is allowed explicitly. Deliberately absent:
//! suppressions and baselines.

use serde::Serialize;

use crate::kind::Kind;
use crate::report::{By, Level, Levels, ProcessLine, Row, Share, is_finished, process_line, rows_by};
use crate::site::CallStacks;
use crate::snapshot::{Allocation, Honesty, Snapshot, Taken};

/// The value of [`Verdict::format`].
pub const FORMAT: &str = "culeak-check";
pub const VERSION: u32 = 1;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    pub max_leaked: Option<u64>,
    pub max_count: Option<u64>,
    /// Only these kinds; every kind that holds memory when empty.
    pub kinds: Vec<Kind>,
    /// Judge what caching allocators hold too, where the blocks they handed out are not known.
    pub judge_pools: bool,
    /// Judge a recording that lost allocations by what it has.
    pub allow_losses: bool,
}

impl Limits {
    /// Bytes and count allowed; `None` is no limit.
    pub fn effective(&self) -> (Option<u64>, Option<u64>) {
        match (self.max_leaked, self.max_count) {
            (None, None) => (Some(0), Some(0)),
            limits => limits,
        }
    }
}

/// One reason why the check failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Breach {
    Bytes { limit: u64, found: u64 },
    Count { limit: u64, found: u64 },
    LostAllocations { count: u64 },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict<'a> {
    pub format: &'static str,
    pub version: u32,
    pub passed: bool,
    pub breaches: Vec<Breach>,
    pub limits: Limits,
    pub process: ProcessLine<'a>,
    pub finished: bool,
    /// What the limits were held against.
    pub judged: Share,
    /// What `--kind` left out, and pools whose blocks are not known.
    pub ignored: Share,
    /// The judged records by call site, largest first.
    pub rows: Vec<Row<'a>>,
    pub taken: &'a Taken,
    pub honesty: &'a Honesty,
    pub warnings: Vec<String>,
}

/// Judges a snapshot.
pub fn verdict<'a>(snapshot: &'a Snapshot, limits: &Limits) -> Verdict<'a> {
    let stacks = CallStacks::of(snapshot);
    let levels = Levels::of(snapshot, &stacks);
    let judged = |allocation: &Allocation| {
        let wanted = limits.kinds.contains(&allocation.kind);
        match levels.level(allocation) {
            Level::Held => limits.kinds.is_empty() || wanted,
            Level::Cached => limits.judge_pools && (limits.kinds.is_empty() || wanted),
            Level::Behind => false,
            Level::Claim => wanted,
        }
    };
    let (mut found, mut ignored) = (Share::default(), Share::default());
    for allocation in &snapshot.allocations {
        if judged(allocation) {
            found.add(allocation.bytes);
        } else if matches!(levels.level(allocation), Level::Held | Level::Cached) {
            ignored.add(allocation.bytes);
        }
    }
    let (max_bytes, max_count) = limits.effective();
    let mut breaches = Vec::new();
    if let Some(limit) = max_bytes.filter(|&limit| found.bytes > limit) {
        breaches.push(Breach::Bytes {
            limit,
            found: found.bytes,
        });
    }
    if let Some(limit) = max_count.filter(|&limit| found.count > limit) {
        breaches.push(Breach::Count {
            limit,
            found: found.count,
        });
    }
    let lost = snapshot.honesty.lost_allocations;
    if lost > 0 && !limits.allow_losses {
        breaches.push(Breach::LostAllocations { count: lost });
    }
    Verdict {
        format: FORMAT,
        version: VERSION,
        passed: breaches.is_empty(),
        breaches,
        limits: limits.clone(),
        process: process_line(snapshot),
        finished: is_finished(snapshot),
        judged: found,
        ignored,
        rows: rows_by(
            snapshot,
            &stacks,
            snapshot.allocations.iter().filter(|a| judged(a)),
            By::Site,
        ),
        taken: &snapshot.taken,
        honesty: &snapshot.honesty,
        warnings: warnings(snapshot, limits),
    }
}

fn warnings(snapshot: &Snapshot, limits: &Limits) -> Vec<String> {
    let mut warnings = Vec::new();
    let honesty = &snapshot.honesty;
    if honesty.lost_allocations > 0 && limits.allow_losses {
        warnings.push(format!(
            "{} allocations could not be recorded and are not in this verdict (--allow-losses)",
            honesty.lost_allocations
        ));
    }
    if !is_finished(snapshot) {
        warnings.push("the process was not finished, so this is what it held, not what it leaked".to_owned());
    }
    if !honesty.unhooked.is_empty() {
        warnings.push(format!("not watched, so not judged: {}", honesty.unhooked.join(", ")));
    }
    warnings
}

#[cfg(test)]
mod tests;
