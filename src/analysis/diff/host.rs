//! How the host memory of a process changed, by what holds it, by type, and by arena.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Options;
use crate::analysis::report::Cut;
use crate::analysis::why::untyped;
use crate::snapshot::{Holders, HostMemory};

/// Without rows that did not change.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostChanges {
    /// What was resident, in bytes.
    pub before: u64,
    pub after: u64,
    /// What would be freed with each holder.
    pub holders: Vec<HostChange>,
    /// How many more holders changed.
    pub hidden_holders: usize,
    /// What Python's heap and malloc are used for.
    pub types: Vec<HostChange>,
    pub hidden_types: usize,
    /// What is resident, in use or not: arenas of malloc, Python's heap, mappings.
    pub arenas: Vec<HostChange>,
    pub hidden_arenas: usize,
    /// The hidden rows of all lists by option.
    #[serde(skip)]
    pub cut: Cut,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostChange {
    pub name: String,
    pub before: u64,
    pub after: u64,
    pub bytes_delta: i128,
    /// Of objects or chunks; 0 for holders.
    pub count_delta: i128,
}

/// `None`: a side was not asked for its host memory.
pub(super) fn changes(before: Option<&Holders>, after: Option<&Holders>, options: &Options) -> Option<HostChanges> {
    let (before, after) = (before?, after?);
    let (old, new) = (before.search.host.as_ref()?, after.search.host.as_ref()?);
    let types = |host: &HostMemory| rows(host.types.iter().map(|row| (row.name.clone(), row.bytes, row.count)));
    let arenas = |host: &HostMemory| {
        let all = host.by_arena().into_iter();
        rows(all.map(|row| (row.name, row.bytes.saturating_add(row.free_bytes), row.count)))
    };
    let (holders, of_holders) = compared(held(before), held(after), options);
    let (types, of_types) = compared(types(old), types(new), options);
    let (arenas, of_arenas) = compared(arenas(old), arenas(new), options);
    Some(HostChanges {
        before: old.resident_bytes,
        after: new.resident_bytes,
        holders,
        hidden_holders: of_holders.rows(),
        types,
        hidden_types: of_types.rows(),
        arenas,
        hidden_arenas: of_arenas.rows(),
        cut: of_holders.and(of_types).and(of_arenas),
    })
}

/// Bytes and count by name.
type Rows = BTreeMap<String, (u64, u64)>;

fn rows(all: impl Iterator<Item = (String, u64, u64)>) -> Rows {
    all.fold(Rows::new(), |mut rows, (name, bytes, count)| {
        let row = rows.entry(name).or_default();
        *row = (row.0.saturating_add(bytes), row.1.saturating_add(count));
        rows
    })
}

/// The outermost holders, whose names contain no size, which changes.
fn held(holders: &Holders) -> Rows {
    let outermost = holders.retainers.iter().filter(|retainer| retainer.parent.is_none());
    rows(outermost.map(|retainer| (untyped(&retainer.name).to_owned(), retainer.host_bytes, 0)))
}

/// Growth first, the largest change first, and what was cut off.
fn compared(before: Rows, mut after: Rows, options: &Options) -> (Vec<HostChange>, Cut) {
    before
        .keys()
        .for_each(|name| _ = after.entry(name.clone()).or_default());
    let change = |(name, (bytes, count)): (String, (u64, u64))| {
        let (old_bytes, old_count) = before.get(&name).copied().unwrap_or_default();
        HostChange {
            name,
            before: old_bytes,
            after: bytes,
            bytes_delta: i128::from(bytes) - i128::from(old_bytes),
            count_delta: i128::from(count) - i128::from(old_count),
        }
    };
    let mut all: Vec<HostChange> = after.into_iter().map(change).collect();
    all.retain(|row| row.bytes_delta != 0);
    all.sort_by_key(|row| (row.bytes_delta < 0, std::cmp::Reverse(row.bytes_delta.abs())));
    let enough = |row: &HostChange| row.bytes_delta.unsigned_abs() >= u128::from(options.min_bytes);
    let (cut, _) = Cut::off(&mut all, enough, options.top);
    (all, cut)
}
