//! What changed among objects without an address: by kind and call site, or stack, as for memory.

use serde::Serialize;

use super::{Cut, DiffRow, Moved, Options, compared, cut, name};
use crate::analysis::objects;
use crate::analysis::report::Row;
use crate::analysis::site::CallStacks;
use crate::kind::Place;
use crate::snapshot::Snapshot;

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ObjectChanges<'a> {
    /// Each of one kind, with 0 bytes; the largest change of the count first.
    pub rows: Vec<DiffRow<'a>>,
    pub hidden_rows: usize,
    /// Objects of all kinds.
    pub before: u64,
    pub after: u64,
    /// `hidden_rows` by option.
    #[serde(skip)]
    pub cut: Cut,
}

pub(super) fn changes<'a>(
    before: &'a Snapshot,
    after: &'a Snapshot,
    options: &Options,
    moved: Moved,
) -> Option<ObjectChanges<'a>> {
    if !(before.objects_known && after.objects_known) {
        return None;
    }
    let (by, stacks) = (options.by.of_objects(), [CallStacks::of(before), CallStacks::of(after)]);
    let side = |snapshot, stacks| objects::rows(snapshot, stacks, &options.filter, by);
    let (old, new) = (side(before, &stacks[0]), side(after, &stacks[1]));
    let count = |rows: &[Row]| rows.iter().map(|row| row.count).sum();
    let (count_before, count_after) = (count(&old), count(&new));
    let mut rows = compared((old, new), &stacks, by, moved);
    let key = |row: &DiffRow| std::cmp::Reverse((row.count_delta.abs(), row.after.count));
    rows.sort_by(|a, b| (key(a), &a.kinds, name(a)).cmp(&(key(b), &b.kinds, name(b))));
    let cut = cut(&mut rows, options, 0);
    Some(ObjectChanges {
        hidden_rows: cut.rows(),
        cut,
        rows,
        before: count_before,
        after: count_after,
    })
}

/// Why objects are not compared, in one sentence; `None` if they are, or are not selected.
pub(super) fn not_compared(before: &Snapshot, after: &Snapshot, options: &Options) -> Option<String> {
    let named = options.filter.kinds.iter().any(|kind| kind.place() == Place::Object);
    let wanted = named || options.filter.kinds.is_empty() && (before.objects_known || after.objects_known);
    let which = match (before.objects_known, after.objects_known) {
        (true, true) => return None,
        (false, true) => "the first snapshot does not",
        (true, false) => "the second snapshot does not",
        (false, false) => "neither snapshot does",
    };
    wanted.then(|| {
        format!(
            "objects without an address are not compared, because {which} contain those of its point; compare two points other \
             than the peak, recorded by this version of culeak"
        )
    })
}
