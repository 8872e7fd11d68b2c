//! The order in which a tree is printed: each row before the rows below it.
//!
//! A program makes its trees as deep as it likes, so nothing here recurses.

use std::cmp::Ordering;
use std::collections::HashMap;

/// A row in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placed {
    /// The number of the row before.
    pub number: usize,
    /// The place of the row that it is below.
    pub parent: Option<usize>,
    pub depth: usize,
}

/// The places of rows, given the number of each and of the row that it is below; siblings in the order of `compare`. Rows that are
/// deeper than `deepest` are left out, and so are those below a row that is not given.
pub(super) fn preorder(
    rows: impl IntoIterator<Item = (usize, Option<usize>)>,
    deepest: usize,
    compare: impl Fn(usize, usize) -> Ordering,
) -> Vec<Placed> {
    let mut below: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
    for (number, parent) in rows {
        below.entry(parent).or_default().push(number);
    }
    let mut last_first = |parent: Option<usize>| {
        let mut siblings = below.remove(&parent).unwrap_or_default();
        siblings.sort_by(|&a, &b| compare(b, a));
        siblings.into_iter()
    };
    let root = |number| Placed {
        number,
        parent: None,
        depth: 0,
    };
    let mut open: Vec<Placed> = last_first(None).map(root).collect();
    let mut order = Vec::new();
    while let Some(row) = open.pop() {
        if row.depth < deepest {
            open.extend(last_first(Some(row.number)).map(|number| Placed {
                number,
                parent: Some(order.len()),
                depth: row.depth + 1,
            }));
        }
        order.push(row);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_the_row_that_they_are_below() {
        let parents = [None, Some(0), None, Some(0), Some(1)];
        let by_number = preorder(parents.into_iter().enumerate(), usize::MAX, |a, b| a.cmp(&b));
        let seen: Vec<_> = by_number
            .iter()
            .map(|row| (row.number, row.parent, row.depth))
            .collect();
        let expected = [
            (0, None, 0),
            (1, Some(0), 1),
            (4, Some(1), 2),
            (3, Some(0), 1),
            (2, None, 0),
        ];
        assert_eq!(seen, expected);

        let reversed = preorder(parents.into_iter().enumerate(), 1, |a, b| b.cmp(&a));
        let numbers: Vec<_> = reversed.iter().map(|row| row.number).collect();
        assert_eq!(numbers, [2, 0, 3, 1], "the row at depth 2 is left out");
    }
}
