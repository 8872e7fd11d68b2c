//! What changed among objects without an address: by kind and call site, or stack, as for memory.

use serde::Serialize;

use super::{Cut, DiffRow, Options, State, diff_row};
use crate::analysis::objects;
use crate::analysis::pairing::{Key, pair};
use crate::analysis::report::{By, Row};
use crate::analysis::site::CallStacks;
use crate::kind::{Kind, Place};
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
    same_process: bool,
) -> Option<ObjectChanges<'a>> {
    if !(before.objects_known && after.objects_known) {
        return None;
    }
    let (old, new) = (side(before, options), side(after, options));
    let count = |rows: &[(Kind, Row)]| rows.iter().map(|(_, row)| row.count).sum();
    let (count_before, count_after) = (count(&old), count(&new));
    let partners = pair(&keys(&old, options.by), &keys(&new, options.by), !same_process);
    let mut old: Vec<Option<Row>> = old.into_iter().map(|(_, row)| Some(row)).collect();
    let mut rows: Vec<DiffRow> = new
        .into_iter()
        .zip(partners)
        .map(|((_, row), partner)| diff_row(partner.and_then(|partner| old[partner].take()), Some(row)))
        .collect();
    rows.extend(old.into_iter().flatten().map(|row| diff_row(Some(row), None)));
    rows.retain(|row| options.all || row.state != State::Unchanged);
    rows.sort_by(|a, b| {
        let key = |row: &DiffRow| std::cmp::Reverse((row.count_delta.abs(), row.after.count));
        key(a)
            .cmp(&key(b))
            .then_with(|| (&a.kinds, &a.label).cmp(&(&b.kinds, &b.label)))
            .then_with(|| a.stack.fingerprint.cmp(&b.stack.fingerprint))
    });
    let all = rows.len();
    rows.truncate(options.top.unwrap_or(usize::MAX));
    let cut = Cut {
        below_min: 0,
        beyond_top: all - rows.len(),
    };
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
    let named = options.kinds.iter().any(|kind| kind.place() == Place::Object);
    let wanted = named || options.kinds.is_empty() && (before.objects_known || after.objects_known);
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

fn side<'a>(snapshot: &'a Snapshot, options: &Options) -> Vec<(Kind, Row<'a>)> {
    objects::rows(snapshot, &CallStacks::of(snapshot), &options.kinds, options.by)
}

fn keys(rows: &[(Kind, Row)], by: By) -> Vec<Key> {
    let key = if by == By::Site { Key::of_site } else { Key::of_stack };
    rows.iter().map(|(kind, row)| key(row).of_kind(*kind)).collect()
}
