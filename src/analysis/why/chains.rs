//! Retainers with texts of a bounded length.
//!
//! Each node of a linked list dominates the rest of the list, so a list of 400 nodes is a chain of 400 retainers, whose names
//! repeat one step up to 400 times. Such a chain is one row, and repeated steps of a name are one step.

use std::collections::HashMap;

use super::retained::largest;
use super::words::shortened;
use super::{Options, Retained};
use crate::analysis::preorder::preorder;
use crate::analysis::words::count;

/// Fewer repetitions of a step are written out.
const REPEATED: usize = 4;
/// The most parts of a step that is repeated, such as ` →`, ` Node` and `.next`.
const PARTS: usize = 4;
/// The most characters of a name.
const NAME_SHOWN: usize = 200;

/// The rows of the tree to show, and the number of rows that are left out.
pub(super) fn shown(tree: Vec<Retained>, options: &Options) -> (Vec<Retained>, usize) {
    let merged = in_order(merged(tree), options);
    let all = merged.len();
    let shown = largest(merged, options);
    let hidden = all - shown.len();
    (shown, hidden)
}

/// The row around siblings, their name, the names of the other references to them, and whether there are any.
type Siblings = (Option<usize>, String, Vec<String>, bool);

/// One row for a chain that repeats a step, and one for siblings with the same text. Parents precede children.
fn merged(tree: Vec<Retained>) -> Vec<Retained> {
    let mut rows: Vec<Retained> = Vec::with_capacity(tree.len());
    let mut shapes: Vec<String> = Vec::with_capacity(tree.len());
    // The row that stands for each node of the tree.
    let mut row_of: Vec<usize> = Vec::with_capacity(tree.len());
    // The first of siblings with the same text, and their number.
    let mut siblings: HashMap<Siblings, (usize, u64)> = HashMap::new();
    for node in tree {
        let parent = node.parent.map(|parent| row_of[parent]);
        let runs = runs(&node.name);
        let shape: String = runs.iter().map(|run| run.step).collect();
        let repeats = runs.iter().any(|run| run.times > 1);
        if let Some(around) = parent.filter(|&around| repeats && !node.is_shared() && shapes[around] == shape) {
            rows[around].repeated += 1;
            row_of.push(around);
            continue;
        }
        let name = shortened(runs.iter().map(Run::text).collect(), NAME_SHOWN);
        let also: Vec<String> = node
            .also
            .iter()
            .map(|also| shortened(also.clone(), NAME_SHOWN))
            .collect();
        let key = (parent, name.clone(), also.clone(), node.is_shared());
        let (first, members) = siblings.entry(key).or_insert((rows.len(), 0));
        *members += 1;
        row_of.push(*first);
        if *members > 1 {
            let row = &mut rows[*first];
            row.tally.join(node.tally);
            row.host_bytes += node.host_bytes;
            row.possibly_bytes = row.possibly_bytes.saturating_add(node.possibly_bytes);
            row.name = format!("{} × {name}", count(*members));
            continue;
        }
        rows.push(Retained {
            name,
            also,
            parent,
            ..node
        });
        shapes.push(shape);
    }
    rows
}

/// The rows in the order in which they are printed, siblings by size; without rows that free nothing.
fn in_order(rows: Vec<Retained>, options: &Options) -> Vec<Retained> {
    let freeing = rows.iter().map(|row| row.parent).enumerate();
    let freeing = freeing.filter(|&(nth, _)| rows[nth].tally.count > 0 || rows[nth].host_bytes > 0);
    let by_size = |a: &Retained, b: &Retained| match options.host {
        true => options.size(b).cmp(&options.size(a)),
        false => b.tally.cmp(&a.tally),
    };
    let order = preorder(freeing, usize::MAX, |a, b| by_size(&rows[a], &rows[b]).then(a.cmp(&b)));
    let in_place = order.into_iter().map(|row| Retained {
        parent: row.parent,
        depth: row.depth,
        ..rows[row.number].clone()
    });
    in_place.collect()
}

/// A step of a name, and how often it is repeated.
struct Run<'n> {
    step: &'n str,
    times: usize,
}

impl Run<'_> {
    fn text(&self) -> String {
        match self.times {
            times if times < REPEATED => self.step.repeat(times),
            times => format!(" … {} × {} …", count(times as u64), self.step.trim()),
        }
    }
}

/// The steps of a name: parts begin at brackets, points and spaces.
fn runs(name: &str) -> Vec<Run<'_>> {
    let begins = |c: char| matches!(c, '[' | '.' | ' ');
    let starts = name.char_indices().filter(|&(at, c)| at > 0 && begins(c));
    let mut starts: Vec<usize> = [0].into_iter().chain(starts.map(|(at, _)| at)).collect();
    starts.push(name.len());
    let parts = starts.len() - 1;
    let step = |at: usize, length: usize| &name[starts[at]..starts[at + length]];
    let mut runs = Vec::new();
    let mut at = 0;
    while at < parts {
        let times = |length: usize| {
            let repeated = (1..).take_while(|nth| {
                let next = at + nth * length;
                next + length <= parts && step(next, length) == step(at, length)
            });
            repeated.count() + 1
        };
        let lengths = 1..=PARTS.min(parts - at);
        let mut repeated = lengths.map(|length| (length, times(length)));
        let (length, times) = repeated.find(|&(_, times)| times > 1).unwrap_or((1, 1));
        runs.push(Run {
            step: step(at, length),
            times,
        });
        at += length * times;
    }
    runs
}
