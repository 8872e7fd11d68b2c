//! Checks of recordings with sampled stacks: limits of a call site are compared with an estimate and its error.
//!
//! Limits on the whole (`--allow SIZE`, `--allow KIND=SIZE`, the number of blocks) are judged by exact sums if there are no suppressions,
//! and otherwise within what is known for certain (totals.rs). A limit of a call site is broken if the estimate exceeds it by more than [`CERTAIN`] standard errors; closer to
//! the limit, a warning says so.

use super::{Breach, Rules, Verdict, selection};
use crate::analysis::estimate::CERTAIN;
use crate::analysis::groups::Groups;
use crate::analysis::report::Row;
use crate::analysis::site::CallStacks;
use crate::snapshot::Snapshot;

/// The judged groups by stack, if stacks were sampled: what their records stand for.
pub(super) fn groups<'a>(snapshot: &'a Snapshot, stacks: &CallStacks, rules: &Rules) -> Option<Groups<'a>> {
    snapshot.sampling?;
    Some(selection::groups(snapshot, stacks, rules).by_stack())
}

impl Verdict<'_> {
    /// Whether what was found is an estimate from sampled stacks.
    pub fn is_estimate(&self, breach: &Breach) -> bool {
        match breach {
            Breach::Bytes { .. } | Breach::Count { .. } | Breach::Kind { .. } | Breach::Outlier { site: None, .. } => {
                self.judged_estimated.is_some()
            }
            Breach::Budget { .. }
            | Breach::Site { .. }
            | Breach::New { .. }
            | Breach::Grown { .. }
            | Breach::Outlier { .. } => self.sampling.is_some(),
            Breach::Objects { .. } | Breach::NewObjects { .. } | Breach::GrownObjects { .. } | Breach::Class { .. } => {
                false
            }
        }
    }
}

/// What a row holds at least: an estimate from sampled stacks less its error.
pub(super) fn at_least(row: &Row) -> u64 {
    let error = row.estimated.map_or(0, |errors| errors.bytes_error);
    row.bytes.saturating_sub(CERTAIN.saturating_mul(error))
}
